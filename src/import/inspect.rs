//! Inspect AI: evaluation logs in JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ImportError;
use super::content::{Content, value_text};
use super::json::{id_text, kind, parse, protocol_digest};
use super::read::Input;
use super::sample::{Logs, Raw, RawArm, Sample, Score, choose};

/// First bytes of a ZIP archive, which `.eval` logs are.
const ZIP: &[u8] = b"PK\x03\x04";
/// What an ended evaluation says.
const SUCCESS: &str = "success";

/// What can be chosen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Scorer; the only one where absent.
    pub metric: Option<String>,
    /// Epoch; the only one where absent.
    pub epoch: Option<u32>,
}

#[derive(Deserialize)]
struct Log {
    status: String,
    #[serde(default)]
    eval: Head,
    #[serde(default)]
    samples: Option<Vec<LogSample>>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    metadata: Option<Value>,
    #[serde(default)]
    task_args: Option<Value>,
}

#[derive(Deserialize)]
struct LogSample {
    id: Value,
    #[serde(default)]
    epoch: Option<u32>,
    input: Value,
    #[serde(default)]
    target: Value,
    #[serde(default)]
    output: Option<Value>,
    #[serde(default)]
    scores: Option<Map<String, Value>>,
    #[serde(default)]
    metadata: Option<Value>,
    #[serde(default)]
    error: Option<Value>,
}

/// Reads the logs of both arms.
///
/// # Errors
/// [`ImportError::Choice`] where there are several scorers or epochs and none is chosen;
/// [`ImportError::Input`] for what is no log, with the command that converts `.eval` files.
pub fn read(
    native: &[PathBuf],
    candidate: &[PathBuf],
    options: &Options,
) -> Result<Logs, ImportError> {
    let epochs = std::cell::RefCell::new(Vec::new());
    let read = |paths| {
        let arm = RawArm::read(paths, &|input, arm| {
            read_file(input, arm, &mut epochs.borrow_mut())
        })?;
        Ok::<_, ImportError>((arm, epochs.take()))
    };
    let (mut native, native_epochs) = read(native)?;
    let (mut candidate, candidate_epochs) = read(candidate)?;
    let asked = options.epoch.map(|epoch| epoch.to_string());
    let epoch = choose(
        "--epoch",
        asked.as_deref(),
        [&names(&native_epochs), &names(&candidate_epochs)],
    )?;
    keep(&mut native.raw, &native_epochs, &epoch);
    keep(&mut candidate.raw, &candidate_epochs, &epoch);
    let metric = choose(
        "--metric",
        options.metric.as_deref(),
        [&scorers(&native), &scorers(&candidate)],
    )?;
    Ok(Logs {
        harness: "inspect",
        native: scored(native, &metric)?,
        candidate: scored(candidate, &metric)?,
        metric,
        filter: None,
    })
}

fn names(epochs: &[u32]) -> BTreeSet<String> {
    epochs.iter().map(u32::to_string).collect()
}

fn keep(raw: &mut Vec<Raw>, epochs: &[u32], epoch: &str) {
    let mut at = epochs.iter();
    raw.retain(|_| at.next().is_some_and(|found| found.to_string() == epoch));
}

/// Every scorer: each field is one, whatever it gives.
fn scorers(arm: &RawArm) -> BTreeSet<String> {
    let others = arm.raw.iter().flat_map(|raw| raw.others.keys());
    arm.metrics().into_iter().chain(others.cloned()).collect()
}

/// A sample that its scorer never saw has no score; it is named, not refused.
fn scored(mut arm: RawArm, metric: &str) -> Result<super::ArmLog, ImportError> {
    let unseen = |raw: &&mut Raw| !raw.others.contains_key(metric);
    for raw in arm.raw.iter_mut().filter(unseen) {
        raw.scores
            .entry(metric.to_owned())
            .or_insert_with(|| Score::Unscored("no score".to_owned()));
    }
    arm.select(metric)
}

fn read_file(input: &Input, arm: &mut RawArm, epochs: &mut Vec<u32>) -> Result<(), ImportError> {
    if input.bytes.starts_with(ZIP) || input.name.ends_with(".eval") {
        return Err(ImportError::input(
            &input.name,
            "a compressed .eval log",
            format!(
                "a JSON log: inspect log convert {} --to json --output-dir DIR",
                input.name
            ),
        ));
    }
    let log: Log = parse(&input.name, input.text(), "an Inspect log in JSON")?;
    if log.status != SUCCESS {
        let why = log.error.as_ref().and_then(message);
        let why = why.map_or(String::new(), |why| format!(" ({why})"));
        arm.log.unfinished.push(format!(
            "{}: status {}{why}, expected {SUCCESS}",
            input.name, log.status
        ));
    }
    let Some(samples) = log.samples else {
        let found = "a log without samples";
        return Err(ImportError::input(&input.name, found, "samples"));
    };
    let first = arm.log.files.len() == 1;
    let same = first || arm.log.model == log.eval.model;
    arm.log.model = log.eval.model.clone().filter(|_| same);
    for (at, found) in samples.into_iter().enumerate() {
        let place = format!("{}: samples[{at}]", input.name);
        epochs.push(found.epoch.unwrap_or(1));
        arm.raw.push(sample(place, &found, &log.eval)?);
    }
    Ok(())
}

fn sample(place: String, found: &LogSample, head: &Head) -> Result<Raw, ImportError> {
    let wrong = |field: &str, value: &Value, expected: &str| {
        let found = format!("{field}: {}", kind(value));
        ImportError::input(&place, found, expected)
    };
    let id = id_text(&found.id).ok_or_else(|| wrong("id", &found.id, "a number or text"))?;
    let question = question(&found.input)
        .ok_or_else(|| wrong("input", &found.input, "text or a list of messages"))?;
    let gold = value_text(&found.target);
    let (mut scores, mut others) = (BTreeMap::new(), BTreeMap::new());
    for (name, score) in found.scores.iter().flatten() {
        let value = score.get("value").unwrap_or(&Value::Null);
        match verdict(value) {
            Some(score) => drop(scores.insert(name.clone(), score)),
            None => drop(others.insert(name.clone(), kind(value))),
        }
    }
    let error = found.error.as_ref().filter(|error| !error.is_null());
    let error = error.map(|error| message(error).unwrap_or_else(|| error.to_string()));
    Ok(Raw {
        sample: Sample {
            id: Some(id),
            content: Some(Content::of_text(&question, gold.as_deref())),
            score: error.map_or(Score::Unscored(String::new()), Score::Errored),
            output: found.output.as_ref().and_then(completion),
            prompt_sha256: None,
            protocol_sha256: protocol_digest([
                found.metadata.as_ref(),
                head.metadata.as_ref(),
                head.task_args.as_ref(),
            ]),
            place,
        },
        scores,
        others,
    })
}

/// `C` is right; `I` and `N` (no answer) are wrong; `P` is neither. `None` for what is no score.
fn verdict(value: &Value) -> Option<Score> {
    match value.as_str() {
        Some("C") => Some(Score::Correct(true)),
        Some("I" | "N") => Some(Score::Correct(false)),
        Some("P") => Some(Score::Unscored("P".to_owned())),
        _ => Score::of_value(value),
    }
}

/// The text of an input; of messages their roles and texts, without the ids that each run draws
/// anew.
fn question(input: &Value) -> Option<String> {
    match input {
        Value::String(text) => Some(text.clone()),
        Value::Array(messages) => {
            let plain: Option<Vec<Value>> = messages
                .iter()
                .map(|message| {
                    let role = message.get("role")?.as_str()?;
                    Some(json!({"role": role, "content": message_text(message.get("content")?)?}))
                })
                .collect();
            // A list of one message must not be taken for its content.
            value_text(&json!({"messages": plain?}))
        }
        _ => None,
    }
}

/// Text, or the texts of a list of parts.
fn message_text(content: &Value) -> Option<Value> {
    match content {
        Value::String(_) => Some(content.clone()),
        Value::Array(parts) => {
            let texts: Vec<Value> = parts
                .iter()
                .map(|part| part.get("text").unwrap_or(part).clone())
                .collect();
            Some(Value::Array(texts))
        }
        _ => None,
    }
}

fn completion(output: &Value) -> Option<String> {
    let text = output.get("completion").and_then(Value::as_str);
    let message = || output.pointer("/choices/0/message/content")?.as_str();
    text.or_else(message).map(str::to_owned)
}

fn message(error: &Value) -> Option<String> {
    error
        .get("message")
        .and_then(Value::as_str)
        .or_else(|| error.as_str())
        .map(str::to_owned)
}
