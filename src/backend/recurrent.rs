//! Layers that keep a state of one size in place of keys and values: the gated delta rule
//! (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks").

use super::{Backend, BackendError};

/// Sizes of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentLayer {
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`: so many in a row share queries and keys.
    pub value_heads: usize,
    /// Elements of a query or key head vector.
    pub key_dim: usize,
    /// Elements of a value head vector.
    pub value_dim: usize,
    /// Tokens that the convolution looks at, the own one included; at least 1.
    pub kernel: usize,
}

impl RecurrentLayer {
    /// Elements of a token's queries, and of its keys.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of a token's values.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Queries, keys and values: what is convolved.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Elements of a token's input projections: what is convolved, the output's gate, and two
    /// numbers per value head.
    pub fn projected(&self) -> usize {
        self.channels() + self.values() + 2 * self.value_heads
    }

    /// Elements of a sequence's matrices, `[value_heads, value_dim, key_dim]` in FP32.
    pub fn matrix_elements(&self) -> usize {
        self.values() * self.key_dim
    }

    /// Elements of a sequence's convolution inputs, `[kernel - 1, channels]` in the native format.
    pub fn input_elements(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Bytes that a sequence keeps: the matrices, then the convolution inputs.
    pub fn bytes(&self) -> [u64; 2] {
        [
            4 * self.matrix_elements() as u64,
            2 * self.input_elements() as u64,
        ]
    }
}

/// Weights of a recurrent layer between its projections, and what [`Backend::recur`] computes. A row
/// of `packed` ([`RecurrentLayer::projected`]) holds `x` (queries, keys, values), the output's gate
/// `z` (`[values]`), `b` and `a` (`[value_heads]` each). Rows of a slot stand side by side in
/// ascending order, and follow on what the slot's state holds; position 0 begins anew.
///
/// In the sequence, with `x` rounded to the native format and 0 before the first token:
///
/// 1. `y[t] = silu(sum over j of convolution[j] * x[t - kernel + 1 + j])`, channel by channel,
///    gives `q`, `k` (both then divided by their length, `q` also by `sqrt(key_dim)`) and `v`.
/// 2. Every value head: `S = exp(decay * softplus(a + step_bias)) * S`, then
///    `S += k (v - S^T k)^T * sigmoid(b)`, then `o = S^T q`; `S` is `[key_dim, value_dim]`.
/// 3. `out = o / sqrt(mean(o^2) + eps) * norm * silu(z)`, `[values]`.
///
/// States are FP32, computed token by token, and no recipe changes them. `packed` holds rounded
/// inputs afterwards; `room` is for `y`. What is not finite is reported at once, or by
/// [`Backend::settle`], or goes on into what is computed from it. A pass that fails leaves the
/// states of its slots anywhere: they need a reset.
pub struct DeltaRule<'a, B: Backend> {
    /// `[kernel, channels]`: what inputs are multiplied by, those of the own token last.
    pub convolution: &'a B::Vector,
    /// `[value_heads]`: `-exp(A_log)`, what steps are multiplied by.
    pub decay: &'a B::Vector,
    /// `[value_heads]`: added to the numbers that steps follow from.
    pub step_bias: &'a B::Vector,
    /// `[value_dim]`: norm of every output head vector.
    pub norm: &'a B::Vector,
    /// Epsilon of that norm.
    pub eps: f32,
}

impl<B: Backend> Clone for DeltaRule<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for DeltaRule<'_, B> {}

/// Added to the squared length of queries and keys before they are divided by it.
pub const LENGTH_EPSILON: f32 = 1e-6;

/// Error of a cut that would need a state that is gone.
pub fn cannot_cut(tokens: usize) -> BackendError {
    BackendError::Unsupported(format!(
        "a sequence with recurrent layers cannot be cut back to {tokens} tokens: its state is that \
         of its last token"
    ))
}
