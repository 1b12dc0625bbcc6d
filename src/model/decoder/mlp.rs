//! What follows attention in a layer: a gated MLP, a mixture of experts, or both.

use crate::backend::{Backend, BackendError, ExpertWeights, GateProjection, RoutingRule};
use crate::model::{ExpertsConfig, ModelConfig};

use super::workspace::Workspace;
use super::{Output, Projection};

/// What of a layer treats every row on its own.
pub(super) enum Mlp<B: Backend> {
    Dense(Dense<B>),
    Experts(Experts<B>),
    Both(Box<Both<B>>),
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
}

/// An MLP and experts beside it: both read the residual stream, and what they give is normed, added,
/// and normed as the MLP's alone would be.
pub(super) struct Both<B: Backend> {
    /// Without a norm of its own.
    pub mlp: Dense<B>,
    /// Norm of what the MLP gives.
    pub mlp_output: B::Vector,
    /// Norm of the router's input.
    pub router_norm: B::Vector,
    /// Norm of the experts' input.
    pub expert_norm: B::Vector,
    /// Norm of what experts give.
    pub expert_output: B::Vector,
    /// What the weight of every expert is multiplied by.
    pub scales: B::Vector,
    pub experts: Experts<B>,
    /// Norm of what is added to the residual stream.
    pub output: B::Vector,
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
            Mlp::Both(both) => both.add_to(backend, config, index, workspace),
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
        self.activate(backend, config, ws)?;
        let (x, eps) = (&ws.dense.activated, config.rms_norm_eps);
        self.down.add_to(backend, x, eps, &mut ws.x, &mut ws.branch)
    }

    /// The activated gates times ups of the normed residual stream.
    fn activate(
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
        backend.project_gated(&ws.normed, gate, &mut room.packed, &mut room.activated)
    }
}

impl<B: Backend> Experts<B> {
    /// Chooses the experts of every row by its normed residual stream.
    fn route(
        &self,
        backend: &B,
        index: usize,
        scales: Option<&B::Vector>,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let room = &mut ws.experts[ws.experts_of[index]];
        backend.matmul(&ws.normed, &self.router, None, &mut room.logits)?;
        let rule = RoutingRule {
            chosen: self.shape.chosen,
            renormalised: self.shape.renormalised,
            scales,
        };
        backend.route(&room.logits, rule, &mut room.routes)
    }

    fn weights(&self, config: &ModelConfig) -> ExpertWeights<'_, B> {
        ExpertWeights {
            gate_up: &self.gate_up,
            down: &self.down,
            activation: config.activation,
        }
    }

    /// Adds what chosen experts make of the normed residual stream to that stream.
    fn add_to(
        &self,
        backend: &B,
        config: &ModelConfig,
        index: usize,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        self.route(backend, index, None, ws)?;
        let room = &mut ws.experts[ws.experts_of[index]];
        let weights = self.weights(config);
        backend.mix_experts_add(&ws.normed, weights, &mut room.routes, &mut ws.x)
    }
}

impl<B: Backend> Both<B> {
    fn add_to(
        &self,
        backend: &B,
        config: &ModelConfig,
        index: usize,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let eps = config.rms_norm_eps;
        self.mlp.activate(backend, config, ws)?;
        let Projection { weight, bias } = &self.mlp.down.projection;
        let x = &ws.dense.activated;
        backend.matmul(x, weight, bias.as_ref(), &mut ws.branch)?;
        backend.rms_norm_heads(&mut ws.branch, &self.mlp_output, eps)?;
        backend.rms_norm(&ws.x, &self.router_norm, eps, &mut ws.normed)?;
        self.experts.route(backend, index, Some(&self.scales), ws)?;
        backend.rms_norm(&ws.x, &self.expert_norm, eps, &mut ws.normed)?;
        let room = &mut ws.experts[ws.experts_of[index]];
        let weights = self.experts.weights(config);
        backend.mix_experts(&ws.normed, weights, &mut room.routes, &mut room.mixed)?;
        backend.rms_norm_add(&room.mixed, &self.expert_output, eps, &mut ws.branch)?;
        backend.rms_norm_add(&ws.branch, &self.output, eps, &mut ws.x)
    }
}
