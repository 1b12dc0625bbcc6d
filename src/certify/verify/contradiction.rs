//! Evidence that yields no certificate, as something to list.

use serde_json::Value;

use crate::schema::Certificate;
use crate::store::StoreError;

use super::super::CertifyError;
use super::disagreement::{Between, Disagreement};

/// Why the run yields no certificate of the recipe, with its place in the run.
pub(super) fn disagreement(error: &CertifyError, certificate: &Certificate) -> Disagreement {
    let (path, found, expected) = match error {
        CertifyError::NoCandidate { found, candidates } => {
            return Disagreement {
                path: "recipe.name".to_owned(),
                found: Some(found.clone().into()),
                expected: Some(format!("one of: {candidates}").into()),
                between: Between::CertificateAndEvidence,
            };
        }
        CertifyError::Mismatch(mismatch) => (
            format!(
                "arms/{}/{}.jsonl, case {}: {}",
                mismatch.arm, mismatch.panel, mismatch.case, mismatch.field
            ),
            with_count(&mismatch.found, mismatch.count),
            mismatch.expected.clone(),
        ),
        CertifyError::AaDiffers(difference) => (
            format!(
                "arms/{}/{}.jsonl, case {}: {}",
                difference.second, difference.panel, difference.case, difference.what
            ),
            with_count("another value", difference.count),
            format!("the same as in {}", difference.first),
        ),
        CertifyError::RegenerationDiffers(difference) => (
            format!(
                "arms/{}/{}.jsonl, case {}: {}",
                difference.arm, difference.panel, difference.case, difference.what
            ),
            with_count("another value", difference.count),
            "the same as generated plainly".to_owned(),
        ),
        CertifyError::ProtocolDigest { found, expected } => (
            "run.json: protocol_sha256".to_owned(),
            found.clone(),
            expected.clone(),
        ),
        CertifyError::ProtocolLocked {
            name,
            found,
            expected,
        } => (
            "run.json: protocol".to_owned(),
            format!("protocol {name} with SHA-256 {found}"),
            format!("{expected} of the built-in protocol of that name"),
        ),
        CertifyError::Contradiction {
            place,
            found,
            expected,
        }
        | CertifyError::Panel {
            place,
            found,
            expected,
        } => (place.clone(), found.clone(), expected.clone()),
        CertifyError::Calibration {
            field,
            found,
            expected,
        } => (
            format!("calibration.json: {field}"),
            found.clone(),
            expected.clone(),
        ),
        CertifyError::Shard { shard, .. } => (
            "run.json: shard".to_owned(),
            shard.to_string(),
            "a whole run".to_owned(),
        ),
        CertifyError::Store(StoreError::Record { path, line, what }) => (
            format!("{}:{line}", path.display()),
            what.clone(),
            "a record".to_owned(),
        ),
        CertifyError::Store(StoreError::Json { path, source }) => (
            path.display().to_string(),
            source.to_string(),
            "the document that belongs there".to_owned(),
        ),
        CertifyError::Store(StoreError::NoJson { path, found, .. }) => (
            path.display().to_string(),
            found.clone(),
            "the document that belongs there".to_owned(),
        ),
        CertifyError::Store(_) | CertifyError::Protocol(_) | CertifyError::Recipe { .. } => (
            "run".to_owned(),
            error.to_string(),
            format!("evidence for a certificate of {}", certificate.recipe.name),
        ),
    };
    Disagreement {
        path,
        found: Some(Value::String(found)),
        expected: Some(Value::String(expected)),
        between: Between::EvidenceAndItself,
    }
}

fn with_count(found: &str, count: usize) -> String {
    match count {
        1 => found.to_owned(),
        more => format!("{found} ({more} such records in this panel)"),
    }
}
