//! Rotary embeddings of a model.

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
