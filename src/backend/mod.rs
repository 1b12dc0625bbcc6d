//! Arithmetic and cache storage behind the trait that the decoder is generic over.
//!
//! Promise of every backend: the bits of a row's result depend on that row (and, in attention, on
//! its own sequence) and on the recipe, never on which other rows stand in the tensor, on the
//! chunking of a prompt or on the number of slots.

mod codes;
#[cfg(test)]
mod conformance;
pub mod cpu;
pub mod cuda;
mod data;
mod error;
mod experts;
mod ledger;
mod meter;
mod pages;
mod projections;
mod recurrent;
mod storage;
mod stored;
pub mod timing;

pub use codes::{CodeKind, Codes, NumberType, Zeros, interleaved_code, nibble};
pub use data::{
    Activation, CacheLayer, CacheLayout, CacheLimit, CacheRow, LayerPass, RotaryTable, TensorData,
};
pub use error::BackendError;
pub use experts::{ExpertParts, ExpertWeights, RoutingRule, cannot_route};
pub use ledger::{Held, Ledger, PURPOSES, Purpose};
pub use meter::{Gauge, Meter, Process};
pub use projections::{
    Destination, GateProjection, HeadNormWeights, HeadProjection, concatenated, project_heads,
};
pub use recurrent::{DeltaRule, LENGTH_EPSILON, RecurrentLayer, cannot_cut};
pub use stored::{StoredNumbers, StoredParts};

use crate::schema::{KvTotals, LayerAbsmax};

/// Operations of the decoder. Tensors are row-major `[rows, width]`; a row is one token. Every operation
/// may fail on a device; shapes are the caller's contract and a violation panics.
pub trait Backend: Sized {
    /// Activations, `[rows, width]`.
    type Tensor;
    /// Projection weight `[out, in]` in whatever layout the backend multiplies fastest.
    type Weight;
    /// Norm weight or bias, `[width]`.
    type Vector;
    /// Physical cache of all layers and slots.
    type Cache;
    /// Which experts the rows of a pass go to, with what a mixture of experts needs of room.
    type Routes;

    /// Name of the device.
    fn device(&self) -> String;

    /// Arithmetic, e.g. `f32`.
    fn arithmetic(&self) -> String;

    /// What it takes of the device, now and from then on.
    fn meter(&self) -> Meter;

    /// Takes over a projection weight `[out, inner]`.
    fn weight(
        &self,
        data: TensorData,
        out: usize,
        inner: usize,
    ) -> Result<Self::Weight, BackendError>;

    /// Takes over weights that read the same input as one: `parts` are `[some of out, inner]`, one
    /// after another.
    fn fused_weight(
        &self,
        parts: Vec<TensorData>,
        out: usize,
        inner: usize,
    ) -> Result<Self::Weight, BackendError> {
        self.weight(concatenated(parts), out, inner)
    }

    /// What [`Backend::fused_weight`] makes of the numbers of stored `parts`, to the bit. `None` where one is
    /// not finite, which [`StoredParts::read`] shows, and for types of numbers that it does not join.
    fn stored_weight(
        &self,
        parts: &StoredParts<'_>,
        out: usize,
        inner: usize,
    ) -> Result<Option<Self::Weight>, BackendError> {
        stored::weight(self, parts, out, inner)
    }

    /// Takes over the weights of `experts` experts, `[out, inner]` each, as one: `parts` are those of
    /// the first, then of the next. `None` as by [`Backend::stored_weight`].
    fn expert_weight(
        &self,
        parts: ExpertParts<'_>,
        experts: usize,
        [out, inner]: [usize; 2],
    ) -> Result<Option<Self::Weight>, BackendError> {
        experts::weight(self, parts, experts * out, inner)
    }

    /// Takes over a norm weight or bias.
    fn vector(&self, data: TensorData) -> Result<Self::Vector, BackendError>;

    /// Allocates activations; contents unspecified.
    fn tensor(&self, rows: usize, width: usize) -> Result<Self::Tensor, BackendError>;

    /// Elements of a row.
    fn width(&self, tensor: &Self::Tensor) -> usize;

    /// Sets the number of rows of a tensor without shrinking its allocation.
    fn resize(&self, tensor: &mut Self::Tensor, rows: usize) -> Result<(), BackendError>;

    /// Allocates a cache, or refuses the recipe by name.
    fn cache(&self, layout: &CacheLayout) -> Result<Self::Cache, BackendError>;

    /// What a cache of this layout has room for in the memory that is free now, but for what activations of
    /// `reserved` bytes take that are not held yet; `None` where memory sets no limit that could be planned for.
    fn cache_limit(
        &self,
        _layout: &CacheLayout,
        _reserved: usize,
    ) -> Result<Option<CacheLimit>, BackendError> {
        Ok(None)
    }

    /// `x[i] = table[ids[i]]`.
    fn embed(
        &self,
        table: &Self::Weight,
        ids: &[u32],
        x: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight`.
    fn rms_norm(
        &self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `residual[i] += x[i] / sqrt(mean(x[i]^2) + eps) * weight`.
    fn rms_norm_add(
        &self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        residual: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `x *= factor`.
    fn scale(&self, x: &mut Self::Tensor, factor: f32) -> Result<(), BackendError>;

    /// `x = cap * tanh(x / cap)`, NaN where `x` is not finite.
    fn soft_cap(&self, x: &mut Self::Tensor, cap: f32) -> Result<(), BackendError>;

    /// [`Backend::rms_norm`] over every head vector of width `weight.len()`, in place.
    fn rms_norm_heads(
        &self,
        x: &mut Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), BackendError>;

    /// `out = x * weight^T + bias`.
    fn matmul(
        &self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `residual += x * weight^T + bias`.
    fn matmul_add(
        &self,
        x: &Self::Tensor,
        weight: &Self::Weight,
        bias: Option<&Self::Vector>,
        residual: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// Rotates every head vector of width `table.head_dim` by its row's position, in place.
    fn rotary(
        &self,
        x: &mut Self::Tensor,
        table: &RotaryTable,
        rows: &[CacheRow],
    ) -> Result<(), BackendError>;

    /// Passes every query head vector (`[rows, heads * head_dim]`, after rotary) through the format of
    /// queries in `layer` of `cache` where that is not native, in place: `x = decode(convert(x / scale)) *
    /// scale` under a scale per vector, by the rule of [`crate::recipe::float8`].
    fn round_queries(
        &self,
        cache: &Self::Cache,
        layer: usize,
        q: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// Stores keys and values (`[rows, kv_heads * head_dim]`) of one layer as the recipe says. Rows of a slot
    /// follow on what it holds, or on what is left of it. A pass stores the same rows in all layers; when one
    /// begins, layers with a window give back what no row sees any more. A number that cannot be stored is
    /// reported here or by the next [`Backend::settle`].
    fn store(
        &self,
        cache: &mut Self::Cache,
        layer: usize,
        k: &Self::Tensor,
        v: &Self::Tensor,
        rows: &[CacheRow],
    ) -> Result<(), BackendError>;

    /// Causal attention of every query row (`[rows, heads * head_dim]`) over the stored bytes of those
    /// positions of its slot that its layer lets it see, up to its own token.
    fn attend(
        &self,
        cache: &Self::Cache,
        layer: usize,
        q: &Self::Tensor,
        rows: &[CacheRow],
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// Whether [`Backend::attend`] would run over a layer of `cache`, for so many query heads of a weight.
    fn check_attention(
        &self,
        _cache: &Self::Cache,
        _layer: usize,
        _queries: (usize, &Self::Weight),
    ) -> Result<(), BackendError> {
        Ok(())
    }

    /// Queries of every row (`[rows, heads * head_dim]`, ready for [`Backend::attend`]), its keys and values
    /// stored as by [`Backend::store`]: [`project_heads`] in one. `packed` is room for them side by side.
    fn project_heads(
        &self,
        x: &Self::Tensor,
        heads: &HeadProjection<'_, Self>,
        to: Destination<'_, Self>,
        packed: &mut Self::Tensor,
        q: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        let width = heads.kv_width(self.width(packed), self.width(q));
        let mut k = self.tensor(to.rows.len(), width)?;
        let mut v = self.tensor(to.rows.len(), width)?;
        project_heads(self, x, heads, to, [packed, q, &mut k, &mut v])
    }

    /// A recurrent layer between its projections: what [`DeltaRule`] says.
    fn recur(
        &self,
        packed: &mut Self::Tensor,
        rule: DeltaRule<'_, Self>,
        to: Destination<'_, Self>,
        room: &mut Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `x = x / (1 + exp(-gate))`, both of the same shape.
    fn gate_output(&self, gate: &Self::Tensor, x: &mut Self::Tensor) -> Result<(), BackendError>;

    /// Applies all layers of a pass by `run` to the tensor that `stream` finds in `state`, every row of
    /// which is wanted. What `run` has to keep to stands with [`LayerPass`].
    fn layers<S>(
        &self,
        _pass: &LayerPass<'_>,
        cache: &mut Self::Cache,
        state: &mut S,
        _stream: impl Fn(&mut S) -> &mut Self::Tensor,
        run: impl Fn(&mut Self::Cache, &mut S) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        run(cache, state)
    }

    /// `out = activation(gate) * up`, halves of the rows of `x * weight^T + bias`: `packed` is their room.
    fn project_gated(
        &self,
        x: &Self::Tensor,
        gate: GateProjection<'_, Self>,
        packed: &mut Self::Tensor,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError> {
        self.matmul(x, gate.weight, gate.bias, packed)?;
        self.gate(packed, gate.activation, out)
    }

    /// `out = activation(gate) * up`, where the rows of `packed` hold gate, then up.
    fn gate(
        &self,
        packed: &Self::Tensor,
        activation: Activation,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// No rows yet, of a layer with `experts` experts. Rows and room grow to what is asked for.
    fn routes(&self, experts: usize) -> Result<Self::Routes, BackendError>;

    /// Chooses the experts of every row by its `logits`, `[rows, experts]`: see [`RoutingRule`].
    fn route(
        &self,
        logits: &Self::Tensor,
        rule: RoutingRule<'_, Self>,
        routes: &mut Self::Routes,
    ) -> Result<(), BackendError>;

    /// `out[i] = sum of weight * down(activation(gate) * up)` over the experts of row `i`, products of
    /// [`ExpertWeights`], in an order that the row alone sets. `routes` are the latest, of as many rows.
    fn mix_experts(
        &self,
        x: &Self::Tensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut Self::Routes,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// [`Backend::mix_experts`], added to what `residual` holds.
    fn mix_experts_add(
        &self,
        x: &Self::Tensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut Self::Routes,
        residual: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `out[i] = x[i][first..]`, as many elements as `out` is wide.
    fn columns(
        &self,
        x: &Self::Tensor,
        first: usize,
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `out[i] = x[rows[i]]`.
    fn gather(
        &self,
        x: &Self::Tensor,
        rows: &[usize],
        out: &mut Self::Tensor,
    ) -> Result<(), BackendError>;

    /// `logits[i][ids[j]] = -inf` in every row.
    fn suppress(&self, logits: &mut Self::Tensor, ids: &[u32]) -> Result<(), BackendError>;

    /// Index of the largest logit per row, the lowest index on ties. Logits of `suppressed` ids, which
    /// ascend, have to be -inf and all others finite: anything else is [`BackendError::NotFinite`].
    fn argmax(&self, logits: &Self::Tensor, suppressed: &[u32]) -> Result<Vec<u32>, BackendError>;

    /// `logsumexp(logits[i]) - logits[i][targets[i]]` per row, in nats. Logits are checked as by
    /// [`Backend::argmax`]; a suppressed target gives +inf.
    fn nll(
        &self,
        logits: &Self::Tensor,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<f64>, BackendError>;

    /// Waits, and reports the first number that could not be stored since the last call, by its row in the
    /// call that stored it, where that did not report it.
    fn settle(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Copies a tensor to the host, row-major.
    fn to_host(&self, x: &Self::Tensor) -> Result<Vec<f32>, BackendError>;

    /// Forgets a slot's tokens from position `tokens` on, with their counters: what a rejected verification
    /// leaves behind. A cut to nothing is always possible, as is one to any position from the first that the
    /// last pass stored in this slot, before another pass begins. Further back, a cache is cut only where no
    /// layer with a window gave back what the next row would see, and one with recurrent layers not at all:
    /// such cuts are [`BackendError::Unsupported`] and change nothing.
    fn truncate_slot(
        &self,
        cache: &mut Self::Cache,
        slot: usize,
        tokens: usize,
    ) -> Result<(), BackendError>;

    /// Forgets a slot's tokens and counters.
    fn reset_slot(&self, cache: &mut Self::Cache, slot: usize) -> Result<(), BackendError> {
        self.truncate_slot(cache, slot, 0)
    }

    /// What the slot stored since its last reset, per layer, tokens included that a layer gave back when they
    /// lay behind its window; what was cut off does not count, and a position that was stored twice counts as
    /// it was stored last: totals depend on the sequence alone. Scales are read back from the stored bytes.
    fn slot_totals(&self, cache: &Self::Cache, slot: usize) -> Result<Vec<KvTotals>, BackendError>;

    /// Largest absolute stored key and value per layer, decoded, of the tokens of [`Backend::slot_totals`].
    fn slot_absmax(
        &self,
        cache: &Self::Cache,
        slot: usize,
    ) -> Result<Vec<LayerAbsmax>, BackendError>;
}
