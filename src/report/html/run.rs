//! A run as its page shows it, from the verdicts down to the digests.

use serde::Serialize;

use crate::schema::{Certificate, FileDigest, ToolIdentity, Verdict};

use super::beside::{self, CountRow, DegradationTable, EngagementRow, MemoryTable, ResourceRow};
use super::depth::{self, DepthTable};
use super::flips::{self, FlipList};
use super::forest::{Forest, forests};
use super::identity::{self, EvidenceRow, Fact, PanelRow};
use super::rest;
use super::strip::{Strips, strips};
use super::text::excerpt;
use super::verdicts::{self, RuleRow, Said, VerdictTable};
use super::{HtmlCertificate, HtmlRun};

/// Most mismatches listed per certificate.
const MISMATCHES: usize = 12;
/// Most characters of one of them.
const MISMATCH: usize = 400;

/// Everything that the page shows.
#[derive(Serialize)]
pub(super) struct RunView<'a> {
    /// What tells the anchors of this run from those of the runs before it.
    anchor: String,
    model: &'a str,
    protocol: &'a str,
    protocol_sha256: &'a str,
    headline: String,
    checks: Checks,
    verdicts: VerdictTable,
    reasons: Vec<Said>,
    forests: Vec<Forest>,
    strips: Vec<Strips>,
    depths: Vec<DepthTable>,
    degradation: DegradationTable,
    recipes: Vec<Recipe<'a>>,
    notes: Vec<Said>,
    counts: Vec<CountRow>,
    memory: Option<MemoryTable>,
    engagement: Vec<EngagementRow>,
    engagement_notes: Vec<Said>,
    resources: Vec<ResourceRow>,
    rest: Vec<Said>,
    rules: Vec<RuleRow>,
    facts: Vec<Fact>,
    import: Vec<Fact>,
    panels: Vec<PanelRow>,
    model_files: &'a [FileDigest],
    evidence: Vec<EvidenceRow>,
    caveats: Vec<Said>,
    flips: usize,
}

/// What the check against the run's records found.
#[derive(Serialize)]
struct Checks {
    /// Certificates that follow from the records.
    verified: usize,
    /// Evidence files that they name.
    files: usize,
    /// The others.
    failed: Vec<FailedCheck>,
    /// Candidate arms without a certificate.
    missing: String,
    /// Versions that issued certificates and are not the one that checks them.
    issued_by: Vec<String>,
}

/// A certificate that does not follow from the records.
#[derive(Serialize)]
struct FailedCheck {
    recipe: String,
    count: usize,
    mismatches: Vec<String>,
    left_out: usize,
}

/// A recipe with its certificate file and its flips.
#[derive(Serialize)]
struct Recipe<'a> {
    name: &'a str,
    spec: &'a str,
    file: &'a FileDigest,
    flips: Vec<FlipList>,
    /// Why no cases can be shown.
    no_cases: Option<&'a str>,
}

impl<'a> RunView<'a> {
    /// What there is to show of a run.
    pub fn new(at: usize, run: &'a HtmlRun<'a>) -> Self {
        let manifest = run.manifest;
        let protocol = &manifest.protocol;
        let held = run.certificates;
        let certificates: Vec<&Certificate> = held.iter().map(|it| it.certificate).collect();
        let controls = protocol.controls.len();
        RunView {
            anchor: match at {
                0 => String::new(),
                _ => format!("run-{}-", at + 1),
            },
            model: &manifest.model.name,
            protocol: &protocol.name,
            protocol_sha256: &manifest.protocol_sha256,
            headline: headline(&certificates),
            checks: checks(run),
            verdicts: verdicts::table(protocol, &certificates),
            reasons: verdicts::reasons(&certificates),
            forests: forests(&certificates, controls),
            strips: strips(held, controls),
            depths: depth::tables(held, controls),
            degradation: beside::degradation(protocol, &certificates),
            recipes: held.iter().map(|it| recipe(run, it)).collect(),
            notes: beside::sentences(protocol, &certificates),
            counts: beside::counts(&certificates),
            memory: beside::memory(&certificates),
            engagement: beside::engagement(&certificates),
            engagement_notes: beside::engagement_notes(&certificates),
            resources: beside::resources(&certificates),
            rest: verdicts::said(&certificates, rest::lines),
            rules: verdicts::rule_rows(&certificates),
            facts: identity::facts(run),
            import: identity::import(run.import),
            panels: identity::panels(run),
            model_files: &manifest.model.files,
            evidence: identity::evidence(held),
            caveats: verdicts::said(&certificates, |it| it.caveats.clone()),
            flips: run.flips,
        }
    }
}

/// How many recipes hold what.
fn headline(certificates: &[&Certificate]) -> String {
    let all = certificates.len();
    let passed = |verdict: fn(&Certificate) -> Verdict| {
        let held = certificates
            .iter()
            .filter(|it| verdict(it) == Verdict::Pass);
        held.count()
    };
    let preservation = passed(|it| it.objectives.preservation.verdict);
    let aggregate = passed(|it| it.objectives.aggregate.verdict);
    let recipes = if all == 1 { "recipe" } else { "recipes" };
    format!(
        "Of {all} {recipes}, {preservation} passed preservation and {aggregate} passed aggregate."
    )
}

fn checks(run: &HtmlRun<'_>) -> Checks {
    let failed = run
        .certificates
        .iter()
        .filter(|it| !it.mismatches.is_empty());
    let failed: Vec<FailedCheck> = failed.map(failed_check).collect();
    let current = ToolIdentity::current();
    let mut issued_by: Vec<String> = Vec::new();
    for held in run.certificates {
        let tool = &held.certificate.tool;
        let text = identity::tool(tool);
        if *tool != current && !issued_by.contains(&text) {
            issued_by.push(text);
        }
    }
    Checks {
        verified: run.certificates.len() - failed.len(),
        files: identity::evidence(run.certificates).len(),
        failed,
        missing: run.missing.join(", "),
        issued_by,
    }
}

fn failed_check(held: &HtmlCertificate<'_>) -> FailedCheck {
    let count = held.mismatches.len();
    let shown = held.mismatches.iter().take(MISMATCHES);
    let shown = shown.map(|found| {
        let text = excerpt(&found.to_string(), MISMATCH);
        match text.left_out {
            0 => text.text,
            more => format!("{} \u{2026} ({more} more characters)", text.text),
        }
    });
    FailedCheck {
        recipe: held.certificate.recipe.name.clone(),
        count,
        mismatches: shown.collect(),
        left_out: count.saturating_sub(MISMATCHES),
    }
}

fn recipe<'a>(run: &'a HtmlRun<'a>, held: &'a HtmlCertificate<'a>) -> Recipe<'a> {
    Recipe {
        name: &held.certificate.recipe.name,
        spec: &held.certificate.recipe.spec,
        file: &held.file,
        flips: flips::lists(held, run.questions, run.flips),
        no_cases: held.cases.as_ref().err().map(String::as_str),
    }
}
