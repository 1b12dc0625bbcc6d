//! What ran: model, worker, protocol, panels, files and their digests.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::schema::{FileDigest, Geometry, ImportReport, Pairing, ToolIdentity};

use super::figures::{count, small};
use super::{HtmlCertificate, HtmlRun};

/// A named value.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Fact {
    /// Name.
    pub name: &'static str,
    /// Value.
    pub value: String,
    /// Whether the value is a digest.
    pub digest: bool,
}

impl Fact {
    fn new(name: &'static str, value: impl Into<String>) -> Self {
        Fact {
            name,
            value: value.into(),
            digest: false,
        }
    }

    fn digest(name: &'static str, value: &str) -> Self {
        Fact {
            name,
            value: value.to_owned(),
            digest: true,
        }
    }
}

/// Model, worker, protocol and tool.
pub(super) fn facts(run: &HtmlRun<'_>) -> Vec<Fact> {
    let manifest = run.manifest;
    let (model, worker, protocol) = (&manifest.model, &manifest.worker, &manifest.protocol);
    let mut facts = vec![
        Fact::new("model", format!("{} ({})", model.name, model.family)),
        Fact::digest("weights", &model.weights_sha256),
        Fact::digest("tokenizer", &model.tokenizer_sha256),
    ];
    if model.geometry != Geometry::unknown() {
        facts.push(Fact::new("shape", shape(&model.geometry)));
    }
    facts.push(Fact::new("worker", worker.kind.clone()));
    facts.push(Fact::new("device", worker.device.clone()));
    facts.push(Fact::new("arithmetic", worker.arithmetic.clone()));
    facts.push(Fact::new(
        "protocol",
        format!("{}: {}", protocol.name, protocol.description),
    ));
    facts.push(Fact::digest("protocol digest", &manifest.protocol_sha256));
    facts.push(Fact::new("family alpha", small(protocol.family_alpha)));
    facts.push(Fact::new("required objective", protocol.required.name()));
    facts.push(Fact::new("controls", protocol.controls.join(", ")));
    if let Some(limit) = manifest.limit {
        facts.push(Fact::new(
            "cut short",
            format!("--limit {limit} cases per panel"),
        ));
    }
    facts.push(Fact::new("run by", tool(&manifest.tool)));
    facts
}

/// A version of this tool.
pub(super) fn tool(tool: &ToolIdentity) -> String {
    let sources: String = tool.source_sha256.chars().take(12).collect();
    format!("kvassay {} (sources {sources})", tool.version)
}

fn shape(shape: &Geometry) -> String {
    format!(
        "{} layers, hidden size {}, {} heads, {} KV heads of {}, vocabulary {}, context {}, native \
         cache {}",
        shape.layers,
        count(shape.hidden_size.into()),
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        count(shape.vocab_size.into()),
        count(shape.context.into()),
        shape.native_dtype
    )
}

/// A panel of the run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PanelRow {
    /// Name.
    pub panel: String,
    /// Cases.
    pub cases: String,
    /// Digest, or why the panel cannot be run.
    pub state: String,
    /// Whether it could be run.
    pub runs: bool,
}

/// The panels of the manifest.
pub(super) fn panels(run: &HtmlRun<'_>) -> Vec<PanelRow> {
    let panels = run.manifest.panels.iter();
    panels
        .map(|panel| PanelRow {
            panel: panel.panel.clone(),
            cases: count(panel.cases.into()),
            runs: panel.unsupported.is_none(),
            state: match (&panel.unsupported, &panel.file) {
                (Some(why), _) => format!("unsupported: {why}"),
                (None, Some(file)) => file.sha256.clone(),
                (None, None) => "no file".to_owned(),
            },
        })
        .collect()
}

/// What an import found.
pub(super) fn import(report: Option<&ImportReport>) -> Vec<Fact> {
    let Some(report) = report else {
        return Vec::new();
    };
    let pairing = match report.pairing {
        Pairing::Content => "question and gold answer",
        Pairing::Ids => "case ids alone",
    };
    let mut facts = vec![
        Fact::new("harness", report.harness.clone()),
        Fact::new("metric", report.metric.clone()),
    ];
    facts.extend(report.filter.clone().map(|it| Fact::new("filter", it)));
    facts.push(Fact::new("paired by", pairing));
    facts.push(Fact::new("pairs", count(report.pairs)));
    facts.push(Fact::new("faults", report.faults.len().to_string()));
    let disagreements = report.parser_disagreements.len();
    facts.push(Fact::new(
        "own parser",
        format!(
            "{} compared, {disagreements} disagree",
            count(report.parser_compared)
        ),
    ));
    facts
}

/// A file of the evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct EvidenceRow {
    /// Path below the run directory.
    pub path: String,
    /// SHA-256.
    pub sha256: String,
    /// Recipes whose certificates name it; absent where all of several do.
    pub recipes: Option<String>,
}

/// Every file that certificates name, by path.
pub(super) fn evidence(certificates: &[HtmlCertificate<'_>]) -> Vec<EvidenceRow> {
    let mut files: BTreeMap<&FileDigest, Vec<&str>> = BTreeMap::new();
    for held in certificates {
        let name = held.certificate.recipe.name.as_str();
        for file in &held.certificate.evidence {
            files.entry(file).or_default().push(name);
        }
    }
    let is_all = |names: &[&str]| names.len() == certificates.len() && names.len() > 1;
    files
        .into_iter()
        .map(|(file, names)| EvidenceRow {
            path: file.path.clone(),
            sha256: file.sha256.clone(),
            recipes: (!is_all(&names)).then(|| names.join(", ")),
        })
        .collect()
}
