//! The manifest of a run: what ran, on what, under which protocol.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FileDigest, Protocol, QuantisedCheckpoint, ServerRun, Shard};

/// Schema name of [`Manifest`] documents.
pub const MANIFEST_SCHEMA: &str = "kvassay.run/1";
/// Schema name of [`ArmStart`] documents.
pub const ARM_START_SCHEMA: &str = "kvassay.arm-start/1";

/// `run.json`: synced before the first record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Always [`MANIFEST_SCHEMA`].
    #[schemars(extend("const" = MANIFEST_SCHEMA))]
    pub schema: String,
    /// The tool that ran.
    pub tool: ToolIdentity,
    /// The whole protocol, so that a run is complete in itself.
    pub protocol: Protocol,
    /// SHA-256 of the protocol's canonical JSON.
    pub protocol_sha256: String,
    /// The model.
    pub model: ModelIdentity,
    /// The worker.
    pub worker: WorkerIdentity,
    /// Materialised panels, in the protocol's order.
    pub panels: Vec<ManifestPanel>,
    /// Arms, in the order in which they are run.
    pub arms: Vec<ManifestArm>,
    /// Cases per panel where `--limit` cut the panels short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Which part of a run this is, where it is split over several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// The servers of a run over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub servers: Option<ServerRun>,
}

/// How much of a protocol's panels a run asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Cases per panel where `--limit` cuts the panels short.
    pub limit: Option<u32>,
    /// Part of what is left, where the run is split.
    pub shard: Option<Shard>,
}

impl Extent {
    /// The cases of a panel of `cases` cases, in plan order.
    pub fn of(self, cases: usize) -> Range<usize> {
        let kept = self.limit.map_or(cases, |limit| cases.min(limit as usize));
        self.shard.map_or(0..kept, |shard| shard.range(kept))
    }
}

impl Manifest {
    /// How much of its panels it asks.
    pub fn extent(&self) -> Extent {
        Extent {
            limit: self.limit,
            shard: self.shard,
        }
    }

    /// The first control arm, with which the A/A arm is compared.
    pub fn first_control(&self) -> Option<&ManifestArm> {
        self.arms.iter().find(|arm| arm.role == ArmRole::Control)
    }
}

/// The tool's own identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolIdentity {
    /// Version from the crate.
    pub version: String,
    /// SHA-256 over the sources that the binary was built from.
    pub source_sha256: String,
}

impl ToolIdentity {
    /// Identity of the running binary.
    pub fn current() -> Self {
        ToolIdentity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            source_sha256: env!("KVASSAY_SOURCE_SHA256").to_owned(),
        }
    }
}

/// The model's identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelIdentity {
    /// Name: the folder's or file's name without extension.
    pub name: String,
    /// Family, as `model_type` or its counterpart in GGUF names it.
    pub family: String,
    /// Every file that was read, sorted by path.
    pub files: Vec<FileDigest>,
    /// SHA-256 over the sorted list of weight files' digests.
    pub weights_sha256: String,
    /// SHA-256 of the tokenizer.
    pub tokenizer_sha256: String,
    /// Shape; [`Geometry::unknown`] for imported records.
    pub geometry: Geometry,
    /// What the checkpoint stores otherwise than as plain numbers; absent for most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantised: Option<QuantisedCheckpoint>,
    /// Penalties of generation that the checkpoint asks for (`generation_config.json`), as `name = value`:
    /// answers leave them out. Absent where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub penalties: Vec<String>,
}

/// The shape of a model, as far as the cache depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Decoder layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; the most where layers differ.
    pub kv_heads: u32,
    /// Elements per head vector; the most where layers differ.
    pub head_dim: u32,
    /// Vocabulary entries.
    pub vocab_size: u32,
    /// Longest sequence that the model's config allows, in tokens.
    pub context: u32,
    /// Native cache format: `f16` or `bf16`.
    pub native_dtype: String,
    /// Numbers of the layers that keep a recurrent state in place of keys and values; absent where
    /// none does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recurrent_layers: Vec<u32>,
    /// Layers that keep keys and values, by what they keep; absent where all of them keep those of
    /// every token, in as many heads of as many elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention_layers: Vec<AttentionLayers>,
}

/// Layers that keep keys and values alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AttentionLayers {
    /// Numbers of the layers, ascending.
    pub layers: Vec<u32>,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Elements per head vector.
    pub head_dim: u32,
    /// Tokens that are kept, the last ones; absent where all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
}

impl Geometry {
    /// Key/value heads of a layer that has some, and elements per head vector.
    pub fn heads_of(&self, layer: u32) -> (u32, u32) {
        let mut kinds = self.attention_layers.iter();
        let own = kinds.find(|kind| kind.layers.contains(&layer));
        own.map_or((self.kv_heads, self.head_dim), |kind| {
            (kind.kv_heads, kind.head_dim)
        })
    }

    /// What is wrong with the lists of layers: those of one list ascend, and each attention layer of a
    /// model whose layers differ stands in one list.
    pub fn fault(&self) -> Option<String> {
        let kinds = &self.attention_layers;
        let lists = kinds.iter().map(|kind| &kind.layers);
        for list in lists.clone().chain([&self.recurrent_layers]) {
            let ascends = list.windows(2).all(|pair| pair[0] < pair[1]);
            if !ascends || list.last().is_some_and(|&last| last >= self.layers) {
                return Some(format!("ascending numbers of layers below {}", self.layers));
            }
        }
        if kinds.iter().any(|kind| kind.window == Some(0)) {
            return Some("windows of at least one token".to_owned());
        }
        let mut listed: Vec<u32> = lists.flatten().copied().collect();
        listed.extend(&self.recurrent_layers);
        let all = listed.len();
        listed.sort_unstable();
        listed.dedup();
        let complete = kinds.is_empty() || all == self.layers as usize;
        (all != listed.len() || !complete).then(|| "every layer in one list".to_owned())
    }

    /// No shape at all, where only another harness has seen the model: every size is 0.
    pub fn unknown() -> Self {
        Geometry {
            layers: 0,
            hidden_size: 0,
            heads: 0,
            kv_heads: 0,
            head_dim: 0,
            vocab_size: 0,
            context: 0,
            native_dtype: "unknown".to_owned(),
            recurrent_layers: Vec::new(),
            attention_layers: Vec::new(),
        }
    }
}

/// The worker's identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerIdentity {
    /// `cpu`, `cuda`, `http` or `import`.
    pub kind: String,
    /// Device name.
    pub device: String,
    /// Arithmetic, e.g. `f32`.
    pub arithmetic: String,
}

/// One materialised panel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestPanel {
    /// Panel name.
    pub panel: String,
    /// Panel file relative to the run directory, and its digest; absent where unsupported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileDigest>,
    /// Number of cases.
    pub cases: u32,
    /// Why the panel cannot be run on this model (a length beyond its context, no chat template).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
}

/// One arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ManifestArm {
    /// Arm name: `native`, `native-aa`, `AF`, …
    pub arm: String,
    /// What the arm is for.
    pub role: ArmRole,
    /// Canonical recipe string.
    pub recipe: String,
    /// Why the worker cannot run this arm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
}

/// What an arm is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ArmRole {
    /// A native control.
    Control,
    /// The control run a second time.
    Aa,
    /// A candidate recipe.
    Candidate,
}

/// What stood before an arm's first record: synced before it and never replaced, so that a protocol
/// which is put into `run.json` later disagrees with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmStart {
    /// Always [`ARM_START_SCHEMA`].
    #[schemars(extend("const" = ARM_START_SCHEMA))]
    pub schema: String,
    /// Name of the protocol.
    pub protocol: String,
    /// SHA-256 of the protocol's canonical JSON.
    pub protocol_sha256: String,
    /// How the arm's answers come about; absent in runs of versions that knew one way only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<AnswerMode>,
}

/// How answers come about. Their tokens are the same either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerMode {
    /// Token by token.
    Plain,
    /// The control's tokens are fed at once and taken over as far as the arm agrees with them; the
    /// rest is generated.
    Verified,
}

impl AnswerMode {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            AnswerMode::Plain => "plain",
            AnswerMode::Verified => "verified",
        }
    }
}
