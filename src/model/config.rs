//! What a decoder needs to know of a checkpoint's configuration, whatever file it came from.

use crate::recipe::NativeDtype;
use crate::schema::Geometry;

/// Model family. Families differ by what their attention does to queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama: no bias unless `attention_bias` says so.
    Llama,
    /// Qwen2: bias on q, k and v.
    Qwen2,
    /// Qwen3: RMSNorm on every query and key head vector.
    Qwen3,
}

impl Family {
    /// Name as in configs and certificates.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }
}

/// Everything the forward pass depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub family: Family,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head vector.
    pub head_dim: usize,
    /// Vocabulary entries (rows of the embedding).
    pub vocab_size: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Bias on q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the attention output projection.
    pub attention_output_bias: bool,
    /// Bias on the MLP projections.
    pub mlp_bias: bool,
    /// RMSNorm on every query and key head vector before rotary.
    pub qk_norm: bool,
    /// The output projection is the embedding.
    pub tied_embeddings: bool,
    /// Native cache format.
    pub native_dtype: NativeDtype,
    /// Tokens that the model declares as never to be generated: their logits are -inf. Ascending,
    /// below `vocab_size`.
    pub suppressed: Vec<u32>,
}

impl ModelConfig {
    /// The shape, as certificates state it.
    pub fn geometry(&self) -> Geometry {
        // Config dimensions are read as 32-bit numbers.
        let u32 = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Geometry {
            layers: u32(self.layers),
            hidden_size: u32(self.hidden_size),
            heads: u32(self.heads),
            kv_heads: u32(self.kv_heads),
            head_dim: u32(self.head_dim),
            vocab_size: u32(self.vocab_size),
            context: u32(self.context),
            native_dtype: self.native_dtype.name().to_owned(),
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
    /// Divisors of every inverse frequency, as GGUF files carry them in `rope_freqs.weight`:
    /// `inv_freq[i] = theta^(-2i / head_dim) / factors[i]`.
    FrequencyFactors {
        /// `[head_dim / 2]`, each above 0.
        factors: Vec<f32>,
    },
}
