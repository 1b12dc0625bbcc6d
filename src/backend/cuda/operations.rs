//! The operations of the trait: arguments checked, kernels started.

use super::cache::{CacheRoom, CudaCache};
use super::device::Purpose;
use super::experts::CudaRoutes;
use super::product::Finish;
use super::recording::Layers;
use super::tensor::{CudaTensor, CudaVector, CudaWeight, of_one_type};
use super::{CudaBackend, attention, readout};
use crate::backend::{
    Activation, Backend, BackendError, CacheLayout, CacheLimit, CacheRow, DeltaRule, Destination,
    ExpertParts, ExpertWeights, GateProjection, HeadProjection, LayerPass, Meter, RotaryTable,
    RoutingRule, StoredParts, TensorData, cannot_cut,
};
use crate::schema::{KvTotals, LayerAbsmax};

impl Backend for CudaBackend {
    type Tensor = CudaTensor;
    type Weight = CudaWeight;
    type Vector = CudaVector;
    type Cache = CudaCache;
    type Routes = CudaRoutes;

    fn device(&self) -> String {
        let (major, minor) = self.kernels.device.capability();
        format!("{} (sm_{major}{minor})", self.kernels.device.name())
    }

    fn arithmetic(&self) -> String {
        self.arithmetic_and_origin()
    }

    fn meter(&self) -> Meter {
        self.kernels.device.meter(self.device())
    }

    fn weight(
        &self,
        data: TensorData,
        out: usize,
        inner: usize,
    ) -> Result<CudaWeight, BackendError> {
        self.fused_weight(vec![data], out, inner)
    }

    fn fused_weight(
        &self,
        parts: Vec<TensorData>,
        out: usize,
        inner: usize,
    ) -> Result<CudaWeight, BackendError> {
        self.products.expect(out, inner);
        self.take_over(of_one_type(parts), out, inner)
    }

    fn expert_weight(
        &self,
        parts: ExpertParts<'_>,
        experts: usize,
        [out, inner]: [usize; 2],
    ) -> Result<Option<CudaWeight>, BackendError> {
        self.take_over_experts(parts, experts * out, inner)
    }

    fn stored_weight(
        &self,
        parts: &StoredParts<'_>,
        out: usize,
        inner: usize,
    ) -> Result<Option<CudaWeight>, BackendError> {
        self.products.expect(out, inner);
        self.take_over_stored(parts, out, inner)
    }

    fn vector(&self, data: TensorData) -> Result<CudaVector, BackendError> {
        let data = data.into_f32();
        Ok(CudaVector {
            width: data.len(),
            data: self.kernels.device.upload(&data, Purpose::Weights)?,
        })
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<CudaTensor, BackendError> {
        CudaTensor::new(&self.kernels.device, rows, width)
    }

    fn width(&self, tensor: &CudaTensor) -> usize {
        tensor.width
    }

    fn resize(&self, tensor: &mut CudaTensor, rows: usize) -> Result<(), BackendError> {
        tensor.resize(rows);
        Ok(())
    }

    fn cache(&self, layout: &CacheLayout) -> Result<CudaCache, BackendError> {
        CudaCache::new(&self.kernels.device, layout)
    }

    fn cache_limit(
        &self,
        layout: &CacheLayout,
        reserved: usize,
    ) -> Result<Option<CacheLimit>, BackendError> {
        let free = self.free_beside(reserved)?;
        Ok(Some(CacheRoom::new(layout)?.limit_in(free)))
    }

    fn embed(
        &self,
        table: &CudaWeight,
        ids: &[u32],
        x: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_embed(table, ids, x)
    }

    fn rms_norm(
        &self,
        x: &CudaTensor,
        weight: &CudaVector,
        eps: f32,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_norm(x, weight, eps, out)
    }

    fn rms_norm_add(
        &self,
        x: &CudaTensor,
        weight: &CudaVector,
        eps: f32,
        residual: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_norm_add(x, weight, eps, residual)
    }

    fn scale(&self, x: &mut CudaTensor, factor: f32) -> Result<(), BackendError> {
        self.start_scale(x, factor)
    }

    fn soft_cap(&self, x: &mut CudaTensor, cap: f32) -> Result<(), BackendError> {
        self.start_soft_cap(x, cap)
    }

    fn rms_norm_heads(
        &self,
        x: &mut CudaTensor,
        weight: &CudaVector,
        eps: f32,
    ) -> Result<(), BackendError> {
        self.start_norm_heads(x, weight, eps)
    }

    fn matmul(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaVector>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.product(x, weight, bias, out, Finish::Write)
    }

    fn matmul_add(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaVector>,
        residual: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.product(x, weight, bias, residual, Finish::Add)
    }

    fn rotary(
        &self,
        x: &mut CudaTensor,
        table: &RotaryTable,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        self.start_rotary(x, table, rows)
    }

    fn recur(
        &self,
        packed: &mut CudaTensor,
        rule: DeltaRule<'_, Self>,
        to: Destination<'_, Self>,
        room: &mut CudaTensor,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_recur(packed, rule, to, room, out)
    }

    fn routes(&self, experts: usize) -> Result<CudaRoutes, BackendError> {
        CudaRoutes::new(&self.kernels, experts)
    }

    fn route(
        &self,
        logits: &CudaTensor,
        rule: RoutingRule<'_, Self>,
        routes: &mut CudaRoutes,
    ) -> Result<(), BackendError> {
        self.choose_experts(logits, rule, routes)
    }

    fn mix_experts(
        &self,
        x: &CudaTensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut CudaRoutes,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.mix(x, weights, routes, out, Finish::Write)
    }

    fn mix_experts_add(
        &self,
        x: &CudaTensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut CudaRoutes,
        residual: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.mix(x, weights, routes, residual, Finish::Add)
    }

    fn gate_output(&self, gate: &CudaTensor, x: &mut CudaTensor) -> Result<(), BackendError> {
        self.start_gate_output(gate, x)
    }

    fn round_queries(
        &self,
        cache: &CudaCache,
        layer: usize,
        q: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        match cache.query_format(layer) {
            Some(format) => self.round_heads(format.into(), cache.layer(layer).head_dim, q),
            None => Ok(()),
        }
    }

    fn store(
        &self,
        cache: &mut CudaCache,
        layer: usize,
        k: &CudaTensor,
        v: &CudaTensor,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        self.start_store(cache, layer, [k, v], rows)
    }

    fn attend(
        &self,
        cache: &CudaCache,
        layer: usize,
        q: &CudaTensor,
        rows: &[CacheRow],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_attention((cache, layer), q, rows, out)
    }

    fn check_attention(
        &self,
        cache: &CudaCache,
        layer: usize,
        (heads, weight): (usize, &CudaWeight),
    ) -> Result<(), BackendError> {
        let exact = weight.format.half().is_none();
        attention::supports(&self.kernels, (cache, layer), heads, exact)
    }

    fn project_heads(
        &self,
        x: &CudaTensor,
        heads: &HeadProjection<'_, Self>,
        to: Destination<'_, Self>,
        packed: &mut CudaTensor,
        q: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_heads(x, heads, to, packed, q)
    }

    fn layers<S>(
        &self,
        pass: &LayerPass<'_>,
        cache: &mut CudaCache,
        state: &mut S,
        stream: impl Fn(&mut S) -> &mut CudaTensor,
        run: impl Fn(&mut CudaCache, &mut S) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let layers = Layers {
            pass,
            cache,
            state,
            stream,
            run,
        };
        layers.start(self)
    }

    fn project_gated(
        &self,
        x: &CudaTensor,
        gate: GateProjection<'_, Self>,
        packed: &mut CudaTensor,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.products.apply(x, gate.weight, packed, Finish::Round)?;
        self.start_gate(packed, gate.bias, gate.activation, out)
    }

    fn gate(
        &self,
        packed: &CudaTensor,
        activation: Activation,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_gate(packed, None, activation, out)
    }

    fn columns(
        &self,
        x: &CudaTensor,
        first: usize,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_columns(x, first, out)
    }

    fn gather(
        &self,
        x: &CudaTensor,
        rows: &[usize],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.start_gather(x, rows, out)
    }

    fn suppress(&self, logits: &mut CudaTensor, ids: &[u32]) -> Result<(), BackendError> {
        self.suppressed.apply(&self.kernels, logits, ids)
    }

    fn argmax(&self, logits: &CudaTensor, suppressed: &[u32]) -> Result<Vec<u32>, BackendError> {
        readout::argmax(&self.kernels, logits, (suppressed, &self.suppressed))
    }

    fn nll(
        &self,
        logits: &CudaTensor,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<f64>, BackendError> {
        readout::nll(
            &self.kernels,
            logits,
            targets,
            (suppressed, &self.suppressed),
        )
    }

    fn settle(&self) -> Result<(), BackendError> {
        self.report_broken()
    }

    fn to_host(&self, x: &CudaTensor) -> Result<Vec<f32>, BackendError> {
        x.read(&self.kernels)
    }

    fn truncate_slot(
        &self,
        cache: &mut CudaCache,
        slot: usize,
        tokens: usize,
    ) -> Result<(), BackendError> {
        if tokens > 0 && cache.states().exist() {
            return Err(cannot_cut(tokens));
        }
        cache.truncate(slot, tokens)
    }

    fn slot_totals(&self, cache: &CudaCache, slot: usize) -> Result<Vec<KvTotals>, BackendError> {
        cache.totals(&self.kernels, slot)
    }

    fn slot_absmax(
        &self,
        cache: &CudaCache,
        slot: usize,
    ) -> Result<Vec<LayerAbsmax>, BackendError> {
        cache.absmax(&self.kernels, slot)
    }
}
