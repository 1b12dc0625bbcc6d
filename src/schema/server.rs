//! What a run over HTTP knows of its servers, and what certificates say of them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of worker in manifests and certificates of runs over HTTP.
pub const HTTP_WORKER: &str = "http";

/// The servers of a run, how they were asked, and what the conformance probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerRun {
    /// How every server is asked.
    pub settings: ServerSettings,
    /// The candidate's server, then one per control in the protocol's order.
    pub servers: Vec<Server>,
}

impl ServerRun {
    /// The server that answers for the arm `arm`.
    pub fn of_arm(&self, arm: &str) -> Option<&Server> {
        let mut servers = self.servers.iter();
        servers.find(|server| server.arms.iter().any(|name| name == arm))
    }
}

/// How servers are asked: greedily (temperature 0), one answer a request, no streaming.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    /// Who renders chat messages.
    pub template: PromptTemplate,
    /// Most requests at a time.
    pub concurrency: u32,
    /// Seed of every request; greedy choices should not depend on it.
    pub seed: u64,
}

/// Who renders chat messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptTemplate {
    /// The server: messages go to its chat endpoint as they are.
    Server,
    /// This tool, with the template of `--model`: prompts go to the completions endpoint.
    Local,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// `candidate`, or the name of the control.
    pub name: String,
    /// Arms that it answers for.
    pub arms: Vec<String>,
    /// Who it is.
    pub identity: ServerIdentity,
    /// What the conformance probe found before the first record.
    pub probe: ServerProbe,
}

/// Who a server is, as far as it says so. Asked again before every arm: a server that says
/// something else then has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerIdentity {
    /// Address without user, query and fragment.
    pub url: String,
    /// `llama.cpp`, `vllm`, `sglang`, `tensorrt-llm` or `unknown`, by its endpoints.
    pub engine: String,
    /// Version or build, where it is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Name under which the model is asked for.
    pub model: String,
    /// Longest sequence in tokens, where it is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Format of the cache, where it is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<ReportedCache>,
}

impl ServerIdentity {
    /// Whether the engine is known to heed `repetition_penalty`.
    pub fn heeds_repetition_penalty(&self) -> bool {
        matches!(self.engine.as_str(), "vllm" | "sglang" | "tensorrt-llm")
    }
}

/// The cache format that a server reports, in the server's own words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportedCache {
    /// Endpoint and field, e.g. `/metrics vllm:cache_config_info cache_dtype`.
    pub source: String,
    /// Format of keys.
    pub k: String,
    /// Format of values.
    pub v: String,
}

/// What a server makes of the field that switches off its penalty of repeated tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RepetitionPenalty {
    /// It answers requests that have the field.
    Sent,
    /// It refuses them, so that its own default holds.
    Refused,
}

/// What the conformance probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerProbe {
    /// Model that replies name; every later reply must name the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_model: Option<String>,
    /// Forms in which prompts to be answered are sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<PromptForm>,
    /// Why prompts that this tool renders are not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts_refused: Option<String>,
    /// Why messages are not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_refused: Option<String>,
    /// The server takes the switch that turns thinking off in its chat template.
    pub thinking_switch: bool,
    /// Whether answers are asked for with `repetition_penalty: 1`; absent where it was not tried: for
    /// llama.cpp, which has another name for it, and where nothing was asked for an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<RepetitionPenalty>,
    /// Replies held reasoning beside the answer. It is never scored.
    pub reasoning: bool,
    /// The same prompt twice gave the same text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeatable: Option<bool>,
    /// Some prompts one by one and again side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel: Option<ParallelProbe>,
    /// How an answer of the probe ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopProbe>,
    /// Tokens of a prompt, ours and the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenProbe>,
    /// How likelihoods are asked for; absent where the server offers none that could be checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likelihood: Option<LikelihoodProbe>,
    /// Why likelihoods are not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likelihood_refused: Option<String>,
    /// Prompt caching was switched off for answers (llama.cpp).
    pub prompt_cache_off: bool,
}

/// Form of prompts to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptForm {
    /// Chat messages.
    Messages,
    /// Token ids.
    TokenIds,
    /// Text that the server tokenises, as the template renders it.
    Text,
    /// The same without its beginning-of-sequence token, which the server puts there itself.
    TextWithoutBos,
}

impl PromptForm {
    /// Words for messages.
    pub fn words(self) -> &'static str {
        match self {
            PromptForm::Messages => "chat messages",
            PromptForm::TokenIds => "token ids",
            PromptForm::Text => "text",
            PromptForm::TextWithoutBos => "text without its first token",
        }
    }
}

/// The same prompts one by one and side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ParallelProbe {
    /// Prompts.
    pub prompts: u32,
    /// Most new tokens of each.
    pub max_new_tokens: u32,
    /// Prompts whose two texts differ.
    pub differing: u32,
    /// Tokens from the first difference on, over all of them, by our tokenizer.
    pub differing_tokens: u64,
    /// Tokens of the texts that came one by one.
    pub tokens: u64,
}

/// How an answer of the probe ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopProbe {
    /// Answers that the model ended by itself.
    pub stopped: u32,
    /// Answers cut by the probe's allowance.
    pub cut: u32,
    /// Answers that hold the text of a token which ends a turn: the server does not stop there.
    pub leaked: u32,
}

/// Tokens of one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenProbe {
    /// Tokens by `--model`'s tokenizer and template.
    pub ours: u32,
    /// Tokens by the server's count of the prompt; absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<u32>,
    /// Beginning-of-sequence tokens at the start of ours.
    pub bos_ours: u32,
    /// The same in the server's own tokenisation; absent where it has no such endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bos_servers: Option<u32>,
}

/// How likelihoods are asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LikelihoodProbe {
    /// Which way.
    pub dialect: LikelihoodDialect,
    /// The same window twice gave the same bits.
    pub repeatable: bool,
    /// Largest absolute difference of the two sums per target, in nats.
    pub difference: f64,
}

/// Ways to ask a server for the likelihood of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LikelihoodDialect {
    /// `prompt_logprobs` of the completions endpoint (vLLM): token ids are checked.
    PromptLogprobs,
    /// `echo` with `logprobs` of the completions endpoint: token texts are checked.
    EchoLogprobs,
    /// llama.cpp's native endpoint, one request per target: the target is forced and its
    /// probability before sampling read; its id is checked.
    ForcedTokens,
}

impl LikelihoodDialect {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            LikelihoodDialect::PromptLogprobs => "prompt_logprobs",
            LikelihoodDialect::EchoLogprobs => "echo_logprobs",
            LikelihoodDialect::ForcedTokens => "forced_tokens",
        }
    }
}

/// What shows, on servers, that the candidate's recipe was at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServerEngagement {
    /// The strongest proof there is.
    pub proof: EngagementProof,
    /// Cache format that the candidate's server reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<ReportedCache>,
    /// Records in which the candidate differs, by control.
    pub differences: BTreeMap<String, RecordDifferences>,
}

/// Proofs of engagement on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngagementProof {
    /// The server reports the recipe's format, and records differ from every control's.
    ReportedAndObserved,
    /// It reports the recipe's format; for some control it is not shown that more than noise differs.
    Reported,
    /// The server reports nothing; records differ from every control's by more than its noise.
    ObservedDifference,
    /// Neither.
    None,
}

/// Records in which a candidate differs from a control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordDifferences {
    /// Records that both have.
    pub records: u64,
    /// Those whose text, end or likelihood differs.
    pub differing: u64,
    /// Those of them where the control agreed with itself when it was asked twice: a difference
    /// there is not the server's noise as far as it shows.
    pub beyond_noise: u64,
    /// Records in which the control, asked twice, differs from itself and the candidate does not
    /// differ from it: noise that goes the other way.
    #[serde(default)]
    pub noise_alone: u64,
}

/// One failed attempt at a case: a line of `<panel>.attempts.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// Case name.
    pub case: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// HTTP status, where there was a reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What went wrong.
    pub error: String,
    /// Wait before the next attempt, in milliseconds; absent where it was the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}
