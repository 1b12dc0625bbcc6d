//! What stands beside the verdicts: degradation, native against native, counts, memory,
//! engagement, resources.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::certify::unattainable;
use crate::schema::{
    AnswerMode, Certificate, ComponentTotals, Engagement, KvTotals, Protocol, ResourceSummary,
    RuleName, SampleScope,
};

use super::super::notes::aa_outcome;
use super::figures::{bound_and_limit, bytes, change, count, percent, small};
use super::verdicts::{Said, said};

/// Degradation of one recipe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DegradationRow {
    /// Recipe.
    pub recipe: String,
    /// One per endpoint; absent where the certificate has none.
    pub cells: Vec<DegradationCell>,
}

/// Degradation at one endpoint.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DegradationCell {
    /// Endpoint.
    pub endpoint: String,
    /// Whether it is established.
    pub established: bool,
    /// The bound that decides; absent where there is none.
    pub bound: Option<String>,
}

/// Degradation of every recipe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DegradationTable {
    /// Endpoints in the protocol's order.
    pub endpoints: Vec<String>,
    /// Alpha per endpoint; absent where no certificate gives one.
    pub alpha: Option<String>,
    /// Rows.
    pub rows: Vec<DegradationRow>,
}

/// The degradation table of a run.
pub(super) fn degradation(protocol: &Protocol, certificates: &[&Certificate]) -> DegradationTable {
    let endpoints: Vec<String> = protocol.panels.iter().map(|it| it.panel_name()).collect();
    let rows = certificates.iter().map(|certificate| {
        let cells = endpoints.iter().map(|endpoint| {
            let found = certificate
                .degradation
                .iter()
                .find(|it| it.endpoint == *endpoint);
            DegradationCell {
                endpoint: endpoint.clone(),
                established: found.is_some_and(|it| it.established),
                bound: found.and_then(|it| it.bound).map(change),
            }
        });
        DegradationRow {
            recipe: certificate.recipe.name.clone(),
            cells: cells.collect(),
        }
    });
    let mut all = certificates.iter().flat_map(|it| &it.degradation);
    DegradationTable {
        alpha: all.next().map(|it| small(it.alpha)),
        rows: rows.collect(),
        endpoints,
    }
}

/// Sentences on native against native, on how answers came about, and on sizes that cannot pass.
pub(super) fn sentences(protocol: &Protocol, certificates: &[&Certificate]) -> Vec<Said> {
    let mut all = said(certificates, |it| vec![aa(it)]);
    all.extend(said(certificates, |it| answers(it).into_iter().collect()));
    // Alphas out of range stop a run before there is anything to report.
    for rule in unattainable(protocol).unwrap_or_default() {
        let [bound, limit] = bound_and_limit(rule.rule.name(), rule.bound, rule.limit);
        // With gains the net change may pass all the same.
        let (passes, with) = match rule.rule {
            RuleName::NetChange => ("does not pass", "with nothing lost and nothing gained"),
            _ => ("cannot pass", "with no loss"),
        };
        all.push(Said {
            recipes: None,
            text: format!(
                "{} on {} {passes} at the protocol's size: {with} in {} cases its bound is {bound}, \
                 the limit {limit}",
                rule.rule.name(),
                rule.panel,
                rule.cases
            ),
        });
    }
    all
}

fn aa(certificate: &Certificate) -> String {
    let Some(aa) = &certificate.aa else {
        return "Native was not run a second time: the worker's noise is not known.".to_owned();
    };
    if aa.records == 0 {
        return "Native was run a second time, but nothing was compared.".to_owned();
    }
    let outcome = aa_outcome(aa, &count(aa.records));
    format!("Native against native: {outcome}.")
}

fn answers(certificate: &Certificate) -> Option<String> {
    let answers = certificate.answers.as_ref()?;
    Some(match answers.mode {
        AnswerMode::Plain => "Answers were generated token by token.".to_owned(),
        AnswerMode::Verified => format!(
            "Answers were verified against the control's; {} were generated plainly as well, {} of \
             them differ.",
            answers.regenerated, answers.mismatches
        ),
    })
}

/// What is counted apart in one arm.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CountRow {
    /// Arm.
    pub arm: String,
    /// Answers cut by the allowance.
    pub truncated: String,
    /// Answers from which nothing could be parsed.
    pub unparsed: String,
    /// Errored cases.
    pub errors: String,
}

/// Counts of the controls, then of every candidate.
pub(super) fn counts(certificates: &[&Certificate]) -> Vec<CountRow> {
    let row = |arm: &str, truncated, unparsed, errors| CountRow {
        arm: arm.to_owned(),
        truncated: count(truncated),
        unparsed: count(unparsed),
        errors: count(errors),
    };
    let controls = certificates.first().map(|it| &it.counts.controls);
    let mut rows: Vec<CountRow> = controls
        .into_iter()
        .flatten()
        .map(|(arm, it)| row(arm, it.truncated, it.unparsed, it.errors))
        .collect();
    for certificate in certificates {
        let it = &certificate.counts;
        let name = &certificate.recipe.name;
        rows.push(row(name, it.truncated, it.unparsed, it.errors));
    }
    rows
}

/// Cache bytes of one recipe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemoryRow {
    /// Recipe.
    pub recipe: String,
    /// Bytes per token.
    pub bytes_per_token: String,
    /// Part of the native bytes, in per cent of the bar.
    pub part: String,
    /// Saved.
    pub saved: String,
}

/// Cache bytes of every recipe.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemoryTable {
    /// Native bytes per token.
    pub native: String,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Some layers keep less than is stored.
    pub has_windows: bool,
    /// Rows.
    pub rows: Vec<MemoryRow>,
}

/// Cache bytes; `None` where nothing is known of the cache.
pub(super) fn memory(certificates: &[&Certificate]) -> Option<MemoryTable> {
    let first = &certificates.first()?.memory;
    let native = first.native_bytes_per_token;
    if native == 0 {
        return None;
    }
    let rows = certificates.iter().map(|certificate| {
        let memory = &certificate.memory;
        let part = 100.0 * (1.0 - memory.saved);
        MemoryRow {
            recipe: certificate.recipe.name.clone(),
            bytes_per_token: count(memory.bytes_per_token),
            part: format!("{:.2}", part.clamp(0.0, 100.0)),
            saved: super::figures::minus(&format!("{:.1}%", 100.0 * memory.saved)),
        }
    });
    Some(MemoryTable {
        native: count(native),
        page_tokens: first.page_tokens,
        has_windows: first.kept.is_some(),
        rows: rows.collect(),
    })
}

/// What one side of a recipe's cache stored.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EngagementRow {
    /// Recipe.
    pub recipe: String,
    /// `K` or `V`.
    pub side: &'static str,
    /// What was looked at: all records, or the probe alone.
    pub over: &'static str,
    /// Stored bytes.
    pub bytes: String,
    /// Stored elements.
    pub elements: String,
    /// Elements that native storage would hold otherwise.
    pub changed: String,
    /// Elements that overflowed the format.
    pub saturated: String,
    /// Smallest and largest scale; absent for native storage.
    pub scales: Option<String>,
}

/// Rows of every recipe with proof of engagement.
pub(super) fn engagement(certificates: &[&Certificate]) -> Vec<EngagementRow> {
    let mut rows = Vec::new();
    for certificate in certificates {
        let Some(engagement) = &certificate.engagement else {
            continue;
        };
        let (totals, over) = stored(engagement);
        for (side, totals) in [("K", &totals.k), ("V", &totals.v)] {
            rows.push(EngagementRow {
                recipe: certificate.recipe.name.clone(),
                side,
                over,
                bytes: bytes(totals.bytes),
                elements: count(totals.elements),
                changed: of(totals.changed, totals.elements),
                saturated: of(totals.saturated, totals.elements),
                scales: scales(totals),
            });
        }
    }
    rows
}

/// Sums over all records where the arm is complete, else over the layers of the probe.
fn stored(engagement: &Engagement) -> (KvTotals, &'static str) {
    if let Some(totals) = &engagement.totals {
        return (totals.clone(), "all records");
    }
    let mut sum = KvTotals::default();
    for layer in &engagement.layers {
        sum.k.merge(&layer.k);
        sum.v.merge(&layer.v);
    }
    (sum, "probe")
}

fn of(part: u64, whole: u64) -> String {
    match whole {
        0 => count(part),
        _ => format!("{} ({})", count(part), percent(part as f64 / whole as f64)),
    }
}

fn scales(totals: &ComponentTotals) -> Option<String> {
    let (low, high) = (totals.scale_min?, totals.scale_max?);
    let show = |scale: f32| small(f64::from(scale));
    Some(match low == high {
        true => show(low),
        false => format!("{} to {}", show(low), show(high)),
    })
}

/// What is to be said of proofs of engagement as a whole.
pub(super) fn engagement_notes(certificates: &[&Certificate]) -> Vec<Said> {
    said(certificates, |it| match &it.engagement {
        None => vec!["Nothing was read back from the cache.".to_owned()],
        Some(engagement) => {
            let unit = engagement
                .unit_scales
                .then_some("Every scale is exactly 1.0.");
            let same = (!engagement.differs_from_native)
                .then_some("No stored element differs from native storage.");
            unit.into_iter().chain(same).map(str::to_owned).collect()
        }
    })
}

/// What one arm took of the machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ResourceRow {
    /// Arm.
    pub arm: String,
    /// Devices.
    pub devices: String,
    /// Largest allocations of weights.
    pub weights: String,
    /// Of the cache.
    pub cache: String,
    /// Of the rest.
    pub rest: String,
    /// Largest sample of memory in use; absent where nothing was sampled.
    pub peak: Option<String>,
    /// Processes that worked on it.
    pub parts: u32,
}

/// What arms took, each once.
pub(super) fn resources(certificates: &[&Certificate]) -> Vec<ResourceRow> {
    let mut arms: BTreeMap<&String, &ResourceSummary> = BTreeMap::new();
    for certificate in certificates {
        arms.extend(&certificate.resources);
    }
    arms.into_iter()
        .map(|(arm, it)| resource_row(arm, it))
        .collect()
}

fn resource_row(arm: &str, summary: &ResourceSummary) -> ResourceRow {
    let held = &summary.allocations;
    let rest = held
        .counters
        .saturating_add(held.staging)
        .saturating_add(held.graphs)
        .saturating_add(held.states);
    let peak = summary.sampled.as_ref().map(|sampled| {
        let scope = match sampled.scope {
            SampleScope::Device => "of the device",
            SampleScope::Process => "of the process",
        };
        format!(
            "{} {scope}, largest gap {} ms",
            bytes(sampled.peak_bytes),
            sampled.largest_gap_ms
        )
    });
    ResourceRow {
        arm: arm.to_owned(),
        devices: summary.devices.join(", "),
        weights: bytes(held.weights),
        cache: bytes(held.cache),
        rest: bytes(rest),
        peak,
        parts: summary.parts,
    }
}
