//! Cases side by side: what a candidate and its controls answered, case by case.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::schema::{CaseTask, PanelCase, Record};
use crate::store::RunDir;

use super::CertifyError;
use super::arms::Trial;
use super::evidence::{Evidence, GoldCase, PanelGold};
use super::outcomes::{Outcome, outcomes};
use super::rescore::{FrozenParsers, Rescore};

/// A candidate and one of its controls on one panel.
#[derive(Clone, Debug)]
pub struct PairedPanel<'a> {
    /// Panel name.
    pub panel: &'a str,
    /// Name of the control in the protocol.
    pub control: &'a str,
    /// Cases of which both arms have one usable record, in plan order.
    pub cases: Vec<PairedCase<'a>>,
}

/// One case of both arms.
#[derive(Clone, Copy, Debug)]
pub struct PairedCase<'a> {
    /// The case and what decides it.
    pub gold: &'a GoldCase,
    /// The control's record.
    pub control: &'a Record,
    /// The candidate's record.
    pub candidate: &'a Record,
    /// Both outcomes, scored again.
    pub outcome: PairedOutcome,
}

/// Outcomes of both arms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairedOutcome {
    /// Math and retrieval: whether each answer is right.
    Answers {
        /// The control's.
        control: bool,
        /// The candidate's.
        candidate: bool,
    },
    /// NLL: mean over the targets of each, in nats.
    MeanNll {
        /// The control's.
        control: f64,
        /// The candidate's.
        candidate: f64,
    },
}

/// Retrieval answers between two depths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthCounts {
    /// Least depth, a proportion of the haystack.
    pub from: f64,
    /// Depth at which the next ones begin.
    pub to: f64,
    /// Pairs.
    pub pairs: u64,
    /// Pairs that the control answered right.
    pub control_correct: u64,
    /// Pairs that the candidate answered right.
    pub candidate_correct: u64,
}

/// Pairs the records of the candidate arm `candidate` with those of each control: the pairs that
/// its certificate counts. Panels come in the protocol's order, controls in theirs within each.
///
/// # Errors
/// As [`certify`](super::certify), for what concerns records.
pub fn paired_cases<'a>(
    candidate: &str,
    evidence: &'a Evidence,
) -> Result<Vec<PairedPanel<'a>>, CertifyError> {
    paired_cases_with(candidate, evidence, &FrozenParsers)
}

/// As [`paired_cases`], with outputs scored by `scorer`.
///
/// # Errors
/// As [`paired_cases`].
pub(super) fn paired_cases_with<'a>(
    candidate: &str,
    evidence: &'a Evidence,
    scorer: &dyn Rescore,
) -> Result<Vec<PairedPanel<'a>>, CertifyError> {
    let trial = Trial::new(candidate, evidence)?;
    let mut paired = Vec::new();
    for plan in &evidence.manifest.protocol.panels {
        let Some((panel, gold)) = evidence.panels.get_key_value(&plan.panel_name()) else {
            continue;
        };
        let own = usable(evidence, (gold, panel), &trial.arm.arm, scorer)?;
        for control in &trial.controls {
            let Some(arm) = control.arm else { continue };
            let other = usable(evidence, (gold, panel), &arm.arm, scorer)?;
            let cases = gold.cases.iter().zip(other.iter().zip(&own));
            paired.push(PairedPanel {
                panel,
                control: control.name,
                cases: cases.filter_map(pair).collect(),
            });
        }
    }
    Ok(paired)
}

/// A record with its outcome; `None` where a case has no usable record.
type Usable<'a> = Option<(&'a Record, Outcome)>;

/// The one good record of each planned case.
fn usable<'a>(
    evidence: &'a Evidence,
    (gold, panel): (&PanelGold, &str),
    arm: &str,
    scorer: &dyn Rescore,
) -> Result<Vec<Usable<'a>>, CertifyError> {
    let records = evidence.arms.get(arm).map_or(&[][..], |arm| arm.on(panel));
    let planned = evidence.planned(gold);
    let place = evidence.place(arm, panel);
    let found = outcomes(place, gold, planned, records, scorer)?;
    // A case with an outcome has exactly one record.
    let by_case: HashMap<&str, &Record> = records
        .iter()
        .map(|record| (record.case_sha256.as_str(), record))
        .collect();
    let cases = gold.cases.iter().zip(found.outcomes);
    let usable = cases.map(|(case, outcome)| {
        let record = by_case.get(case.case_sha256.as_str())?;
        Some((*record, outcome?))
    });
    Ok(usable.collect())
}

fn pair<'a>(
    (gold, (control, candidate)): (&'a GoldCase, (&Usable<'a>, &Usable<'a>)),
) -> Option<PairedCase<'a>> {
    let ((control, one), (candidate, other)) = ((*control)?, (*candidate)?);
    let outcome = match (one, other) {
        (Outcome::Answer(control), Outcome::Answer(candidate)) => {
            PairedOutcome::Answers { control, candidate }
        }
        (Outcome::MeanNll(control), Outcome::MeanNll(candidate)) => {
            PairedOutcome::MeanNll { control, candidate }
        }
        _ => return None,
    };
    Some(PairedCase {
        gold,
        control,
        candidate,
        outcome,
    })
}

/// Counts retrieval answers in `strata` parts of the haystack of the same size; empty where no
/// case has a depth.
pub fn by_depth(cases: &[PairedCase<'_>], strata: u32) -> Vec<DepthCounts> {
    let width = 1.0 / f64::from(strata);
    let mut counts: Vec<DepthCounts> = (0..strata)
        .map(|at| DepthCounts {
            from: f64::from(at) * width,
            to: f64::from(at + 1) * width,
            pairs: 0,
            control_correct: 0,
            candidate_correct: 0,
        })
        .collect();
    let mut seen = false;
    for case in cases {
        let CaseTask::Retrieval { depth, .. } = case.gold.task else {
            continue;
        };
        let PairedOutcome::Answers { control, candidate } = case.outcome else {
            continue;
        };
        let at = (depth.clamp(0.0, 1.0) * f64::from(strata)) as usize;
        if let Some(stratum) = counts.get_mut(at.min(strata as usize - 1)) {
            seen = true;
            stratum.pairs += 1;
            stratum.control_correct += u64::from(control);
            stratum.candidate_correct += u64::from(candidate);
        }
    }
    if seen { counts } else { Vec::new() }
}

/// What was asked in each of the named cases of a panel of the run: the user's last message, of
/// those cases that have messages.
///
/// # Errors
/// [`CertifyError::Store`], [`CertifyError::Panel`].
pub fn questions(
    dir: &RunDir,
    panel: &str,
    cases: &BTreeSet<&str>,
) -> Result<BTreeMap<String, String>, CertifyError> {
    let mut found = BTreeMap::new();
    let entry = dir.manifest().panels.iter().find(|it| it.panel == panel);
    let Some(file) = entry.and_then(|entry| entry.file.as_ref()) else {
        return Ok(found);
    };
    let (bytes, _) = dir.file_bytes(&file.path)?;
    let lines = bytes.split(|&byte| byte == b'\n').enumerate().skip(1);
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let case: PanelCase =
            serde_json::from_slice(line).map_err(|error| CertifyError::Panel {
                place: format!("{}:{}", file.path, at + 1),
                found: error.to_string(),
                expected: "a case".to_owned(),
            })?;
        if !cases.contains(case.case.as_str()) {
            continue;
        }
        let asked = case.messages.into_iter().rfind(|it| it.role == "user");
        found.extend(asked.map(|message| (case.case, message.content)));
    }
    Ok(found)
}
