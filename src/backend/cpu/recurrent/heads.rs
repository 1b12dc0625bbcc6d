//! The gated delta rule of every value head of a pass.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::super::CpuBackend;
use super::super::exp::silu;
use super::super::rowwise::{LANES, inverse_rms, tree_sum, vectorised};
use super::Run;
use crate::backend::{DeltaRule, RecurrentLayer};

/// What all heads of a pass read.
pub struct Pass<'a> {
    pub arch: Arch,
    pub shape: RecurrentLayer,
    pub rule: DeltaRule<'a, CpuBackend>,
    /// `[rows, projected]`.
    pub packed: &'a [f32],
    /// Convolved queries, keys and values, `[rows, channels]`.
    pub y: &'a [f32],
}

impl Pass<'_> {
    /// Advances the matrices of every run, head by head, and writes the outputs of its rows.
    pub fn advance(&self, runs: &[Run], matrices: &mut [f32], out: &mut [f32]) {
        let shape = self.shape;
        let (values, head) = (shape.values(), shape.value_dim * shape.key_dim);
        let mut by_slot: Vec<Option<&mut [f32]>> = matrices
            .chunks_exact_mut(shape.matrix_elements())
            .map(Some)
            .collect();
        let heads = runs.iter().flat_map(|run| {
            let matrices = by_slot[run.slot].take().unwrap_or_default();
            let heads = matrices.chunks_exact_mut(head).enumerate();
            heads.map(|(number, matrix)| (*run, number, matrix))
        });
        let heads: Vec<(Run, usize, &mut [f32])> = heads.collect();
        let done: Vec<(Run, usize, Vec<f32>)> = heads
            .into_par_iter()
            .map(|(run, head, matrix)| (run, head, self.head(run, head, matrix)))
            .collect();
        for (run, head, o) in done {
            for (row, o) in (run.first..).zip(o.chunks_exact(shape.value_dim)) {
                let at = row * values + head * shape.value_dim;
                out[at..at + shape.value_dim].copy_from_slice(o);
            }
        }
    }

    /// Outputs of one head over the rows of a run, `[count, value_dim]`.
    fn head(&self, run: Run, head: usize, matrix: &mut [f32]) -> Vec<f32> {
        let shape = self.shape;
        let mut outputs = vec![0.0; run.count * shape.value_dim];
        if run.position == 0 {
            matrix.fill(0.0);
        }
        let key_head = head / (shape.value_heads / shape.key_heads);
        let rows = run.first..run.first + run.count;
        for (row, out) in rows.zip(outputs.chunks_exact_mut(shape.value_dim)) {
            let y = &self.y[row * shape.channels()..][..shape.channels()];
            let (queries, rest) = y.split_at(shape.keys());
            let (keys, values) = rest.split_at(shape.keys());
            let token = Token {
                q: &queries[key_head * shape.key_dim..][..shape.key_dim],
                k: &keys[key_head * shape.key_dim..][..shape.key_dim],
                v: &values[head * shape.value_dim..][..shape.value_dim],
                decay: self.decay(row, head),
                rate: self.rate(row, head),
            };
            let gate = &self.packed(row)[shape.channels() + head * shape.value_dim..];
            let gate = &gate[..shape.value_dim];
            let (norm, eps) = (self.rule.norm.as_slice(), self.rule.eps);
            vectorised!(self.arch, |token: Token<'a>,
                                    matrix: &'a mut [f32],
                                    gate: &'a [f32],
                                    norm: &'a [f32],
                                    eps: f32,
                                    out: &'a mut [f32]|
             -> () {
                token.advance(matrix, out);
                let inverse = inverse_rms(out, eps);
                for ((out, &gate), &w) in out.iter_mut().zip(gate).zip(norm) {
                    *out = *out * inverse * w * silu(gate);
                }
            });
        }
        outputs
    }

    fn packed(&self, row: usize) -> &[f32] {
        let width = self.shape.projected();
        &self.packed[row * width..(row + 1) * width]
    }

    /// `sigmoid(b)`, in f64 so that the last bit does not depend on the platform's f32 functions.
    fn rate(&self, row: usize, head: usize) -> f32 {
        let b = self.packed(row)[self.shape.channels() + self.shape.values() + head];
        (1.0 / (1.0 + (-f64::from(b)).exp())) as f32
    }

    /// `exp(decay * softplus(a + step_bias))`, likewise.
    fn decay(&self, row: usize, head: usize) -> f32 {
        let a = self.packed(row)[self.shape.projected() - self.shape.value_heads + head];
        let x = f64::from(a + self.rule.step_bias[head]);
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        // `max` would take 0 for NaN.
        let softplus = if x.is_nan() { x } else { softplus };
        (f64::from(self.rule.decay[head]) * softplus).exp() as f32
    }
}

/// What one head sees of a token.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    rate: f32,
}

impl Token<'_> {
    /// Advances a matrix and writes `S^T q` to `out`.
    #[inline(always)]
    fn advance(&self, matrix: &mut [f32], out: &mut [f32]) {
        for ((state, &v), out) in matrix
            .chunks_exact_mut(self.k.len())
            .zip(self.v)
            .zip(&mut *out)
        {
            state.iter_mut().for_each(|s| *s *= self.decay);
            let delta = (v - dot(state, self.k)) * self.rate;
            for (s, &k) in state.iter_mut().zip(self.k) {
                *s = k.mul_add(delta, *s);
            }
            *out = dot(state, self.q);
        }
    }
}

/// The sum of products over 16 lanes, merged as a tree.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, &a), &b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(b, *lane);
        }
    }
    for ((lane, &a), &b) in lanes.iter_mut().zip(rest_a).zip(rest_b) {
        *lane = a.mul_add(b, *lane);
    }
    tree_sum(lanes)
}
