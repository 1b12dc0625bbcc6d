//! A backend that does something else than it is asked, over one that does not.

use std::cell::Cell;

use kvassay::backend::{
    Activation, Backend, BackendError, CacheLayout, CacheRow, DeltaRule, Destination,
    ExpertWeights, Meter, RotaryTable, RoutingRule, TensorData,
};
use kvassay::recipe::Recipe;
use kvassay::schema::{KvTotals, LayerAbsmax};

/// What it does instead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// Nothing: it does what it is asked.
    None,
    /// Caches of quantised arms store as this recipe says.
    Recipe(&'static str),
    /// Of suppressed tokens the last one is left out.
    Unmasked,
    /// Every layer and component has this absmax.
    Absmax(f32),
    /// Every layer has the first one's absmax.
    FirstAbsmax,
    /// Caches with another number of slots than this: likelihoods have another last bit.
    Bit(usize),
    /// Caches with another number of slots than this: every first row takes another token.
    Token(usize),
    /// In these layers, keys at these positions of slot 0 cannot be stored.
    Unstorable([(usize, usize); 2]),
}

/// See the module documentation.
pub struct Dishonest<B> {
    pub inner: B,
    pub lie: Lie,
    /// Slots of the cache that was made last.
    slots: Cell<usize>,
}

impl<B> Dishonest<B> {
    pub fn new(inner: B, lie: Lie) -> Self {
        Dishonest {
            inner,
            lie,
            slots: Cell::new(0),
        }
    }

    fn changed(&self, layout: &CacheLayout) -> CacheLayout {
        let mut layout = layout.clone();
        let absmax = layout.absmax.as_mut();
        match (self.lie, absmax) {
            (Lie::Recipe(recipe), _) if !layout.recipe.is_native() => {
                layout.recipe = Recipe::parse(recipe).unwrap();
            }
            (Lie::Absmax(x), Some(layers)) => layers.fill(LayerAbsmax { k: x, v: x }),
            (Lie::FirstAbsmax, Some(layers)) => {
                let first = layers[0];
                layers.fill(first);
            }
            _ => {}
        }
        layout
    }
}

type Done = Result<(), BackendError>;

/// The same weights for the backend below.
fn own<B: Backend>(weights: ExpertWeights<'_, Dishonest<B>>) -> ExpertWeights<'_, B> {
    ExpertWeights {
        gate_up: weights.gate_up,
        down: weights.down,
        activation: weights.activation,
    }
}

impl<B: Backend> Backend for Dishonest<B> {
    type Tensor = B::Tensor;
    type Weight = B::Weight;
    type Vector = B::Vector;
    type Cache = B::Cache;
    type Routes = B::Routes;

    fn cache(&self, layout: &CacheLayout) -> Result<B::Cache, BackendError> {
        self.slots.set(layout.slots);
        self.inner.cache(&self.changed(layout))
    }

    fn suppress(&self, logits: &mut B::Tensor, ids: &[u32]) -> Result<(), BackendError> {
        let last = usize::from(self.lie == Lie::Unmasked);
        self.inner.suppress(logits, &ids[..ids.len() - last])
    }

    fn argmax(&self, logits: &B::Tensor, suppressed: &[u32]) -> Result<Vec<u32>, BackendError> {
        let mut ids = self.inner.argmax(logits, suppressed)?;
        if let (Lie::Token(slots), Some(id)) = (self.lie, ids.first_mut())
            && slots != self.slots.get()
        {
            *id = (*id + 1) % 50;
        }
        Ok(ids)
    }

    fn nll(
        &self,
        logits: &B::Tensor,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<f64>, BackendError> {
        let mut sums = self.inner.nll(logits, targets, suppressed)?;
        match self.lie {
            Lie::Bit(slots) if slots != self.slots.get() => {
                sums.iter_mut().for_each(|sum| *sum = sum.next_up());
            }
            _ => {}
        }
        Ok(sums)
    }

    fn device(&self) -> String {
        self.inner.device()
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn meter(&self) -> Meter {
        self.inner.meter()
    }

    fn weight(
        &self,
        data: TensorData,
        out: usize,
        inner: usize,
    ) -> Result<B::Weight, BackendError> {
        self.inner.weight(data, out, inner)
    }

    fn vector(&self, data: TensorData) -> Result<B::Vector, BackendError> {
        self.inner.vector(data)
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<B::Tensor, BackendError> {
        self.inner.tensor(rows, width)
    }

    fn width(&self, tensor: &B::Tensor) -> usize {
        self.inner.width(tensor)
    }

    fn resize(&self, tensor: &mut B::Tensor, rows: usize) -> Done {
        self.inner.resize(tensor, rows)
    }

    fn embed(&self, table: &B::Weight, ids: &[u32], x: &mut B::Tensor) -> Done {
        self.inner.embed(table, ids, x)
    }

    fn rms_norm(&self, x: &B::Tensor, weight: &B::Vector, eps: f32, out: &mut B::Tensor) -> Done {
        self.inner.rms_norm(x, weight, eps, out)
    }

    fn rms_norm_heads(&self, x: &mut B::Tensor, weight: &B::Vector, eps: f32) -> Done {
        self.inner.rms_norm_heads(x, weight, eps)
    }

    fn matmul(
        &self,
        x: &B::Tensor,
        weight: &B::Weight,
        bias: Option<&B::Vector>,
        out: &mut B::Tensor,
    ) -> Done {
        self.inner.matmul(x, weight, bias, out)
    }

    fn matmul_add(
        &self,
        x: &B::Tensor,
        weight: &B::Weight,
        bias: Option<&B::Vector>,
        residual: &mut B::Tensor,
    ) -> Done {
        self.inner.matmul_add(x, weight, bias, residual)
    }

    fn rotary(&self, x: &mut B::Tensor, table: &RotaryTable, rows: &[CacheRow]) -> Done {
        self.inner.rotary(x, table, rows)
    }

    fn round_queries(&self, cache: &B::Cache, layer: usize, q: &mut B::Tensor) -> Done {
        self.inner.round_queries(cache, layer, q)
    }

    fn store(
        &self,
        cache: &mut B::Cache,
        layer: usize,
        k: &B::Tensor,
        v: &B::Tensor,
        rows: &[CacheRow],
    ) -> Done {
        if let Lie::Unstorable(places) = self.lie {
            let is_place =
                |row: &CacheRow| row.slot == 0 && places.contains(&(layer, row.position));
            if let Some(row) = rows.iter().position(is_place) {
                let what = "a key that is not finite".to_owned();
                return Err(BackendError::NotFinite { row, what });
            }
        }
        self.inner.store(cache, layer, k, v, rows)
    }

    fn attend(
        &self,
        cache: &B::Cache,
        layer: usize,
        q: &B::Tensor,
        rows: &[CacheRow],
        out: &mut B::Tensor,
    ) -> Done {
        self.inner.attend(cache, layer, q, rows, out)
    }

    fn recur(
        &self,
        packed: &mut B::Tensor,
        rule: DeltaRule<'_, Self>,
        to: Destination<'_, Self>,
        room: &mut B::Tensor,
        out: &mut B::Tensor,
    ) -> Done {
        let rule = DeltaRule {
            convolution: rule.convolution,
            decay: rule.decay,
            step_bias: rule.step_bias,
            norm: rule.norm,
            eps: rule.eps,
        };
        let to = Destination {
            cache: to.cache,
            layer: to.layer,
            rows: to.rows,
        };
        self.inner.recur(packed, rule, to, room, out)
    }

    fn routes(&self, experts: usize) -> Result<B::Routes, BackendError> {
        self.inner.routes(experts)
    }

    fn route(
        &self,
        logits: &B::Tensor,
        rule: RoutingRule<'_, Self>,
        routes: &mut B::Routes,
    ) -> Done {
        let rule = RoutingRule {
            chosen: rule.chosen,
            renormalised: rule.renormalised,
            scales: rule.scales,
        };
        self.inner.route(logits, rule, routes)
    }

    fn mix_experts(
        &self,
        x: &B::Tensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut B::Routes,
        out: &mut B::Tensor,
    ) -> Done {
        self.inner.mix_experts(x, own(weights), routes, out)
    }

    fn mix_experts_add(
        &self,
        x: &B::Tensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut B::Routes,
        residual: &mut B::Tensor,
    ) -> Done {
        self.inner
            .mix_experts_add(x, own(weights), routes, residual)
    }

    fn gate_output(&self, gate: &B::Tensor, x: &mut B::Tensor) -> Done {
        self.inner.gate_output(gate, x)
    }

    fn gate(&self, packed: &B::Tensor, activation: Activation, out: &mut B::Tensor) -> Done {
        self.inner.gate(packed, activation, out)
    }

    fn rms_norm_add(
        &self,
        x: &B::Tensor,
        weight: &B::Vector,
        eps: f32,
        residual: &mut B::Tensor,
    ) -> Done {
        self.inner.rms_norm_add(x, weight, eps, residual)
    }

    fn scale(&self, x: &mut B::Tensor, factor: f32) -> Done {
        self.inner.scale(x, factor)
    }

    fn soft_cap(&self, x: &mut B::Tensor, cap: f32) -> Done {
        self.inner.soft_cap(x, cap)
    }

    fn columns(&self, x: &B::Tensor, first: usize, out: &mut B::Tensor) -> Done {
        self.inner.columns(x, first, out)
    }

    fn gather(&self, x: &B::Tensor, rows: &[usize], out: &mut B::Tensor) -> Done {
        self.inner.gather(x, rows, out)
    }

    fn to_host(&self, x: &B::Tensor) -> Result<Vec<f32>, BackendError> {
        self.inner.to_host(x)
    }

    fn truncate_slot(&self, cache: &mut B::Cache, slot: usize, tokens: usize) -> Done {
        self.inner.truncate_slot(cache, slot, tokens)
    }

    fn reset_slot(&self, cache: &mut B::Cache, slot: usize) -> Done {
        self.inner.reset_slot(cache, slot)
    }

    fn slot_totals(&self, cache: &B::Cache, slot: usize) -> Result<Vec<KvTotals>, BackendError> {
        self.inner.slot_totals(cache, slot)
    }

    fn slot_absmax(&self, cache: &B::Cache, slot: usize) -> Result<Vec<LayerAbsmax>, BackendError> {
        self.inner.slot_absmax(cache, slot)
    }
}
