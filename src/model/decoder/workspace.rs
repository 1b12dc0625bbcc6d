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
    /// Rows on their way while the pass narrows, likewise.
    spare: B::Tensor,
    /// Queries, `[rows, heads * head_dim]`.
    pub(super) q: B::Tensor,
    /// Keys, `[rows, kv_heads * head_dim]`.
    pub(super) k: B::Tensor,
    /// Values, likewise.
    pub(super) v: B::Tensor,
    /// Attention output, `[rows, heads * head_dim]`.
    pub(super) attended: B::Tensor,
    /// MLP gate, `[rows, intermediate_size]`.
    pub(super) gate: B::Tensor,
    /// MLP up projection, likewise.
    pub(super) up: B::Tensor,
    /// `silu(gate) * up`, likewise.
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
            spare: tensor(config.hidden_size)?,
            q: tensor(queries)?,
            k: tensor(keys)?,
            v: tensor(keys)?,
            attended: tensor(queries)?,
            gate: tensor(config.intermediate_size)?,
            up: tensor(config.intermediate_size)?,
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
        for tensor in [&mut self.x, &mut self.normed, &mut self.k, &mut self.v] {
            backend.resize(tensor, rows.len())?;
        }
        self.resize_inner(backend, rows.len())
    }

    /// Drops every row of the residual stream and of its norm that is not wanted.
    pub(super) fn narrow(&mut self, backend: &B, wanted: &[usize]) -> Result<(), BackendError> {
        for tensor in [&mut self.x, &mut self.normed] {
            backend.resize(&mut self.spare, wanted.len())?;
            backend.gather(tensor, wanted, &mut self.spare)?;
            std::mem::swap(tensor, &mut self.spare);
        }
        self.resize_inner(backend, wanted.len())
    }

    fn resize_inner(&mut self, backend: &B, rows: usize) -> Result<(), BackendError> {
        let inner = [
            &mut self.q,
            &mut self.attended,
            &mut self.gate,
            &mut self.up,
            &mut self.activated,
        ];
        for tensor in inner {
            backend.resize(tensor, rows)?;
        }
        Ok(())
    }
}
