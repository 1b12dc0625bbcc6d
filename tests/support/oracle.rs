//! A naive backend: every operation as its definition reads, sums in f64, one thread.
//!
//! It is an oracle for the decoder and the engine. Nothing in it is shared with a real backend
//! but the conversion rules of stored formats.

mod experts;
mod recurrent;

use kvassay::backend::{
    Activation, Backend, BackendError, CacheLayout, CacheRow, DeltaRule, Destination,
    ExpertWeights, Meter, RotaryTable, RoutingRule, TensorData, cannot_cut,
};
use kvassay::recipe::float8::{dequantise, quantise, saturates, scale_from_absmax};
use kvassay::recipe::int4::Parameters;
use kvassay::recipe::{Component, Format, NativeDtype, ScalePolicy};
use kvassay::schema::{ComponentTotals, KvTotals, LayerAbsmax};

/// The backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oracle {
    /// Native components keep all bits of f32.
    pub exact: bool,
}

/// `[rows, width]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub rows: usize,
    pub width: usize,
    pub data: Vec<f32>,
}

impl Matrix {
    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..][..self.width]
    }
}

/// Stored vectors and counters of one component of one slot and layer, per token.
#[derive(Clone, Debug, Default)]
struct Side {
    stored: Vec<f32>,
    totals: Vec<ComponentTotals>,
}

impl Side {
    fn truncate(&mut self, tokens: usize, width: usize) {
        assert!(tokens <= self.totals.len(), "a gap in the cache");
        self.stored.truncate(tokens * width);
        self.totals.truncate(tokens);
    }

    fn sum(&self) -> ComponentTotals {
        let mut sum = ComponentTotals::default();
        self.totals.iter().for_each(|token| sum.merge(token));
        sum
    }
}

pub struct OracleCache {
    layout: CacheLayout,
    /// `[slot][layer]`: keys, values.
    slots: Vec<Vec<(Side, Side)>>,
    /// `[slot][layer]`.
    states: Vec<Vec<recurrent::State>>,
}

fn widen(data: TensorData) -> Vec<f32> {
    match data {
        TensorData::F32(v) => v,
        TensorData::F16(v) => v.into_iter().map(f32::from).collect(),
        TensorData::Bf16(v) => v.into_iter().map(f32::from).collect(),
    }
}

fn native(dtype: NativeDtype, x: f32) -> f32 {
    match dtype {
        NativeDtype::F16 => half::f16::from_f32(x).to_f32(),
        NativeDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter()
        .zip(weight)
        .map(|(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32)
        .collect()
}

impl Oracle {
    fn product(&self, x: &Matrix, weight: &Matrix, bias: Option<&Vec<f32>>) -> Matrix {
        assert_eq!(x.width, weight.width);
        let mut data = Vec::with_capacity(x.rows * weight.rows);
        for row in 0..x.rows {
            for out in 0..weight.rows {
                let bias = bias.map_or(0.0, |bias| f64::from(bias[out]));
                data.push((dot(x.row(row), weight.row(out)) + bias) as f32);
            }
        }
        Matrix {
            rows: x.rows,
            width: weight.rows,
            data,
        }
    }

    /// Appends one token's vectors of one component.
    fn store_token(
        &self,
        layout: &CacheLayout,
        component: Component,
        fixed: Option<f32>,
        side: &mut Side,
        (vectors, head_dim): (&[f32], usize),
    ) {
        let mut totals = ComponentTotals::default();
        for vector in vectors.chunks(head_dim) {
            let stored = self.store_vector(layout, component, fixed, &mut totals, vector);
            side.stored.extend(stored);
        }
        side.totals.push(totals);
    }

    fn store_vector(
        &self,
        layout: &CacheLayout,
        component: Component,
        fixed: Option<f32>,
        totals: &mut ComponentTotals,
        vector: &[f32],
    ) -> Vec<f32> {
        totals.elements += vector.len() as u64;
        totals.bytes += component.format.stored_bytes(vector.len() as u64);
        if let Format::Int4(size) = component.format {
            return vector
                .chunks(size.elements())
                .flat_map(|group| store_group(layout.native, totals, group))
                .collect();
        }
        let Some(format) = component.format.byte_format() else {
            let keep = |&x: &f32| {
                if self.exact {
                    x
                } else {
                    native(layout.native, x)
                }
            };
            return vector.iter().map(keep).collect();
        };
        let scale = match component.scale.unwrap() {
            ScalePolicy::Fixed => scale_from_absmax(format, fixed.unwrap()),
            ScalePolicy::Dynamic => {
                totals.bytes += 4;
                scale_from_absmax(format, vector.iter().fold(0.0, |m, x| x.abs().max(m)))
            }
        };
        totals.merge(&ComponentTotals {
            scale_min: Some(scale),
            scale_max: Some(scale),
            ..ComponentTotals::default()
        });
        let mut store = |&x: &f32| {
            let value = dequantise(format, quantise(format, x, scale), scale);
            totals.saturated += u64::from(saturates(format, x, scale));
            totals.changed += u64::from(value != native(layout.native, x));
            value
        };
        vector.iter().map(&mut store).collect()
    }
}

/// Stores a group of 4-bit elements.
fn store_group(dtype: NativeDtype, totals: &mut ComponentTotals, group: &[f32]) -> Vec<f32> {
    let parameters = Parameters::of(group).expect("numbers that FP16 holds");
    let (scale, _) = parameters.widened();
    totals.merge(&ComponentTotals {
        scale_min: Some(scale),
        scale_max: Some(scale),
        ..ComponentTotals::default()
    });
    let mut store = |&x: &f32| {
        let value = parameters.dequantise(dtype, parameters.quantise(x));
        totals.changed += u64::from(value != native(dtype, x));
        value
    };
    group.iter().map(&mut store).collect()
}

impl Backend for Oracle {
    type Tensor = Matrix;
    type Weight = Matrix;
    type Vector = Vec<f32>;
    type Cache = OracleCache;
    type Routes = experts::Routes;

    fn device(&self) -> String {
        "oracle".to_owned()
    }

    fn arithmetic(&self) -> String {
        "f64".to_owned()
    }

    fn meter(&self) -> Meter {
        Meter {
            device: self.device(),
            total_bytes: None,
            ledger: Default::default(),
            gauge: None,
        }
    }

    fn weight(&self, data: TensorData, out: usize, inner: usize) -> Result<Matrix, BackendError> {
        assert_eq!(data.len(), out * inner);
        Ok(Matrix {
            rows: out,
            width: inner,
            data: widen(data),
        })
    }

    fn vector(&self, data: TensorData) -> Result<Vec<f32>, BackendError> {
        Ok(widen(data))
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<Matrix, BackendError> {
        Ok(Matrix {
            rows,
            width,
            data: vec![f32::NAN; rows * width],
        })
    }

    fn width(&self, tensor: &Matrix) -> usize {
        tensor.width
    }

    fn resize(&self, tensor: &mut Matrix, rows: usize) -> Result<(), BackendError> {
        tensor.rows = rows;
        // Whoever reads rows that were not written must notice.
        tensor.data = vec![f32::NAN; rows * tensor.width];
        Ok(())
    }

    fn cache(&self, layout: &CacheLayout) -> Result<OracleCache, BackendError> {
        let empty = vec![Default::default(); layout.layers.len()];
        Ok(OracleCache {
            layout: layout.clone(),
            slots: vec![empty; layout.slots],
            states: vec![vec![Default::default(); layout.layers.len()]; layout.slots],
        })
    }

    fn embed(&self, table: &Matrix, ids: &[u32], x: &mut Matrix) -> Result<(), BackendError> {
        assert_eq!(x.rows, ids.len());
        x.data = ids
            .iter()
            .flat_map(|&id| table.row(id as usize).to_vec())
            .collect();
        Ok(())
    }

    fn rms_norm(
        &self,
        x: &Matrix,
        weight: &Vec<f32>,
        eps: f32,
        out: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((x.rows, x.width), (out.rows, out.width));
        out.data = (0..x.rows)
            .flat_map(|row| norm(x.row(row), weight, eps))
            .collect();
        Ok(())
    }

    fn rms_norm_add(
        &self,
        x: &Matrix,
        weight: &Vec<f32>,
        eps: f32,
        residual: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((x.rows, x.width), (residual.rows, residual.width));
        let normed = (0..x.rows).flat_map(|row| norm(x.row(row), weight, eps));
        for (sum, term) in residual.data.iter_mut().zip(normed) {
            *sum += term;
        }
        Ok(())
    }

    fn scale(&self, x: &mut Matrix, factor: f32) -> Result<(), BackendError> {
        x.data.iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }

    fn soft_cap(&self, x: &mut Matrix, cap: f32) -> Result<(), BackendError> {
        x.data
            .iter_mut()
            .for_each(|x| *x = cap * (*x / cap).tanh() + 0.0 * *x);
        Ok(())
    }

    fn rms_norm_heads(
        &self,
        x: &mut Matrix,
        weight: &Vec<f32>,
        eps: f32,
    ) -> Result<(), BackendError> {
        x.data = x
            .data
            .chunks(weight.len())
            .flat_map(|head| norm(head, weight, eps))
            .collect();
        Ok(())
    }

    fn matmul(
        &self,
        x: &Matrix,
        weight: &Matrix,
        bias: Option<&Vec<f32>>,
        out: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((out.rows, out.width), (x.rows, weight.rows));
        *out = self.product(x, weight, bias);
        Ok(())
    }

    fn matmul_add(
        &self,
        x: &Matrix,
        weight: &Matrix,
        bias: Option<&Vec<f32>>,
        residual: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((residual.rows, residual.width), (x.rows, weight.rows));
        let product = self.product(x, weight, bias);
        for (sum, term) in residual.data.iter_mut().zip(product.data) {
            *sum += term;
        }
        Ok(())
    }

    fn rotary(
        &self,
        x: &mut Matrix,
        table: &RotaryTable,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        assert_eq!(x.rows, rows.len());
        let half = table.half;
        for (row, place) in x.data.chunks_mut(x.width).zip(rows) {
            let angles = place.position * half..(place.position + 1) * half;
            let (cos, sin) = (&table.cos[angles.clone()], &table.sin[angles]);
            for head in row.chunks_mut(table.head_dim) {
                for i in 0..half {
                    let (a, b) = (head[i], head[i + half]);
                    head[i] = a * cos[i] - b * sin[i];
                    head[i + half] = b * cos[i] + a * sin[i];
                }
            }
        }
        Ok(())
    }

    fn round_queries(
        &self,
        cache: &OracleCache,
        layer: usize,
        q: &mut Matrix,
    ) -> Result<(), BackendError> {
        let layout = &cache.layout;
        if let Some(format) = layout
            .recipe
            .queries_at(layer, layout.layers.len())
            .byte_format()
        {
            for vector in q.data.chunks_mut(layout.layers[layer].head_dim) {
                let scale =
                    scale_from_absmax(format, vector.iter().fold(0.0, |m, x| x.abs().max(m)));
                let round = |x: &mut f32| {
                    *x = dequantise(format, quantise(format, *x, scale), scale);
                };
                vector.iter_mut().for_each(round);
            }
        }
        Ok(())
    }

    fn store(
        &self,
        cache: &mut OracleCache,
        layer: usize,
        k: &Matrix,
        v: &Matrix,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        assert_eq!((k.rows, v.rows), (rows.len(), rows.len()));
        let layout = cache.layout.clone();
        let quantised = layout.recipe.components_at(layer, layout.layers.len());
        let fixed = layout.absmax.as_ref().map(|absmax| absmax[layer]);
        for (index, row) in rows.iter().enumerate() {
            assert!(row.position < layout.slot_tokens, "slot overflows");
            let (keys, values) = &mut cache.slots[row.slot][layer];
            let (k_component, v_component) = match row.position < layout.recipe.sink as usize {
                true => (Component::NATIVE, Component::NATIVE),
                false => quantised,
            };
            if let Some(x) = k
                .row(index)
                .iter()
                .chain(v.row(index))
                .find(|x| !x.is_finite())
            {
                return Err(BackendError::NotFinite {
                    row: index,
                    what: format!("layer {layer}: found {x}"),
                });
            }
            let shape = layout.layers[layer];
            let (width, head_dim) = (shape.width(), shape.head_dim);
            let scale = fixed.map(|absmax| absmax.k);
            keys.truncate(row.position, width);
            self.store_token(&layout, k_component, scale, keys, (k.row(index), head_dim));
            let scale = fixed.map(|absmax| absmax.v);
            values.truncate(row.position, width);
            self.store_token(
                &layout,
                v_component,
                scale,
                values,
                (v.row(index), head_dim),
            );
        }
        Ok(())
    }

    fn attend(
        &self,
        cache: &OracleCache,
        layer: usize,
        q: &Matrix,
        rows: &[CacheRow],
        out: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((q.rows, out.rows), (rows.len(), rows.len()));
        let shape = cache.layout.layers[layer];
        let (dim, kv_heads) = (shape.head_dim, shape.kv_heads);
        let group = q.width / dim / kv_heads;
        out.data.clear();
        for (index, row) in rows.iter().enumerate() {
            let (keys, values) = &cache.slots[row.slot][layer];
            let seen = match shape.window {
                Some(window) if window <= row.position => row.position + 1 - window,
                _ => 0,
            };
            for (head, query) in q.row(index).chunks(dim).enumerate() {
                let at = |token: usize| (token * kv_heads + head / group) * dim;
                let scores: Vec<f64> = (seen..=row.position)
                    .map(|t| {
                        dot(query, &keys.stored[at(t)..][..dim]) / f64::from(shape.score_divisor)
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                for i in 0..dim {
                    let value = |t: usize| f64::from(values.stored[at(seen + t) + i]);
                    let sum: f64 = weights.iter().enumerate().map(|(t, w)| w * value(t)).sum();
                    out.data.push((sum / total) as f32);
                }
            }
        }
        Ok(())
    }

    fn recur(
        &self,
        packed: &mut Matrix,
        rule: DeltaRule<'_, Self>,
        to: Destination<'_, Self>,
        _: &mut Matrix,
        out: &mut Matrix,
    ) -> Result<(), BackendError> {
        let shape = to.cache.layout.layers[to.layer].recurrent.unwrap();
        let dtype = to.cache.layout.native;
        let round = |x: f32| if self.exact { x } else { native(dtype, x) };
        out.data.clear();
        for (index, row) in to.rows.iter().enumerate() {
            let state = &mut to.cache.states[row.slot][to.layer];
            let o = state.advance(&shape, &rule, *row, packed.row(index), round);
            out.data.extend(o);
        }
        Ok(())
    }

    fn routes(&self, _: usize) -> Result<experts::Routes, BackendError> {
        Ok(experts::Routes::default())
    }

    fn route(
        &self,
        logits: &Matrix,
        rule: RoutingRule<'_, Self>,
        routes: &mut experts::Routes,
    ) -> Result<(), BackendError> {
        experts::route(logits, rule, routes)
    }

    fn mix_experts(
        &self,
        x: &Matrix,
        weights: ExpertWeights<'_, Self>,
        routes: &mut experts::Routes,
        out: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((out.rows, out.width), (x.rows, x.width));
        out.data = experts::mix(self, x, weights, routes)?;
        Ok(())
    }

    fn mix_experts_add(
        &self,
        x: &Matrix,
        weights: ExpertWeights<'_, Self>,
        routes: &mut experts::Routes,
        residual: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((residual.rows, residual.width), (x.rows, x.width));
        let sum = experts::mix(self, x, weights, routes)?;
        for (residual, term) in residual.data.iter_mut().zip(sum) {
            *residual += term;
        }
        Ok(())
    }

    fn gate_output(&self, gate: &Matrix, x: &mut Matrix) -> Result<(), BackendError> {
        recurrent::gate_output(gate, x);
        Ok(())
    }

    fn gate(
        &self,
        packed: &Matrix,
        activation: Activation,
        out: &mut Matrix,
    ) -> Result<(), BackendError> {
        assert_eq!((packed.rows, packed.width), (out.rows, 2 * out.width));
        let activated = |g: f64| match activation {
            Activation::Silu => g / (1.0 + (-g).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
                0.5 * g * (1.0 + inner.tanh())
            }
        };
        let gated = |(g, u): (&f32, &f32)| (activated(f64::from(*g)) * f64::from(*u)) as f32;
        out.data = (0..out.rows)
            .flat_map(|row| {
                let (gate, up) = packed.row(row).split_at(out.width);
                gate.iter().zip(up).map(gated).collect::<Vec<_>>()
            })
            .collect();
        Ok(())
    }

    fn columns(&self, x: &Matrix, first: usize, out: &mut Matrix) -> Result<(), BackendError> {
        assert_eq!(out.rows, x.rows);
        out.data = (0..x.rows)
            .flat_map(|row| x.row(row)[first..first + out.width].to_vec())
            .collect();
        Ok(())
    }

    fn gather(&self, x: &Matrix, rows: &[usize], out: &mut Matrix) -> Result<(), BackendError> {
        assert_eq!(out.rows, rows.len());
        out.data = rows.iter().flat_map(|&row| x.row(row).to_vec()).collect();
        Ok(())
    }

    fn suppress(&self, logits: &mut Matrix, ids: &[u32]) -> Result<(), BackendError> {
        for row in 0..logits.rows {
            for id in ids {
                logits.data[row * logits.width + *id as usize] = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn argmax(&self, logits: &Matrix, suppressed: &[u32]) -> Result<Vec<u32>, BackendError> {
        (0..logits.rows)
            .map(|row| {
                let row = (row, logits.row(row));
                let mut logits = row.1.iter().enumerate();
                if logits.any(|(id, x)| match suppressed.contains(&(id as u32)) {
                    true => *x != f32::NEG_INFINITY,
                    false => !x.is_finite(),
                }) {
                    return Err(BackendError::NotFinite {
                        row: row.0,
                        what: "a logit that is not what it should be".to_owned(),
                    });
                }
                let row = row.1;
                let mut best = 0;
                for (id, x) in row.iter().enumerate() {
                    if *x > row[best] {
                        best = id;
                    }
                }
                Ok(best as u32)
            })
            .collect()
    }

    fn nll(
        &self,
        logits: &Matrix,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<f64>, BackendError> {
        assert_eq!(logits.rows, targets.len());
        self.argmax(logits, suppressed)?;
        Ok((0..logits.rows)
            .map(|row| {
                let row: Vec<f64> = logits.row(row).iter().map(|x| f64::from(*x)).collect();
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
                (row, largest + sum.ln())
            })
            .zip(targets)
            .map(|((row, total), &target)| total - row[target as usize])
            .collect())
    }

    fn to_host(&self, x: &Matrix) -> Result<Vec<f32>, BackendError> {
        Ok(x.data.clone())
    }

    fn truncate_slot(
        &self,
        cache: &mut OracleCache,
        slot: usize,
        tokens: usize,
    ) -> Result<(), BackendError> {
        let mut all = cache.layout.layers.iter();
        if tokens > 0 && all.any(|layer| layer.recurrent.is_some()) {
            return Err(cannot_cut(tokens));
        }
        let layers = cache.slots[slot].iter_mut().zip(&cache.layout.layers);
        for ((keys, values), layer) in layers {
            let width = layer.width();
            keys.truncate(tokens, width);
            values.truncate(tokens, width);
        }
        Ok(())
    }

    fn reset_slot(&self, cache: &mut OracleCache, slot: usize) -> Result<(), BackendError> {
        cache.slots[slot] = vec![Default::default(); cache.layout.layers.len()];
        Ok(())
    }

    fn slot_totals(&self, cache: &OracleCache, slot: usize) -> Result<Vec<KvTotals>, BackendError> {
        Ok(cache.slots[slot]
            .iter()
            .map(|(k, v)| KvTotals {
                k: k.sum(),
                v: v.sum(),
            })
            .collect())
    }

    fn slot_absmax(
        &self,
        cache: &OracleCache,
        slot: usize,
    ) -> Result<Vec<LayerAbsmax>, BackendError> {
        let largest = |side: &Side| side.stored.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
        Ok(cache.slots[slot]
            .iter()
            .map(|(k, v)| LayerAbsmax {
                k: largest(k),
                v: largest(v),
            })
            .collect())
    }
}
