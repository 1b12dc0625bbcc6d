//! What a decoder needs to know of a checkpoint's configuration, whatever file it came from.

mod rope;

use crate::backend::{Activation, CacheLayer, RecurrentLayer};
use crate::recipe::NativeDtype;
use crate::schema::{AttentionLayers, Geometry};
pub use rope::{QueryGrowth, Rope, RopeScaling};

/// Model family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama: no bias unless `attention_bias` says so.
    Llama,
    /// Qwen2: bias on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm on every query and key head vector.
    Qwen3,
    /// Phi-3 and Phi-4: fused projections, part of a head vector rotated.
    Phi3,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Ministral 3: Mistral with queries that grow with their position.
    Ministral3,
    /// Qwen3-MoE: Qwen3 with experts in place of the MLP of some layers or all.
    Qwen3Moe,
    /// Qwen3.5: Qwen3 with a gate on what attention gives, between recurrent layers.
    Qwen35,
    /// Gemma 3: norms around attention and MLP, scaled embeddings, sliding and global layers.
    Gemma3,
    /// Gemma 4: Gemma 3 with global layers of other heads, normed values and scaled layers.
    Gemma4,
}

impl Family {
    /// Name as in configs and certificates.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Qwen3Moe => "qwen3_moe",
            Family::Qwen35 => "qwen3_5",
            Family::Phi3 => "phi3",
            Family::Mistral => "mistral",
            Family::Ministral3 => "ministral3",
            Family::Gemma3 => "gemma3",
            Family::Gemma4 => "gemma4",
        }
    }
}

/// One decoder layer: its attention, and how that stores and reads keys and values, or its
/// recurrent state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerConfig {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head vector.
    pub head_dim: usize,
    /// Tokens that a query sees, its own included; `None` for all before it.
    pub window: Option<usize>,
    /// Number of the layer's rotary embedding in [`ModelConfig::ropes`].
    pub rope: usize,
    /// What products of queries and keys are divided by.
    pub score_divisor: f32,
    /// Values are computed from what the projection to keys gives, which has none of its own.
    pub keys_are_values: bool,
    /// The layer has no attention, hence no heads of it, but this.
    pub recurrent: Option<RecurrentLayer>,
    /// The layer has this in place of its MLP, or beside it.
    pub experts: Option<ExpertsConfig>,
}

/// A mixture of experts: gated MLPs, of which every row goes through a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// All experts.
    pub experts: usize,
    /// Experts that a row goes through.
    pub chosen: usize,
    /// Width of each gated MLP.
    pub intermediate_size: usize,
    /// The weights of a row's experts sum to 1.
    pub renormalised: bool,
    /// Rows go through an MLP of [`ModelConfig::intermediate_size`] as well: what either gives is
    /// normed and added, router and experts have norms of the residual stream of their own, and the
    /// weight of every expert is scaled.
    pub beside_mlp: bool,
}

impl LayerConfig {
    /// Attention to all tokens before, scores divided by the square root of `head_dim`, the first
    /// rotary embedding.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        LayerConfig {
            heads,
            kv_heads,
            head_dim,
            window: None,
            rope: 0,
            score_divisor: (head_dim as f32).sqrt(),
            keys_are_values: false,
            recurrent: None,
            experts: None,
        }
    }

    /// A recurrent layer.
    pub fn recurrent(layer: RecurrentLayer) -> Self {
        LayerConfig {
            recurrent: Some(layer),
            ..LayerConfig::new(0, 0, 0)
        }
    }

    /// Elements of a token's queries.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of a token's keys, and of its values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of what a token is projected to: queries, keys, and values where these have a
    /// projection of their own.
    pub fn projected_width(&self) -> usize {
        let sides = if self.keys_are_values { 1 } else { 2 };
        self.q_width() + sides * self.kv_width()
    }

    /// What a cache has to know of the layer.
    pub fn cache_layer(&self) -> CacheLayer {
        CacheLayer {
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
            score_divisor: self.score_divisor,
            recurrent: self.recurrent,
        }
    }
}

/// Everything the forward pass depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub family: Family,
    /// Decoder layers, the first one first.
    pub layers: Vec<LayerConfig>,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP, in layers that have one.
    pub intermediate_size: usize,
    /// Vocabulary entries (rows of the embedding).
    pub vocab_size: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Rotary embeddings that layers name.
    pub ropes: Vec<Rope>,
    /// Bias on q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the attention output projection.
    pub attention_output_bias: bool,
    /// Bias on the MLP projections.
    pub mlp_bias: bool,
    /// RMSNorm on every query and key head vector before rotary.
    pub qk_norm: bool,
    /// RMSNorm without a weight on every value head vector.
    pub value_norm: bool,
    /// What attention gives is multiplied by the sigmoid of a gate, whose projection is stored with
    /// that of queries, head by head.
    pub attention_gate: bool,
    /// Weights of q, k and v, and of gate and up, are stored as one.
    pub fused_projections: bool,
    /// RMSNorm on what attention and MLP add to the residual stream.
    pub output_norms: bool,
    /// Norm weights are stored less 1.
    pub norms_less_one: bool,
    /// The residual stream is multiplied by a number of the checkpoint's after every layer.
    pub layer_scalars: bool,
    /// Activation of the MLP's gate.
    pub activation: Activation,
    /// Multiplier of embeddings where they enter the residual stream.
    pub embedding_scale: Option<f32>,
    /// The output projection is the embedding.
    pub tied_embeddings: bool,
    /// Logits become `cap * tanh(logits / cap)`.
    pub logit_cap: Option<f32>,
    /// Native cache format.
    pub native_dtype: NativeDtype,
    /// Tokens that the model declares as never to be generated: their logits are -inf. Ascending,
    /// below `vocab_size`.
    pub suppressed: Vec<u32>,
    /// Penalties of generation that the checkpoint asks for, as `name = value`. Answers are greedy and leave
    /// them out, as servers are asked to.
    pub penalties: Vec<String>,
    /// The multimodal model of whose checkpoint this is the text part: other tensors are not
    /// loaded.
    pub text_part_of: Option<String>,
}

impl ModelConfig {
    /// What a cache has to know of every layer.
    pub fn cache_layers(&self) -> Vec<CacheLayer> {
        self.layers.iter().map(LayerConfig::cache_layer).collect()
    }

    /// Elements per head vector that every layer stores; 0 where it stores none.
    pub fn stored_head_dims(&self) -> Vec<usize> {
        let layers = self.cache_layers();
        layers.iter().map(CacheLayer::stored_head_dim).collect()
    }

    /// Width of the widest MLP that is no expert; 0 where every layer has experts.
    pub fn dense_width(&self) -> usize {
        let mut layers = self.layers.iter();
        match layers.any(|layer| layer.experts.is_none_or(|experts| experts.beside_mlp)) {
            true => self.intermediate_size,
            false => 0,
        }
    }

    /// Whether any layer keeps a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent_layers().next().is_some()
    }

    /// Number of the first layer that attends; 0 where none does.
    pub fn first_attention(&self) -> usize {
        let mut layers = self.layers.iter();
        let first = layers.position(|layer| layer.recurrent.is_none());
        first.unwrap_or(0)
    }

    /// What a reader of the shape alone would not expect, in words.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(whole) = &self.text_part_of {
            notes.push(format!(
                "text part of a {whole} checkpoint, whose other tensors are not loaded"
            ));
        }
        let all = self.layers.len();
        let windows = self.layers.iter().filter_map(|layer| layer.window);
        if let Some(widest) = windows.clone().max() {
            let some = windows.count();
            notes.push(format!(
                "{some} of {all} layers see the last {widest} tokens"
            ));
        }
        let experts: Vec<_> = self
            .layers
            .iter()
            .filter_map(|layer| layer.experts)
            .collect();
        if let Some(shape) = experts.first() {
            notes.push(format!(
                "{} of {all} layers have {} experts, of which a token goes through {}{}",
                experts.len(),
                shape.experts,
                shape.chosen,
                if shape.beside_mlp {
                    ", beside an MLP"
                } else {
                    ""
                }
            ));
        }
        if !self.penalties.is_empty() {
            notes.push(format!(
                "generation_config.json asks for {}, which answers leave out: they are greedy, without \
                 penalties, and servers are asked for the same",
                self.penalties.join(", ")
            ));
        }
        let some = self.recurrent_layers().count();
        if some > 0 {
            notes.push(format!(
                "{some} of {all} layers keep a recurrent state, which no recipe changes; answers are \
                 generated token by token, never verified against the control's"
            ));
        }
        notes
    }

    /// Numbers of the layers that keep a recurrent state.
    fn recurrent_layers(&self) -> impl Iterator<Item = usize> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(number, layer)| layer.recurrent.map(|_| number))
    }

    /// Layers with keys and values by what they keep, as certificates state it: none where all keep
    /// the same, and every token.
    fn attention_layers(&self) -> Vec<AttentionLayers> {
        let u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut kinds: Vec<AttentionLayers> = Vec::new();
        let layers = self.layers.iter().enumerate();
        for (number, layer) in layers.filter(|(_, layer)| layer.recurrent.is_none()) {
            let own = AttentionLayers {
                layers: vec![u32(number)],
                kv_heads: u32(layer.kv_heads),
                head_dim: u32(layer.head_dim),
                // What no sequence outgrows bounds nothing.
                window: layer
                    .window
                    .filter(|window| *window < self.context)
                    .map(u32),
            };
            let alike = |kind: &&mut AttentionLayers| {
                (kind.kv_heads, kind.head_dim, kind.window)
                    == (own.kv_heads, own.head_dim, own.window)
            };
            match kinds.iter_mut().find(alike) {
                Some(kind) => kind.layers.extend(own.layers),
                None => kinds.push(own),
            }
        }
        match kinds.as_slice() {
            [AttentionLayers { window: None, .. }] => Vec::new(),
            _ => kinds,
        }
    }

    /// The largest of a size over all layers; 0 for a model without any.
    pub fn widest(&self, size: impl Fn(&LayerConfig) -> usize) -> usize {
        self.layers.iter().map(size).max().unwrap_or(0)
    }

    /// The shape, as certificates state it; where layers differ, the largest sizes.
    pub fn geometry(&self) -> Geometry {
        // Config dimensions are read as 32-bit numbers.
        let u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Geometry {
            layers: u32(self.layers.len()),
            hidden_size: u32(self.hidden_size),
            heads: u32(self.widest(|layer| layer.heads)),
            kv_heads: u32(self.widest(|layer| layer.kv_heads)),
            head_dim: u32(self.widest(|layer| layer.head_dim)),
            vocab_size: u32(self.vocab_size),
            context: u32(self.context),
            native_dtype: self.native_dtype.name().to_owned(),
            recurrent_layers: self.recurrent_layers().map(u32).collect(),
            attention_layers: self.attention_layers(),
        }
    }
}
