//! The reference worker: f32 arithmetic on the processor, rayon over its cores, the widest vector
//! instructions found at run time.
//!
//! Every result is a fixed sequence of IEEE 754 operations per element, so its bits depend neither
//! on the batch nor on the number of threads nor on the vector width.

mod attention;
mod cache;
mod exp;
mod experts;
mod kernel;
mod machine;
mod product;
mod readout;
mod recurrent;
mod rowwise;
mod tensor;
mod timing;
mod widen;
mod worker;

use std::sync::Arc;

use rayon::prelude::*;

use super::meter::Process;
use super::{
    Activation, Backend, BackendError, CacheLayout, CacheRow, DeltaRule, Destination,
    ExpertWeights, Held, Meter, Purpose, RotaryTable, RoutingRule, TensorData, cannot_cut, storage,
};
use crate::schema::{KvTotals, LayerAbsmax};
pub use cache::CpuCache;
pub use experts::CpuRoutes;
pub use machine::claim_thread;
use machine::instructions;
pub use product::CpuWeight;
use product::Finish;
use readout::Logits;
pub use tensor::CpuTensor;
use tensor::float_bytes;
pub use worker::CpuBackend;

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Weight = CpuWeight;
    type Vector = Vec<f32>;
    type Cache = CpuCache;
    type Routes = CpuRoutes;

    fn device(&self) -> String {
        let (arch, threads) = (instructions(self.arch), rayon::current_num_threads());
        format!(
            "cpu ({}, {arch} vectors, {threads} threads)",
            std::env::consts::ARCH
        )
    }

    fn arithmetic(&self) -> String {
        "f32".into()
    }

    fn meter(&self) -> Meter {
        Meter {
            device: self.device(),
            total_bytes: Process::total_bytes(),
            ledger: Arc::clone(&self.ledger),
            gauge: Process::gauge(),
        }
    }

    fn weight(
        &self,
        data: TensorData,
        out: usize,
        inner: usize,
    ) -> Result<CpuWeight, BackendError> {
        let weight = CpuWeight::pack(data, out, inner);
        self.ledger.add(Purpose::Weights, weight.bytes());
        Ok(weight)
    }

    fn vector(&self, data: TensorData) -> Result<Vec<f32>, BackendError> {
        let vector = data.into_f32();
        self.ledger.add(Purpose::Weights, float_bytes(vector.len()));
        Ok(vector)
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<CpuTensor, BackendError> {
        let mut tensor = CpuTensor {
            data: vec![0.0; rows * width],
            rows,
            width,
            held: Held::new(&self.ledger, Purpose::Staging, 0),
        };
        tensor.note();
        Ok(tensor)
    }

    fn width(&self, tensor: &CpuTensor) -> usize {
        tensor.width
    }

    fn resize(&self, tensor: &mut CpuTensor, rows: usize) -> Result<(), BackendError> {
        tensor.data.resize(rows * tensor.width, 0.0);
        tensor.rows = rows;
        tensor.note();
        Ok(())
    }

    fn cache(&self, layout: &CacheLayout) -> Result<CpuCache, BackendError> {
        CpuCache::new(layout, self.precision, &self.ledger)
    }

    fn embed(&self, table: &CpuWeight, ids: &[u32], x: &mut CpuTensor) -> Result<(), BackendError> {
        assert!(
            x.rows == ids.len() && x.width == table.inner,
            "shape of embeddings"
        );
        for (&id, row) in ids.iter().zip(x.data.chunks_exact_mut(table.inner)) {
            table.row(id as usize, row);
        }
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &CpuTensor,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(x.width, weight.len(), "width of a norm");
        rowwise::rms_norm(self.arch, &x.data, weight, eps, &mut out.data);
        Ok(())
    }

    fn rms_norm_add(
        &self,
        x: &CpuTensor,
        weight: &Vec<f32>,
        eps: f32,
        residual: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(x.width, weight.len(), "width of a norm");
        rowwise::rms_norm_add(self.arch, &x.data, weight, eps, &mut residual.data);
        Ok(())
    }

    fn scale(&self, x: &mut CpuTensor, factor: f32) -> Result<(), BackendError> {
        x.data.iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }

    fn soft_cap(&self, x: &mut CpuTensor, cap: f32) -> Result<(), BackendError> {
        rowwise::soft_cap(self.arch, &mut x.data, x.width, cap);
        Ok(())
    }

    fn rms_norm_heads(
        &self,
        x: &mut CpuTensor,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), BackendError> {
        assert_eq!(x.width % weight.len(), 0, "width of whole head vectors");
        rowwise::rms_norm_in_place(self.arch, &mut x.data, weight, eps);
        Ok(())
    }

    fn matmul(
        &self,
        x: &CpuTensor,
        weight: &CpuWeight,
        bias: Option<&Vec<f32>>,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(out.width, weight.out, "width of a product");
        let bias = bias.map(Vec::as_slice);
        self.product
            .apply(&x.data, weight, bias, &mut out.data, Finish::Write);
        Ok(())
    }

    fn matmul_add(
        &self,
        x: &CpuTensor,
        weight: &CpuWeight,
        bias: Option<&Vec<f32>>,
        residual: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(residual.width, weight.out, "width of a product");
        let bias = bias.map(Vec::as_slice);
        self.product
            .apply(&x.data, weight, bias, &mut residual.data, Finish::Add);
        Ok(())
    }

    fn rotary(
        &self,
        x: &mut CpuTensor,
        table: &RotaryTable,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        assert_eq!(x.rows, rows.len(), "rows to rotate");
        assert_eq!(x.width % table.head_dim, 0, "width of whole head vectors");
        rowwise::rotary(self.arch, &mut x.data, x.width, table, rows);
        Ok(())
    }

    fn round_queries(
        &self,
        cache: &CpuCache,
        layer: usize,
        q: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        if let Some(format) = cache.query_format(layer) {
            let vectors = q.data.par_chunks_exact_mut(cache.layer(layer).head_dim);
            vectors.for_each(|x| storage::round_query(format, x));
        }
        Ok(())
    }

    fn store(
        &self,
        cache: &mut CpuCache,
        layer: usize,
        k: &CpuTensor,
        v: &CpuTensor,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        cache.store(layer, &k.data, &v.data, rows)
    }

    fn attend(
        &self,
        cache: &CpuCache,
        layer: usize,
        q: &CpuTensor,
        rows: &[CacheRow],
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(q.rows, rows.len(), "rows of queries");
        let queries = attention::Queries { q: &q.data, rows };
        attention::attend(self.arch, cache, layer, &queries, &mut out.data);
        Ok(())
    }

    fn recur(
        &self,
        packed: &mut CpuTensor,
        rule: DeltaRule<'_, Self>,
        to: Destination<'_, Self>,
        room: &mut CpuTensor,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(packed.rows, to.rows.len(), "rows of a recurrent layer");
        let tensors = [packed, room, out].map(|tensor| tensor.data.as_mut_slice());
        let states = to.cache.states();
        states.recur(self.arch, rule, (to.layer, to.rows), tensors)
    }

    fn gate_output(&self, gate: &CpuTensor, x: &mut CpuTensor) -> Result<(), BackendError> {
        recurrent::gate_output(self.arch, &gate.data, &mut x.data);
        Ok(())
    }

    fn gate(
        &self,
        packed: &CpuTensor,
        activation: Activation,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(packed.width, 2 * out.width, "width of a gate");
        rowwise::gate(
            self.arch,
            activation,
            &packed.data,
            out.width,
            &mut out.data,
        );
        Ok(())
    }

    fn routes(&self, experts: usize) -> Result<CpuRoutes, BackendError> {
        Ok(CpuRoutes::new(experts))
    }

    fn route(
        &self,
        logits: &CpuTensor,
        rule: RoutingRule<'_, Self>,
        routes: &mut CpuRoutes,
    ) -> Result<(), BackendError> {
        self.choose_experts(logits, rule, routes)
    }

    fn mix_experts(
        &self,
        x: &CpuTensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut CpuRoutes,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.mix(x, weights, routes, out, Finish::Write);
        Ok(())
    }

    fn mix_experts_add(
        &self,
        x: &CpuTensor,
        weights: ExpertWeights<'_, Self>,
        routes: &mut CpuRoutes,
        residual: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        self.mix(x, weights, routes, residual, Finish::Add);
        Ok(())
    }

    fn columns(
        &self,
        x: &CpuTensor,
        first: usize,
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(x.rows, out.rows, "rows of columns");
        let columns = first..first + out.width;
        for (row, out) in out.data.chunks_exact_mut(out.width).enumerate() {
            out.copy_from_slice(&x.row(row)[columns.clone()]);
        }
        Ok(())
    }

    fn gather(
        &self,
        x: &CpuTensor,
        rows: &[usize],
        out: &mut CpuTensor,
    ) -> Result<(), BackendError> {
        assert!(
            out.rows == rows.len() && out.width == x.width,
            "shape of gathered rows"
        );
        for (&row, out) in rows.iter().zip(out.data.chunks_exact_mut(x.width)) {
            out.copy_from_slice(x.row(row));
        }
        Ok(())
    }

    fn suppress(&self, logits: &mut CpuTensor, ids: &[u32]) -> Result<(), BackendError> {
        readout::suppress(logits, ids);
        Ok(())
    }

    fn argmax(&self, logits: &CpuTensor, suppressed: &[u32]) -> Result<Vec<u32>, BackendError> {
        Logits::new(logits, suppressed).argmax(self.arch)
    }

    fn nll(
        &self,
        logits: &CpuTensor,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<f64>, BackendError> {
        Logits::new(logits, suppressed).nll(self.arch, targets)
    }

    fn to_host(&self, x: &CpuTensor) -> Result<Vec<f32>, BackendError> {
        Ok(x.data.clone())
    }

    fn truncate_slot(
        &self,
        cache: &mut CpuCache,
        slot: usize,
        tokens: usize,
    ) -> Result<(), BackendError> {
        if tokens > 0 && cache.states().exist() {
            return Err(cannot_cut(tokens));
        }
        cache.truncate(slot, tokens)
    }

    fn slot_totals(&self, cache: &CpuCache, slot: usize) -> Result<Vec<KvTotals>, BackendError> {
        Ok(cache.totals(slot))
    }

    fn slot_absmax(&self, cache: &CpuCache, slot: usize) -> Result<Vec<LayerAbsmax>, BackendError> {
        Ok(cache.absmax(slot))
    }
}

#[cfg(test)]
mod tests;
