//! The decoder forward pass of every family, generic over the backend.
//!
//! A pass takes rows (tokens with their slots and positions) of any mixture of sequences, stores
//! their keys and values, and returns the logits of the rows that are wanted. Families differ only
//! in optional parts of a layer: biases, norms of heads and of what is added to the residual stream,
//! gates of attention, windows, and which rotary embedding a layer takes; in layers that keep a
//! recurrent state in place of keys and values; and in mixtures of experts in place of the MLP or
//! beside it.

mod load;
mod mlp;
mod workspace;

use crate::backend::{
    Backend, BackendError, CacheRow, DeltaRule, Destination, HeadNormWeights, HeadProjection,
    LayerPass,
};

use super::ModelConfig;
use super::rotary::RotaryTables;

pub use load::LoadError;
use mlp::Mlp;
pub use workspace::Workspace;

/// A model's weights on a backend.
pub struct Decoder<B: Backend> {
    backend: B,
    config: ModelConfig,
    /// `[vocab_size, hidden_size]`.
    embedding: B::Weight,
    layers: Vec<Layer<B>>,
    final_norm: B::Vector,
    /// `[vocab_size, hidden_size]`; `None` where the embedding serves.
    head: Option<B::Weight>,
}

/// A projection `[out, in]` with its optional bias `[out]`.
struct Projection<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Vector>,
}

/// Norms over query, key and value head vectors, `[head_dim]`.
struct HeadNorms<B: Backend> {
    q: B::Vector,
    k: B::Vector,
    v: Option<B::Vector>,
}

/// A projection whose output, normed where there is a norm, is added to the residual stream.
struct Output<B: Backend> {
    projection: Projection<B>,
    norm: Option<B::Vector>,
}

/// One decoder layer.
struct Layer<B: Backend> {
    input_norm: B::Vector,
    mixer: Mixer<B>,
    /// Of what the mixer gives.
    output: Output<B>,
    mlp_norm: B::Vector,
    mlp: Mlp<B>,
    /// Multiplies the residual stream at the end.
    scalar: Option<f32>,
}

/// What brings other tokens into a layer.
enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Recurrent(Recurrent<B>),
}

struct Attention<B: Backend> {
    /// Rows of queries, keys, and values where they have a projection of their own.
    heads: Projection<B>,
    norms: Option<HeadNorms<B>>,
    /// `[heads * head_dim, hidden_size]`: gate of the output.
    gate: Option<B::Weight>,
}

/// See [`DeltaRule`].
struct Recurrent<B: Backend> {
    /// Rows of queries, keys and values, of the output's gate, of rates and of steps.
    input: B::Weight,
    convolution: B::Vector,
    decay: B::Vector,
    step_bias: B::Vector,
    norm: B::Vector,
}

impl<B: Backend> Output<B> {
    /// `residual += x * weight^T + bias`, normed; `room` is as large as the residual stream.
    fn add_to(
        &self,
        backend: &B,
        x: &B::Tensor,
        eps: f32,
        residual: &mut B::Tensor,
        room: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        let Projection { weight, bias } = &self.projection;
        let Some(norm) = &self.norm else {
            return backend.matmul_add(x, weight, bias.as_ref(), residual);
        };
        backend.matmul(x, weight, bias.as_ref(), room)?;
        backend.rms_norm_add(room, norm, eps, residual)
    }
}

impl<B: Backend> Decoder<B> {
    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Whether attention of every layer would run over what `cache` stores.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn check_attention(&self, cache: &B::Cache) -> Result<(), BackendError> {
        let shapes = self.config.layers.iter();
        for (at, (layer, shape)) in self.layers.iter().zip(shapes).enumerate() {
            if let Mixer::Attention(attention) = &layer.mixer {
                let queries = (shape.heads, &attention.heads.weight);
                self.backend.check_attention(cache, at, queries)?;
            }
        }
        Ok(())
    }

    /// Stores keys and values of all rows and returns the logits (`[wanted.len(), vocab_size]`) of
    /// the rows whose indices stand in `wanted`; `None` where none is wanted.
    ///
    /// `ids[i]` is the token of `rows[i]`. Rows of one sequence stand in ascending order of
    /// position, and the positions before them are stored already. Wanted indices ascend.
    ///
    /// # Errors
    /// What the backend reports; a number that could not be stored may be reported by
    /// [`Backend::settle`] only.
    ///
    /// # Panics
    /// If `rows` and `ids` differ in length.
    pub fn forward<'w>(
        &self,
        cache: &mut B::Cache,
        rows: &[CacheRow],
        ids: &[u32],
        wanted: &[usize],
        workspace: &'w mut Workspace<B>,
    ) -> Result<Option<&'w B::Tensor>, BackendError> {
        assert_eq!(rows.len(), ids.len(), "one token per row");
        if rows.is_empty() {
            return Ok(None);
        }
        workspace.prepare(&self.backend, &self.config, rows)?;
        self.backend.embed(&self.embedding, ids, &mut workspace.x)?;
        if let Some(factor) = self.config.embedding_scale {
            self.backend.scale(&mut workspace.x, factor)?;
        }
        if wanted.len() < rows.len() {
            return self.forward_some(cache, rows, wanted, workspace);
        }
        let tables = workspace.rotary.iter();
        let rotary: Vec<_> = tables.flat_map(RotaryTables::both).collect();
        let pass = LayerPass {
            rows,
            rotary: &rotary,
        };
        self.backend.layers(
            &pass,
            cache,
            workspace,
            |workspace| &mut workspace.x,
            |cache, workspace| {
                (0..self.layers.len()).try_for_each(|index| {
                    self.mix(index, rows, cache, workspace)?;
                    self.finish_layer(index, rows, cache, workspace)
                })
            },
        )?;
        self.logits(rows.len(), workspace).map(Some)
    }

    /// A pass of which not every row is wanted, from its embeddings on.
    fn forward_some<'w>(
        &self,
        cache: &mut B::Cache,
        rows: &[CacheRow],
        wanted: &[usize],
        workspace: &'w mut Workspace<B>,
    ) -> Result<Option<&'w B::Tensor>, BackendError> {
        let last = self.layers.len() - 1;
        for index in 0..last {
            self.mix(index, rows, cache, workspace)?;
            self.finish_layer(index, rows, cache, workspace)?;
        }
        self.mix(last, rows, cache, workspace)?;
        if wanted.is_empty() {
            return Ok(None);
        }
        // Beyond its keys and values, or its state, the last layer matters for the wanted rows only.
        workspace.narrow(&self.backend, &self.config, last, wanted)?;
        let kept: Vec<CacheRow> = wanted.iter().map(|&row| rows[row]).collect();
        self.finish_layer(last, &kept, cache, workspace)
            .map_err(|error| error.of_rows(wanted))?;
        self.logits(kept.len(), workspace).map(Some)
    }

    /// Stores the layer's keys and values and leaves its queries in the workspace, or advances its
    /// states and leaves what they give.
    fn mix(
        &self,
        index: usize,
        rows: &[CacheRow],
        cache: &mut B::Cache,
        workspace: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let backend = &self.backend;
        let (ws, layer) = (workspace, &self.layers[index]);
        let to = Destination {
            cache,
            layer: index,
            rows,
        };
        let eps = self.config.rms_norm_eps;
        backend.rms_norm(&ws.x, &layer.input_norm, eps, &mut ws.normed)?;
        match &layer.mixer {
            Mixer::Attention(attention) => self.project_heads(attention, to, ws),
            Mixer::Recurrent(recurrent) => {
                let room = &mut ws.recurrent[ws.recurrent_of[index]];
                backend.matmul(&ws.normed, &recurrent.input, None, &mut room.packed)?;
                let rule = DeltaRule {
                    convolution: &recurrent.convolution,
                    decay: &recurrent.decay,
                    step_bias: &recurrent.step_bias,
                    norm: &recurrent.norm,
                    eps,
                };
                backend.recur(
                    &mut room.packed,
                    rule,
                    to,
                    &mut room.convolved,
                    &mut room.out,
                )
            }
        }
    }

    fn project_heads(
        &self,
        attention: &Attention<B>,
        to: Destination<'_, B>,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let backend = &self.backend;
        let rotary = &ws.rotary[ws.rotary_of[to.layer]];
        let room = &mut ws.heads[ws.heads_of[to.layer]];
        if let (Some(weight), Some(gate)) = (&attention.gate, &mut room.gate) {
            backend.matmul(&ws.normed, weight, None, gate)?;
        }
        let eps = self.config.rms_norm_eps;
        let heads = HeadProjection {
            weight: &attention.heads.weight,
            bias: attention.heads.bias.as_ref(),
            norms: attention.norms.as_ref().map(|norms| HeadNormWeights {
                q: &norms.q,
                k: &norms.k,
                v: norms.v.as_ref(),
                eps,
            }),
            keys_are_values: self.config.layers[to.layer].keys_are_values,
            rotary: [&rotary.q, &rotary.k],
        };
        backend.project_heads(&ws.normed, &heads, to, &mut room.packed, &mut room.q)
    }

    /// Adds the attention output of the workspace's queries, or what states gave, then the MLP
    /// or experts, to the residual stream.
    fn finish_layer(
        &self,
        index: usize,
        rows: &[CacheRow],
        cache: &B::Cache,
        workspace: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let backend = &self.backend;
        let (ws, layer) = (&mut *workspace, &self.layers[index]);
        let mixed = match &layer.mixer {
            Mixer::Attention(_) => {
                let room = &mut ws.heads[ws.heads_of[index]];
                backend.attend(cache, index, &room.q, rows, &mut room.attended)?;
                if let Some(gate) = &room.gate {
                    backend.gate_output(gate, &mut room.attended)?;
                }
                &room.attended
            }
            Mixer::Recurrent(_) => &ws.recurrent[ws.recurrent_of[index]].out,
        };
        let eps = self.config.rms_norm_eps;
        layer
            .output
            .add_to(backend, mixed, eps, &mut ws.x, &mut ws.branch)?;
        backend.rms_norm(&ws.x, &layer.mlp_norm, eps, &mut ws.normed)?;
        layer.mlp.add_to(backend, &self.config, index, ws)?;
        match layer.scalar {
            Some(factor) => backend.scale(&mut ws.x, factor),
            None => Ok(()),
        }
    }

    /// Final norm and output projection of the `rows` rows that the residual stream holds.
    fn logits<'w>(
        &self,
        rows: usize,
        workspace: &'w mut Workspace<B>,
    ) -> Result<&'w B::Tensor, BackendError> {
        let backend = &self.backend;
        let ws = workspace;
        backend.resize(&mut ws.logits, rows)?;
        let eps = self.config.rms_norm_eps;
        backend.rms_norm(&ws.x, &self.final_norm, eps, &mut ws.normed)?;
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        backend.matmul(&ws.normed, head, None, &mut ws.logits)?;
        if let Some(cap) = self.config.logit_cap {
            backend.soft_cap(&mut ws.logits, cap)?;
        }
        if !self.config.suppressed.is_empty() {
            backend.suppress(&mut ws.logits, &self.config.suppressed)?;
        }
        Ok(&ws.logits)
    }
}
