//! From a run directory to certificates, the summary and the exit code.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::certify::{self, CertifyError};
use crate::report::{self, Against, Status, Summary, change_status, status};
use crate::schema::{ArmRole, Certificate, ObjectiveName, Protocol};
use crate::store::{RunDir, StoreError};

use super::output::SummaryArgs;
use super::{Exit, Failure, withdraw};

/// Certifies every candidate arm of the run, in the order of the arms, and stores the certificates,
/// each with a badge of the protocol's required objective.
pub(super) fn issue(dir: &RunDir) -> Result<Vec<Certificate>, Failure> {
    let evidence = certify::load(dir).map_err(certify_failure)?;
    let certificates =
        each_candidate(&evidence).map_err(|error| withdraw::of_evidence(dir, &evidence, error))?;
    let objective = dir.manifest().protocol.required;
    for certificate in &certificates {
        let name = &certificate.recipe.name;
        let badge = badge_path(dir.path(), name);
        let failed = |error: StoreError| super::qualify::failure(error.into());
        // What a newer version wrote is refused before anything of it is touched.
        dir.check_certificate(name).map_err(failed)?;
        // A badge never stands beside a certificate that it was not drawn from, and goes for one that is
        // written alone: not where another process has the run.
        dir.lock_for_writing().map_err(failed)?;
        remove(&badge)?;
        dir.write_certificate(name, certificate).map_err(failed)?;
        let mut svg = Vec::new();
        report::write_badge(certificate, objective, &mut svg)?;
        dir.write_badge(name, &svg).map_err(failed)?;
    }
    Ok(certificates)
}

/// The badge beside the certificate of the recipe `name`.
pub(super) fn badge_path(run: &Path, name: &str) -> PathBuf {
    run.join(format!("certificates/{name}.svg"))
}

/// Removes a file that need not be there.
fn remove(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let context = format!("{}: cannot remove", path.display());
            Err(Failure::worker(anyhow::Error::new(error).context(context)))
        }
        _ => Ok(()),
    }
}

/// Certifies every candidate arm of the run, in the order of the arms, and stores nothing.
pub(super) fn certificates(dir: &RunDir) -> Result<Vec<Certificate>, Failure> {
    let evidence = certify::load(dir).map_err(certify_failure)?;
    each_candidate(&evidence).map_err(certify_failure)
}

/// Judges every candidate arm of the run under another protocol than the run's own. The
/// certificates are descriptive and stay out of the run directory.
pub(super) fn judge_under(dir: &RunDir, protocol: &Protocol) -> Result<Vec<Certificate>, Failure> {
    let evidence = certify::load(dir).map_err(certify_failure)?;
    certify::check(&evidence).map_err(certify_failure)?;
    let evidence = certify::judge_under(evidence, protocol.clone()).map_err(certify_failure)?;
    each_candidate(&evidence).map_err(certify_failure)
}

fn each_candidate(evidence: &certify::Evidence) -> Result<Vec<Certificate>, CertifyError> {
    let arms = evidence.manifest.arms.iter();
    arms.filter(|arm| arm.role == ArmRole::Candidate)
        .map(|arm| certify::certify(&arm.arm, evidence))
        .collect()
}

/// Certificates, where they stand, and what is asked of them.
pub(super) struct Issued<'a> {
    /// Run directory.
    pub run: &'a Path,
    /// Folder of the certificates; `None` where they are printed only.
    pub stored: Option<&'a str>,
    /// Protocol that they were judged under.
    pub protocol: &'a Protocol,
    /// The certificates.
    pub certificates: &'a [Certificate],
    /// Objectives that every recipe must hold; empty for a survey.
    pub required: &'a [ObjectiveName],
    /// Earlier certificates: what they held must hold.
    pub baselines: &'a [Against],
}

/// The folder of a run's certificates, as it is shown.
pub(super) fn certificates_folder(run: &Path) -> String {
    format!(
        "{}/certificates/",
        run.display().to_string().trim_end_matches('/')
    )
}

/// Presents the summary and decides the exit code.
pub(super) fn present(
    issued: &Issued<'_>,
    form: &SummaryArgs,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let exit = exit(
        issued.protocol,
        issued.certificates,
        issued.required,
        issued.baselines,
    );
    let run = issued.run.display().to_string();
    let summary = Summary {
        run: &run,
        stored: issued.stored,
        protocol: issued.protocol,
        required: issued.required,
        exit: exit.code(),
        certificates: issued.certificates,
        baselines: issued.baselines,
    };
    form.present(&summary, out)?;
    Ok(exit)
}

/// The exit code that certificates lead to.
pub(super) fn exit(
    protocol: &Protocol,
    certificates: &[Certificate],
    required: &[ObjectiveName],
    baselines: &[Against],
) -> Exit {
    let of = |certificate: &Certificate| -> Vec<Status> {
        let verdict = |name: ObjectiveName| certificate.objectives.get(name).judged();
        match required {
            [] => vec![status(verdict(protocol.required), false, true)],
            names => names
                .iter()
                .map(|&name| status(verdict(name), true, true))
                .collect(),
        }
    };
    let certificates = certificates.iter().flat_map(of);
    let changes = baselines
        .iter()
        .flat_map(|against| &against.comparison.objectives);
    outcome(certificates.chain(changes.map(change_status)))
}

/// What cannot be judged comes before what does not hold, and both before success. A survey
/// requires complete evidence and nothing else.
fn outcome(statuses: impl Iterator<Item = Status>) -> Exit {
    match statuses.max() {
        Some(Status::Error) => Exit::Incomplete,
        Some(Status::Failed) => Exit::DoesNotHold,
        Some(Status::Passed | Status::Skipped) | None => Exit::Holds,
    }
}

/// Records that contradict their own output are a mismatch (5), native that differs from native is
/// the worker's failure (4), a part of a run is incomplete (3), and the rest is about files (2).
pub(super) fn certify_failure(error: certify::CertifyError) -> Failure {
    if error.is_mismatch() {
        Failure {
            exit: Exit::Mismatch,
            error: error.into(),
        }
    } else if error.is_incomplete() {
        Failure {
            exit: Exit::Incomplete,
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
    use crate::certify::{BaselineComparison, ObjectiveChange};
    use crate::schema::{ObjectiveResult, Verdict, builtin_protocol};

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
            let code = |required: bool| {
                outcome(
                    verdicts
                        .iter()
                        .map(|&verdict| status(verdict, required, true)),
                )
                .code()
            };
            assert_eq!(code(true), named, "{verdicts:?}");
            assert_eq!(code(false), survey, "{verdicts:?}");
        }
    }

    #[test]
    fn a_descriptive_verdict_does_not_hide_incomplete_evidence() {
        let judged = |incomplete: Option<&str>| {
            let result = ObjectiveResult {
                verdict: Verdict::Descriptive,
                reason: Some("recipe_undeclared".to_owned()),
                detail: None,
                incomplete: incomplete.map(str::to_owned),
                rules: Vec::new(),
                outlook: Vec::new(),
            };
            [true, false].map(|required| {
                outcome([status(result.judged(), required, true)].into_iter()).code()
            })
        };
        assert_eq!(judged(None), [1, 0]);
        assert_eq!(judged(Some("limit")), [3, 3]);
    }

    #[test]
    fn what_a_baseline_held_is_required_even_in_a_survey() {
        use Verdict::{Descriptive, Incomplete, NotEstablished, Pass, Unsupported};
        let table = [
            (Pass, Pass, 0),
            (Pass, NotEstablished, 1),
            (Pass, Descriptive, 1),
            (Pass, Incomplete, 3),
            (Pass, Unsupported, 3),
            (NotEstablished, NotEstablished, 0),
            (NotEstablished, Pass, 0),
            (Descriptive, Incomplete, 0),
        ];
        let protocol = builtin_protocol("reference").unwrap();
        for (then, now, code) in table {
            let change = ObjectiveChange {
                objective: ObjectiveName::Aggregate,
                then,
                now,
                is_incomplete: now == Incomplete,
                reason: None,
                rules: Vec::new(),
            };
            let comparison = BaselineComparison {
                recipe: "AD".to_owned(),
                objectives: vec![change],
            };
            let against = Against {
                path: "AD.json".to_owned(),
                differences: Vec::new(),
                comparison,
            };
            let found = exit(&protocol, &[], &[], &[against]);
            assert_eq!(found.code(), code, "{then:?} then, {now:?} now");
        }
    }
}
