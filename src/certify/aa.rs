//! Native against native.

use crate::schema::{AA_ARM, AaResult, ArmRole, ManifestArm, PanelPlan, Record, RuleName};
use crate::stats::clopper_pearson_upper;

use super::arms::Trial;
use super::compare::{arm_outcomes, percent};
use super::error::AaDifference;
use super::evidence::PanelGold;
use super::findings::Finding;
use super::rescore::Rescore;
use super::{CertifyError, Reason};

/// The A/A comparison and what stands against objectives because of it.
#[derive(Default)]
pub(super) struct Aa {
    /// Figures; absent where the run has no A/A arm that could run.
    pub result: Option<AaResult>,
    /// Findings.
    pub findings: Vec<Finding>,
}

/// Compares the first control with the A/A arm, record by record, and scores the answers of the A/A
/// arm again: its figures rest on stored verdicts.
///
/// # Errors
/// [`CertifyError::Mismatch`] for records that contradict themselves: these were changed behind the
/// worker, which comes before what would be put down to it. Then [`CertifyError::AaDiffers`] on a
/// built-in worker.
pub(super) fn compare(trial: &Trial<'_>, scorer: &dyn Rescore) -> Result<Aa, CertifyError> {
    let manifest = &trial.evidence.manifest;
    let second = manifest.arms.iter().find(|arm| arm.role == ArmRole::Aa);
    let first = trial.controls.first().and_then(|control| control.arm);
    let (Some(first), Some(second)) = (first, second.filter(|arm| arm.unsupported.is_none()))
    else {
        return Ok(absent(trial));
    };
    let mut totals = AaResult {
        lost: 0,
        gained: 0,
        records: 0,
        identical_bits: true,
    };
    let plans = manifest.protocol.panels.iter();
    let panels: Vec<(&PanelPlan, String, &PanelGold)> = plans
        .filter_map(|plan| {
            let name = plan.panel_name();
            let gold = trial.evidence.panels.get(&name)?;
            Some((plan, name, gold))
        })
        .collect();
    let mut findings = Vec::new();
    for (_, name, gold) in &panels {
        let place = trial.evidence.place(&second.arm, name);
        let (_, faults) = arm_outcomes(trial.evidence, place, gold, scorer)?;
        findings.extend(faults);
    }
    for (plan, name, gold) in &panels {
        let found = on_panel(trial, name, gold, (first, second));
        found.judge(trial, plan, (first, second), &mut findings)?;
        found.add_to(&mut totals);
    }
    Ok(Aa {
        result: Some(totals),
        findings,
    })
}

/// Without a second native run nothing shows that a built-in worker keeps its promise.
fn absent(trial: &Trial<'_>) -> Aa {
    let lack = trial.evidence.is_built_in().then(|| {
        let kind = &trial.evidence.manifest.worker.kind;
        let detail = format!(
            "the run has no arm {AA_ARM}: native was not run a second time, which worker {kind} needs"
        );
        Finding::new(Reason::MissingRecords, detail)
    });
    Aa {
        result: None,
        findings: lack.into_iter().collect(),
    }
}

/// The comparison on one panel.
struct PanelAa {
    panel: String,
    records: u64,
    /// Records of questions that both arms answered.
    answered: u64,
    lost: u64,
    gained: u64,
    /// First case that differs in plan order, and what differs.
    first_difference: Option<(String, &'static str)>,
    differing: usize,
}

fn on_panel(
    trial: &Trial<'_>,
    panel: &str,
    gold: &PanelGold,
    (first, second): (&ManifestArm, &ManifestArm),
) -> PanelAa {
    let (first, second) = (
        trial.by_case(&first.arm, panel),
        trial.by_case(&second.arm, panel),
    );
    let planned = trial.evidence.planned(gold);
    let mut found = PanelAa {
        panel: panel.to_owned(),
        records: 0,
        answered: 0,
        lost: 0,
        gained: 0,
        first_difference: None,
        differing: 0,
    };
    for case in &gold.cases[..planned] {
        let key = case.case_sha256.as_str();
        if let (Some(a), Some(b)) = (first.get(key), second.get(key)) {
            found.add(a, b);
        }
    }
    found
}

impl PanelAa {
    fn add(&mut self, first: &Record, second: &Record) {
        self.records += 1;
        let right = |record: &Record| record.correct == Some(true);
        let answered = first.correct.is_some() && second.correct.is_some();
        self.answered += u64::from(answered);
        self.lost += u64::from(answered && right(first) && !right(second));
        self.gained += u64::from(answered && !right(first) && right(second));
        if let Some(what) = difference(first, second) {
            self.differing += 1;
            self.first_difference
                .get_or_insert_with(|| (first.case.clone(), what));
        }
    }

    fn add_to(&self, totals: &mut AaResult) {
        totals.lost += self.lost;
        totals.gained += self.gained;
        totals.records += self.records;
        totals.identical_bits &= self.first_difference.is_none();
    }

    fn judge(
        &self,
        trial: &Trial<'_>,
        plan: &PanelPlan,
        (first, second): (&ManifestArm, &ManifestArm),
        findings: &mut Vec<Finding>,
    ) -> Result<(), CertifyError> {
        if let (Some((case, what)), true) = (&self.first_difference, trial.evidence.is_built_in()) {
            return Err(Box::new(AaDifference {
                panel: self.panel.clone(),
                case: case.clone(),
                what,
                first: first.arm.clone(),
                second: second.arm.clone(),
                count: self.differing,
            })
            .into());
        }
        if matches!(plan, PanelPlan::Math { .. }) {
            findings.extend(self.noise(trial, &first.arm, &second.arm));
        }
        Ok(())
    }

    /// Whether native fails `gross_loss` against itself.
    fn noise(&self, trial: &Trial<'_>, first: &str, second: &str) -> Option<Finding> {
        let protocol = &trial.evidence.manifest.protocol;
        let (rule, lost) = (RuleName::GrossLoss, self.lost);
        // Differences alone are noise: with none lost, a bound above the limit is a small panel.
        if lost == 0 {
            return None;
        }
        let upper = clopper_pearson_upper(lost, self.answered, protocol.alpha(rule)).ok()?;
        let limit = protocol.limit(rule);
        (upper > limit).then(|| {
            let detail = format!(
                "{second} loses {lost} of {} against {first} on {}: bound {} crosses the limit {} \
                 of gross_loss without any candidate",
                self.answered,
                self.panel,
                percent(upper),
                percent(limit)
            );
            Finding::of_rule(Reason::ControlNoise, rule, detail)
        })
    }
}

/// What differs between two records of one case, if anything.
pub(super) fn difference(a: &Record, b: &Record) -> Option<&'static str> {
    let nll_bits = |record: &Record| record.nll_sum.map(f64::to_bits);
    let checks = [
        (a.output_ids != b.output_ids, "output_ids"),
        (a.output != b.output, "output"),
        (a.finish != b.finish, "finish"),
        (nll_bits(a) != nll_bits(b), "nll_sum"),
        (a.error != b.error, "error"),
    ];
    checks
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
}
