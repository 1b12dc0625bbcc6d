//! Outcomes that are counted apart.

use std::collections::BTreeMap;

use crate::schema::{ControlCounts, Counts, Finish};

use super::arms::Trial;
use super::evidence::ArmEvidence;

/// Counts of the candidate and of each control.
pub(super) fn counts(trial: &Trial<'_>) -> Counts {
    let of = |arm: &str| trial.evidence_of(arm).map(count).unwrap_or_default();
    let ControlCounts {
        truncated,
        unparsed,
        errors,
        empty,
    } = of(&trial.arm.arm);
    let controls: BTreeMap<String, ControlCounts> = trial
        .controls
        .iter()
        .filter_map(|control| Some((control.name.to_owned(), of(&control.arm?.arm))))
        .collect();
    Counts {
        truncated,
        unparsed,
        errors,
        empty,
        controls,
    }
}

/// A truncated answer from which nothing could be parsed counts in both.
fn count(arm: &ArmEvidence) -> ControlCounts {
    let mut counts = ControlCounts::default();
    for (panel, records) in &arm.records {
        for record in records {
            let error = record.error.is_some() || record.finish == Some(Finish::Error);
            counts.errors += u64::from(error);
            counts.truncated += u64::from(record.finish == Some(Finish::Length));
            counts.empty += u64::from(!error && record.output.as_deref() == Some(""));
            let asked_for_number = panel == "math" && !error && record.output.is_some();
            // An imported output is read by a parser of this crate only where the gold answer is
            // a number; it has a second score then.
            let read = record.finish.is_some() || !record.secondary.is_empty();
            counts.unparsed += u64::from(asked_for_number && read && record.parsed().is_none());
        }
    }
    counts
}
