//! Recurrent layers: causal convolutions and the gated delta rule, token by token in one fixed order.
//!
//! A matrix lies `[value_dim][key_dim]`: a row of it belongs to one element of the output and needs
//! no other row, so vectors run along keys.

mod heads;
mod inputs;

use std::collections::BTreeSet;
use std::sync::Arc;

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::CpuBackend;
use super::exp::{sigmoid, silu};
use super::rowwise::{sum_of_squares, vectorised};
use super::worker::Precision;
use crate::backend::{
    BackendError, CacheLayout, CacheRow, DeltaRule, Held, LENGTH_EPSILON, Ledger, Purpose,
    RecurrentLayer,
};
use heads::Pass;
use inputs::Inputs;

/// States of all slots.
pub struct States {
    layers: Vec<Option<LayerStates>>,
    _held: Held,
}

/// States of one layer.
struct LayerStates {
    shape: RecurrentLayer,
    /// `[slots][value_heads][value_dim][key_dim]`.
    matrices: Vec<f32>,
    /// `[slots][kernel - 1][channels]`, the oldest first.
    inputs: Inputs,
}

impl LayerStates {
    fn bytes(&self) -> u64 {
        size_of_val(&self.matrices[..]) as u64 + self.inputs.bytes()
    }
}

impl States {
    /// Room for the states of all slots, entered in `ledger`.
    pub fn new(layout: &CacheLayout, precision: Precision, ledger: &Arc<Ledger>) -> Self {
        let recurrent = layout.layers.iter().map(|layer| layer.recurrent);
        let layers = recurrent.map(|shape| {
            shape.map(|shape| LayerStates {
                shape,
                matrices: vec![0.0; layout.slots * shape.matrix_elements()],
                inputs: Inputs::new(
                    layout.native,
                    precision,
                    layout.slots * shape.input_elements(),
                ),
            })
        });
        let layers: Vec<Option<LayerStates>> = layers.collect();
        let bytes = layers.iter().flatten().map(LayerStates::bytes).sum();
        States {
            layers,
            _held: Held::new(ledger, Purpose::States, bytes),
        }
    }

    /// Whether any layer has a state.
    pub fn exist(&self) -> bool {
        self.layers.iter().any(Option::is_some)
    }

    /// See [`crate::backend::Backend::recur`]; `packed`, `y` and `out` are its tensors' elements.
    ///
    /// # Errors
    /// [`BackendError::NotFinite`] names the first row with an input of the convolution that the
    /// native format does not hold.
    pub fn recur(
        &mut self,
        arch: Arch,
        rule: DeltaRule<'_, CpuBackend>,
        (layer, rows): (usize, &[CacheRow]),
        [packed, y, out]: [&mut [f32]; 3],
    ) -> Result<(), BackendError> {
        let Some(LayerStates {
            shape,
            matrices,
            inputs,
        }) = &mut self.layers[layer]
        else {
            panic!("layer {layer} is recurrent");
        };
        let shape = *shape;
        round_inputs(inputs, shape, layer, packed)?;
        let runs = runs(rows);
        let filter = (shape, rule.convolution.as_slice());
        convolve(arch, filter, &runs, packed, inputs, y);
        keep_inputs(shape, &runs, packed, inputs);
        let pass = Pass {
            arch,
            shape,
            rule,
            packed,
            y,
        };
        pass.advance(&runs, matrices, out);
        Ok(())
    }
}

/// Rows of one slot: the first row, how many, and the place of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: usize,
    count: usize,
    slot: usize,
    position: usize,
}

/// The runs of a pass.
///
/// # Panics
/// Where rows of a slot do not stand side by side in ascending order.
fn runs(rows: &[CacheRow]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (first, row) in rows.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.slot == row.slot => {
                assert_eq!(row.position, run.position + run.count, "order of rows");
                run.count += 1;
            }
            _ => runs.push(Run {
                first,
                count: 1,
                slot: row.slot,
                position: row.position,
            }),
        }
    }
    let slots: BTreeSet<usize> = runs.iter().map(|run| run.slot).collect();
    assert_eq!(slots.len(), runs.len(), "rows of a slot side by side");
    runs
}

/// Rounds what is convolved as it is kept.
fn round_inputs(
    kept: &Inputs,
    shape: RecurrentLayer,
    layer: usize,
    packed: &mut [f32],
) -> Result<(), BackendError> {
    let rows = packed.par_chunks_exact_mut(shape.projected()).enumerate();
    let failures = rows.filter_map(|(row, packed)| {
        let inputs = &mut packed[..shape.channels()];
        let found = inputs
            .iter()
            .copied()
            .enumerate()
            .find_map(|(i, x)| (!kept.round(x).is_finite()).then_some((i, x)));
        for x in inputs.iter_mut() {
            *x = kept.round(*x);
        }
        let (element, x) = found?;
        let what = format!(
            "layer {layer}, input {element} of the convolution: found {x}, expected a number that \
             {} holds",
            kept.format()
        );
        Some(BackendError::NotFinite { row, what })
    });
    // The same row is named whatever the order in which rows were done.
    let first = failures.min_by_key(|error| match error {
        BackendError::NotFinite { row, .. } => *row,
        _ => 0,
    });
    first.map_or(Ok(()), Err)
}

/// Writes the convolved queries, keys and values of all rows to `y`.
fn convolve(
    arch: Arch,
    (shape, factors): (RecurrentLayer, &[f32]),
    runs: &[Run],
    packed: &[f32],
    kept: &Inputs,
    y: &mut [f32],
) {
    let (channels, taps) = (shape.channels(), shape.kernel);
    assert_eq!(factors.len(), channels * taps, "factors of a convolution");
    let repeated = |run: &Run| std::iter::repeat_n(*run, run.count);
    let run_of: Vec<Run> = runs.iter().flat_map(repeated).collect();
    let lines = y.par_chunks_exact_mut(channels).enumerate();
    lines.for_each_init(
        || vec![0.0; channels],
        |earlier, (row, y)| {
            let run = run_of[row];
            let first = run.slot * shape.input_elements();
            y.fill(0.0);
            for (tap, factors) in factors.chunks_exact(channels).enumerate() {
                let (back, at) = (taps - 1 - tap, row - run.first);
                if run.position + at < back {
                    continue;
                }
                let x = if at >= back {
                    &packed[(row - back) * shape.projected()..][..channels]
                } else {
                    kept.read(first + (taps - 1 + at - back) * channels, earlier);
                    &earlier[..]
                };
                vectorised!(arch, |y: &'a mut [f32],
                                   x: &'a [f32],
                                   factors: &'a [f32]|
                 -> () {
                    for ((y, &x), &factor) in y.iter_mut().zip(x).zip(factors) {
                        *y = x.mul_add(factor, *y);
                    }
                });
            }
            vectorised!(arch, |y: &'a mut [f32], shape: RecurrentLayer| -> () {
                y.iter_mut().for_each(|y| *y = silu(*y));
                let (queries, rest) = y.split_at_mut(shape.keys());
                let scale = 1.0 / (shape.key_dim as f32).sqrt();
                for q in queries.chunks_exact_mut(shape.key_dim) {
                    let inverse = scale / (sum_of_squares(q) + LENGTH_EPSILON).sqrt();
                    q.iter_mut().for_each(|q| *q *= inverse);
                }
                for k in rest[..shape.keys()].chunks_exact_mut(shape.key_dim) {
                    let inverse = 1.0 / (sum_of_squares(k) + LENGTH_EPSILON).sqrt();
                    k.iter_mut().for_each(|k| *k *= inverse);
                }
            });
        },
    );
}

/// Keeps the last inputs of every run.
fn keep_inputs(shape: RecurrentLayer, runs: &[Run], packed: &[f32], kept: &mut Inputs) {
    let (channels, most) = (shape.channels(), shape.kernel - 1);
    for run in runs {
        let first = run.slot * shape.input_elements();
        let fresh = run.count.min(most);
        kept.shift(first + fresh * channels..first + most * channels, first);
        for line in most - fresh..most {
            let row = run.first + run.count - (most - line);
            let x = &packed[row * shape.projected()..][..channels];
            kept.write(first + line * channels, x);
        }
    }
}

/// `x = x / (1 + exp(-gate))`.
pub fn gate_output(arch: Arch, gate: &[f32], x: &mut [f32]) {
    assert_eq!(gate.len(), x.len(), "elements of a gate");
    vectorised!(arch, |gate: &'a [f32], x: &'a mut [f32]| -> () {
        for (x, &gate) in x.iter_mut().zip(gate) {
            *x *= sigmoid(gate);
        }
    });
}
