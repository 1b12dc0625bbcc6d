//! A candidate against its controls on one panel.

use crate::schema::{PanelPlan, RuleName, RuleResult};

use super::arms::Trial;
use super::evidence::PanelGold;
use super::findings::Finding;
use super::outcomes::{Outcome, PanelOutcomes, Place, outcomes};
use super::pairs::{AnswerPairs, NllPairs};
use super::rescore::Rescore;
use super::rules::{self, Subject};
use super::{CertifyError, Reason};

/// Most case names in one clause.
const CASES_SHOWN: usize = 3;

/// A panel with its outcomes, rules and findings.
pub(super) struct PanelResult<'a> {
    /// Plan of the panel.
    pub plan: &'a PanelPlan,
    /// Name of the panel.
    pub name: String,
    /// Pairs with each control, in the protocol's order.
    pub pairs: Vec<Pairs<'a>>,
    /// Rules that could be evaluated, per rule and control.
    pub rules: Vec<(RuleName, RuleResult)>,
    /// What stands against objectives.
    pub findings: Vec<Finding>,
}

/// Paired outcomes with one control.
pub(super) struct Pairs<'a> {
    /// Name of the control in the protocol.
    pub control: &'a str,
    /// The pairs.
    pub values: PairValues,
}

/// Paired outcomes by kind of panel.
pub(super) enum PairValues {
    /// Math and retrieval.
    Answers(AnswerPairs),
    /// NLL.
    Nll(NllPairs),
}

impl PanelResult<'_> {
    /// Whether every planned case of the protocol has one good record in every arm.
    pub fn is_complete(&self) -> bool {
        let fault = |finding: &Finding| finding.reason <= Reason::NoPanel;
        !self.pairs.is_empty() && !self.findings.iter().any(fault)
    }
}

/// Compares the candidate with each control on every panel of the protocol.
///
/// # Errors
/// As [`outcomes`].
pub(super) fn panels<'a>(
    trial: &'a Trial<'a>,
    scorer: &dyn Rescore,
) -> Result<Vec<PanelResult<'a>>, CertifyError> {
    let plans = &trial.evidence.manifest.protocol.panels;
    plans
        .iter()
        .map(|plan| panel(trial, plan, scorer))
        .collect()
}

/// Rules that are evaluated on a panel.
pub(super) fn rules_on(plan: &PanelPlan) -> &'static [RuleName] {
    match plan {
        PanelPlan::Math { .. } => &[RuleName::GrossLoss, RuleName::NetChange],
        PanelPlan::Nll { .. } => &[RuleName::Nll],
        PanelPlan::Retrieval { .. } => &[RuleName::Retrieval],
    }
}

fn panel<'a>(
    trial: &'a Trial<'a>,
    plan: &'a PanelPlan,
    scorer: &dyn Rescore,
) -> Result<PanelResult<'a>, CertifyError> {
    let mut result = PanelResult {
        plan,
        name: plan.panel_name(),
        pairs: Vec::new(),
        rules: Vec::new(),
        findings: Vec::new(),
    };
    match trial.evidence.panels.get(&result.name) {
        None => result.find_absent(trial),
        Some(gold) => {
            result.find_short(trial, gold);
            result.pair(trial, gold, scorer)?;
            result.evaluate(trial);
        }
    }
    Ok(result)
}

impl<'a> PanelResult<'a> {
    fn find(&mut self, reason: Reason, detail: String) {
        self.findings.push(Finding::new(reason, detail));
    }

    fn find_absent(&mut self, trial: &Trial<'_>) {
        let panels = &trial.evidence.manifest.panels;
        let entry = panels.iter().find(|panel| panel.panel == self.name);
        match entry.and_then(|panel| panel.unsupported.as_ref()) {
            Some(why) => {
                self.find(
                    Reason::PanelUnsupported,
                    format!("panel {}: {why}", self.name),
                );
            }
            None => {
                let detail = format!("panel {} is not part of the run", self.name);
                self.find(Reason::MissingRecords, detail);
            }
        }
    }

    fn find_short(&mut self, trial: &Trial<'_>, gold: &PanelGold) {
        let named = self.plan.case_count() as usize;
        let (built, planned) = (gold.cases.len(), trial.evidence.planned(gold));
        if built < named {
            let detail = format!(
                "panel {} has {built} cases, the protocol names {named}",
                self.name
            );
            self.find(Reason::FewerCases, detail);
        }
        if planned < built {
            let detail = format!(
                "--limit cut panel {} to {planned} of {built} cases",
                self.name
            );
            self.find(Reason::Limit, detail);
        }
    }

    fn pair(
        &mut self,
        trial: &'a Trial<'a>,
        gold: &PanelGold,
        scorer: &dyn Rescore,
    ) -> Result<(), CertifyError> {
        let candidate = self.outcomes_of(trial, gold, &trial.arm.arm, scorer)?;
        for control in &trial.controls {
            let Some(arm) = control.arm else { continue };
            let outcomes = self.outcomes_of(trial, gold, &arm.arm, scorer)?;
            self.pairs.push(Pairs {
                control: control.name,
                values: self.values(gold, &outcomes.outcomes, &candidate.outcomes),
            });
        }
        Ok(())
    }

    fn outcomes_of(
        &mut self,
        trial: &Trial<'_>,
        gold: &PanelGold,
        arm: &str,
        scorer: &dyn Rescore,
    ) -> Result<PanelOutcomes, CertifyError> {
        let records = trial
            .evidence_of(arm)
            .map_or(&[][..], |found| found.on(&self.name));
        let place = Place {
            arm,
            panel: &self.name,
        };
        let planned = trial.evidence.planned(gold);
        let found = outcomes(place, gold, planned, records, scorer)?;
        let clauses = found
            .faults
            .iter()
            .map(|(reason, cases)| Finding::new(*reason, fault_clause(*reason, place, cases)));
        self.findings.extend(clauses);
        Ok(found)
    }

    fn values(
        &self,
        gold: &PanelGold,
        control: &[Option<Outcome>],
        candidate: &[Option<Outcome>],
    ) -> PairValues {
        match self.plan {
            PanelPlan::Nll { .. } => {
                PairValues::Nll(NllPairs::collect(&gold.cases, control, candidate))
            }
            PanelPlan::Math { .. } | PanelPlan::Retrieval { .. } => {
                PairValues::Answers(AnswerPairs::count(control, candidate))
            }
        }
    }

    fn evaluate(&mut self, trial: &Trial<'_>) {
        let protocol = &trial.evidence.manifest.protocol;
        for pairs in std::mem::take(&mut self.pairs) {
            if let PairValues::Answers(counts) = &pairs.values {
                self.find_weak(trial, pairs.control, counts);
            }
            for &rule in rules_on(self.plan) {
                let panel = self.name.clone();
                let subject = Subject {
                    rule,
                    panel: &panel,
                    control: pairs.control,
                };
                let result = match &pairs.values {
                    PairValues::Answers(counts) => rules::on_answers(subject, counts, protocol),
                    PairValues::Nll(values) => rules::on_nll(subject, values, protocol),
                };
                self.keep(subject, result);
            }
            self.pairs.push(pairs);
        }
    }

    fn keep(&mut self, subject: Subject<'_>, result: Result<RuleResult, crate::stats::StatsError>) {
        let Subject {
            rule,
            panel,
            control,
        } = subject;
        match result {
            Err(error) => {
                let name = rule.name();
                let detail = format!("{name} on {panel} against {control} is undefined: {error}");
                self.findings
                    .push(Finding::of_rule(Reason::BoundUndefined, rule, detail));
            }
            Ok(result) => {
                if !result.pass {
                    let detail = exceeded_clause(&result);
                    self.findings
                        .push(Finding::of_rule(Reason::BoundExceedsLimit, rule, detail));
                }
                self.rules.push((rule, result));
            }
        }
    }

    /// A control that answers little has little to lose.
    fn find_weak(&mut self, trial: &Trial<'_>, control: &str, counts: &AnswerPairs) {
        let assay = &trial.evidence.manifest.protocol.assay_sensitivity;
        let least = match self.plan {
            PanelPlan::Math { .. } => assay.math,
            PanelPlan::Retrieval { .. } => assay.retrieval,
            PanelPlan::Nll { .. } => return,
        };
        if counts.pairs > 0 && counts.control_accuracy() < least {
            let detail = format!(
                "control {control} answers {} of {} right on {} ({}), at least {} is needed",
                counts.control_correct,
                counts.pairs,
                self.name,
                percent(counts.control_accuracy()),
                percent(least)
            );
            self.find(Reason::ControlTooWeak, detail);
        }
    }
}

fn fault_clause(reason: Reason, place: Place<'_>, cases: &[String]) -> String {
    let what = match reason {
        Reason::ErroredRecords => "errored",
        Reason::DuplicateRecords => "have several records",
        Reason::NonFiniteRecords => "have no finite likelihood",
        Reason::UnknownRecords => "are not in the panel",
        _ => "have no record",
    };
    let shown = cases.len().min(CASES_SHOWN);
    let more = if cases.len() > shown { ", …" } else { "" };
    format!(
        "arm {}, panel {}: {} cases {what} ({}{more})",
        place.arm,
        place.panel,
        cases.len(),
        cases[..shown].join(", ")
    )
}

fn exceeded_clause(result: &RuleResult) -> String {
    let counts = match (result.lost, result.gained) {
        (Some(lost), Some(gained)) => format!("{lost} lost, {gained} gained of {}", result.pairs),
        _ => format!("{} documents", result.pairs),
    };
    format!(
        "{} on {} against {}: bound {} crosses the limit {} ({counts})",
        result.rule,
        result.panel,
        result.control,
        percent(result.bound),
        percent(result.limit)
    )
}

/// A proportion in per cent with as many decimals as it needs, four at most.
pub(super) fn percent(proportion: f64) -> String {
    let text = format!("{:.4}", 100.0 * proportion);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}
