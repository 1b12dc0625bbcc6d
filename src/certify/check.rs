//! Whether the evidence is about what its manifest says.

mod arms;
mod calibration;
mod identity;
mod panels;

use crate::schema::{Manifest, canonical_sha256, locked_otherwise};

use super::CertifyError;
use super::evidence::Evidence;

pub(super) use calibration::check_calibration;
pub(super) use panels::is_frozen_otherwise;

/// Checks the manifest against itself, and protocol, arms and panels against it.
///
/// # Errors
/// [`CertifyError::Protocol`], [`CertifyError::ProtocolDigest`],
/// [`CertifyError::ProtocolLocked`], [`CertifyError::Contradiction`], [`CertifyError::Panel`].
pub fn check(evidence: &Evidence) -> Result<(), CertifyError> {
    check_protocol(&evidence.manifest)?;
    identity::check(&evidence.manifest)?;
    arms::check(evidence)?;
    panels::check(evidence)
}

/// Checks the manifest's protocol against its digest, and its name against those of the built-in
/// protocols.
fn check_protocol(manifest: &Manifest) -> Result<(), CertifyError> {
    manifest.protocol.validate()?;
    // A protocol that was read from JSON can be written as JSON.
    let expected = canonical_sha256(&manifest.protocol).unwrap_or_default();
    if manifest.protocol_sha256 != expected {
        return Err(CertifyError::ProtocolDigest {
            found: manifest.protocol_sha256.clone(),
            expected,
        });
    }
    let name = &manifest.protocol.name;
    match locked_otherwise(name, &expected) {
        None => Ok(()),
        Some(locked) => Err(CertifyError::ProtocolLocked {
            name: name.clone(),
            found: expected,
            expected: locked,
        }),
    }
}
