//! What a comparison does and does not correct for.

use crate::certify::{
    Comparison, ContrastCounts, ContrastMethod, EndpointFamily, FEW_DOCUMENTS, MissingContrast,
};

use super::number::significant;

/// Every note, in reading order.
pub(super) fn notes(comparison: &Comparison) -> Vec<String> {
    let mut notes = vec![format!(
        "Each endpoint is a Holm family of its own over all declared contrasts of all declared \
         models, at alpha {}; nothing is corrected across endpoints.",
        significant(comparison.family_alpha, 4)
    )];
    notes.push(
        "Effects are first - second: of accuracies in math and retrieval, of mean NLL per target \
         in nats. The direction is the arm with more right answers or the lower NLL."
            .to_owned(),
    );
    notes.extend(star(comparison));
    if comparison.filtered {
        notes.push(
            "--contrast chooses what is shown; adjusted values are those of the whole family."
                .to_owned(),
        );
    }
    for (asked, declared) in &comparison.reversed {
        notes.push(format!(
            "{asked} is declared as {declared} and shown as such."
        ));
    }
    notes.extend(missing(comparison));
    notes.extend(descriptive(comparison));
    notes.extend(bootstrap(comparison));
    for run in &comparison.runs {
        let doubts = run.doubts.iter();
        notes.extend(doubts.map(|doubt| format!("{}: {doubt}.", run.run)));
    }
    notes
}

/// Families beside each other exist only where `*` stands for several models in turn.
fn star(comparison: &Comparison) -> Option<String> {
    let of_first = comparison.endpoints.first()?;
    let families = comparison
        .endpoints
        .iter()
        .filter(|found| found.endpoint == of_first.endpoint && !found.models.is_empty())
        .count();
    (families > 1).then(|| {
        format!(
            "The protocol's model * stands for one model: the {families} runs under it are a \
             family each, and nothing is corrected across them."
        )
    })
}

fn missing(comparison: &Comparison) -> Option<String> {
    let families = comparison.endpoints.iter();
    let (missing, size) = families.fold((0, 0), |(missing, size), family| {
        (missing + family.missing, size + family.size)
    });
    (missing > 0).then(|| {
        format!(
            "{missing} of {size} declared tests could not be computed; they stay in their families \
             and count as p = 1."
        )
    })
}

fn descriptive(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    let undeclared = comparison.runs.iter().filter(|run| !run.declared);
    notes.extend(undeclared.map(|run| match &run.post_hoc {
        Some(why) => format!("{}: {why}: its contrasts are descriptive.", run.run),
        None => format!(
            "{}: protocol {} does not declare model {} with weights {}: its contrasts are \
             descriptive.",
            run.run, comparison.protocol, run.model, run.weights_sha256
        ),
    }));
    let mut contrasts = comparison.endpoints.iter().flat_map(|f| &f.contrasts);
    if contrasts.any(|contrast| !contrast.declared) {
        notes.push(
            "A descriptive contrast is outside of every family: its p is unadjusted and nothing is \
             established by it."
                .to_owned(),
        );
    }
    notes
}

fn bootstrap(comparison: &Comparison) -> Vec<String> {
    let on_nll = |family: &&EndpointFamily| family.method == ContrastMethod::PairedBootstrap;
    let families = || comparison.endpoints.iter().filter(on_nll);
    if families().all(|family| family.contrasts.is_empty()) {
        return Vec::new();
    }
    let all = f64::from(comparison.resamples) + 1.0;
    let mut notes = vec![format!(
        "NLL: {} resamples of documents, seed {}; p = (b + 1) / (B + 1) is at least {}. The test is \
         approximate: docs/statistics.md gives its measured size.",
        comparison.resamples,
        comparison.seed,
        significant(1.0 / all, 3)
    )];
    let largest = families().map(|family| family.size).max().unwrap_or(0);
    if largest as f64 / all > comparison.family_alpha {
        notes.push(format!(
            "With {} resamples and {largest} contrasts no NLL difference can be established: the \
             least p times {largest} is above alpha.",
            comparison.resamples
        ));
    }
    for note in families().flat_map(unreliable) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// Where resampling shows less than it seems to.
fn unreliable(family: &EndpointFamily) -> Vec<String> {
    let endpoint = &family.endpoint;
    let mut notes = Vec::new();
    for found in &family.contrasts {
        if let ContrastCounts::Nll { documents, .. } = found.counts
            && !found.counts.are_enough()
        {
            notes.push(format!(
                "{endpoint} rests on {documents} documents: bootstrap tests and intervals are \
                 unreliable at small numbers, and p comes out too small. With fewer than \
                 {FEW_DOCUMENTS} no difference is established."
            ));
        }
        if found.interval[0] == found.interval[1] && found.effect != 0.0 {
            notes.push(format!(
                "{} of {} on {endpoint} has no sampling variation: every document differs by the \
                 same amount, so that interval and p show no precision.",
                found.contrast, found.model
            ));
        }
    }
    notes
}

/// One line for all contrasts of a model of which the same is missing for the same reason.
pub(super) fn missing_lines(missing: &[MissingContrast]) -> Vec<String> {
    let mut by_endpoint: Vec<(Key<'_>, &str, Vec<&str>)> = Vec::new();
    for entry in missing {
        let (key, endpoint) = (Key::of(entry), entry.endpoint.as_str());
        match by_endpoint
            .iter_mut()
            .find(|(other, at, _)| *other == key && *at == endpoint)
        {
            Some((_, _, contrasts)) => contrasts.push(&entry.contrast),
            None => by_endpoint.push((key, endpoint, vec![&entry.contrast])),
        }
    }
    let mut lines: Vec<(Key<'_>, Vec<&str>, Vec<&str>)> = Vec::new();
    for (key, endpoint, contrasts) in by_endpoint {
        match lines
            .iter_mut()
            .find(|(other, same, _)| *other == key && *same == contrasts)
        {
            Some((_, _, endpoints)) => endpoints.push(endpoint),
            None => lines.push((key, contrasts, vec![endpoint])),
        }
    }
    lines
        .iter()
        .map(|(key, contrasts, endpoints)| key.line(contrasts, endpoints))
        .collect()
}

#[derive(PartialEq, Eq)]
struct Key<'a> {
    model: &'a str,
    declared: bool,
    detail: &'a str,
}

impl<'a> Key<'a> {
    fn of(entry: &'a MissingContrast) -> Self {
        Key {
            model: &entry.model,
            declared: entry.declared,
            detail: &entry.detail,
        }
    }

    fn line(&self, contrasts: &[&str], endpoints: &[&str]) -> String {
        let counts = if self.declared {
            ", counted as p = 1"
        } else {
            ", descriptive"
        };
        format!(
            "missing{counts}: {}: {} on {}: {}",
            self.model,
            contrasts.join(", "),
            endpoints.join(", "),
            self.detail
        )
    }
}
