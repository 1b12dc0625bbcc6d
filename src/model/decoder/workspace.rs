//! Activations of a forward pass, allocated once and resized.

use crate::backend::{Backend, BackendError, CacheRow, RotaryTable};
use crate::model::{ModelConfig, rotary};

/// Activations of a forward pass and the rotary table; widths are the model's, rows grow to the
/// largest pass seen.
pub struct Workspace<B: Backend> {
    /// Residual stream, `[rows, hidden_size]`.
    pub(super) x: B::Tensor,
    /// Normalised residual stream, likewise.
    pub(super) normed: B::Tensor,
    /// Queries, keys and values side by side, `[rows, (heads + 2 * kv_heads) * head_dim]`.
    pub(super) packed_heads: B::Tensor,
    /// Queries, `[rows, heads * head_dim]`.
    pub(super) q: B::Tensor,
    /// Attention output, `[rows, heads * head_dim]`.
    pub(super) attended: B::Tensor,
    /// MLP gate and up projection side by side, `[rows, 2 * intermediate_size]`.
    pub(super) packed_gate: B::Tensor,
    /// `silu(gate) * up`, `[rows, intermediate_size]`.
    pub(super) activated: B::Tensor,
    /// `[wanted rows, vocab_size]`.
    pub(super) logits: B::Tensor,
    /// Angles up to the furthest position seen.
    pub(super) rotary: RotaryTable,
}

impl<B: Backend> Workspace<B> {
    /// Allocates for passes of one row; [`Workspace::prepare`] grows it.
    ///
    /// # Errors
    /// What the backend reports.
    pub fn new(backend: &B, config: &ModelConfig) -> Result<Self, BackendError> {
        let tensor = |width: usize| backend.tensor(1, width);
        let queries = config.heads * config.head_dim;
        let keys = config.kv_heads * config.head_dim;
        Ok(Workspace {
            x: tensor(config.hidden_size)?,
            normed: tensor(config.hidden_size)?,
            packed_heads: tensor(queries + 2 * keys)?,
            q: tensor(queries)?,
            attended: tensor(queries)?,
            packed_gate: tensor(2 * config.intermediate_size)?,
            activated: tensor(config.intermediate_size)?,
            logits: tensor(config.vocab_size)?,
            rotary: rotary::empty_table(config.head_dim),
        })
    }

    /// Makes room for a pass over `rows`.
    pub(super) fn prepare(
        &mut self,
        backend: &B,
        config: &ModelConfig,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        let furthest = rows.iter().map(|row| row.position).max().unwrap_or(0);
        if self.rotary.cos.len() <= furthest * self.rotary.half {
            // Doubling keeps the number of extensions small.
            let positions = (furthest + 1).next_power_of_two().min(config.context);
            rotary::extend_table(&mut self.rotary, &config.rope, positions.max(furthest + 1));
        }
        for tensor in [&mut self.x, &mut self.packed_heads, &mut self.q] {
            backend.resize(tensor, rows.len())?;
        }
        self.resize_inner(backend, rows.len())
    }

    /// Drops every row of the residual stream and of the queries that is not wanted.
    pub(super) fn narrow(&mut self, backend: &B, wanted: &[usize]) -> Result<(), BackendError> {
        // What is computed from either stands free until then, and is as wide.
        for (tensor, room) in [
            (&mut self.x, &mut self.normed),
            (&mut self.q, &mut self.attended),
        ] {
            backend.resize(room, wanted.len())?;
            backend.gather(tensor, wanted, room)?;
            std::mem::swap(tensor, room);
        }
        self.resize_inner(backend, wanted.len())
    }

    /// Sets the rows of everything that is computed from queries and the residual stream.
    fn resize_inner(&mut self, backend: &B, rows: usize) -> Result<(), BackendError> {
        let inner = [
            &mut self.normed,
            &mut self.attended,
            &mut self.packed_gate,
            &mut self.activated,
        ];
        for tensor in inner {
            backend.resize(tensor, rows)?;
        }
        Ok(())
    }
}
