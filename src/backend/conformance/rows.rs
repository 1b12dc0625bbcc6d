//! Operations on rows against f64.

use super::{Suite, Tolerance, noise, oracle, within};
use crate::backend::{Activation, Backend, CacheRow, RotaryTable, TensorData};

impl<B: Backend> Suite<'_, B> {
    pub fn rows(&self) {
        self.embeddings_keep_their_element_type();
        self.norms();
        self.rotary();
        self.gates();
        self.extreme_gates();
        self.gathered_rows();
        self.columns_of_rows();
        self.soft_caps();
    }

    fn embeddings_keep_their_element_type(&self) {
        let (rows, width) = (37, 70);
        let data = noise(1, rows * width);
        let f16: Vec<_> = data.iter().map(|&x| half::f16::from_f32(x)).collect();
        let bf16: Vec<_> = data.iter().map(|&x| half::bf16::from_f32(x)).collect();
        let cases = [
            (data.clone(), TensorData::F32(data)),
            (
                f16.iter().map(|x| x.to_f32()).collect(),
                TensorData::F16(f16),
            ),
            (
                bf16.iter().map(|x| x.to_f32()).collect(),
                TensorData::Bf16(bf16),
            ),
        ];
        let ids = [36_u32, 0, 5, 5, 31, 32];
        for (expected, stored) in cases {
            let table = self.backend.weight(stored, rows, width).expect("a table");
            let mut x = self.backend.tensor(ids.len(), width).expect("a tensor");
            self.backend
                .embed(&table, &ids, &mut x)
                .expect("embeddings");
            let expected: Vec<f32> = ids
                .iter()
                .flat_map(|&id| expected[id as usize * width..][..width].to_vec())
                .collect();
            assert_eq!(self.host(&x), expected);
        }
    }

    pub fn products(&self) {
        for (rows, out, inner) in [(1, 1, 1), (3, 45, 130), (17, 64, 576), (40, 100, 300)] {
            let x = noise(2, rows * inner);
            let w = noise(3, out * inner);
            let bias = noise(4, out);
            let f16: Vec<_> = w.iter().map(|&x| half::f16::from_f32(x)).collect();
            let bf16: Vec<_> = w.iter().map(|&x| half::bf16::from_f32(x)).collect();
            let weights = [
                (w.clone(), TensorData::F32(w)),
                (
                    f16.iter().map(|x| x.to_f32()).collect(),
                    TensorData::F16(f16),
                ),
                (
                    bf16.iter().map(|x| x.to_f32()).collect(),
                    TensorData::Bf16(bf16),
                ),
            ];
            let Tolerance { f32, f16, bf16, .. } = self.tolerance;
            for ((w, stored), tolerance) in weights.into_iter().zip([f32, f16, bf16]) {
                let weight = self.backend.weight(stored, out, inner).expect("a weight");
                self.product(tolerance, (&x, &weight), (&w, &bias), inner);
            }
        }
    }

    fn product(
        &self,
        tolerance: f64,
        (x, weight): (&[f32], &B::Weight),
        (w, bias): (&[f32], &[f32]),
        inner: usize,
    ) {
        let (rows, out) = (x.len() / inner, bias.len());
        let (device_x, device_bias) = (self.upload(x, inner), self.vector(bias));
        let mut y = self.backend.tensor(rows, out).expect("a tensor");
        for bias in [None, Some((bias, &device_bias))] {
            let expected = oracle::product(x, w, inner, bias.map(|b| b.0));
            let bias = bias.map(|b| b.1);
            self.backend
                .matmul(&device_x, weight, bias, &mut y)
                .expect("a product");
            within(tolerance, "matmul", &self.host(&y), &expected);

            let start = noise(5, rows * out);
            let mut residual = self.upload(&start, out);
            self.backend
                .matmul_add(&device_x, weight, bias, &mut residual)
                .expect("a product");
            let expected: Vec<_> = expected
                .iter()
                .zip(&start)
                .map(|((v, s), &r)| (v + f64::from(r), s + f64::from(r.abs())))
                .collect();
            within(tolerance, "matmul_add", &self.host(&residual), &expected);
        }
    }

    fn norms(&self) {
        for width in [1, 24, 64, 577, 1028, 4104] {
            let x: Vec<f32> = noise(6, 5 * width).iter().map(|x| x * 30.0).collect();
            let w = noise(7, width);
            let expected = oracle::rms_norm(&x, &w, 1e-5);
            let weight = self.vector(&w);
            let mut y = self.backend.tensor(5, width).expect("a tensor");
            self.backend
                .rms_norm(&self.upload(&x, width), &weight, 1e-5, &mut y)
                .expect("a norm");
            self.near("rms_norm", &self.host(&y), &expected);
            let start = noise(70, 5 * width);
            let mut sum = self.upload(&start, width);
            self.backend
                .rms_norm_add(&self.upload(&x, width), &weight, 1e-5, &mut sum)
                .expect("a norm");
            let sums: Vec<_> = expected
                .iter()
                .zip(&start)
                .map(|((v, s), &r)| (v + f64::from(r), s + f64::from(r.abs())))
                .collect();
            self.near("rms_norm_add", &self.host(&sum), &sums);
            self.backend.scale(&mut sum, 55.5).expect("a multiple");
            let scaled: Vec<_> = sums.iter().map(|(v, s)| (55.5 * v, 55.5 * s)).collect();
            self.near("scale", &self.host(&sum), &scaled);
            let mut heads = self.upload(&x, 5 * width);
            self.backend
                .rms_norm_heads(&mut heads, &weight, 1e-5)
                .expect("a norm");
            self.near("rms_norm_heads", &self.host(&heads), &expected);
        }
    }

    fn soft_caps(&self) {
        for (cap, spread) in [(30.0_f32, 100.0), (30.0, 3.0), (3.0, 0.01), (50.0, 1e30)] {
            for width in [1, 27, 1000] {
                let x: Vec<f32> = noise(15, 3 * width).iter().map(|x| x * spread).collect();
                let mut y = self.upload(&x, width);
                self.backend.soft_cap(&mut y, cap).expect("capped numbers");
                // Small numbers stay nearly what they are, large ones reach the cap.
                let expected: Vec<_> = x
                    .iter()
                    .map(|&x| {
                        let capped = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                        (capped, 2.0 * capped.abs())
                    })
                    .collect();
                self.near("soft_cap", &self.host(&y), &expected);
            }
        }
        // A cap hides nothing that is not a number to begin with.
        let x = [1.0, f32::INFINITY, -2.0, f32::NEG_INFINITY, f32::NAN, 1e38];
        let mut y = self.upload(&x, x.len());
        self.backend.soft_cap(&mut y, 30.0).expect("capped numbers");
        let finite: Vec<bool> = self.host(&y).iter().map(|y| y.is_finite()).collect();
        assert_eq!(finite, [true, false, true, false, false, true]);
    }

    /// Whole head vectors, and their first elements only.
    fn rotary(&self) {
        for (half, head_dim) in [(12, 24), (8, 24), (5, 12)] {
            self.rotates(half, head_dim);
        }
    }

    fn rotates(&self, half: usize, head_dim: usize) {
        let heads = 3;
        let angles: Vec<f32> = (0..50 * half)
            .map(|i| (i / half) as f32 * 0.9_f32.powi((i % half) as i32))
            .collect();
        let table = RotaryTable {
            cos: angles.iter().map(|a| a.cos()).collect(),
            sin: angles.iter().map(|a| a.sin()).collect(),
            half,
            head_dim,
        };
        let rows: Vec<_> = [7, 0, 49]
            .map(|position| CacheRow { slot: 0, position })
            .to_vec();
        let width = heads * head_dim;
        let x = noise(8, rows.len() * width);
        let mut y = self.upload(&x, width);
        self.backend
            .rotary(&mut y, &table, &rows)
            .expect("a rotation");
        let expected: Vec<_> = (0..x.len())
            .map(|i| {
                let d = i % head_dim;
                if d >= 2 * half {
                    return (f64::from(x[i]), 0.0);
                }
                let angle = rows[i / width].position * half + d % half;
                let (cos, sin) = (f64::from(table.cos[angle]), f64::from(table.sin[angle]));
                let other = if d < half { -x[i + half] } else { x[i - half] };
                let (a, b) = (f64::from(x[i]) * cos, f64::from(other) * sin);
                (a + b, a.abs() + b.abs())
            })
            .collect();
        self.near("rotary", &self.host(&y), &expected);
    }

    fn gates(&self) {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            for width in [1000, 1, 27, 4104] {
                let packed: Vec<f32> = noise(9, 6 * width).iter().map(|x| x * 12.0).collect();
                let mut out = self.backend.tensor(3, width).expect("a tensor");
                self.backend
                    .gate(&self.upload(&packed, 2 * width), activation, &mut out)
                    .expect("a gate");
                let mut expected: Vec<_> = packed
                    .chunks_exact(2 * width)
                    .flat_map(|row| oracle::gated(activation, row))
                    .collect();
                if activation == Activation::GeluTanh {
                    // Where the exponent is large, the rounding of its argument weighs most: the
                    // result is then a small part of what it is made of.
                    let sizes = packed.chunks_exact(2 * width).flat_map(|row| &row[..width]);
                    for ((_, size), gate) in expected.iter_mut().zip(sizes) {
                        *size *= 1.0 + f64::from(gate.abs()).powi(3);
                    }
                }
                self.near("gate", &self.host(&out), &expected);
            }
        }
    }

    /// Where exponentials overflow or vanish, a gate is open or shut.
    fn extreme_gates(&self) {
        let gates = [90.0, -90.0, 1e4, -1e4, 1e20, -1e20, 0.0, -0.0];
        let ups = [1.5_f32; 8];
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let mut out = self.backend.tensor(1, 8).expect("a tensor");
            self.backend
                .gate(
                    &self.upload(&[gates, ups].concat(), 16),
                    activation,
                    &mut out,
                )
                .expect("a gate");
            for (gate, found) in gates.into_iter().zip(self.host(&out)) {
                let expected = 1.5 * gate.max(0.0);
                let near = (found - expected).abs() <= 1e-6 * expected + 1e-12;
                assert!(near, "{activation:?} of {gate}: {found}");
            }
        }
    }

    fn columns_of_rows(&self) {
        let x = noise(14, 5 * 12);
        for (first, width) in [(0, 12), (0, 1), (3, 7), (11, 1)] {
            let mut out = self.backend.tensor(5, width).expect("a tensor");
            self.backend
                .columns(&self.upload(&x, 12), first, &mut out)
                .expect("columns");
            let expected: Vec<f32> = x
                .chunks_exact(12)
                .flat_map(|row| row[first..first + width].to_vec())
                .collect();
            assert_eq!(self.host(&out), expected, "{width} columns from {first}");
        }
    }

    fn gathered_rows(&self) {
        let x = noise(11, 6 * 9);
        let rows = [5, 0, 5];
        let mut out = self.backend.tensor(3, 9).expect("a tensor");
        self.backend
            .gather(&self.upload(&x, 9), &rows, &mut out)
            .expect("rows");
        let expected: Vec<f32> = rows
            .iter()
            .flat_map(|r| x[r * 9..r * 9 + 9].to_vec())
            .collect();
        assert_eq!(self.host(&out), expected);
        self.backend.resize(&mut out, 2).expect("fewer rows");
        self.backend
            .gather(&self.upload(&x, 9), &rows[..2], &mut out)
            .expect("rows");
        assert_eq!(self.host(&out), expected[..18]);
    }
}
