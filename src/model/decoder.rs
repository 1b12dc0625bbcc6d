//! The decoder forward pass of Llama, Qwen2 and Qwen3, generic over the backend.
//!
//! A pass takes rows (tokens with their slots and positions) of any mixture of sequences, stores
//! their keys and values, and returns the logits of the rows that are wanted. Families differ only
//! in optional parts of a layer: biases and the norm of query and key heads.

mod load;
mod workspace;

use crate::backend::{Backend, BackendError, CacheRow, Destination, HeadProjection, LayerPass};

use super::ModelConfig;

pub use load::LoadError;
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

/// Norms over query and key head vectors, `[head_dim]`.
struct HeadNorms<B: Backend> {
    q: B::Vector,
    k: B::Vector,
}

/// One decoder layer.
struct Layer<B: Backend> {
    input_norm: B::Vector,
    /// Rows of queries, keys, values.
    heads: Projection<B>,
    qk_norm: Option<HeadNorms<B>>,
    output: Projection<B>,
    post_attention_norm: B::Vector,
    /// Rows of gate, up.
    gate_up: Projection<B>,
    down: Projection<B>,
}

impl<B: Backend> Projection<B> {
    fn add_to(
        &self,
        backend: &B,
        x: &B::Tensor,
        residual: &mut B::Tensor,
    ) -> Result<(), BackendError> {
        backend.matmul_add(x, &self.weight, self.bias.as_ref(), residual)
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
        if wanted.len() < rows.len() {
            return self.forward_some(cache, rows, wanted, workspace);
        }
        let rotary = [workspace.rotary.clone()];
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
                    self.project_heads(index, rows, cache, workspace)?;
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
            self.project_heads(index, rows, cache, workspace)?;
            self.finish_layer(index, rows, cache, workspace)?;
        }
        self.project_heads(last, rows, cache, workspace)?;
        if wanted.is_empty() {
            return Ok(None);
        }
        // Beyond its keys and values, the last layer matters for the wanted rows only.
        workspace.narrow(&self.backend, wanted)?;
        let kept: Vec<CacheRow> = wanted.iter().map(|&row| rows[row]).collect();
        self.finish_layer(last, &kept, cache, workspace)?;
        self.logits(kept.len(), workspace).map(Some)
    }

    /// Stores the layer's keys and values and leaves its queries in `workspace.q`.
    fn project_heads(
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
        let heads = HeadProjection {
            weight: &layer.heads.weight,
            bias: layer.heads.bias.as_ref(),
            norms: layer
                .qk_norm
                .as_ref()
                .map(|norms| ([&norms.q, &norms.k], eps)),
            rotary: &ws.rotary,
        };
        backend.project_heads(&ws.normed, &heads, to, &mut ws.packed_heads, &mut ws.q)
    }

    /// Adds the attention output of `workspace.q`, then the gated MLP, to the residual stream.
    fn finish_layer(
        &self,
        index: usize,
        rows: &[CacheRow],
        cache: &B::Cache,
        workspace: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let backend = &self.backend;
        let (ws, layer) = (&mut *workspace, &self.layers[index]);
        backend.attend(cache, index, &ws.q, rows, &mut ws.attended)?;
        layer.output.add_to(backend, &ws.attended, &mut ws.x)?;
        self.mlp(layer, workspace)
    }

    /// Adds the gated MLP to the residual stream.
    fn mlp(&self, layer: &Layer<B>, workspace: &mut Workspace<B>) -> Result<(), BackendError> {
        let backend = &self.backend;
        let ws = workspace;
        let eps = self.config.rms_norm_eps;
        backend.rms_norm(&ws.x, &layer.post_attention_norm, eps, &mut ws.normed)?;
        let Projection { weight, bias } = &layer.gate_up;
        let (packed, activated) = (&mut ws.packed_gate, &mut ws.activated);
        backend.project_gated(&ws.normed, weight, bias.as_ref(), packed, activated)?;
        layer.down.add_to(backend, &ws.activated, &mut ws.x)
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
        if !self.config.suppressed.is_empty() {
            backend.suppress(&mut ws.logits, &self.config.suppressed)?;
        }
        Ok(&ws.logits)
    }
}
