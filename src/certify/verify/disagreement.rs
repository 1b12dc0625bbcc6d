//! One field on which two sources disagree.

use std::fmt;

use serde_json::Value;

use crate::schema::TreeDifference;

/// Who disagrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// The certificate and the run's evidence.
    CertificateAndEvidence,
    /// The certificate and what follows from its own figures.
    CertificateAndItself,
    /// The run's evidence and what follows from it.
    EvidenceAndItself,
    /// A file and the JSON Schema of its kind, which says in words what it misses.
    FileAndSchema,
}

/// A field, what stands there and what should.
#[derive(Clone, Debug, PartialEq)]
pub struct Disagreement {
    /// Field of the certificate, e.g. `objectives.preservation.rules[2].bound`, or a place in the
    /// run, e.g. `arms/AD/math.jsonl, case gsm8k-0007: correct`.
    pub path: String,
    /// What stands there; `None` where there is nothing.
    pub found: Option<Value>,
    /// What should stand there, as a value or in words; `None` where nothing should.
    pub expected: Option<Value>,
    /// Who disagrees.
    pub between: Between,
}

impl Disagreement {
    /// A field of the certificate that the evidence contradicts.
    pub(super) fn with_evidence(difference: TreeDifference) -> Self {
        Disagreement::new(difference, Between::CertificateAndEvidence)
    }

    /// A field of the certificate that its other figures contradict.
    pub(super) fn with_itself(difference: TreeDifference) -> Self {
        Disagreement::new(difference, Between::CertificateAndItself)
    }

    /// A field of the certificate that its other figures contradict, in words.
    pub(super) fn claim(path: &str, found: impl Into<Value>, expected: impl Into<Value>) -> Self {
        Disagreement {
            path: path.to_owned(),
            found: Some(found.into()),
            expected: Some(expected.into()),
            between: Between::CertificateAndItself,
        }
    }

    fn new(difference: TreeDifference, between: Between) -> Self {
        Disagreement {
            path: difference.path,
            found: difference.found,
            expected: difference.expected,
            between,
        }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (says, gives) = match self.between {
            Between::CertificateAndEvidence => ("certificate says", "evidence gives"),
            Between::CertificateAndItself => ("certificate says", "its own figures give"),
            Between::EvidenceAndItself => ("the run holds", "expected"),
            Between::FileAndSchema => ("found", "but"),
        };
        let (found, expected) = (shown(self.found.as_ref()), shown(self.expected.as_ref()));
        write!(f, "{}: {says} {found}, {gives} {expected}", self.path)
    }
}

/// Texts without the quotes of JSON.
fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
