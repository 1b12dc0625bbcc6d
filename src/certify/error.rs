//! Why no certificate can be issued.

use crate::recipe::RecipeError;
use crate::schema::ProtocolError;
use crate::store::StoreError;

/// Why the evidence yields no certificate at all.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// The run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run's protocol is not valid.
    #[error("run.json: protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The protocol is not the one that the manifest names.
    #[error("run.json: protocol_sha256: found {found}, expected {expected} from its protocol")]
    ProtocolDigest {
        /// Digest in the manifest.
        found: String,
        /// Digest of the protocol in the manifest.
        expected: String,
    },
    /// The named arm is no candidate of the run.
    #[error("found candidate `{found}`, expected one of: {candidates}")]
    NoCandidate {
        /// Name that was asked for.
        found: String,
        /// Candidate arms of the run.
        candidates: String,
    },
    /// An arm's recipe does not parse or does not fit the model.
    #[error("run.json: arm {arm}: {source}")]
    Recipe {
        /// Arm.
        arm: String,
        /// Cause.
        source: RecipeError,
    },
    /// A panel file is not what the manifest and the protocol name.
    #[error("{place}: found {found}, expected {expected}")]
    Panel {
        /// File, and line where there is one.
        place: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A record contradicts its own output or its case.
    #[error(
        "arm {arm}, panel {panel}, case {case}: {field}: found {found}, expected {expected}; \
         {count} such records in this panel"
    )]
    Mismatch {
        /// Arm.
        arm: String,
        /// Panel.
        panel: String,
        /// First such case in plan order.
        case: String,
        /// Field of the record.
        field: &'static str,
        /// What the record holds.
        found: String,
        /// What follows from the record's output and the panel.
        expected: String,
        /// Records of this arm and panel that contradict themselves.
        count: usize,
    },
    /// Native differs from native on a worker that promises the same bits.
    #[error(
        "A/A difference: panel {panel}, case {case}: {what} differs between `{first}` and \
         `{second}`; {count} such records in this panel"
    )]
    AaDiffers {
        /// Panel.
        panel: String,
        /// First case that differs, in plan order.
        case: String,
        /// What differs.
        what: &'static str,
        /// Control arm.
        first: String,
        /// A/A arm.
        second: String,
        /// Records of this panel that differ.
        count: usize,
    },
}

impl CertifyError {
    /// Whether the worker or the system failed (exit code 4).
    pub fn is_system(&self) -> bool {
        match self {
            CertifyError::AaDiffers { .. } => true,
            CertifyError::Store(error) => error.is_system(),
            _ => false,
        }
    }

    /// Whether stored figures contradict what they follow from (exit code 5).
    pub fn is_mismatch(&self) -> bool {
        matches!(
            self,
            CertifyError::Mismatch { .. } | CertifyError::ProtocolDigest { .. }
        )
    }
}
