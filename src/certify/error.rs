//! Why no certificate can be issued.

use std::path::PathBuf;

use crate::recipe::RecipeError;
use crate::schema::{ProtocolError, Shard};
use crate::store::StoreError;

/// Why the evidence yields no certificate at all.
#[derive(Debug, thiserror::Error)]
pub enum CertifyError {
    /// The run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run is a part of one.
    #[error(
        "{}: shard: found {shard}, expected a whole run: `kvassay merge` joins its {} parts",
        .path.display(), .shard.of()
    )]
    Shard {
        /// The manifest.
        path: PathBuf,
        /// Which part it is.
        shard: Shard,
    },
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
    /// The protocol has the name of a built-in one and other rules.
    #[error(
        "run.json: protocol: same name, other rules: found protocol {name} with SHA-256 {found}, \
         expected {expected} of the built-in protocol or a name of its own"
    )]
    ProtocolLocked {
        /// Name of the protocol.
        name: String,
        /// Digest of the protocol in the manifest.
        found: String,
        /// Digest of the built-in protocol.
        expected: &'static str,
    },
    /// Two places of the evidence contradict each other.
    #[error("{place}: found {found}, expected {expected}")]
    Contradiction {
        /// File and field.
        place: String,
        /// What stands there.
        found: String,
        /// What follows from other evidence.
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
    /// The calibration belongs to another model.
    #[error("calibration.json: {field}: found {found}, expected {expected}")]
    Calibration {
        /// Field.
        field: &'static str,
        /// What the calibration holds.
        found: String,
        /// What the run's model has.
        expected: String,
    },
    /// A record contradicts its own output or its case.
    #[error(transparent)]
    Mismatch(#[from] Box<Mismatch>),
    /// Native differs from native on a worker that promises the same bits.
    #[error(transparent)]
    AaDiffers(#[from] Box<AaDifference>),
    /// A verified answer differs from the plainly generated one.
    #[error(transparent)]
    RegenerationDiffers(#[from] Box<RegenerationDifference>),
}

/// A record that contradicts its own output or its case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arm {arm}, panel {panel}, case {case}: {field}: found {found}, expected {expected}; \
     {count} such records in this panel"
)]
pub struct Mismatch {
    /// Arm.
    pub arm: String,
    /// Panel.
    pub panel: String,
    /// First such case in plan order.
    pub case: String,
    /// Field of the record.
    pub field: &'static str,
    /// What the record holds.
    pub found: String,
    /// What follows from the record's output and the panel.
    pub expected: String,
    /// Records of this arm and panel that contradict themselves.
    pub count: usize,
}

/// A difference between native and native.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "A/A difference: panel {panel}, case {case}: {what} differs between `{first}` and \
     `{second}`; {count} such records in this panel"
)]
pub struct AaDifference {
    /// Panel.
    pub panel: String,
    /// First case that differs, in plan order.
    pub case: String,
    /// What differs.
    pub what: &'static str,
    /// Control arm.
    pub first: String,
    /// A/A arm.
    pub second: String,
    /// Records of this panel that differ.
    pub count: usize,
}

/// A verified answer that differs from what the arm generates plainly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "arm {arm}, panel {panel}, case {case}: {what} of the verified answer differs from the plainly \
     generated one; {count} such records in this panel"
)]
pub struct RegenerationDifference {
    /// Arm.
    pub arm: String,
    /// Panel.
    pub panel: String,
    /// First case that differs, in plan order.
    pub case: String,
    /// What differs.
    pub what: &'static str,
    /// Records of this panel that differ.
    pub count: usize,
}

impl CertifyError {
    /// Whether the worker or the system failed (exit code 4).
    pub fn is_system(&self) -> bool {
        match self {
            CertifyError::AaDiffers(_) | CertifyError::RegenerationDiffers(_) => true,
            CertifyError::Store(error) => error.is_system(),
            _ => false,
        }
    }

    /// Whether the evidence is not all there (exit code 3).
    pub fn is_incomplete(&self) -> bool {
        matches!(self, CertifyError::Shard { .. })
    }

    /// Whether stored figures contradict what they follow from (exit code 5).
    pub fn is_mismatch(&self) -> bool {
        matches!(
            self,
            CertifyError::Mismatch(_)
                | CertifyError::ProtocolDigest { .. }
                | CertifyError::ProtocolLocked { .. }
                | CertifyError::Contradiction { .. }
        )
    }
}
