//! Fused operations against the simpler ones that they stand for, and bit for bit against
//! themselves beside other rows.

use super::storage::{RECIPES, SMALL};
use super::{Shape, Suite, Tolerance, bits, noise, span, within};
use crate::backend::{
    Activation, Backend, BackendError, CacheLayout, CacheRow, Destination, GateProjection,
    HeadNormWeights, HeadProjection, RotaryTable, TensorData, project_heads,
};
use crate::recipe::{Format, NativeDtype};

const INNER: usize = 48;
const TOKENS: usize = 70;
/// Tokens of a pass of so many rows that a GPU may split the heads of each otherwise than those of a
/// few.
pub const MANY_TOKENS: usize = 300;

/// Weights of a layer's heads, of one element type.
struct Layer<'a, B: Backend> {
    backend: &'a B,
    shape: Shape,
    weight: B::Weight,
    bias: Option<B::Vector>,
    /// Of queries, keys and values.
    norms: Option<[B::Vector; 3]>,
    keys_are_values: bool,
    /// Of queries and of keys.
    rotary: [RotaryTable; 2],
}

impl<B: Backend> Layer<'_, B> {
    fn width(&self) -> usize {
        packed_width(self.shape, self.keys_are_values)
    }

    /// Stores `rows`, of which `x` are the inputs; by simpler operations where `composed` is set.
    /// Returns the queries.
    fn run(
        &self,
        cache: &mut B::Cache,
        x: &B::Tensor,
        rows: &[CacheRow],
        composed: bool,
    ) -> Result<B::Tensor, BackendError> {
        let tensor = |width| self.backend.tensor(rows.len(), width);
        let mut packed = tensor(self.width())?;
        let mut q = tensor(self.shape.q_width())?;
        let heads = HeadProjection {
            weight: &self.weight,
            bias: self.bias.as_ref(),
            norms: self.norms.as_ref().map(|[q, k, v]| HeadNormWeights {
                q,
                k,
                v: self.keys_are_values.then_some(v),
                eps: 1e-5,
            }),
            keys_are_values: self.keys_are_values,
            rotary: self.rotary.each_ref(),
        };
        let to = Destination {
            cache,
            layer: 0,
            rows,
        };
        if composed {
            let (mut k, mut v) = (
                tensor(self.shape.kv_width())?,
                tensor(self.shape.kv_width())?,
            );
            let room = [&mut packed, &mut q, &mut k, &mut v];
            project_heads(self.backend, x, &heads, to, room)?;
        } else {
            self.backend
                .project_heads(x, &heads, to, &mut packed, &mut q)?;
        }
        Ok(q)
    }
}

/// Noise in every element type, with the error that its products may have.
fn stored(tolerance: Tolerance, seed: u64, len: usize) -> [(TensorData, f64); 3] {
    let w = noise(seed, len);
    let f16 = w.iter().map(|&x| half::f16::from_f32(x)).collect();
    let bf16 = w.iter().map(|&x| half::bf16::from_f32(x)).collect();
    [
        (TensorData::F32(w), tolerance.f32),
        (TensorData::F16(f16), tolerance.f16),
        (TensorData::Bf16(bf16), tolerance.bf16),
    ]
}

impl<B: Backend> Suite<'_, B> {
    pub fn projections(&self) {
        self.heads_of(SMALL, false, false, &RECIPES);
        self.heads_of(SMALL, true, false, &RECIPES);
    }

    pub fn projections_of_sizes(&self) {
        for head_dim in [8, 64, 128, 256] {
            let shape = Shape { head_dim, ..SMALL };
            self.heads_of(shape, true, false, &RECIPES);
        }
    }

    /// Heads whose values are what keys are before their norm.
    pub fn projections_of_keys(&self) {
        for (head_dim, optional) in [(64, true), (24, false)] {
            let shape = Shape { head_dim, ..SMALL };
            self.heads_of(shape, optional, true, &["native", "SD"]);
        }
    }

    /// Heads of more than 256 elements.
    pub fn projections_of_wide_heads(&self) {
        for (head_dim, optional, keys_are_values) in [(512, true, true), (320, false, false)] {
            let shape = Shape { head_dim, ..SMALL };
            self.heads_of(shape, optional, keys_are_values, &["native", "SD"]);
        }
    }

    fn heads_of(&self, shape: Shape, optional: bool, keys_are_values: bool, recipes: &[&str]) {
        let width = packed_width(shape, keys_are_values);
        for (data, tolerance) in stored(self.tolerance, 80, width * INNER) {
            let layer = self.layer(shape, data, optional, keys_are_values);
            for recipe in recipes {
                let layout = shape.layout(recipe, NativeDtype::F16);
                self.heads_are_those_of_simpler_operations(&layer, &layout, tolerance);
            }
            let layout = shape.layout("SD", NativeDtype::F16);
            self.heads_do_not_depend_on_other_rows(&layer, &layout, TOKENS);
        }
    }

    /// More heads than eight, which a block of a GPU takes at a time, of many rows.
    pub fn projections_of_many_heads(&self) {
        for (head_dim, optional, keys_are_values, recipe) in [
            (128, true, false, "SD"),
            (128, false, true, "native"),
            (40, true, false, "SD"),
            (64, true, false, "k=int4-64,v=e4m3:fixed,q=e4m3"),
            (
                64,
                false,
                false,
                "k=int8:dynamic,v=int4,sink=5,skip-layers=1",
            ),
            (256, true, false, "SD"),
            (512, true, true, "SD"),
        ] {
            let shape = Shape {
                heads: 15,
                kv_heads: 5,
                head_dim,
                ..SMALL
            };
            let width = packed_width(shape, keys_are_values);
            for (data, _) in stored(self.tolerance, 87, width * INNER) {
                let native = match data {
                    TensorData::Bf16(_) => NativeDtype::Bf16,
                    TensorData::F16(_) | TensorData::F32(_) => NativeDtype::F16,
                };
                let layout = shape.layout(recipe, native);
                let layer = self.layer(shape, data, optional, keys_are_values);
                self.heads_do_not_depend_on_other_rows(&layer, &layout, MANY_TOKENS);
            }
        }
    }

    /// Optional parts, and heads of which not all elements are rotated, come together.
    fn layer(
        &self,
        shape: Shape,
        data: TensorData,
        optional: bool,
        keys_are_values: bool,
    ) -> Layer<'_, B> {
        let width = packed_width(shape, keys_are_values);
        let half = match (optional, shape.head_dim) {
            (true, 24) => 5,
            (true, 64) => 16,
            (true, 256) => 96,
            (_, head_dim) => head_dim / 2,
        };
        // Angles, so that lengths stay as they are.
        let angles: Vec<f32> = noise(81, MANY_TOKENS * half);
        Layer {
            backend: self.backend,
            shape,
            weight: self.backend.weight(data, width, INNER).expect("a weight"),
            bias: optional.then(|| self.vector(&noise(82, width))),
            norms: optional
                .then(|| [83, 84, 92].map(|seed| self.vector(&noise(seed, shape.head_dim)))),
            keys_are_values,
            rotary: [1.0, 1.25].map(|growth: f32| RotaryTable {
                cos: angles.iter().map(|a| growth * (3.0 * a).cos()).collect(),
                sin: angles.iter().map(|a| growth * (3.0 * a).sin()).collect(),
                half,
                head_dim: shape.head_dim,
            }),
        }
    }

    fn heads_are_those_of_simpler_operations(
        &self,
        layer: &Layer<'_, B>,
        layout: &CacheLayout,
        tolerance: f64,
    ) {
        let (shape, rows) = (layer.shape, span(1, 0, TOKENS));
        // Scores stay small: attention to rounded keys changes as little as they do.
        let x: Vec<f32> = noise(85, TOKENS * INNER).iter().map(|x| x * 0.2).collect();
        let x = self.upload(&x, INNER);
        let [fused, composed] = [false, true].map(|composed| {
            let mut cache = self.backend.cache(layout).expect("a cache");
            let q = layer.run(&mut cache, &x, &rows, composed).expect("heads");
            let absmax = self.backend.slot_absmax(&cache, 1).expect("extremes");
            let mut out = self
                .backend
                .tensor(TOKENS, shape.q_width())
                .expect("a tensor");
            self.backend
                .attend(&cache, 0, &q, &rows, &mut out)
                .expect("attention");
            (self.host(&q), absmax[0], self.host(&out))
        });
        let what = format!("{} of {shape:?}", layout.recipe.name);
        let size = |expected: &[f32], size: f64| -> Vec<(f64, f64)> {
            expected.iter().map(|&x| (f64::from(x), size)).collect()
        };
        if layout.recipe.q == Format::Native {
            within(4.0 * tolerance, &what, &fused.0, &size(&composed.0, 4.0));
        } else {
            // A step of E4M3 more or less, an eighth of a number.
            let steps = composed.0.iter().map(|&x| f64::from(x));
            let steps: Vec<(f64, f64)> = steps.map(|x| (x, x.abs() + 0.05)).collect();
            within(0.13_f64.max(4.0 * tolerance), &what, &fused.0, &steps);
        }
        // A step of a one-byte format more or less where a number lies between two of them.
        let near = |a: f32, b: f32| (a - b).abs() <= 0.13 * b.abs();
        assert!(
            near(fused.1.k, composed.1.k) && near(fused.1.v, composed.1.v),
            "{what}: {:?} for {:?}",
            fused.1,
            composed.1
        );
        // The first tokens attend to a value or two, which may lie a step of their format apart:
        // up to a quarter of a number near 1 in E5M2.
        let coarse: f64 = if layout.recipe.is_native() {
            1e-3
        } else {
            4e-2
        };
        within(
            coarse.max(tolerance),
            &what,
            &fused.2,
            &size(&composed.2, 8.0),
        );
    }

    fn heads_do_not_depend_on_other_rows(
        &self,
        layer: &Layer<'_, B>,
        layout: &CacheLayout,
        tokens: usize,
    ) {
        let x = noise(86, tokens * INNER);
        let run = |cache: &mut B::Cache, from: usize, to: usize| {
            let part = self.upload(&x[from * INNER..to * INNER], INNER);
            let rows = span(2, from, to);
            let q = layer.run(cache, &part, &rows, false).expect("heads");
            let mut out = self
                .backend
                .tensor(rows.len(), layer.shape.q_width())
                .expect("a tensor");
            self.backend
                .attend(cache, 0, &q, &rows, &mut out)
                .expect("attention");
            [bits(&self.host(&q)), bits(&self.host(&out))]
        };
        let totals =
            |cache: &B::Cache| self.backend.slot_totals(cache, 2).expect("totals")[0].clone();
        let mut cache = self.backend.cache(layout).expect("a cache");
        let whole = run(&mut cache, 0, tokens);
        let of_whole = totals(&cache);
        let mut cache = self.backend.cache(layout).expect("a cache");
        let mut from = 0;
        for chunk in [1, 2, 16, 17, 1, 33, tokens] {
            let to = tokens.min(from + chunk);
            if from == to {
                break;
            }
            let part = run(&mut cache, from, to);
            let width = layer.shape.q_width();
            for (part, whole) in part.iter().zip(&whole) {
                let expected = &whole[from * width..to * width];
                assert!(part == expected, "rows {from} to {to}");
            }
            from = to;
        }
        assert_eq!(from, tokens);
        assert_eq!(totals(&cache), of_whole);
    }

    pub fn gated_projections(&self) {
        for width in [40, 27] {
            for (data, tolerance) in stored(self.tolerance, 87, 2 * width * INNER) {
                let weight = self
                    .backend
                    .weight(data, 2 * width, INNER)
                    .expect("a weight");
                let bias = self.vector(&noise(88, 2 * width));
                let x = noise(89, 90 * INNER);
                let run = |from: usize, to: usize, bias: Option<&B::Vector>, fused: bool| {
                    // Both activations: one beside each kind of bias.
                    let activation = match bias {
                        Some(_) => Activation::Silu,
                        None => Activation::GeluTanh,
                    };
                    let x = self.upload(&x[from * INNER..to * INNER], INNER);
                    let tensor = |width| self.backend.tensor(to - from, width).expect("a tensor");
                    let (mut packed, mut out) = (tensor(2 * width), tensor(width));
                    let b = self.backend;
                    if fused {
                        let gate = GateProjection {
                            weight: &weight,
                            bias,
                            activation,
                        };
                        b.project_gated(&x, gate, &mut packed, &mut out)
                    } else {
                        b.matmul(&x, &weight, bias, &mut packed)
                            .and_then(|()| b.gate(&packed, activation, &mut out))
                    }
                    .expect("a gate");
                    self.host(&out)
                };
                for bias in [None, Some(&bias)] {
                    let whole = run(0, 90, bias, true);
                    let expected = run(0, 90, bias, false);
                    let expected: Vec<_> = expected
                        .iter()
                        .map(|&x| (f64::from(x), 48.0 * 12.0))
                        .collect();
                    within(tolerance, "project_gated", &whole, &expected);
                    for (from, to) in [(0, 1), (3, 20), (60, 90)] {
                        let part = run(from, to, bias, true);
                        assert!(bits(&part) == bits(&whole[from * width..to * width]));
                    }
                }
            }
        }
    }

    /// A key beyond the native format, in the row and layer where it stands.
    pub fn what_cannot_be_stored_is_named(&self) {
        let shape = SMALL;
        let layer = self.layer(shape, noise_weight(shape), false, false);
        let layout = shape.layout("native", NativeDtype::F16);
        let mut cache = self.backend.cache(&layout).expect("a cache");
        let mut x = noise(90, 5 * INNER);
        x[3 * INNER..4 * INNER].iter_mut().for_each(|x| *x *= 1e6);
        let x = self.upload(&x, INNER);
        let stored = layer.run(&mut cache, &x, &span(0, 0, 5), false);
        let error = stored.map(|_| ()).and_then(|()| self.backend.settle());
        assert!(
            matches!(error, Err(BackendError::NotFinite { row: 3, .. })),
            "{error:?}"
        );
    }
}

/// Elements of a token's projected heads.
fn packed_width(shape: Shape, keys_are_values: bool) -> usize {
    let sides = if keys_are_values { 1 } else { 2 };
    shape.q_width() + sides * shape.kv_width()
}

fn noise_weight(shape: Shape) -> TensorData {
    let width = shape.q_width() + 2 * shape.kv_width();
    TensorData::F32(noise(91, width * INNER))
}
