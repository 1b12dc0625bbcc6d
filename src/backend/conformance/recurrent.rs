//! Recurrent layers against their definition in f64, and bit for bit against themselves.

use super::{Suite, bits, noise, round, span, within};
use crate::backend::{
    Backend, CacheLayer, CacheLayout, CacheRow, DeltaRule, Destination, RecurrentLayer,
};
use crate::recipe::{NativeDtype, Recipe};

const EPS: f32 = 1e-6;
const TOKENS: usize = 41;

/// Heads that share keys, sizes that fill no vector or block, every size of kernel there is.
const SHAPES: [RecurrentLayer; 4] = [
    shape(2, 4, 16, 16, 4),
    shape(1, 3, 40, 24, 2),
    shape(2, 2, 128, 130, 4),
    shape(1, 2, 200, 7, 1),
];

const fn shape(
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kernel: usize,
) -> RecurrentLayer {
    RecurrentLayer {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        kernel,
    }
}

/// Weights on the host.
struct Weights {
    convolution: Vec<f32>,
    decay: Vec<f32>,
    step_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl Weights {
    fn new(shape: &RecurrentLayer) -> Self {
        let decay = noise(81, shape.value_heads);
        Weights {
            convolution: noise(80, shape.channels() * shape.kernel),
            decay: decay.iter().map(|x| -0.3 - 0.25 * x).collect(),
            step_bias: noise(82, shape.value_heads),
            norm: noise(83, shape.value_dim)
                .iter()
                .map(|x| 1.0 + 0.3 * x)
                .collect(),
        }
    }
}

/// Projected rows of one sequence; what is convolved is a number of the native format.
fn sequence(shape: &RecurrentLayer, native: NativeDtype, seed: u64) -> Vec<f32> {
    let mut packed = noise(seed, TOKENS * shape.projected());
    for row in packed.chunks_exact_mut(shape.projected()) {
        for x in &mut row[..shape.channels()] {
            *x = round(native, 2.0 * *x);
        }
    }
    packed
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Outputs of a whole sequence with the magnitude to which errors are compared.
fn defined(shape: &RecurrentLayer, weights: &Weights, packed: &[f32]) -> Vec<(f64, f64)> {
    let rows: Vec<&[f32]> = packed.chunks_exact(shape.projected()).collect();
    let wide = |x: f32| f64::from(x);
    let convolved = |t: usize, c: usize| {
        let tap = |tap: usize| {
            let back = shape.kernel - 1 - tap;
            let factor = weights.convolution[tap * shape.channels() + c];
            (back <= t).then(|| wide(factor) * wide(rows[t - back][c]))
        };
        silu((0..shape.kernel).filter_map(tap).sum())
    };
    let unit = |t: usize, first: usize| -> Vec<f64> {
        let x: Vec<f64> = (first..first + shape.key_dim)
            .map(|c| convolved(t, c))
            .collect();
        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.into_iter().map(|x| x / length).collect()
    };
    let mut matrices = vec![vec![vec![0.0; shape.value_dim]; shape.key_dim]; shape.value_heads];
    let mut out = Vec::new();
    for (t, row) in rows.iter().enumerate() {
        for head in 0..shape.value_heads {
            let first = head / (shape.value_heads / shape.key_heads) * shape.key_dim;
            let (q, k) = (unit(t, first), unit(t, shape.keys() + first));
            let after = shape.channels() + shape.values();
            let (b, a) = (
                wide(row[after + head]),
                wide(row[after + shape.value_heads + head]),
            );
            let step = (a + wide(weights.step_bias[head])).exp().ln_1p();
            let keep = (wide(weights.decay[head]) * step).exp();
            let rate = 1.0 / (1.0 + (-b).exp());
            let matrix = &mut matrices[head];
            let o: Vec<f64> = (0..shape.value_dim)
                .map(|d| {
                    let known: f64 = (0..shape.key_dim).map(|i| keep * matrix[i][d] * k[i]).sum();
                    let v = convolved(t, 2 * shape.keys() + head * shape.value_dim + d);
                    for i in 0..shape.key_dim {
                        matrix[i][d] = keep * matrix[i][d] + k[i] * rate * (v - known);
                    }
                    let read = (0..shape.key_dim).map(|i| matrix[i][d] * q[i]);
                    read.sum::<f64>() / (shape.key_dim as f64).sqrt()
                })
                .collect();
            let mean = o.iter().map(|o| o * o).sum::<f64>() / o.len() as f64;
            let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
            for (d, o) in o.iter().enumerate() {
                let z = wide(row[shape.channels() + head * shape.value_dim + d]);
                let factor = scale * wide(weights.norm[d]) * silu(z);
                // What is normed was summed from numbers of about 1, whatever became of it.
                out.push((o * factor, factor.abs() * (1.0 + o.abs())));
            }
        }
    }
    out
}

/// A cache with one recurrent layer of a shape behind one of attention, and its weights.
struct Bench<'a, B: Backend> {
    suite: &'a Suite<'a, B>,
    shape: RecurrentLayer,
    cache: B::Cache,
    weights: [B::Vector; 4],
}

impl<B: Backend> Bench<'_, B> {
    /// Outputs of rows (sequence, position), each in the slot of its sequence.
    fn run(&mut self, sequences: &[Vec<f32>], rows: &[CacheRow]) -> Vec<f32> {
        let (backend, width) = (self.suite.backend, self.shape.projected());
        let row = |row: &CacheRow| &sequences[row.slot][row.position * width..][..width];
        let packed: Vec<f32> = rows.iter().flat_map(row).copied().collect();
        let mut packed = self.suite.upload(&packed, width);
        let tensor = |width| backend.tensor(rows.len(), width).expect("a tensor");
        let (mut room, mut out) = (tensor(self.shape.channels()), tensor(self.shape.values()));
        let [convolution, decay, step_bias, norm] = &self.weights;
        let rule = DeltaRule {
            convolution,
            decay,
            step_bias,
            norm,
            eps: EPS,
        };
        let to = Destination {
            cache: &mut self.cache,
            layer: 1,
            rows,
        };
        let done = backend.recur(&mut packed, rule, to, &mut room, &mut out);
        done.expect("a recurrent layer");
        self.suite.host(&out)
    }
}

impl<B: Backend> Suite<'_, B> {
    pub fn recurrent(&self) {
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            for shape in SHAPES {
                self.states_follow_their_definition(shape, native);
            }
        }
        self.outputs_are_gated();
    }

    fn bench(&self, shape: RecurrentLayer, native: NativeDtype) -> Bench<'_, B> {
        let layout = CacheLayout {
            layers: vec![CacheLayer::new(1, 16), CacheLayer::recurrent(shape)],
            native,
            slots: 3,
            slot_tokens: 64,
            pass_tokens: 64,
            recipe: Recipe::native(),
            absmax: None,
        };
        let weights = Weights::new(&shape);
        Bench {
            suite: self,
            shape,
            cache: self.backend.cache(&layout).expect("a cache"),
            weights: [
                &weights.convolution,
                &weights.decay,
                &weights.step_bias,
                &weights.norm,
            ]
            .map(|data| self.vector(data)),
        }
    }

    /// Whole sequences, in chunks of every kind and beside each other.
    fn states_follow_their_definition(&self, shape: RecurrentLayer, native: NativeDtype) {
        let sequences = [90, 91, 92].map(|seed| sequence(&shape, native, seed));
        let weights = Weights::new(&shape);
        let mut bench = self.bench(shape, native);
        let whole: Vec<Vec<f32>> = (0..3)
            .map(|slot| bench.run(&sequences, &span(slot, 0, TOKENS)))
            .collect();
        for (found, packed) in whole.iter().zip(&sequences) {
            let expected = defined(&shape, &weights, packed);
            let what = format!("{shape:?}");
            within(16.0 * self.tolerance.f32, &what, found, &expected);
        }
        for chunk in [1, 2, 3, 8, 9, 40] {
            let mut parts = vec![Vec::new(); 3];
            for first in (0..TOKENS).step_by(chunk) {
                let last = TOKENS.min(first + chunk);
                // Slots come in another order, one of them a token at a time.
                let alone = (first..last).map(|t| span(2, t, t + 1));
                let beside = [span(1, first, last), span(0, first, last)].concat();
                for rows in alone.chain([beside]) {
                    let found = bench.run(&sequences, &rows);
                    for (row, out) in rows.iter().zip(found.chunks_exact(shape.values())) {
                        parts[row.slot].extend_from_slice(out);
                    }
                }
            }
            for (slot, part) in parts.iter().enumerate() {
                assert_eq!(
                    bits(part),
                    bits(&whole[slot]),
                    "{shape:?}, slot {slot}, chunks of {chunk}"
                );
            }
            for slot in 0..3 {
                self.backend
                    .reset_slot(&mut bench.cache, slot)
                    .expect("a reset");
            }
        }
    }

    fn outputs_are_gated(&self) {
        let (x, gate) = (noise(95, 33 * 70), noise(96, 33 * 70));
        let gate: Vec<f32> = gate.iter().map(|x| 9.0 * x).collect();
        let mut found = self.upload(&x, 70);
        let gated = self
            .backend
            .gate_output(&self.upload(&gate, 70), &mut found);
        gated.expect("a gate");
        let expected: Vec<(f64, f64)> = x
            .iter()
            .zip(&gate)
            .map(|(&x, &gate)| {
                let value = f64::from(x) / (1.0 + (-f64::from(gate)).exp());
                (value, value.abs())
            })
            .collect();
        self.near("a gate", &self.host(&found), &expected);
    }
}
