//! The certificate: verdicts, bounds, identities and digests of one candidate arm.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AnswerMode, Engagement, FileDigest, ModelIdentity, ObjectiveName, ResourceSummary,
    ServerEngagement, ServerRun, ToolIdentity, WorkerIdentity,
};

/// Schema name of [`Certificate`] documents.
pub const CERTIFICATE_SCHEMA: &str = "kvassay.certificate/1";

/// One candidate arm against its controls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Always [`CERTIFICATE_SCHEMA`].
    #[schemars(extend("const" = CERTIFICATE_SCHEMA))]
    pub schema: String,
    /// The tool that issued it.
    pub tool: ToolIdentity,
    /// The protocol.
    pub protocol: CertificateProtocol,
    /// The model.
    pub model: ModelIdentity,
    /// The worker.
    pub worker: WorkerIdentity,
    /// The recipe and its cost.
    pub recipe: CertificateRecipe,
    /// Verdicts with the rules behind them.
    pub objectives: Objectives,
    /// Degradation per endpoint: a family apart from the verdicts.
    pub degradation: Vec<Degradation>,
    /// The A/A arm; absent where there is none.
    pub aa: Option<AaResult>,
    /// How the candidate's answers came about; absent where nothing was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<AnswerResult>,
    /// Proof that the recipe was engaged.
    pub engagement: Option<Engagement>,
    /// The same on servers, which read nothing back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_engagement: Option<ServerEngagement>,
    /// The servers of a run over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerRun>,
    /// Cache bytes.
    pub memory: MemoryFigures,
    /// What the candidate, its controls and the A/A arm took of the machine, by arm; arms of which
    /// nothing is known are absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, ResourceSummary>,
    /// Counts of the candidate arm, and of the controls beside it.
    pub counts: Counts,
    /// Every input file with its digest, paths relative to the run directory.
    pub evidence: Vec<FileDigest>,
    /// What was not established and what a reader must know.
    pub caveats: Vec<String>,
}

/// Name and digest of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateProtocol {
    /// Name.
    pub name: String,
    /// SHA-256 of the canonical JSON.
    pub sha256: String,
}

/// The recipe and its bytes per token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateRecipe {
    /// Name.
    pub name: String,
    /// Canonical spec.
    pub spec: String,
    /// Cache bytes per token over all layers, inline scales included; 0 for imported records,
    /// where nothing is known of the cache.
    pub bytes_per_token: u64,
    /// The same for the native cache.
    pub native_bytes_per_token: u64,
    /// Bytes that a sequence takes beside that: its first tokens, stored natively (`sink=`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sink_bytes: u64,
}

/// Both objectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objectives {
    /// `gross_loss`, `nll`, `retrieval`.
    pub preservation: ObjectiveResult,
    /// `net_change`, `nll`, `retrieval`.
    pub aggregate: ObjectiveResult,
}

impl Objectives {
    /// The result of one objective.
    pub fn get(&self, name: ObjectiveName) -> &ObjectiveResult {
        match name {
            ObjectiveName::Preservation => &self.preservation,
            ObjectiveName::Aggregate => &self.aggregate,
        }
    }
}

/// Verdict of one objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every rule holds against every control.
    Pass,
    /// Too little evidence; no proof of harm.
    NotEstablished,
    /// Evidence is missing, doubled, errored or not finite.
    Incomplete,
    /// The model or layout cannot run this recipe: no quality claim.
    Unsupported,
    /// Post hoc: rules are shown, nothing is certified.
    Descriptive,
}

/// Verdict, reason and rules of one objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveResult {
    /// Verdict.
    pub verdict: Verdict,
    /// Machine-readable reason (`bound_exceeds_limit`, `control_too_weak`, `missing_records`, …);
    /// `null` for a pass.
    pub reason: Option<String>,
    /// One sentence for people that names panel, control and figures; `null` for a pass.
    pub detail: Option<String>,
    /// Machine-readable reason for which the evidence is incomplete as well, where the verdict is
    /// `descriptive` and does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
    /// Rules, per panel and control.
    pub rules: Vec<RuleResult>,
    /// What it would take, per rule that did not pass; only where the reason is
    /// `bound_exceeds_limit`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outlook: Vec<RuleOutlook>,
}

impl ObjectiveResult {
    /// The verdict as exit codes take it: evidence that is incomplete is so whatever else is said.
    pub fn judged(&self) -> Verdict {
        match self.incomplete {
            Some(_) => Verdict::Incomplete,
            None => self.verdict,
        }
    }
}

/// How many pairs a rule that did not pass would need at the rates that were observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleOutlook {
    /// Rule.
    pub rule: String,
    /// Panel name.
    pub panel: String,
    /// Control arm.
    pub control: String,
    /// Pairs that were compared.
    pub pairs: u64,
    /// Pairs with which the rule passes with probability 0.8; `null` where no number up to 100,000
    /// does.
    pub needed_80: Option<u64>,
    /// The same with probability 0.95.
    pub needed_95: Option<u64>,
    /// The estimate itself violates the limit: more pairs alone do not help.
    pub beyond_limit: bool,
    /// By normal approximation (NLL) instead of enumeration.
    pub approximate: bool,
}

/// The document with the most influence on an NLL rule. Diagnostic: it decides nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Influence {
    /// Case with the largest absolute difference `candidate - control`, the first in plan order
    /// among equals.
    pub case: String,
    /// Its difference over the sum of the absolute differences of all documents: from -1 (it alone
    /// lowers the mean) to 1 (it alone raises it).
    pub share: f64,
    /// The rule's bound without it, of as many resamples with the same seed, drawn for one document
    /// fewer.
    pub bound_without: f64,
}

/// One rule on one panel against one control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleResult {
    /// `gross_loss`, `net_change`, `nll` or `retrieval`.
    pub rule: String,
    /// Panel name.
    pub panel: String,
    /// Control arm.
    pub control: String,
    /// `clopper-pearson`, `tango` or `percentile-bootstrap`.
    pub method: String,
    /// Pairs (questions, cases or documents).
    pub pairs: u64,
    /// Pairs that the control answered right (math, retrieval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_correct: Option<u64>,
    /// Pairs that the candidate answered right (math, retrieval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate_correct: Option<u64>,
    /// Control right, candidate wrong (math, retrieval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Control wrong, candidate right (math, retrieval).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gained: Option<u64>,
    /// `lost / control_correct`; absent where the control answered nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_of_control_correct: Option<f64>,
    /// Mean NLL per target of the control, in nats (NLL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_mean: Option<f64>,
    /// Mean NLL per target of the candidate, in nats (NLL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate_mean: Option<f64>,
    /// Point estimate, a proportion.
    pub estimate: f64,
    /// One-sided bound at `alpha`.
    pub bound: f64,
    /// Monte-Carlo standard error of the bound (NLL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monte_carlo_se: Option<f64>,
    /// Standard deviation over documents of `(difference - estimate * control) / control_mean`: the
    /// estimate's standard error is this over the square root of `pairs` (NLL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_sd: Option<f64>,
    /// The document with the most influence (NLL, three documents or more that are not all equal).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub influence: Option<Influence>,
    /// Limit.
    pub limit: f64,
    /// One-sided alpha of this rule.
    pub alpha: f64,
    /// Whether the bound respects the limit.
    pub pass: bool,
}

/// Degradation at one endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Degradation {
    /// Panel name.
    pub endpoint: String,
    /// Established against every control.
    pub established: bool,
    /// The least favourable bound over the controls: upper Tango bound of net change (math,
    /// retrieval), lower bootstrap bound of the relative increase (NLL).
    pub bound: Option<f64>,
    /// Alpha per endpoint.
    pub alpha: f64,
}

/// Native against native.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AaResult {
    /// First arm right, second wrong (math and retrieval together).
    pub lost: u64,
    /// First arm wrong, second right.
    pub gained: u64,
    /// Compared records.
    pub records: u64,
    /// Same tokens and the same NLL bits in every record.
    pub identical_bits: bool,
}

/// How a candidate's answers came about, and what was generated a second time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerResult {
    /// `plain` or `verified` against the control's answers.
    pub mode: AnswerMode,
    /// Verified cases that were generated plainly as well.
    pub regenerated: u64,
    /// Those whose two records differ: none, as there is no certificate otherwise.
    pub mismatches: u64,
}

/// Cache bytes of the recipe against native: of every token in every layer, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryFigures {
    /// Tokens per page.
    pub page_tokens: u32,
    /// Cache bytes per stored token.
    pub bytes_per_token: u64,
    /// Native cache bytes per stored token.
    pub native_bytes_per_token: u64,
    /// Bytes of a sequence beside its tokens': the first ones, stored natively.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sink_bytes: u64,
    /// `1 - bytes_per_token / native_bytes_per_token`.
    pub saved: f64,
    /// What is kept of what is stored; absent where every layer keeps every token, and where servers
    /// ran the model, which do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptFigures>,
}

/// What a sequence keeps where layers have a window: once it is at least as long as the widest,
/// `tokens x bytes_per_token + window_bytes + sink_bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeptFigures {
    /// Bytes per token of the layers that keep every token.
    pub bytes_per_token: u64,
    /// The same for the native cache.
    pub native_bytes_per_token: u64,
    /// Bytes of full windows.
    pub window_bytes: u64,
    /// The same for the native cache.
    pub native_window_bytes: u64,
}

/// Outcomes that are counted apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Candidate answers cut by the allowance.
    pub truncated: u64,
    /// Candidate answers from which no number could be parsed.
    pub unparsed: u64,
    /// Errored candidate cases.
    pub errors: u64,
    /// Answers without any text.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub empty: u64,
    /// The same three for each control arm.
    pub controls: BTreeMap<String, ControlCounts>,
}

/// Outcomes of a control arm that are counted apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlCounts {
    /// Answers cut by the allowance.
    pub truncated: u64,
    /// Answers from which no number could be parsed.
    pub unparsed: u64,
    /// Errored cases.
    pub errors: u64,
    /// Answers without any text.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub empty: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
