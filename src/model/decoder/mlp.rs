//! What follows attention in a layer: a gated MLP, or a mixture of experts.

use crate::backend::{Backend, BackendError, ExpertWeights, GateProjection, RoutingRule};
use crate::model::{ExpertsConfig, ModelConfig};

use super::workspace::Workspace;
use super::{Output, Projection};

/// What of a layer treats every row on its own.
pub(super) enum Mlp<B: Backend> {
    Dense(Dense<B>),
    Experts(Experts<B>),
}

/// A gated MLP.
pub(super) struct Dense<B: Backend> {
    /// Rows of gate, up.
    pub gate_up: Projection<B>,
    pub down: Output<B>,
}

/// A mixture of gated MLPs; see [`ExpertWeights`].
pub(super) struct Experts<B: Backend> {
    pub shape: ExpertsConfig,
    /// `[experts, hidden_size]`.
    pub router: B::Weight,
    pub gate_up: B::Weight,
    pub down: B::Weight,
    /// Norm of what is added to the residual stream.
    pub norm: Option<B::Vector>,
}

impl<B: Backend> Mlp<B> {
    /// Adds what it makes of the normed residual stream to that stream.
    pub fn add_to(
        &self,
        backend: &B,
        config: &ModelConfig,
        index: usize,
        workspace: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        match self {
            Mlp::Dense(dense) => dense.add_to(backend, config, workspace),
            Mlp::Experts(experts) => experts.add_to(backend, config, index, workspace),
        }
    }
}

impl<B: Backend> Dense<B> {
    fn add_to(
        &self,
        backend: &B,
        config: &ModelConfig,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let Projection { weight, bias } = &self.gate_up;
        let gate = GateProjection {
            weight,
            bias: bias.as_ref(),
            activation: config.activation,
        };
        let room = &mut ws.dense;
        backend.project_gated(&ws.normed, gate, &mut room.packed, &mut room.activated)?;
        let (x, eps) = (&room.activated, config.rms_norm_eps);
        self.down.add_to(backend, x, eps, &mut ws.x, &mut ws.branch)
    }
}

impl<B: Backend> Experts<B> {
    fn add_to(
        &self,
        backend: &B,
        config: &ModelConfig,
        index: usize,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let room = &mut ws.experts[ws.experts_of[index]];
        backend.matmul(&ws.normed, &self.router, None, &mut room.logits)?;
        let rule = RoutingRule {
            chosen: self.shape.chosen,
            renormalised: self.shape.renormalised,
            scales: None,
        };
        backend.route(&room.logits, rule, &mut room.routes)?;
        let weights = ExpertWeights {
            gate_up: &self.gate_up,
            down: &self.down,
            activation: config.activation,
        };
        let Some(norm) = &self.norm else {
            return backend.mix_experts_add(&ws.normed, weights, &mut room.routes, &mut ws.x);
        };
        backend.mix_experts(&ws.normed, weights, &mut room.routes, &mut ws.branch)?;
        backend.rms_norm_add(&ws.branch, norm, config.rms_norm_eps, &mut ws.x)
    }
}
