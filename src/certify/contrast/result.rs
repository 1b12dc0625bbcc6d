//! What a comparison finds.

use crate::certify::{FEW_DOCUMENTS, Reason};
use crate::stats::PValue;

/// Contrasts between arms, per endpoint, within each run.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name of the protocol of every run.
    pub protocol: String,
    /// Its digest.
    pub protocol_sha256: String,
    /// Alpha of each family.
    pub family_alpha: f64,
    /// Bootstrap resamples of NLL endpoints.
    pub resamples: u32,
    /// Their seed.
    pub seed: u64,
    /// The runs, as given.
    pub runs: Vec<ComparedRun>,
    /// Per family of models and, within it, per endpoint in the protocol's order.
    pub endpoints: Vec<EndpointFamily>,
    /// Contrasts asked for that could not be computed.
    pub missing: Vec<MissingContrast>,
    /// Whether particular contrasts were asked for.
    pub filtered: bool,
    /// Contrasts asked for in the other order than declared: as asked, as declared.
    pub reversed: Vec<(String, String)>,
}

/// A run of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedRun {
    /// Run directory as the user named it.
    pub run: String,
    /// Name of its model.
    pub model: String,
    /// Digest of the model's weights.
    pub weights_sha256: String,
    /// Whether its declared contrasts belong to a family: the protocol declares the model, and stood
    /// before the records.
    pub declared: bool,
    /// What shows that the protocol may not have stood before the records: one clause.
    pub post_hoc: Option<String>,
    /// Doubts about arms, such as an unproved engagement: one clause each.
    pub doubts: Vec<String>,
}

/// How the contrasts of an endpoint are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContrastMethod {
    /// Exact conditional McNemar test, two-sided.
    McnemarExact,
    /// Paired bootstrap under the null of centred differences, two-sided.
    PairedBootstrap,
}

impl ContrastMethod {
    /// Name as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            ContrastMethod::McnemarExact => "mcnemar-exact",
            ContrastMethod::PairedBootstrap => "paired-bootstrap",
        }
    }
}

/// One endpoint: a Holm family of its own.
#[derive(Clone, Debug)]
pub struct EndpointFamily {
    /// Panel name: `math`, `nll-1k`, `retrieval-8k`.
    pub endpoint: String,
    /// Test.
    pub method: ContrastMethod,
    /// Models of the family; `*` for one that was not given. Empty for a run of a model that the
    /// protocol does not declare, or whose records it did not precede: its contrasts belong to no
    /// family.
    pub models: Vec<String>,
    /// Declared contrasts of all declared models.
    pub size: usize,
    /// Those of them that could not be computed and count as p = 1, shown or not.
    pub missing: usize,
    /// Contrasts that were asked for and computed: declared ones by model, then descriptive ones.
    pub contrasts: Vec<Contrast>,
}

/// One contrast of one model on one endpoint.
#[derive(Clone, Debug)]
pub struct Contrast {
    /// `AF-RF`.
    pub contrast: String,
    /// Model.
    pub model: String,
    /// Whether it belongs to the family; else it is descriptive.
    pub declared: bool,
    /// First arm.
    pub first: String,
    /// Second arm.
    pub second: String,
    /// What was counted.
    pub counts: ContrastCounts,
    /// Difference first - second: of accuracies as a proportion, or of mean NLL per target in nats.
    pub effect: f64,
    /// Two-sided interval of the effect at [`CONFIDENCE`](super::CONFIDENCE).
    pub interval: [f64; 2],
    /// Two-sided, unadjusted.
    pub p: PValue,
    /// Holm-adjusted; absent for a descriptive contrast.
    pub adjusted: Option<PValue>,
    /// The arm that the effect favours.
    pub direction: Direction,
    /// Adjusted p is at most the family alpha; never of a descriptive contrast, nor of one over fewer
    /// than [`FEW_DOCUMENTS`](crate::certify::FEW_DOCUMENTS) documents.
    pub established: bool,
}

/// What a contrast rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ContrastCounts {
    /// Math and retrieval.
    Answers {
        /// Pairs.
        pairs: u64,
        /// Right in the first arm.
        first_correct: u64,
        /// Right in the second arm.
        second_correct: u64,
        /// Right in the first arm alone.
        first_only: u64,
        /// Right in the second arm alone.
        second_only: u64,
    },
    /// NLL.
    Nll {
        /// Documents.
        documents: u64,
        /// Mean over documents of the first arm's mean NLL per target, in nats.
        first_mean: f64,
        /// The same of the second arm.
        second_mean: f64,
        /// Resamples `b` at least as far from 0 as the data; `p = (b + 1) / (B + 1)`.
        exceeding: u32,
    },
}

impl ContrastCounts {
    /// Whether a difference can be established: the bootstrap test of few documents finds one where
    /// there is none far too often, of two documents in every second case.
    pub fn are_enough(&self) -> bool {
        match self {
            ContrastCounts::Answers { .. } => true,
            ContrastCounts::Nll { documents, .. } => *documents >= u64::from(FEW_DOCUMENTS),
        }
    }
}

/// The arm that a difference favours: more right answers, or the lower NLL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The first arm.
    First,
    /// The second arm.
    Second,
    /// Neither.
    None,
}

impl Direction {
    /// The side that has the larger value.
    pub(super) fn larger<T: PartialOrd>(first: T, second: T) -> Self {
        if first > second {
            Direction::First
        } else if second > first {
            Direction::Second
        } else {
            Direction::None
        }
    }

    /// Name as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Direction::First => "first",
            Direction::Second => "second",
            Direction::None => "none",
        }
    }
}

/// A contrast that was asked for and could not be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingContrast {
    /// Panel name.
    pub endpoint: String,
    /// `AF-RF`.
    pub contrast: String,
    /// Model; `*` where no run takes its place.
    pub model: String,
    /// Run directory; absent where no run was given.
    pub run: Option<String>,
    /// Whether it belongs to a family, in which it counts as p = 1.
    pub declared: bool,
    /// Kind.
    pub lack: Lack,
    /// One clause for people.
    pub detail: String,
}

/// Why a contrast is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// No run of the model was given.
    RunNotGiven,
    /// The run has no such arm.
    ArmAbsent,
    /// The evidence is incomplete, unsupported or too small.
    Evidence(Reason),
}

impl Lack {
    /// Name as in JSON; for evidence that of certificates.
    pub fn name(self) -> &'static str {
        match self {
            Lack::RunNotGiven => "run_not_given",
            Lack::ArmAbsent => "arm_absent",
            Lack::Evidence(reason) => reason.name(),
        }
    }
}
