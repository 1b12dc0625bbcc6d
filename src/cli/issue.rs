//! From a run directory to certificates, the summary and the exit code.

use std::io::Write;
use std::path::Path;

use clap::ValueEnum;

use crate::certify;
use crate::report::{self, Summary};
use crate::schema::{ArmRole, Certificate, ObjectiveName, Protocol, Verdict};
use crate::store::RunDir;

use super::{Exit, Failure};

/// Forms of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    Text,
    /// One JSON document.
    Json,
}

/// Certifies every candidate arm of the run, in the order of the arms, and stores the certificates.
pub(super) fn issue(dir: &RunDir) -> Result<Vec<Certificate>, Failure> {
    let evidence = certify::load(dir).map_err(certify_failure)?;
    let arms = dir
        .manifest()
        .arms
        .iter()
        .filter(|arm| arm.role == ArmRole::Candidate);
    let certificates = arms
        .map(|arm| certify::certify(&arm.arm, &evidence).map_err(certify_failure))
        .collect::<Result<Vec<_>, _>>()?;
    for certificate in &certificates {
        dir.write_certificate(&certificate.recipe.name, certificate)
            .map_err(|error| super::qualify::failure(error.into()))?;
    }
    Ok(certificates)
}

/// Prints the summary and decides the exit code.
pub(super) fn summarise(
    run: &Path,
    protocol: &Protocol,
    certificates: &[Certificate],
    required: &[ObjectiveName],
    format: Format,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let exit = outcome(certificates, required, protocol.required);
    let run = run.display().to_string();
    let summary = Summary {
        run: &run,
        protocol,
        required,
        exit: exit.code(),
        certificates,
    };
    match format {
        Format::Text => report::write_text(&summary, report::TEXT_WIDTH, out)?,
        Format::Json => summary.write_json(out)?,
    }
    Ok(exit)
}

/// The exit code: incomplete or unsupported before not held, both before success. A survey
/// (`required` empty) looks at the protocol's own objective, and only for evidence.
fn outcome(
    certificates: &[Certificate],
    required: &[ObjectiveName],
    surveyed: ObjectiveName,
) -> Exit {
    let survey = required.is_empty();
    let looked_at = if survey { &[surveyed][..] } else { required };
    let verdicts: Vec<Verdict> = certificates
        .iter()
        .flat_map(|certificate| {
            looked_at
                .iter()
                .map(|&name| certificate.objectives.get(name).verdict)
        })
        .collect();
    let lacks = |verdict: &Verdict| matches!(verdict, Verdict::Incomplete | Verdict::Unsupported);
    if verdicts.iter().any(lacks) {
        Exit::Incomplete
    } else if !survey && verdicts.iter().any(|&verdict| verdict != Verdict::Pass) {
        Exit::DoesNotHold
    } else {
        Exit::Holds
    }
}

/// A difference between native and native is the worker's failure; the rest is about files.
fn certify_failure(error: certify::CertifyError) -> Failure {
    Failure::input(error)
}
