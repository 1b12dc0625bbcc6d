//! Layers whose MLP is a mixture of experts: every row goes through a few of many.

use super::{Activation, Backend, BackendError, StoredParts, TensorData};

/// Weights of experts.
pub enum ExpertParts<'a> {
    /// As numbers.
    Numbers(Vec<TensorData>),
    /// As a checkpoint stores them.
    Stored(&'a StoredParts<'a>),
}

/// [`Backend::expert_weight`] by what takes over other weights; `[out, inner]` of all experts.
pub(super) fn weight<B: Backend>(
    backend: &B,
    parts: ExpertParts<'_>,
    out: usize,
    inner: usize,
) -> Result<Option<B::Weight>, BackendError> {
    match parts {
        ExpertParts::Numbers(parts) => backend.fused_weight(parts, out, inner).map(Some),
        ExpertParts::Stored(parts) => backend.stored_weight(parts, out, inner),
    }
}

/// How the experts of a row follow from its logits, for [`Backend::route`].
///
/// With `p` the softmax of a row's logits over all experts, in f32: the row goes to the `chosen`
/// experts of the largest logits, of equal ones to that of the lower number. Expert `e` has the
/// weight `p[e] * scales[e]`; where `renormalised` is set, `p` is divided by its sum over the
/// row's experts first. A row with NaN, or without a finite largest logit, is reported at once, or
/// its weights are NaN, which goes on into what is computed from it.
///
/// Libraries round logits to the 16-bit type of the weights before they choose. Here nothing is
/// rounded between a product's f32 sums and the choice. Rounding keeps an order or makes two
/// numbers equal: whatever is chosen here, a library may choose as well, which leaves open what it
/// takes of equal ones.
pub struct RoutingRule<'a, B: Backend> {
    /// Experts of a row, from 1 to the number of all.
    pub chosen: usize,
    /// The weights of a row's experts sum to 1, before `scales`.
    pub renormalised: bool,
    /// `[experts]`: what the weights of each expert are multiplied by.
    pub scales: Option<&'a B::Vector>,
}

/// Weights of all experts of a layer, for [`Backend::mix_experts`].
pub struct ExpertWeights<'a, B: Backend> {
    /// `[experts * 2 * intermediate_size, inner]`: expert by expert the rows of gate, then of up.
    pub gate_up: &'a B::Weight,
    /// `[experts * inner, intermediate_size]`: expert by expert.
    pub down: &'a B::Weight,
    /// Activation of the gate.
    pub activation: Activation,
}

impl<B: Backend> Clone for RoutingRule<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for RoutingRule<'_, B> {}

impl<B: Backend> Clone for ExpertWeights<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for ExpertWeights<'_, B> {}

/// Error of a row of logits from which nothing can be chosen.
pub fn cannot_route(row: usize, logits: &[f32]) -> BackendError {
    let what = match logits.iter().position(|x| x.is_nan()) {
        Some(expert) => format!("logit of expert {expert} is NaN, expected a number"),
        None => {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            format!("the largest logit of an expert is {largest}, expected a finite number")
        }
    };
    BackendError::NotFinite { row, what }
}
