//! A certificate from its parts.

use crate::recipe::{PAGE_TOKENS, Recipe, bytes_per_token, saved, sink_bytes};
use crate::schema::{
    CERTIFICATE_SCHEMA, Certificate, CertificateProtocol, CertificateRecipe, FileDigest, Geometry,
    KeptFigures, MemoryFigures, ObjectiveName, ObjectiveResult, Objectives, RuleName, RuleResult,
    ToolIdentity, Verdict,
};
use crate::store::CALIBRATION_FILE;

use super::aa::{self, Aa};
use super::arms::{Trial, in_windows, over_attention};
use super::compare::{self, PanelResult, rules_on};
use super::evidence::Evidence;
use super::findings::{Finding, decide};
use super::outlook::outlook;
use super::rescore::{FrozenParsers, Rescore};
use super::{
    CertifyError, Reason, caveats, check, counts, degradation, engagement, regenerated, resources,
    server,
};

/// Computes the certificate of the candidate arm `candidate`; pure. Outputs are scored again with
/// the parsers that the panels name.
///
/// # Errors
/// As [`certify_with`].
pub fn certify(candidate: &str, evidence: &Evidence) -> Result<Certificate, CertifyError> {
    certify_with(candidate, evidence, &FrozenParsers)
}

/// Computes the certificate of the candidate arm `candidate`; pure. Outputs are scored again by
/// `scorer`.
///
/// # Errors
/// [`CertifyError`] where no certificate can be issued: the evidence contradicts itself, or native
/// differs from native on a built-in worker. Evidence that is merely incomplete has a certificate
/// that says so.
pub fn certify_with(
    candidate: &str,
    evidence: &Evidence,
    scorer: &dyn Rescore,
) -> Result<Certificate, CertifyError> {
    check::check(evidence)?;
    let trial = Trial::new(candidate, evidence)?;
    // A record that contradicts itself was changed behind the worker: that comes before what would
    // otherwise be put down to the worker.
    let panels = compare::panels(&trial, scorer)?;
    let aa = aa::compare(&trial, scorer)?;
    let regenerated = regenerated::compare(&trial)?;
    let engaged = server::engagement(&trial);
    let mut findings = findings(&trial, &panels, &aa);
    findings.extend(regenerated.findings);
    findings.extend(engaged.findings.iter().cloned());
    let undeclared = |finding: &Finding| finding.reason.verdict() == Verdict::Descriptive;
    let is_declared = !findings.iter().any(undeclared);
    let manifest = &evidence.manifest;
    let named = (trial.arm.arm.as_str(), trial.arm.recipe.as_str());
    let recipe = certificate_recipe(named, trial.recipe.as_ref(), &manifest.model.geometry);
    Ok(Certificate {
        schema: CERTIFICATE_SCHEMA.to_owned(),
        tool: ToolIdentity::current(),
        protocol: CertificateProtocol {
            name: manifest.protocol.name.clone(),
            sha256: manifest.protocol_sha256.clone(),
        },
        model: manifest.model.clone(),
        worker: manifest.worker.clone(),
        memory: memory(
            &recipe,
            trial.recipe.as_ref(),
            (&manifest.model.geometry, manifest.servers.is_some()),
        ),
        resources: resources::summaries(&trial),
        recipe,
        objectives: Objectives {
            preservation: objective(ObjectiveName::Preservation, &trial, &panels, &findings),
            aggregate: objective(ObjectiveName::Aggregate, &trial, &panels, &findings),
        },
        degradation: degradation::degradation(&trial, &panels, is_declared),
        counts: counts::counts(&trial),
        engagement: trial
            .evidence_of(candidate)
            .filter(|_| manifest.servers.is_none())
            .and_then(|arm| arm.engagement.clone()),
        server_engagement: engaged.result.clone(),
        servers: manifest.servers.clone(),
        evidence: files(&trial),
        caveats: caveats::caveats(&trial, &panels, &aa, &engaged),
        aa: aa.result,
        answers: regenerated.result,
    })
}

/// Everything that stands against either objective, but for what concerns one objective as such.
fn findings(trial: &Trial<'_>, panels: &[PanelResult<'_>], aa: &Aa) -> Vec<Finding> {
    let mut findings = trial.findings();
    findings.extend(aa.findings.iter().cloned());
    findings.extend(
        panels
            .iter()
            .flat_map(|panel| panel.findings.iter().cloned()),
    );
    findings.extend(resources::findings(trial));
    let is_complete = panels.iter().all(PanelResult::is_complete);
    let reads_back = trial.evidence.manifest.servers.is_none();
    if trial.arm.unsupported.is_none() && reads_back {
        findings.extend(engagement::findings(trial, is_complete));
    } else {
        findings.extend(engagement::missing_files(trial));
    }
    findings
}

fn objective(
    name: ObjectiveName,
    trial: &Trial<'_>,
    panels: &[PanelResult<'_>],
    findings: &[Finding],
) -> ObjectiveResult {
    let own = own_findings(name, trial, panels);
    let against: Vec<&Finding> = findings
        .iter()
        .filter(|finding| finding.concerns(name))
        .chain(&own)
        .collect();
    let decision = decide(&against);
    let rules: Vec<RuleResult> = panels
        .iter()
        .flat_map(|panel| &panel.rules)
        .filter(|(rule, _)| rule.serves(name))
        .map(|(_, result)| result.clone())
        .collect();
    let short = decision.reason.as_deref() == Some(Reason::BoundExceedsLimit.name());
    ObjectiveResult {
        outlook: rules.iter().filter(|_| short).filter_map(outlook).collect(),
        verdict: decision.verdict,
        reason: decision.reason,
        detail: decision.detail,
        incomplete: decision.incomplete,
        rules,
    }
}

/// What stands against one objective as such.
fn own_findings(
    name: ObjectiveName,
    trial: &Trial<'_>,
    panels: &[PanelResult<'_>],
) -> Vec<Finding> {
    let protocol = &trial.evidence.manifest.protocol;
    let mut findings = Vec::new();
    if !protocol.objectives.contains(&name) {
        let detail = format!(
            "protocol {} does not declare {}",
            protocol.name,
            name.name()
        );
        findings.push(Finding::new(Reason::ObjectiveUndeclared, detail));
    }
    for rule in RuleName::ALL.into_iter().filter(|rule| rule.serves(name)) {
        if !panels
            .iter()
            .any(|panel| rules_on(panel.plan).contains(&rule))
        {
            let detail = format!(
                "protocol {} has no panel for {}",
                protocol.name,
                rule.name()
            );
            findings.push(Finding {
                by_nature: trial.evidence.is_imported(),
                ..Finding::new(Reason::NoPanel, detail)
            });
        }
    }
    findings
}

/// A recipe and its bytes per token on a model of this shape; 0 where the name is no recipe.
pub(super) fn certificate_recipe(
    (name, spec): (&str, &str),
    recipe: Option<&Recipe>,
    geometry: &Geometry,
) -> CertificateRecipe {
    let of = |recipe: &Recipe| over_attention(recipe, geometry, bytes_per_token);
    CertificateRecipe {
        name: name.to_owned(),
        spec: spec.to_owned(),
        bytes_per_token: recipe.map_or(0, of),
        native_bytes_per_token: of(&Recipe::native()),
        sink_bytes: recipe.map_or(0, |recipe| over_attention(recipe, geometry, sink_bytes)),
    }
}

/// Cache bytes of a recipe whose bytes per token are known. Nothing is known of what is kept under a
/// name that is no recipe, nor of what `servers` keep.
pub(super) fn memory(
    recipe: &CertificateRecipe,
    parsed: Option<&Recipe>,
    (geometry, servers): (&Geometry, bool),
) -> MemoryFigures {
    let windows = |recipe: &Recipe| in_windows(recipe, geometry);
    let kept = parsed
        .filter(|_| !servers)
        .and_then(windows)
        .zip(windows(&Recipe::native()));
    MemoryFigures {
        page_tokens: PAGE_TOKENS as u32,
        bytes_per_token: recipe.bytes_per_token,
        native_bytes_per_token: recipe.native_bytes_per_token,
        sink_bytes: recipe.sink_bytes,
        saved: saved(recipe.bytes_per_token, recipe.native_bytes_per_token),
        kept: kept.map(|(own, native)| KeptFigures {
            bytes_per_token: recipe.bytes_per_token.saturating_sub(own.0),
            native_bytes_per_token: recipe.native_bytes_per_token.saturating_sub(native.0),
            window_bytes: own.1,
            native_window_bytes: native.1,
        }),
    }
}

/// Files of the run, the candidate, its controls and the A/A arm, by path. A calibration is no
/// evidence of a recipe that needs none: it may be made after that recipe's arm has ended.
fn files(trial: &Trial<'_>) -> Vec<FileDigest> {
    let arms = trial
        .evidence
        .arms
        .iter()
        .filter(|(name, _)| trial.involves(name));
    let calibrated = trial.recipe.as_ref().is_some_and(Recipe::needs_calibration);
    let of_run = trial.evidence.files.iter();
    let mut files: Vec<FileDigest> = of_run
        .filter(|file| calibrated || file.path != CALIBRATION_FILE)
        .cloned()
        .collect();
    files.extend(arms.flat_map(|(_, arm)| arm.files.iter().cloned()));
    files.sort();
    files
}
