//! What a decoder needs to know of a checkpoint's configuration, whatever file it came from.

use crate::backend::{Activation, CacheLayer, RecurrentLayer};
use crate::recipe::NativeDtype;
use crate::schema::Geometry;

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
    /// Width of the gated MLP.
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
    /// The multimodal model of whose checkpoint this is the text part: other tensors are not
    /// loaded.
    pub text_part_of: Option<String>,
}

impl ModelConfig {
    /// What a cache has to know of every layer.
    pub fn cache_layers(&self) -> Vec<CacheLayer> {
        self.layers.iter().map(LayerConfig::cache_layer).collect()
    }

    /// Whether any layer keeps a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.recurrent_layers().next().is_some()
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
        }
    }
}

/// Rotary embedding: non-interleaved halves (`rotate_half`), as Hugging Face stores the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base.
    pub theta: f64,
    /// Variant.
    pub scaling: RopeScaling,
    /// Part of a head vector that is rotated, from its first element on, above 0 and up to 1.
    pub partial: f64,
    /// Multiplies queries by position.
    pub query_growth: Option<QueryGrowth>,
}

impl Rope {
    /// Of whole head vectors.
    pub fn new(theta: f64, scaling: RopeScaling) -> Self {
        Rope {
            theta,
            scaling,
            partial: 1.0,
            query_growth: None,
        }
    }

    /// Elements that are rotated of a vector of `head_dim`.
    pub fn rotated(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.partial) as usize
    }

    /// Pairs of elements of such a vector whose angle depends on the position.
    pub fn turned_pairs(&self, head_dim: usize) -> usize {
        match self.scaling {
            RopeScaling::Proportional { part, .. } => (head_dim as f64 * part / 2.0) as usize,
            _ => self.rotated(head_dim) / 2,
        }
    }
}

/// Queries at `position` are multiplied by `1 + beta * ln(1 + floor(position / period))` (Llama 4's
/// attention temperature, which Ministral 3 has as well).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// Growth per power of e of the period.
    pub beta: f64,
    /// Tokens, above 0.
    pub period: usize,
}

/// Rotary variants.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Unscaled.
    Default,
    /// Positions divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, a smooth band between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Lower edge of the band.
        low_freq_factor: f64,
        /// Upper edge of the band.
        high_freq_factor: f64,
        /// Context before scaling, in tokens.
        original_context: usize,
    },
    /// YaRN.
    Yarn {
        /// Extension factor.
        factor: f64,
        /// Fast rotations bound.
        beta_fast: f64,
        /// Slow rotations bound.
        beta_slow: f64,
        /// Context before scaling, in tokens.
        original_context: usize,
        /// Multiplier of cos and sin.
        attention_factor: f64,
        /// Whether correction bounds are truncated to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE: divisors of every inverse frequency, one list up to the original context and one
    /// beyond.
    ///
    /// The library that writes these files takes the longer list for every token of a pass in which
    /// any position lies beyond the original context, and computes a sequence that grows over it
    /// anew. Here a sequence's bits may depend neither on what stands beside it nor on how it came
    /// about, and its stored keys are final: the model's context decides, as in servers that hold
    /// that context. A model of a longer context than the original one takes the longer list at
    /// every position.
    LongRope {
        /// `[rotated / 2]`, each above 0.
        factors: Vec<f32>,
        /// Multiplier of cos and sin.
        attention_factor: f64,
    },
    /// Divisors of every inverse frequency, as GGUF files carry them in `rope_freqs.weight`:
    /// `inv_freq[i] = theta^(-2i / head_dim) / factors[i]`.
    FrequencyFactors {
        /// `[head_dim / 2]`, each above 0.
        factors: Vec<f32>,
    },
    /// Whole head vectors are paired, but only the first pairs turn, as fast as if all did, and
    /// positions are divided by `factor`.
    Proportional {
        /// Divisor.
        factor: f64,
        /// Part of the pairs that turn, above 0 and up to 1.
        part: f64,
    },
}
