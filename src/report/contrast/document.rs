//! A comparison as one JSON document.

use std::io::{self, Write};

use serde::Serialize;

use crate::certify::{
    CONFIDENCE, ComparedRun, Comparison, Contrast, ContrastCounts, EndpointFamily, MissingContrast,
};

use super::notes::notes;
use super::sentence::sentence;

/// Schema name of the JSON document of a comparison.
pub const COMPARE_SCHEMA: &str = "kvassay.compare/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    exit: u8,
    family_alpha: f64,
    runs: Vec<Run<'a>>,
    endpoints: Vec<Endpoint<'a>>,
    missing: Vec<Missing<'a>>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Run<'a> {
    run: &'a str,
    model: &'a str,
    weights_sha256: &'a str,
    declared: bool,
    protocol: &'a str,
    protocol_sha256: &'a str,
}

#[derive(Serialize)]
struct Endpoint<'a> {
    endpoint: &'a str,
    method: &'a str,
    models: &'a [String],
    family_size: usize,
    family_missing: usize,
    contrasts: Vec<Row<'a>>,
}

/// Counts of the other kind of panel are absent.
#[derive(Serialize)]
struct Row<'a> {
    contrast: &'a str,
    model: &'a str,
    declared: bool,
    first: &'a str,
    second: &'a str,
    #[serde(flatten)]
    counts: Counts,
    effect: f64,
    interval: [f64; 2],
    confidence: f64,
    p: f64,
    log10_p: f64,
    adjusted_p: Option<f64>,
    adjusted_log10_p: Option<f64>,
    direction: &'a str,
    established: bool,
    sentence: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Counts {
    Answers {
        pairs: u64,
        first_correct: u64,
        second_correct: u64,
        first_only: u64,
        second_only: u64,
    },
    Nll {
        pairs: u64,
        first_mean: f64,
        second_mean: f64,
        exceeding: u32,
    },
}

#[derive(Serialize)]
struct Missing<'a> {
    endpoint: &'a str,
    contrast: &'a str,
    model: &'a str,
    run: Option<&'a str>,
    declared: bool,
    reason: &'a str,
    detail: &'a str,
}

/// Writes one JSON document and a line feed.
///
/// # Errors
/// Where `out` cannot be written.
pub(super) fn write(comparison: &Comparison, exit: u8, out: &mut dyn Write) -> io::Result<()> {
    let document = Document {
        schema: COMPARE_SCHEMA,
        exit,
        family_alpha: comparison.family_alpha,
        runs: comparison
            .runs
            .iter()
            .map(|found| run(comparison, found))
            .collect(),
        endpoints: comparison.endpoints.iter().map(endpoint).collect(),
        missing: comparison.missing.iter().map(missing).collect(),
        notes: notes(comparison),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

fn run<'a>(comparison: &'a Comparison, found: &'a ComparedRun) -> Run<'a> {
    Run {
        run: &found.run,
        model: &found.model,
        weights_sha256: &found.weights_sha256,
        declared: found.declared,
        protocol: &comparison.protocol,
        protocol_sha256: &comparison.protocol_sha256,
    }
}

fn endpoint(family: &EndpointFamily) -> Endpoint<'_> {
    Endpoint {
        endpoint: &family.endpoint,
        method: family.method.name(),
        models: &family.models,
        family_size: family.size,
        family_missing: family.missing,
        contrasts: family
            .contrasts
            .iter()
            .map(|found| row(&family.endpoint, found))
            .collect(),
    }
}

fn row<'a>(endpoint: &str, found: &'a Contrast) -> Row<'a> {
    Row {
        contrast: &found.contrast,
        model: &found.model,
        declared: found.declared,
        first: &found.first,
        second: &found.second,
        counts: counts(found.counts),
        effect: found.effect,
        interval: found.interval,
        confidence: CONFIDENCE,
        p: found.p.p,
        log10_p: found.p.log10_p,
        adjusted_p: found.adjusted.map(|adjusted| adjusted.p),
        adjusted_log10_p: found.adjusted.map(|adjusted| adjusted.log10_p),
        direction: found.direction.name(),
        established: found.established,
        sentence: sentence(endpoint, found),
    }
}

fn counts(found: ContrastCounts) -> Counts {
    match found {
        ContrastCounts::Answers {
            pairs,
            first_correct,
            second_correct,
            first_only,
            second_only,
        } => Counts::Answers {
            pairs,
            first_correct,
            second_correct,
            first_only,
            second_only,
        },
        ContrastCounts::Nll {
            documents,
            first_mean,
            second_mean,
            exceeding,
        } => Counts::Nll {
            pairs: documents,
            first_mean,
            second_mean,
            exceeding,
        },
    }
}

fn missing(entry: &MissingContrast) -> Missing<'_> {
    Missing {
        endpoint: &entry.endpoint,
        contrast: &entry.contrast,
        model: &entry.model,
        run: entry.run.as_deref(),
        declared: entry.declared,
        reason: entry.lack.name(),
        detail: &entry.detail,
    }
}
