//! Certificates that their run contradicts do not survive it: exit 4, and no certificate.

use anyhow::anyhow;

use crate::certify::{CertifyError, Evidence, certify};
use crate::panel::runner::RunError;
use crate::schema::{ArmRole, Manifest};
use crate::store::RunDir;

use super::exit::message;
use super::issue::{badge_path, certify_failure};
use super::output::{Kind, Output};
use super::{Failure, qualify};

/// The failure of a run that could not go on, with earlier certificates of the arms that it is about
/// removed.
pub(super) fn of_run(dir: &RunDir, error: RunError) -> Failure {
    let manifest = dir.manifest();
    let arms = match &error {
        RunError::AaDiffers { .. } => candidates(manifest),
        RunError::RegenerationDiffers { arm, .. } | RunError::NotEngaged { arm, .. } => {
            resting_on(manifest, arm)
        }
        _ => Vec::new(),
    };
    withdrawn(dir, &arms, qualify::failure(error))
}

/// The failure of evidence that yields no certificate of some arm, with earlier certificates of every
/// such arm removed where native differs from native or an answer from the one generated plainly.
pub(super) fn of_evidence(dir: &RunDir, evidence: &Evidence, error: CertifyError) -> Failure {
    let differs = |arm: &&String| certify(arm, evidence).is_err_and(|error| error.is_system());
    let arms = match error.is_system() {
        true => candidates(dir.manifest())
            .into_iter()
            .filter(differs)
            .collect(),
        false => Vec::new(),
    };
    withdrawn(dir, &arms, certify_failure(error))
}

fn candidates(manifest: &Manifest) -> Vec<&String> {
    let arms = manifest.arms.iter();
    arms.filter(|arm| arm.role == ArmRole::Candidate)
        .map(|arm| &arm.arm)
        .collect()
}

/// A candidate alone; every candidate where it is a native arm.
fn resting_on<'a>(manifest: &'a Manifest, name: &str) -> Vec<&'a String> {
    let all = candidates(manifest);
    match all.iter().find(|arm| **arm == name) {
        Some(own) => vec![*own],
        None => all,
    }
}

fn withdrawn(dir: &RunDir, arms: &[&String], failure: Failure) -> Failure {
    let (mut removed, mut kept) = (Vec::new(), Vec::new());
    for arm in arms {
        let file = dir.path().join(format!("certificates/{arm}.json"));
        match dir.remove_certificate(arm) {
            Ok(true) => removed.push(file.display().to_string()),
            Ok(false) => {}
            Err(error) => kept.push(error.to_string()),
        }
        let badge = badge_path(dir.path(), arm);
        let output = Output {
            option: "badge",
            path: &badge,
            kind: Kind::Badge,
        };
        let is_ours = badge.is_file() && output.check(&[]).is_ok();
        match is_ours.then(|| output.remove_stale()) {
            Some(Ok(())) => removed.push(badge.display().to_string()),
            Some(Err(failure)) => kept.push(message(&failure.error)),
            None => {}
        }
    }
    let mut text = message(&failure.error);
    if !removed.is_empty() {
        text.push_str("; removed, as it no longer holds: ");
        text.push_str(&removed.join(", "));
    }
    for error in &kept {
        text.push_str("; ");
        text.push_str(error);
    }
    if removed.is_empty() && kept.is_empty() {
        return failure;
    }
    Failure {
        exit: failure.exit,
        error: anyhow!(text),
    }
}
