//! Certificates checked: against the run that they speak of, or by their own figures alone.
//!
//! [`against_run`] computes the certificate again and compares every field but `tool`: another
//! version may check what this one issued, and then the figures must agree all the same.
//! [`alone`] needs no run: it recomputes what follows from a certificate's own figures.

mod alone;
mod contradiction;
mod disagreement;
mod files;

use serde_json::Value;

use crate::schema::{Certificate, Protocol, tree_differences};
use crate::store::RunDir;

use super::load::load_trial;
use super::{CertifyError, Reason, certify, judge_under};

pub use alone::{alone, is_builtin};
pub use disagreement::{Between, Disagreement};

/// Every field in which `certificate` differs from the certificate that the run in `dir` yields
/// for its recipe now; empty exactly where it is verified. Evidence that contradicts itself yields
/// no certificate: the first contradiction is then listed beside the files that differ.
/// `protocol` is that of a certificate which was issued under another one than the run's, after the
/// records were there.
///
/// # Errors
/// [`CertifyError::Store`] where the system failed to read a file.
pub fn against_run(
    certificate: &Certificate,
    dir: &RunDir,
    protocol: Option<&Protocol>,
) -> Result<Vec<Disagreement>, CertifyError> {
    let mut found = files::changed(certificate, dir)?;
    match recompute(certificate, dir, protocol) {
        Ok(expected) => {
            found.extend(files::unlisted(certificate, &expected));
            let differences = tree_differences(&figures(certificate), &figures(&expected));
            found.extend(differences.into_iter().map(Disagreement::with_evidence));
        }
        Err(CertifyError::Store(error)) if error.is_system() => return Err(error.into()),
        Err(error) => found.push(contradiction::disagreement(&error, certificate)),
    }
    Ok(found)
}

/// Whether the certificate says that its protocol came after the records.
pub fn is_judged_after(certificate: &Certificate) -> bool {
    let objectives = &certificate.objectives;
    let reasons = [&objectives.preservation, &objectives.aggregate];
    let mut reasons = reasons.iter().map(|objective| objective.reason.as_deref());
    reasons.any(|reason| reason == Some(Reason::ProtocolAfterRecords.name()))
}

fn recompute(
    certificate: &Certificate,
    dir: &RunDir,
    protocol: Option<&Protocol>,
) -> Result<Certificate, CertifyError> {
    let candidate = &certificate.recipe.name;
    let mut evidence = load_trial(dir, candidate)?;
    if let Some(protocol) = protocol {
        evidence = judge_under(evidence, protocol.clone())?;
    }
    certify(candidate, &evidence)
}

/// Everything that is compared field by field: neither the tool, which may be another, nor the
/// evidence list, which is compared by path.
fn figures(certificate: &Certificate) -> Value {
    let mut tree = tree(certificate);
    if let Value::Object(fields) = &mut tree {
        fields.remove("tool");
        fields.remove("evidence");
    }
    tree
}

/// A certificate was read from JSON or computed by this crate: it can be written as JSON.
fn tree(certificate: &Certificate) -> Value {
    serde_json::to_value(certificate).unwrap_or(Value::Null)
}
