//! Cases of a verified arm that are generated plainly as well, and what differs.

use std::collections::{BTreeMap, HashMap};

use crate::schema::{AnswerMode, AnswerResult, Manifest, PanelPlan, Record, TaskKind};
use crate::stats::CounterRng;

use super::arms::Trial;
use super::error::RegenerationDifference;
use super::evidence::ArmEvidence;
use super::findings::Finding;
use super::{CertifyError, Reason};

/// Cases of each verified arm that are generated plainly as well.
pub const REGENERATED_CASES: usize = 32;

/// Stream of the protocol's seed; panels take the streams below `4 << 56`.
const STREAM: u64 = 4 << 56;

/// Name under which the plain records of a panel's verified cases are stored.
pub fn regenerated_name(panel: &str) -> String {
    format!("{panel}.regenerated")
}

/// Which cases of which panels every verified arm generates plainly as well: drawn with the
/// protocol's seed from all cases with answers, as indices in ascending order. All cases where
/// there are fewer than [`REGENERATED_CASES`].
pub fn regenerated_cases(manifest: &Manifest) -> BTreeMap<String, Vec<usize>> {
    let mut cases: Vec<(String, usize)> = Vec::new();
    let limit = manifest.limit.unwrap_or(u32::MAX);
    for plan in &manifest.protocol.panels {
        let name = plan.panel_name();
        let mut panels = manifest.panels.iter();
        let found = panels.find(|panel| panel.panel == name && panel.file.is_some());
        if let (Some(panel), false) = (found, matches!(plan, PanelPlan::Nll { .. })) {
            let count = panel.cases.min(limit) as usize;
            cases.extend((0..count).map(|case| (name.clone(), case)));
        }
    }
    let mut rng = CounterRng::new(manifest.protocol.seed, STREAM);
    rng.shuffle(&mut cases);
    cases.truncate(REGENERATED_CASES);
    let mut chosen: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (panel, case) in cases {
        chosen.entry(panel).or_default().push(case);
    }
    chosen.values_mut().for_each(|cases| cases.sort_unstable());
    chosen
}

/// What differs between two records of one case, if anything.
pub fn record_difference(first: &Record, second: &Record) -> Option<&'static str> {
    let nll_bits = |record: &Record| record.nll_sum.map(f64::to_bits);
    let checks = [
        (first.case_sha256 != second.case_sha256, "case_sha256"),
        (first.output_ids != second.output_ids, "output_ids"),
        (first.output != second.output, "output"),
        (first.finish != second.finish, "finish"),
        (nll_bits(first) != nll_bits(second), "nll_sum"),
        (first.error != second.error, "error"),
        (first.kv != second.kv, "kv"),
        (first.case != second.case, "case"),
        (first.prompt_tokens != second.prompt_tokens, "prompt_tokens"),
        (first.output_tokens != second.output_tokens, "output_tokens"),
        (first.parsed() != second.parsed(), "answer"),
        (first.correct != second.correct, "correct"),
        (first.secondary != second.secondary, "secondary"),
        (first.targets != second.targets, "targets"),
        (first.depth != second.depth, "depth"),
        (first != second, "another field"),
    ];
    checks
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
}

/// How the candidate's answers came about, and what stands against objectives because of it.
#[derive(Default)]
pub(super) struct Regenerated {
    /// Figures; absent where nothing was written down.
    pub result: Option<AnswerResult>,
    /// Findings.
    pub findings: Vec<Finding>,
}

/// Compares what the candidate verified with what it generated plainly.
///
/// # Errors
/// [`CertifyError::RegenerationDiffers`].
pub(super) fn compare(trial: &Trial<'_>) -> Result<Regenerated, CertifyError> {
    let arm = trial.arm.arm.as_str();
    let Some(evidence) = trial.evidence_of(arm) else {
        return Ok(Regenerated::default());
    };
    let mut regenerated = 0;
    for (panel, again) in &evidence.regenerated {
        let place = (arm, panel.as_str());
        regenerated += on_panel(place, evidence.on(panel), again)?;
    }
    let mut findings = Vec::new();
    let Some(mode) = evidence.start.as_ref().and_then(|start| start.answers) else {
        if evidence.regenerated.is_empty() {
            findings.extend(untold(trial, evidence));
        } else {
            let detail = format!(
                "arm {arm}: {regenerated} cases were generated plainly as well, but nothing says how \
                 its other answers came about"
            );
            findings.push(Finding::new(Reason::MissingRecords, detail));
        }
        return Ok(Regenerated {
            result: None,
            findings,
        });
    };
    let result = AnswerResult {
        mode,
        regenerated,
        mismatches: 0,
    };
    if mode == AnswerMode::Verified && trial.evidence.judged_after.is_none() {
        findings.extend(missing(trial, arm, evidence));
    }
    Ok(Regenerated {
        result: Some(result),
        findings,
    })
}

/// Every candidate of a built-in worker says how its answers come about. Where nothing at all stood
/// before its first record, that is said elsewhere.
fn untold(trial: &Trial<'_>, evidence: &ArmEvidence) -> Option<Finding> {
    let mut plans = trial.evidence.manifest.protocol.panels.iter();
    let answers = plans.any(|plan| plan.kind() != TaskKind::Nll);
    let silent = evidence.start.is_some() && trial.evidence.judged_after.is_none();
    (answers && silent && trial.evidence.is_built_in()).then(|| {
        let arm = &trial.arm.arm;
        let detail =
            format!("arm {arm}: nothing says how its answers came about, verified or plain");
        Finding::new(Reason::MissingRecords, detail)
    })
}

/// Compares one panel; returns the number of cases that have both records.
fn on_panel(
    (arm, panel): (&str, &str),
    records: &[Record],
    again: &[Record],
) -> Result<u64, CertifyError> {
    let by_case: HashMap<&str, &Record> = records
        .iter()
        .map(|record| (record.case_sha256.as_str(), record))
        .collect();
    let mut compared = 0;
    let mut differences = Vec::new();
    for record in again {
        if let Some(first) = by_case.get(record.case_sha256.as_str()) {
            compared += 1;
            let what = record_difference(first, record);
            differences.extend(what.map(|what| (record.case.clone(), what)));
        }
    }
    let count = differences.len();
    match differences.into_iter().next() {
        None => Ok(compared),
        Some((case, what)) => Err(Box::new(RegenerationDifference {
            arm: arm.to_owned(),
            panel: panel.to_owned(),
            case,
            what,
            count,
        })
        .into()),
    }
}

/// Chosen cases without a plain record.
fn missing(trial: &Trial<'_>, arm: &str, evidence: &ArmEvidence) -> Option<Finding> {
    let manifest = &trial.evidence.manifest;
    let (mut chosen, mut found) = (0, 0);
    for (panel, cases) in regenerated_cases(manifest) {
        let Some(gold) = trial.evidence.panels.get(&panel) else {
            continue;
        };
        let again = evidence
            .regenerated
            .get(&panel)
            .map_or(&[][..], Vec::as_slice);
        chosen += cases.len();
        let is_there = |case: &&usize| {
            let gold = gold.cases.get(**case);
            gold.is_some_and(|gold| again.iter().any(|r| r.case_sha256 == gold.case_sha256))
        };
        found += cases.iter().filter(is_there).count();
    }
    (found < chosen).then(|| {
        let detail = format!(
            "arm {arm}: {found} of the {chosen} chosen cases were generated plainly beside their \
             verified answers"
        );
        Finding::new(Reason::MissingRecords, detail)
    })
}
