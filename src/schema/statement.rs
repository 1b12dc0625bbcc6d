//! A certificate as an in-toto Statement, the form that signing tools take.

use serde::{Deserialize, Serialize};

use super::{Certificate, FileDigest};

/// Type of a [`Statement`].
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// Type of a statement's predicate: a certificate of version 1.
pub const PREDICATE_TYPE: &str = "https://kvassay.dev/certificate/v1";

/// An in-toto Statement v1: its subjects are the files that the certificate rests on, its
/// predicate is the certificate. Unsigned; a signing tool puts it into an envelope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Statement {
    /// Always [`STATEMENT_TYPE`].
    #[serde(rename = "_type")]
    pub kind: String,
    /// The evidence files.
    pub subject: Vec<Subject>,
    /// Always [`PREDICATE_TYPE`].
    pub predicate_type: String,
    /// The certificate.
    pub predicate: Certificate,
}

/// One subject of a [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Path relative to the run directory.
    pub name: String,
    /// Digests of the file.
    pub digest: SubjectDigest,
}

/// Digests of one subject by algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectDigest {
    /// Lower-case hexadecimal SHA-256.
    pub sha256: String,
}

impl Statement {
    /// The statement of `certificate`.
    pub fn of(certificate: &Certificate) -> Self {
        let subject = |file: &FileDigest| Subject {
            name: file.path.clone(),
            digest: SubjectDigest {
                sha256: file.sha256.clone(),
            },
        };
        Statement {
            kind: STATEMENT_TYPE.to_owned(),
            subject: certificate.evidence.iter().map(subject).collect(),
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: certificate.clone(),
        }
    }
}
