//! What an import found in the files of another harness.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FileDigest;

/// Schema name of [`ImportReport`] documents.
pub const IMPORT_SCHEMA: &str = "kvassay.import/1";
/// Worker kind in the manifest of an imported run.
pub const IMPORT_WORKER: &str = "import";
/// Parser named by panels of imported cases: the harness has scored them.
pub const IMPORT_PARSER: &str = "imported/1";

/// `import.json`: where the records of an imported run come from, and what is wrong with them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportReport {
    /// Always [`IMPORT_SCHEMA`].
    #[schemars(extend("const" = IMPORT_SCHEMA))]
    pub schema: String,
    /// The harness: `lm-eval`, `inspect`, `lighteval` or `csv`.
    pub harness: String,
    /// Panel that the cases stand for.
    pub panel: String,
    /// Metric, scorer or columns that decide whether an answer is right.
    pub metric: String,
    /// Filter of the answers (lm-eval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// What pairs the arms.
    pub pairing: Pairing,
    /// The native arm.
    pub native: ImportArm,
    /// The candidate arm.
    pub candidate: ImportArm,
    /// Cases with one scored record in each arm.
    pub pairs: u64,
    /// Everything that makes the evidence incomplete, case by case.
    pub faults: Vec<ImportFault>,
    /// Records that this crate's own parser could score as well.
    pub parser_compared: u64,
    /// Records on which this crate's own parser and the harness disagree.
    pub parser_disagreements: Vec<ParserDisagreement>,
}

/// What pairs the arms of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// Question text and gold answer.
    Content,
    /// Case ids alone: the files hold no content.
    Ids,
}

/// One arm of an import.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportArm {
    /// Arm of the run.
    pub arm: String,
    /// Files as they were named, with their digests.
    pub files: Vec<FileDigest>,
    /// Samples read.
    pub samples: u64,
    /// SHA-256 over the sorted contents (or ids, see [`Pairing`]), one a line.
    pub case_set_sha256: String,
    /// Model as the harness names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Protocol digests that the samples carry, each once.
    pub protocol_sha256: Vec<String>,
    /// Samples that carry no protocol digest.
    pub without_protocol: u64,
    /// Logs that did not end well, with what they say.
    pub unfinished: Vec<String>,
}

impl ImportArm {
    /// Whether every sample carries this protocol digest and no other.
    pub fn carries(&self, protocol_sha256: &str) -> bool {
        self.without_protocol == 0 && self.protocol_sha256 == [protocol_sha256]
    }
}

/// What can be wrong with an imported case.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// One content, id or prompt that means two things.
    Conflict,
    /// The same content twice in one arm.
    Duplicate,
    /// The harness failed on the case.
    Errored,
    /// The case is in the other arm only.
    Missing,
    /// The harness gives no verdict that is right or wrong.
    Unscored,
}

impl FaultKind {
    /// Name as in reports.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Conflict => "conflict",
            FaultKind::Duplicate => "duplicate",
            FaultKind::Errored => "errored",
            FaultKind::Missing => "missing",
            FaultKind::Unscored => "unscored",
        }
    }
}

/// One thing that is wrong with an imported case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportFault {
    /// Case in the run's panel.
    pub case: String,
    /// What kind.
    pub kind: FaultKind,
    /// One clause for people, with the places in the files.
    pub detail: String,
}

/// A record on which this crate's own parser and the harness disagree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParserDisagreement {
    /// Case in the run's panel.
    pub case: String,
    /// Arm.
    pub arm: String,
    /// Parser with its version.
    pub parser: String,
    /// What the harness says.
    pub harness_correct: bool,
}
