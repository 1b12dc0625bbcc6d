//! A candidate against its controls on one panel.

use crate::schema::{PanelPlan, RuleName, RuleResult};

use super::arms::Trial;
use super::evidence::{Evidence, PanelGold};
use super::findings::Finding;
use super::outcomes::{Outcome, Place, outcomes};
use super::pairs::{AnswerPairs, NllPairs};
use super::rescore::Rescore;
use super::rules::{self, Subject, Threshold};
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
        None => result.findings.push(absence(trial.evidence, &result.name)),
        Some(gold) => {
            result.findings.extend(shortage(trial.evidence, plan, gold));
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
                values: pair_values(self.plan, gold, &outcomes, &candidate),
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
    ) -> Result<Vec<Option<Outcome>>, CertifyError> {
        let place = trial.evidence.place(arm, &self.name);
        let (outcomes, faults) = arm_outcomes(trial.evidence, place, gold, scorer)?;
        self.findings.extend(faults);
        Ok(outcomes)
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
                    PairValues::Answers(counts) => {
                        rules::on_answers(subject, counts, Threshold::of(protocol, rule))
                    }
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

/// Why the run has no cases of a panel.
pub(super) fn absence(evidence: &Evidence, name: &str) -> Finding {
    let panels = &evidence.manifest.panels;
    let entry = panels.iter().find(|panel| panel.panel == name);
    match entry.and_then(|panel| panel.unsupported.as_ref()) {
        Some(why) => Finding::new(Reason::PanelUnsupported, format!("panel {name}: {why}")),
        None => {
            let what = if entry.is_some() {
                "of the run is not the one that the protocol names"
            } else {
                "is not part of the run"
            };
            let detail = format!("panel {name} {what}");
            Finding {
                by_nature: evidence.is_imported() && entry.is_none(),
                ..Finding::new(Reason::MissingRecords, detail)
            }
        }
    }
}

/// By how much the run falls short of the cases that the protocol names.
pub(super) fn shortage(evidence: &Evidence, plan: &PanelPlan, gold: &PanelGold) -> Vec<Finding> {
    let (name, named) = (plan.panel_name(), plan.case_count() as usize);
    let (built, planned) = (gold.cases.len(), evidence.planned(gold));
    let mut findings = Vec::new();
    if built < named {
        let detail = format!("panel {name} has {built} cases, the protocol names {named}");
        findings.push(Finding {
            by_nature: evidence.is_imported(),
            ..Finding::new(Reason::FewerCases, detail)
        });
    }
    if planned < built {
        let detail = format!("--limit cut panel {name} to {planned} of {built} cases");
        findings.push(Finding::new(Reason::Limit, detail));
    }
    findings
}

/// The outcomes of an arm on a panel in plan order, and what is wrong with its records.
///
/// # Errors
/// As [`outcomes`].
pub(super) fn arm_outcomes(
    evidence: &Evidence,
    place: Place<'_>,
    gold: &PanelGold,
    scorer: &dyn Rescore,
) -> Result<(Vec<Option<Outcome>>, Vec<Finding>), CertifyError> {
    let arm = evidence.arms.get(place.arm);
    let records = arm.map_or(&[][..], |found| found.on(place.panel));
    let found = outcomes(place, gold, evidence.planned(gold), records, scorer)?;
    let faults = found
        .faults
        .iter()
        .map(|(reason, cases)| Finding::new(*reason, fault_clause(*reason, place, cases)));
    let faults = faults.collect();
    Ok((found.outcomes, faults))
}

/// Pairs of one panel by its kind.
pub(super) fn pair_values(
    plan: &PanelPlan,
    gold: &PanelGold,
    control: &[Option<Outcome>],
    candidate: &[Option<Outcome>],
) -> PairValues {
    match plan {
        PanelPlan::Nll { .. } => {
            PairValues::Nll(NllPairs::collect(&gold.cases, control, candidate))
        }
        PanelPlan::Math { .. } | PanelPlan::Retrieval { .. } => {
            PairValues::Answers(AnswerPairs::count(control, candidate))
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
        with_unit(&result.rule, result.bound),
        with_unit(&result.rule, result.limit)
    )
}

/// A bound or limit of the rule `rule` as limits are written: net change in percentage points.
pub(super) fn with_unit(rule: &str, proportion: f64) -> String {
    let text = percent(proportion);
    match text.strip_suffix('%') {
        Some(points) if rule == RuleName::NetChange.name() => format!("{points} pp"),
        _ => text,
    }
}

/// A proportion in per cent with as many decimals as it needs, four at most.
pub(super) fn percent(proportion: f64) -> String {
    let text = format!("{:.4}", 100.0 * proportion);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}
