//! What arms left beside their records.

use crate::schema::{AnswerMode, ArmRole, ArmStart, Resources};
use crate::store::{resources_path, start_path};

use super::super::CertifyError;
use super::super::evidence::Evidence;

/// Checks what stood before each arm, and what it took.
///
/// # Errors
/// [`CertifyError::Contradiction`].
pub(super) fn check(evidence: &Evidence) -> Result<(), CertifyError> {
    for (name, arm) in &evidence.arms {
        if let Some(start) = &arm.start {
            check_start(evidence, name, start)?;
        }
        if let Some(resources) = &arm.resources {
            check_resources(name, resources)?;
        }
    }
    Ok(())
}

/// The digest stands for one name, and only candidates verify.
fn check_start(evidence: &Evidence, arm: &str, start: &ArmStart) -> Result<(), CertifyError> {
    let manifest = &evidence.manifest;
    let (name, sha256) = match &evidence.judged_after {
        Some(own) => (&own.name, &own.sha256),
        None => (&manifest.protocol.name, &manifest.protocol_sha256),
    };
    if start.protocol_sha256 == *sha256 && start.protocol != *name {
        return Err(CertifyError::Contradiction {
            place: format!("{}: protocol", start_path(arm)),
            found: start.protocol.clone(),
            expected: format!("{name}, which has the digest beside it"),
        });
    }
    let mut arms = manifest.arms.iter();
    let is_native = arms.any(|it| it.arm == arm && it.role != ArmRole::Candidate);
    if is_native && start.answers == Some(AnswerMode::Verified) {
        return Err(CertifyError::Contradiction {
            place: format!("{}: answers", start_path(arm)),
            found: AnswerMode::Verified.name().to_owned(),
            expected: format!("{}: only candidates verify", AnswerMode::Plain.name()),
        });
    }
    Ok(())
}

/// No more memory was in use than there is.
fn check_resources(arm: &str, resources: &Resources) -> Result<(), CertifyError> {
    for (at, part) in resources.parts.iter().enumerate() {
        let peak = part.sampled.map(|samples| samples.peak_bytes);
        if let Some((peak, total)) = peak.zip(part.total_bytes)
            && peak > total
        {
            return Err(CertifyError::Contradiction {
                place: format!("{}: parts[{at}].sampled.peak_bytes", resources_path(arm)),
                found: peak.to_string(),
                expected: format!("at most total_bytes, {total}"),
            });
        }
    }
    Ok(())
}
