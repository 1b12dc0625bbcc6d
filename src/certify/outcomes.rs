//! The outcomes of one arm on one panel, by case.

mod tokens;

use std::collections::HashMap;

use crate::schema::{CaseTask, Finish, Record};

use super::error::Mismatch;
use super::evidence::{GoldCase, PanelGold};
use super::rescore::{MathScore, Rescore};
use super::{CertifyError, Reason};

pub(super) use tokens::Bounds;
use tokens::Stops;

/// Outcome of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Outcome {
    /// Math and retrieval: whether the answer is right.
    Answer(bool),
    /// NLL: mean over the targets, in nats.
    MeanNll(f64),
}

/// Outcomes of one arm on one panel.
#[derive(Clone, Debug)]
pub(super) struct PanelOutcomes {
    /// One per planned case, in plan order; `None` where there is no usable record.
    pub outcomes: Vec<Option<Outcome>>,
    /// What is wrong with the records, with the cases concerned; empty for complete evidence.
    pub faults: Vec<(Reason, Vec<String>)>,
}

/// Where records come from, for messages.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// Arm.
    pub arm: &'a str,
    /// Panel.
    pub panel: &'a str,
    /// What bounds the tokens of its records; `None` where the tool has not counted them itself.
    pub bounds: Option<Bounds>,
}

/// A record that contradicts itself.
struct Contradiction {
    field: &'static str,
    found: String,
    expected: String,
}

/// Finds the record of each of the first `planned` cases and scores it again.
///
/// # Errors
/// [`CertifyError::Mismatch`] for records that contradict their output or case.
pub(super) fn outcomes(
    place: Place<'_>,
    gold: &PanelGold,
    planned: usize,
    records: &[Record],
    scorer: &dyn Rescore,
) -> Result<PanelOutcomes, CertifyError> {
    let cases = &gold.cases[..planned];
    let mut by_case: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, record) in records.iter().enumerate() {
        by_case.entry(&record.case_sha256).or_default().push(at);
    }
    let mut found = PanelOutcomes {
        outcomes: Vec::with_capacity(planned),
        faults: Vec::new(),
    };
    let mut contradictions = Vec::new();
    let stops = Stops::of(cases, |case| match by_case.get(case)?.as_slice() {
        [at] => Some(&records[*at]),
        _ => None,
    });
    let mut earlier = 0;
    for case in cases {
        let outcome = match by_case.remove(case.case_sha256.as_str()).as_deref() {
            None => Err(Reason::MissingRecords),
            Some([at]) => match judge(place, gold, case, &records[*at], scorer)?
                .and_then(|outcome| in_order(*at, &mut earlier).map(|()| outcome))
                .and_then(|outcome| match place.bounds.filter(|_| outcome.is_ok()) {
                    Some(bounds) => {
                        tokens::check(bounds, &stops, case, &records[*at]).map(|()| outcome)
                    }
                    None => Ok(outcome),
                }) {
                Ok(outcome) => outcome,
                Err(contradiction) => {
                    contradictions.push((case, contradiction));
                    continue;
                }
            },
            Some(_) => Err(Reason::DuplicateRecords),
        };
        found.note(case, outcome);
    }
    refuse(place, contradictions)?;
    found.note_unknown(records, &by_case);
    Ok(found)
}

/// Records stand in plan order: none before the record of an earlier case.
fn in_order(at: usize, earlier: &mut usize) -> Result<(), Contradiction> {
    if at < *earlier {
        let found = format!("line {}", at + 1);
        let expected = format!("a line after {}: plan order", *earlier + 1);
        return Err(contradiction("place", &found, &expected));
    }
    *earlier = at;
    Ok(())
}

impl PanelOutcomes {
    fn note(&mut self, case: &GoldCase, outcome: Result<Outcome, Reason>) {
        self.outcomes.push(outcome.ok());
        if let Err(reason) = outcome {
            self.fault(reason, case.case.clone());
        }
    }

    fn note_unknown(&mut self, records: &[Record], left: &HashMap<&str, Vec<usize>>) {
        for record in records {
            if left.contains_key(record.case_sha256.as_str()) {
                self.fault(Reason::UnknownRecords, record.case.clone());
            }
        }
    }

    fn fault(&mut self, reason: Reason, case: String) {
        match self.faults.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, cases)) => cases.push(case),
            None => self.faults.push((reason, vec![case])),
        }
    }
}

fn refuse(
    place: Place<'_>,
    contradictions: Vec<(&GoldCase, Contradiction)>,
) -> Result<(), CertifyError> {
    let count = contradictions.len();
    match contradictions.into_iter().next() {
        None => Ok(()),
        Some((case, first)) => Err(Box::new(Mismatch {
            arm: place.arm.to_owned(),
            panel: place.panel.to_owned(),
            case: case.case.clone(),
            field: first.field,
            found: first.found,
            expected: first.expected,
            count,
        })
        .into()),
    }
}

/// An outcome, what makes the record unusable, or what it contradicts.
type Judgement = Result<Result<Outcome, Reason>, Contradiction>;

fn judge(
    place: Place<'_>,
    gold: &PanelGold,
    case: &GoldCase,
    record: &Record,
    scorer: &dyn Rescore,
) -> Result<Judgement, CertifyError> {
    if record.error.is_some() || record.finish == Some(Finish::Error) {
        return Ok(Ok(Err(Reason::ErroredRecords)));
    }
    if record.case != case.case {
        return Ok(Err(contradiction("case", &record.case, &case.case)));
    }
    if let CaseTask::Nll { targets, .. } = case.task {
        return Ok(judge_nll(targets, record));
    }
    if let CaseTask::Imported { .. } = case.task {
        // The harness's verdict stands: there may be no output to score again.
        return Ok(Ok(record
            .correct
            .map(Outcome::Answer)
            .ok_or(Reason::ErroredRecords)));
    }
    // An answer without an output cannot be scored again: it counts for nothing.
    let (Some(output), Some(finish)) = (&record.output, record.finish) else {
        return Ok(Ok(Err(Reason::ErroredRecords)));
    };
    let truncated = finish == Finish::Length;
    let score = rescore(&gold.header.parser, &case.task, output, truncated, scorer);
    let score = score.map_err(|found| CertifyError::Panel {
        place: format!("panel {}, case {}", place.panel, case.case),
        found,
        expected: "a parser and a gold answer that this version reads".to_owned(),
    })?;
    let outcome = compare(&case.task, record, &score);
    let agrees = outcome.and_then(|outcome| {
        retold(&case.task, record)?;
        rescore_secondary(&case.task, record, truncated, scorer)?;
        Ok(outcome)
    });
    Ok(agrees)
}

/// What a record repeats of its case and of itself must agree.
fn retold(task: &CaseTask, record: &Record) -> Result<(), Contradiction> {
    let most = match task {
        CaseTask::Math { max_new_tokens, .. } | CaseTask::Retrieval { max_new_tokens, .. } => {
            *max_new_tokens
        }
        CaseTask::Nll { .. } | CaseTask::Imported { .. } => return Ok(()),
    };
    if let (CaseTask::Retrieval { depth, .. }, Some(found)) = (task, record.depth)
        && found != *depth
    {
        return Err(contradiction(
            "depth",
            &found.to_string(),
            &depth.to_string(),
        ));
    }
    // Servers count tokens in ways of their own: only ids can be counted again.
    let (Some(tokens), Some(ids)) = (record.output_tokens, &record.output_ids) else {
        return Ok(());
    };
    let expected = if ids.len() != tokens as usize {
        format!("{}, as many as output_ids", ids.len())
    } else if tokens > most {
        format!("at most {most}")
    } else {
        return Ok(());
    };
    Err(contradiction(
        "output_tokens",
        &tokens.to_string(),
        &expected,
    ))
}

/// Scores of secondary parsers that this version has must follow from the output too.
fn rescore_secondary(
    task: &CaseTask,
    record: &Record,
    truncated: bool,
    scorer: &dyn Rescore,
) -> Result<(), Contradiction> {
    let (CaseTask::Math { gold, .. }, Some(output)) = (task, &record.output) else {
        return Ok(());
    };
    for (parser, found) in &record.secondary {
        match scorer.math(parser, output, gold, truncated) {
            Ok(score) if score.correct != *found => {
                let (found, expected) = (found.to_string(), score.correct.to_string());
                return Err(contradiction("secondary", &found, &expected));
            }
            // Another tool's parser cannot be asked; its score decides nothing.
            _ => {}
        }
    }
    Ok(())
}

/// No likelihood is above 1. A sum of exponentials in 32 bits may come out so much above it, in nats per
/// target.
const CERTAINTY_SLACK: f64 = 1e-4;

fn judge_nll(targets: u32, record: &Record) -> Judgement {
    match record.nll_sum {
        Some(sum) if sum.is_finite() => {
            if record.targets != Some(targets) {
                let found = record
                    .targets
                    .map_or("none".to_owned(), |found| found.to_string());
                return Err(contradiction("targets", &found, &targets.to_string()));
            }
            let mean = sum / f64::from(targets);
            if mean < -CERTAINTY_SLACK {
                return Err(contradiction("nll_sum", &sum.to_string(), "0 or more"));
            }
            Ok(Ok(Outcome::MeanNll(mean)))
        }
        _ => Ok(Err(Reason::NonFiniteRecords)),
    }
}

fn rescore(
    parser: &str,
    task: &CaseTask,
    output: &str,
    truncated: bool,
    scorer: &dyn Rescore,
) -> Result<MathScore, String> {
    match task {
        CaseTask::Math { gold, .. } => scorer.math(parser, output, gold, truncated),
        CaseTask::Retrieval { gold, .. } => Ok(MathScore {
            answer: None,
            correct: scorer.retrieval(parser, output, gold, truncated)?,
        }),
        CaseTask::Nll { .. } => Err("a likelihood case".to_owned()),
        CaseTask::Imported { .. } => Err("an imported case".to_owned()),
    }
}

fn compare(task: &CaseTask, record: &Record, score: &MathScore) -> Judgement {
    if matches!(task, CaseTask::Math { .. }) && record.parsed() != score.answer.as_deref() {
        return Err(contradiction(
            "answer",
            record.parsed().unwrap_or("none"),
            score.answer.as_deref().unwrap_or("none"),
        ));
    }
    if record.correct != Some(score.correct) {
        let found = record
            .correct
            .map_or("none".to_owned(), |found| found.to_string());
        return Err(contradiction("correct", &found, &score.correct.to_string()));
    }
    Ok(Ok(Outcome::Answer(score.correct)))
}

fn contradiction(field: &'static str, found: &str, expected: &str) -> Contradiction {
    Contradiction {
        field,
        found: found.to_owned(),
        expected: expected.to_owned(),
    }
}
