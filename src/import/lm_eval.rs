//! lm-evaluation-harness: sample logs (`samples_*.jsonl`), one line per document and filter.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::content::{Content, is_sha256, value_text};
use super::json::{first_text, id_text, kind, parse, protocol_digest, protocol_field};
use super::read::Input;
use super::sample::{Logs, Raw, RawArm, Sample, Score, choose, scores};
use super::{ImportError, content};

/// Metric where none is named.
const DEFAULT_METRIC: &str = "exact_match";
/// Filter of logs that name none.
const NO_FILTER: &str = "none";

/// Fields of a line that are no metric.
const NO_METRIC: [&str; 13] = [
    "doc_id",
    "doc",
    "target",
    "arguments",
    "resps",
    "filtered_resps",
    "filter",
    "metrics",
    "doc_hash",
    "prompt_hash",
    "target_hash",
    "metadata",
    "kvassay_protocol_sha256",
];

/// Fields of a document that are not the question: answers, and what numbers the document.
const NO_QUESTION: [&str; 14] = [
    "answer",
    "answers",
    "target",
    "targets",
    "gold",
    "label",
    "solution",
    "final_answer",
    "id",
    "idx",
    "index",
    "doc_id",
    "kvassay_protocol_sha256",
    "protocol_sha256",
];

/// What can be chosen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Metric field; `exact_match` where absent.
    pub metric: Option<String>,
    /// Filter; the only one where absent.
    pub filter: Option<String>,
}

/// Reads the sample logs of both arms.
///
/// # Errors
/// [`ImportError::Choice`] where there are several filters and none is chosen;
/// [`ImportError::Input`] with file and line for what is no sample, or has no such metric.
pub fn read(
    native: &[PathBuf],
    candidate: &[PathBuf],
    options: &Options,
) -> Result<Logs, ImportError> {
    let mut arms = Vec::new();
    for paths in [native, candidate] {
        let mut filters = Filters::default();
        // The filters of all files are known only when all are read.
        let lines = std::cell::RefCell::new(&mut filters);
        let arm = RawArm::read(paths, &|input, arm| {
            read_file(input, arm, &mut lines.borrow_mut())
        })?;
        arms.push((arm, filters));
    }
    let names: Vec<BTreeSet<String>> = arms.iter().map(|(_, filters)| filters.names()).collect();
    let filter = match names.as_slice() {
        [native, candidate] => choose("--filter", options.filter.as_deref(), [native, candidate])?,
        _ => NO_FILTER.to_owned(),
    };
    let metric = options.metric.as_deref().unwrap_or(DEFAULT_METRIC);
    let mut logs = arms.into_iter().map(|(mut arm, filters)| {
        arm.raw = filters.take(&filter, std::mem::take(&mut arm.raw));
        arm.select(metric)
    });
    Ok(Logs {
        harness: "lm-eval",
        native: logs.next().transpose()?.unwrap_or_default(),
        candidate: logs.next().transpose()?.unwrap_or_default(),
        metric: metric.to_owned(),
        filter: Some(filter),
    })
}

/// The filter of each sample of an arm.
#[derive(Default)]
struct Filters(Vec<String>);

impl Filters {
    fn names(&self) -> BTreeSet<String> {
        self.0.iter().cloned().collect()
    }

    fn take(&self, filter: &str, raw: Vec<Raw>) -> Vec<Raw> {
        let with_filters = raw.into_iter().zip(&self.0);
        with_filters
            .filter(|(_, found)| found.as_str() == filter)
            .map(|(raw, _)| raw)
            .collect()
    }
}

fn read_file(input: &Input, arm: &mut RawArm, filters: &mut Filters) -> Result<(), ImportError> {
    for line in input.lines() {
        let (place, bytes) = line?;
        let fields: Map<String, Value> = parse(&place, bytes, "a JSON object, one sample a line")?;
        filters.0.push(filter(&place, &fields)?);
        let metrics = fields
            .iter()
            .filter(|(name, _)| !NO_METRIC.contains(&name.as_str()));
        let (scores, others) = scores(metrics);
        arm.raw.push(Raw {
            sample: sample(place, &fields)?,
            scores,
            others,
        });
    }
    Ok(())
}

fn filter(place: &str, fields: &Map<String, Value>) -> Result<String, ImportError> {
    match fields.get("filter") {
        None | Some(Value::Null) => Ok(NO_FILTER.to_owned()),
        Some(Value::String(name)) => Ok(name.clone()),
        Some(other) => {
            let found = format!("filter: {}", kind(other));
            Err(ImportError::input(place, found, "text"))
        }
    }
}

fn sample(place: String, fields: &Map<String, Value>) -> Result<Sample, ImportError> {
    let Some(id) = fields.get("doc_id").and_then(id_text) else {
        let found = match fields.get("doc_id") {
            None => "no doc_id".to_owned(),
            Some(other) => format!("doc_id: {}", kind(other)),
        };
        return Err(ImportError::input(place, found, "a number or text"));
    };
    let digest = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    Ok(Sample {
        id: Some(id),
        content: Some(content(&place, fields)?),
        // Decided by the metric.
        score: Score::Unscored(String::new()),
        output: fields.get("resps").and_then(first_text),
        prompt_sha256: digest("prompt_hash"),
        protocol_sha256: protocol_field(fields)
            .or_else(|| protocol_digest([fields.get("metadata"), fields.get("doc")])),
        place,
    })
}

fn content(place: &str, fields: &Map<String, Value>) -> Result<Content, ImportError> {
    let gold = fields.get("target").and_then(value_text);
    if let Some(Value::Object(doc)) = fields.get("doc")
        && let Some(question) = question(doc)
    {
        return Ok(Content::of_text(&question, gold.as_deref()));
    }
    match fields.get("doc_hash").and_then(Value::as_str) {
        Some(hash) if is_sha256(hash) => Ok(Content::of_digest(hash, gold.as_deref())),
        _ => Err(ImportError::input(
            place,
            "neither a doc with a question nor a doc_hash",
            "one of them",
        )),
    }
}

/// The document without its answers and numbers: the text of its only field, or all of them as
/// canonical JSON.
fn question(doc: &Map<String, Value>) -> Option<String> {
    let rest: Map<String, Value> = doc
        .iter()
        .filter(|(name, _)| !NO_QUESTION.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut values = rest.values();
    match (values.next(), values.next()) {
        (None, _) => None,
        (Some(Value::String(text)), None) => Some(content::canonical_text(text)),
        _ => value_text(&Value::Object(rest)),
    }
}
