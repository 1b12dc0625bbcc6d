//! Tokens of a built-in worker's records against the case, the model and each other.

use std::collections::BTreeSet;

use crate::schema::{CaseTask, Finish, Record};

use super::super::evidence::GoldCase;
use super::{Contradiction, contradiction};

/// What bounds the tokens of a model.
#[derive(Clone, Copy, Debug)]
pub(in crate::certify) struct Bounds {
    /// Vocabulary entries.
    pub vocabulary: u32,
    /// Longest sequence in tokens.
    pub context: u32,
}

/// Tokens that ended answers before their allowance was used up: they end any answer of the model,
/// wherever they come.
pub(super) struct Stops(BTreeSet<u32>);

impl Stops {
    /// The stop tokens that the records of one arm on one panel show.
    pub fn of<'a>(cases: &[GoldCase], record_of: impl Fn(&str) -> Option<&'a Record>) -> Self {
        let shown = cases.iter().filter_map(|case| {
            let record = record_of(&case.case_sha256)?;
            let ids = record.output_ids.as_ref()?;
            let is_early = record.finish == Some(Finish::Stop) && ids.len() < allowance(case)?;
            ids.last().copied().filter(|_| is_early)
        });
        Stops(shown.collect())
    }
}

/// Most tokens of an answer; `None` where there is none.
fn allowance(case: &GoldCase) -> Option<usize> {
    match case.task {
        CaseTask::Math { max_new_tokens, .. } | CaseTask::Retrieval { max_new_tokens, .. } => {
            Some(max_new_tokens as usize)
        }
        CaseTask::Nll { .. } | CaseTask::Imported { .. } => None,
    }
}

/// Checks what the worker counted: prompt, answer and why it ended.
pub(super) fn check(
    bounds: Bounds,
    stops: &Stops,
    case: &GoldCase,
    record: &Record,
) -> Result<(), Contradiction> {
    if record.prompt_tokens != case.prompt_tokens {
        let (found, expected) = (record.prompt_tokens, case.prompt_tokens);
        let expected = format!("{expected}, as many as the case has");
        return Err(contradiction(
            "prompt_tokens",
            &found.to_string(),
            &expected,
        ));
    }
    let answer = match allowance(case) {
        Some(most) => check_answer(bounds, stops, most, record)?,
        None => 0,
    };
    let sequence = u64::from(record.prompt_tokens) + answer;
    if sequence > u64::from(bounds.context) {
        let found = format!("{sequence} tokens, prompt and answer");
        let expected = format!("at most the model's context of {}", bounds.context);
        return Err(contradiction("prompt_tokens", &found, &expected));
    }
    Ok(())
}

/// Checks an answer of at most `most` tokens; returns how many it has.
fn check_answer(
    bounds: Bounds,
    stops: &Stops,
    most: usize,
    record: &Record,
) -> Result<u64, Contradiction> {
    let Some(ids) = record.output_ids.as_ref().filter(|ids| !ids.is_empty()) else {
        return Err(contradiction("output_ids", "none", "the generated tokens"));
    };
    if record.output_tokens.is_none() {
        let expected = format!("{}, as many as output_ids", ids.len());
        return Err(contradiction("output_tokens", "none", &expected));
    }
    if let Some(id) = ids.iter().find(|id| **id >= bounds.vocabulary) {
        let expected = format!("ids below the vocabulary of {}", bounds.vocabulary);
        return Err(contradiction("output_ids", &id.to_string(), &expected));
    }
    let stop = ids.iter().position(|id| stops.0.contains(id));
    if let Some(at) = stop.filter(|at| at + 1 < ids.len()) {
        let found = format!(
            "{} tokens behind stop token {}",
            ids.len() - 1 - at,
            ids[at]
        );
        return Err(contradiction(
            "output_ids",
            &found,
            "none: it ends the answer",
        ));
    }
    let expected = match (stop, ids.len() < most) {
        (Some(at), _) => format!("stop: the answer ends with stop token {}", ids[at]),
        (None, true) => format!("stop: {} of {most} tokens were generated", ids.len()),
        (None, false) => return Ok(ids.len() as u64),
    };
    match record.finish {
        Some(Finish::Length) => Err(contradiction("finish", "length", &expected)),
        _ => Ok(ids.len() as u64),
    }
}
