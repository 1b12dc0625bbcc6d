//! From a run directory to certificates, the summary and the exit code.

use std::io::Write;
use std::path::Path;

use crate::certify;
use crate::report::{self, Summary};
use crate::schema::{ArmRole, Certificate, ObjectiveName, Protocol, Verdict};
use crate::store::RunDir;

use super::output::Format;
use super::{Exit, Failure};

/// Certifies every candidate arm of the run, in the order of the arms, and stores the certificates.
pub(super) fn issue(dir: &RunDir) -> Result<Vec<Certificate>, Failure> {
    let certificates = certificates(dir)?;
    for certificate in &certificates {
        dir.write_certificate(&certificate.recipe.name, certificate)
            .map_err(|error| super::qualify::failure(error.into()))?;
    }
    Ok(certificates)
}

/// Certifies every candidate arm of the run, in the order of the arms, and stores nothing.
pub(super) fn certificates(dir: &RunDir) -> Result<Vec<Certificate>, Failure> {
    let evidence = certify::load(dir).map_err(certify_failure)?;
    of_each_candidate(&evidence)
}

/// Judges every candidate arm of the run under another protocol than the run's own. The
/// certificates are descriptive and stay out of the run directory.
pub(super) fn judge_under(dir: &RunDir, protocol: &Protocol) -> Result<Vec<Certificate>, Failure> {
    let evidence = certify::load(dir).map_err(certify_failure)?;
    certify::check_protocol(&evidence.manifest).map_err(certify_failure)?;
    let evidence = certify::judge_under(evidence, protocol.clone()).map_err(certify_failure)?;
    of_each_candidate(&evidence)
}

fn of_each_candidate(evidence: &certify::Evidence) -> Result<Vec<Certificate>, Failure> {
    let arms = evidence.manifest.arms.iter();
    arms.filter(|arm| arm.role == ArmRole::Candidate)
        .map(|arm| certify::certify(&arm.arm, evidence).map_err(certify_failure))
        .collect()
}

/// Prints the summary of a run whose certificates are stored in it and decides the exit code.
pub(super) fn summarise(
    run: &Path,
    protocol: &Protocol,
    certificates: &[Certificate],
    required: &[ObjectiveName],
    format: Format,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let stored = format!(
        "{}/certificates/",
        run.display().to_string().trim_end_matches('/')
    );
    let issued = Issued {
        run,
        stored: Some(&stored),
        protocol,
        certificates,
    };
    present(&issued, required, format, out)
}

/// Certificates, and where they stand.
pub(super) struct Issued<'a> {
    /// Run directory.
    pub run: &'a Path,
    /// Folder of the certificates; `None` where they are printed only.
    pub stored: Option<&'a str>,
    /// Protocol that they were judged under.
    pub protocol: &'a Protocol,
    /// The certificates.
    pub certificates: &'a [Certificate],
}

/// Prints the summary and decides the exit code.
pub(super) fn present(
    issued: &Issued<'_>,
    required: &[ObjectiveName],
    format: Format,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let Issued {
        run,
        stored,
        protocol,
        certificates,
    } = *issued;
    let exit = exit(protocol, certificates, required);
    let run = run.display().to_string();
    let summary = Summary {
        run: &run,
        stored,
        protocol,
        required,
        exit: exit.code(),
        certificates,
    };
    print(&summary, format, out)?;
    Ok(exit)
}

/// The exit code that certificates lead to.
pub(super) fn exit(
    protocol: &Protocol,
    certificates: &[Certificate],
    required: &[ObjectiveName],
) -> Exit {
    let verdicts = verdicts(certificates, required, protocol.required);
    outcome(&verdicts, required.is_empty())
}

/// Prints the summary.
pub(super) fn print(
    summary: &Summary<'_>,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    match format {
        Format::Text => report::write_text(summary, report::TEXT_WIDTH, out)?,
        Format::Json => summary.write_json(out)?,
    }
    Ok(())
}

/// Verdicts of what was required; of the protocol's own objective in a survey.
fn verdicts(
    certificates: &[Certificate],
    required: &[ObjectiveName],
    surveyed: ObjectiveName,
) -> Vec<Verdict> {
    let looked_at = if required.is_empty() {
        &[surveyed][..]
    } else {
        required
    };
    let of = |certificate: &Certificate| -> Vec<Verdict> {
        looked_at
            .iter()
            .map(|&name| certificate.objectives.get(name).verdict)
            .collect()
    };
    certificates.iter().flat_map(of).collect()
}

/// Incomplete or unsupported comes before not held, and both before success. A survey requires
/// complete evidence and nothing else.
fn outcome(verdicts: &[Verdict], survey: bool) -> Exit {
    let lacks = |verdict: &Verdict| matches!(verdict, Verdict::Incomplete | Verdict::Unsupported);
    if verdicts.iter().any(lacks) {
        Exit::Incomplete
    } else if !survey && verdicts.iter().any(|&verdict| verdict != Verdict::Pass) {
        Exit::DoesNotHold
    } else {
        Exit::Holds
    }
}

/// Records that contradict their own output are a mismatch (5), native that differs from native is
/// the worker's failure (4), and the rest is about files (2).
pub(super) fn certify_failure(error: certify::CertifyError) -> Failure {
    if error.is_mismatch() {
        Failure {
            exit: Exit::Mismatch,
            error: error.into(),
        }
    } else if error.is_system() {
        Failure::worker(error)
    } else {
        Failure::input(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_of_exit_codes() {
        use Verdict::{Descriptive, Incomplete, NotEstablished, Pass, Unsupported};
        let table: [(&[Verdict], u8, u8); 7] = [
            (&[Pass, Pass], 0, 0),
            (&[Pass, NotEstablished], 1, 0),
            (&[Descriptive, Pass], 1, 0),
            (&[NotEstablished, Incomplete], 3, 3),
            (&[Unsupported, Pass], 3, 3),
            (&[Incomplete], 3, 3),
            (&[], 0, 0),
        ];
        for (verdicts, named, survey) in table {
            assert_eq!(outcome(verdicts, false).code(), named, "{verdicts:?}");
            assert_eq!(outcome(verdicts, true).code(), survey, "{verdicts:?}");
        }
    }
}
