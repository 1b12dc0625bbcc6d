//! lighteval: details in Parquet, in two layouts.
//!
//! Newer versions write three structures per row, `doc`, `model_response` and `metric`; older
//! ones write flat columns, among them `example`, `gold`, `predictions` and `metrics`.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::ImportError;
use super::content::{Content, value_text};
use super::json::{first_text, id_text, protocol_digest};
use super::parquet;
use super::read::Input;
use super::sample::{Logs, Raw, RawArm, Sample, Score, choose, scores};
use crate::schema::sha256_hex;

/// Columns of the newer layout.
const NEWER: [&str; 3] = ["doc", "model_response", "metric"];
/// Columns of the older layout, those with logits and tokens left out.
const OLDER: [&str; 8] = [
    "example",
    "full_prompt",
    "choices",
    "gold",
    "gold_index",
    "predictions",
    "metrics",
    "specifics",
];

/// What can be chosen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Metric; the only one where absent.
    pub metric: Option<String>,
}

/// Reads the details of both arms.
///
/// # Errors
/// [`ImportError::Choice`] where there are several metrics and none is chosen;
/// [`ImportError::Input`] with file and row.
pub fn read(
    native: &[PathBuf],
    candidate: &[PathBuf],
    options: &Options,
) -> Result<Logs, ImportError> {
    let native = RawArm::read(native, &read_file)?;
    let candidate = RawArm::read(candidate, &read_file)?;
    let metric = choose(
        "--metric",
        options.metric.as_deref(),
        [&native.metrics(), &candidate.metrics()],
    )?;
    Ok(Logs {
        harness: "lighteval",
        native: native.select(&metric)?,
        candidate: candidate.select(&metric)?,
        metric,
        filter: None,
    })
}

fn read_file(input: &Input, arm: &mut RawArm) -> Result<(), ImportError> {
    let columns: Vec<&str> = NEWER.iter().chain(&OLDER).copied().collect();
    for (at, row) in parquet::rows(input, &columns)?.iter().enumerate() {
        let place = format!("{}: row {}", input.name, at + 1);
        let raw = match (row.get("doc"), row.get("example")) {
            (Some(Value::Object(doc)), _) => newer(place, doc, row)?,
            (None, Some(Value::String(example))) => older(place, example, row)?,
            _ => {
                let found = format!("columns {}", list(row));
                let expected = "doc, model_response and metric, or example, gold, predictions \
                                and metrics";
                return Err(ImportError::input(place, found, expected));
            }
        };
        arm.raw.push(raw);
    }
    Ok(())
}

fn list(row: &Map<String, Value>) -> String {
    let names: Vec<&str> = row.keys().map(String::as_str).collect();
    names.join(", ")
}

fn newer(
    place: String,
    doc: &Map<String, Value>,
    row: &Map<String, Value>,
) -> Result<Raw, ImportError> {
    let Some(question) = doc.get("query").and_then(Value::as_str) else {
        return Err(ImportError::input(place, "a doc without query", "its text"));
    };
    let gold = chosen(doc.get("choices"), doc.get("gold_index"));
    let response = row.get("model_response");
    let output = response.and_then(|response| first_text(response.get("text")?));
    let input = response.and_then(|response| value_text(response.get("input")?));
    let (scores, others) = scores(fields(row.get("metric")));
    Ok(Raw {
        sample: Sample {
            id: doc.get("id").and_then(id_text),
            content: Some(Content::of_text(question, gold.as_deref())),
            score: Score::Unscored(String::new()),
            output,
            prompt_sha256: input.map(|input| sha256_hex(input.as_bytes())),
            protocol_sha256: protocol_digest([doc.get("specific")]),
            place,
        },
        scores,
        others,
    })
}

fn older(place: String, example: &str, row: &Map<String, Value>) -> Result<Raw, ImportError> {
    let gold = match row.get("gold").and_then(value_text) {
        Some(gold) if gold != "[]" => Some(gold),
        _ => chosen(row.get("choices"), row.get("gold_index")),
    };
    let prompt = row.get("full_prompt").and_then(Value::as_str);
    let (scores, others) = scores(fields(row.get("metrics")));
    Ok(Raw {
        sample: Sample {
            id: None,
            content: Some(Content::of_text(example, gold.as_deref())),
            score: Score::Unscored(String::new()),
            output: row.get("predictions").and_then(first_text),
            prompt_sha256: prompt
                .filter(|prompt| !prompt.is_empty())
                .map(|prompt| sha256_hex(prompt.as_bytes())),
            protocol_sha256: protocol_digest([row.get("specifics")]),
            place,
        },
        scores,
        others,
    })
}

/// The gold choices: those at the gold index or indices.
fn chosen(choices: Option<&Value>, index: Option<&Value>) -> Option<String> {
    let choices = choices?.as_array()?;
    let at = |index: &Value| choices.get(usize::try_from(index.as_u64()?).ok()?).cloned();
    let gold = match index? {
        Value::Array(indices) => indices.iter().map(at).collect::<Option<Vec<_>>>()?,
        one => vec![at(one)?],
    };
    value_text(&Value::Array(gold)).map(|gold| gold.trim_start().to_owned())
}

/// The metrics' fields.
fn fields(metrics: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    let fields = metrics.and_then(Value::as_object);
    fields.into_iter().flatten()
}
