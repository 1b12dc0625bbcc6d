//! A certificate from its parts.

use crate::recipe::{PAGE_TOKENS, Recipe, bytes_per_token, saved};
use crate::schema::{
    CERTIFICATE_SCHEMA, Certificate, CertificateProtocol, CertificateRecipe, FileDigest,
    MemoryFigures, ObjectiveName, ObjectiveResult, Objectives, RuleName, ToolIdentity, Verdict,
};

use super::aa::{self, Aa};
use super::arms::{Trial, cache_shape};
use super::compare::{self, PanelResult, rules_on};
use super::evidence::Evidence;
use super::findings::{Finding, decide};
use super::rescore::{FrozenParsers, Rescore};
use super::{CertifyError, Reason, caveats, check, counts, degradation, engagement};

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
    let aa = aa::compare(&trial)?;
    let panels = compare::panels(&trial, scorer)?;
    let findings = findings(&trial, &panels, &aa);
    let undeclared = |finding: &Finding| finding.reason.verdict() == Verdict::Descriptive;
    let is_declared = !findings.iter().any(undeclared);
    let manifest = &evidence.manifest;
    let recipe = certificate_recipe(&trial);
    Ok(Certificate {
        schema: CERTIFICATE_SCHEMA.to_owned(),
        tool: ToolIdentity::current(),
        protocol: CertificateProtocol {
            name: manifest.protocol.name.clone(),
            sha256: manifest.protocol_sha256.clone(),
        },
        model: manifest.model.clone(),
        worker: manifest.worker.clone(),
        memory: memory(&recipe),
        recipe,
        objectives: Objectives {
            preservation: objective(ObjectiveName::Preservation, &trial, &panels, &findings),
            aggregate: objective(ObjectiveName::Aggregate, &trial, &panels, &findings),
        },
        degradation: degradation::degradation(&trial, &panels, is_declared),
        counts: counts::counts(&trial),
        engagement: trial
            .evidence_of(candidate)
            .and_then(|arm| arm.engagement.clone()),
        evidence: files(&trial),
        caveats: caveats::caveats(&trial, &panels, &aa),
        aa: aa.result,
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
    let is_complete = panels.iter().all(PanelResult::is_complete);
    if trial.arm.unsupported.is_none() {
        findings.extend(engagement::findings(trial, is_complete));
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
    let rules = panels
        .iter()
        .flat_map(|panel| &panel.rules)
        .filter(|(rule, _)| rule.serves(name));
    ObjectiveResult {
        verdict: decision.verdict,
        reason: decision.reason,
        detail: decision.detail,
        rules: rules.map(|(_, result)| result.clone()).collect(),
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
            findings.push(Finding::new(Reason::NoPanel, detail));
        }
    }
    findings
}

fn certificate_recipe(trial: &Trial<'_>) -> CertificateRecipe {
    let shape = cache_shape(&trial.evidence.manifest);
    CertificateRecipe {
        name: trial.arm.arm.clone(),
        spec: trial.arm.recipe.clone(),
        bytes_per_token: bytes_per_token(&trial.recipe, &shape),
        native_bytes_per_token: bytes_per_token(&Recipe::native(), &shape),
    }
}

fn memory(recipe: &CertificateRecipe) -> MemoryFigures {
    MemoryFigures {
        page_tokens: PAGE_TOKENS as u32,
        bytes_per_token: recipe.bytes_per_token,
        native_bytes_per_token: recipe.native_bytes_per_token,
        saved: saved(recipe.bytes_per_token, recipe.native_bytes_per_token),
    }
}

/// Files of the run, the candidate, its controls and the A/A arm, by path.
fn files(trial: &Trial<'_>) -> Vec<FileDigest> {
    let arms = trial
        .evidence
        .arms
        .iter()
        .filter(|(name, _)| trial.involves(name));
    let mut files = trial.evidence.files.clone();
    files.extend(arms.flat_map(|(_, arm)| arm.files.iter().cloned()));
    files.sort();
    files
}
