//! Recurrent layers as their definition reads, in f64.

use kvassay::backend::{CacheRow, DeltaRule, RecurrentLayer};

use super::{Matrix, Oracle};

/// What a sequence keeps in one layer.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Every input of the convolution so far, `[tokens][channels]`.
    inputs: Vec<Vec<f64>>,
    /// `[value_heads][key_dim][value_dim]`.
    matrices: Vec<Vec<Vec<f64>>>,
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn unit(x: &[f64]) -> Vec<f64> {
    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / length).collect()
}

impl State {
    /// Advances by one token and returns its outputs, `[values]`.
    pub fn advance(
        &mut self,
        shape: &RecurrentLayer,
        rule: &DeltaRule<'_, Oracle>,
        row: CacheRow,
        packed: &[f32],
        round: impl Fn(f32) -> f32,
    ) -> Vec<f32> {
        if row.position == 0 {
            *self = State::default();
            let matrix = vec![vec![0.0; shape.value_dim]; shape.key_dim];
            self.matrices = vec![matrix; shape.value_heads];
        }
        assert_eq!(self.inputs.len(), row.position, "a gap in the states");
        let (x, rest) = packed.split_at(shape.channels());
        let (z, rest) = rest.split_at(shape.values());
        let (b, a) = rest.split_at(shape.value_heads);
        self.inputs
            .push(x.iter().map(|&x| f64::from(round(x))).collect());
        let y: Vec<f64> = (0..shape.channels())
            .map(|channel| silu(self.convolved(shape, rule, channel)))
            .collect();
        let (q, kv) = y.split_at(shape.keys());
        let (k, v) = kv.split_at(shape.keys());
        let mut out = Vec::new();
        for head in 0..shape.value_heads {
            let of_keys = head * shape.key_heads / shape.value_heads * shape.key_dim;
            let q = unit(&q[of_keys..of_keys + shape.key_dim]);
            let k = unit(&k[of_keys..of_keys + shape.key_dim]);
            let of_values = head * shape.value_dim..(head + 1) * shape.value_dim;
            let step = (f64::from(a[head]) + f64::from(rule.step_bias[head]))
                .exp()
                .ln_1p();
            let keep = (f64::from(rule.decay[head]) * step).exp();
            let rate = 1.0 / (1.0 + (-f64::from(b[head])).exp());
            let matrix = &mut self.matrices[head];
            let o: Vec<f64> = of_values
                .clone()
                .enumerate()
                .map(|(column, at)| {
                    let known: f64 = (0..shape.key_dim)
                        .map(|i| keep * matrix[i][column] * k[i])
                        .sum();
                    let delta = rate * (v[at] - known);
                    for i in 0..shape.key_dim {
                        matrix[i][column] = keep * matrix[i][column] + k[i] * delta;
                    }
                    let read = (0..shape.key_dim).map(|i| matrix[i][column] * q[i]);
                    read.sum::<f64>() / (shape.key_dim as f64).sqrt()
                })
                .collect();
            let mean = o.iter().map(|o| o * o).sum::<f64>() / o.len() as f64;
            let scale = 1.0 / (mean + f64::from(rule.eps)).sqrt();
            for ((o, at), w) in o.iter().zip(of_values).zip(rule.norm) {
                out.push((o * scale * f64::from(*w) * silu(f64::from(z[at]))) as f32);
            }
        }
        out
    }

    fn convolved(
        &self,
        shape: &RecurrentLayer,
        rule: &DeltaRule<'_, Oracle>,
        channel: usize,
    ) -> f64 {
        let last = self.inputs.len() - 1;
        (0..shape.kernel.min(last + 1))
            .map(|back| {
                let tap = shape.kernel - 1 - back;
                let factor = rule.convolution[tap * shape.channels() + channel];
                f64::from(factor) * self.inputs[last - back][channel]
            })
            .sum()
    }
}

/// `x / (1 + exp(-gate))`.
pub fn gate_output(gate: &Matrix, x: &mut Matrix) {
    assert_eq!((gate.rows, gate.width), (x.rows, x.width));
    for (x, &gate) in x.data.iter_mut().zip(&gate.data) {
        *x = (f64::from(*x) / (1.0 + (-f64::from(gate)).exp())) as f32;
    }
}
