//! A row has the same bits whatever stands beside it.

use super::{Suite, bits, noise};
use crate::backend::{Activation, Backend, CacheRow, RotaryTable, TensorData};

const ROWS: [usize; 10] = [1, 2, 3, 5, 8, 16, 17, 33, 64, 200];

impl<B: Backend> Suite<'_, B> {
    pub fn invariance(&self) {
        self.products_do_not_depend_on_the_number_of_rows();
        self.rowwise_operations_do_not_depend_on_other_rows();
    }

    fn products_do_not_depend_on_the_number_of_rows(&self) {
        for (out, inner) in [(192, 576), (70, 1536), (33, 1)] {
            let w = noise(20, out * inner);
            let f16 = w.iter().map(|&x| half::f16::from_f32(x)).collect();
            let bf16 = w.iter().map(|&x| half::bf16::from_f32(x)).collect();
            let stored = [
                TensorData::F32(w),
                TensorData::F16(f16),
                TensorData::Bf16(bf16),
            ];
            for stored in stored {
                let weight = self.backend.weight(stored, out, inner).expect("a weight");
                self.product_rows(&weight, out, inner);
            }
        }
    }

    fn product_rows(&self, weight: &B::Weight, out: usize, inner: usize) {
        let x = noise(21, 200 * inner);
        let bias = self.vector(&noise(22, out));
        let run = |x: &[f32]| {
            let rows = x.len() / inner;
            let x = self.upload(x, inner);
            let mut y = self.backend.tensor(rows, out).expect("a tensor");
            self.backend
                .matmul(&x, weight, Some(&bias), &mut y)
                .expect("a product");
            let mut sum = self.upload(&vec![0.5; rows * out], out);
            self.backend
                .matmul_add(&x, weight, None, &mut sum)
                .expect("a product");
            (bits(&self.host(&y)), bits(&self.host(&sum)))
        };
        let (whole, whole_sum) = run(&x);
        for rows in ROWS {
            // The first rows, and the last ones, which then stand at other places.
            for first in [0, 200 - rows] {
                let (y, sum) = run(&x[first * inner..(first + rows) * inner]);
                let range = first * out..(first + rows) * out;
                assert_eq!(y, whole[range.clone()], "{rows} rows from {first}");
                assert_eq!(sum, whole_sum[range], "{rows} rows from {first}");
            }
        }
    }

    fn rowwise_operations_do_not_depend_on_other_rows(&self) {
        let width = 576;
        let x = noise(23, 200 * width);
        let packed = noise(28, 200 * 2 * width);
        let w = self.vector(&noise(24, width));
        let head = self.vector(&noise(25, 64));
        let table = RotaryTable {
            cos: noise(26, 300 * 32).into(),
            sin: noise(27, 300 * 32).into(),
            half: 32,
            head_dim: 64,
        };
        let run = |first: usize, rows: usize| {
            let part = self.upload(&x[first * width..(first + rows) * width], width);
            let mut norm = self.backend.tensor(rows, width).expect("a tensor");
            self.backend
                .rms_norm(&part, &w, 1e-6, &mut norm)
                .expect("a norm");
            let packed = &packed[first * 2 * width..(first + rows) * 2 * width];
            let mut gate = self.backend.tensor(rows, width).expect("a tensor");
            self.backend
                .gate(&self.upload(packed, 2 * width), Activation::Silu, &mut gate)
                .expect("a gate");
            self.backend
                .rms_norm_add(&part, &w, 1e-6, &mut gate)
                .expect("a norm");
            let places: Vec<_> = (first..first + rows)
                .map(|position| CacheRow { slot: 0, position })
                .collect();
            self.backend
                .rotary(&mut gate, &table, &places)
                .expect("a rotation");
            self.backend
                .rms_norm_heads(&mut gate, &head, 1e-6)
                .expect("a norm");
            let targets: Vec<u32> = (first..first + rows).map(|i| i as u32).collect();
            let nll = self.backend.nll(&norm, &targets, &[]).expect("likelihoods");
            let nll: Vec<u64> = nll.into_iter().map(f64::to_bits).collect();
            (bits(&self.host(&norm)), bits(&self.host(&gate)), nll)
        };
        let whole = run(0, 200);
        for rows in ROWS {
            for first in [0, 200 - rows] {
                let part = run(first, rows);
                let range = first * width..(first + rows) * width;
                assert_eq!(part.0, whole.0[range.clone()]);
                assert_eq!(part.1, whole.1[range]);
                assert_eq!(part.2, whole.2[first..first + rows]);
            }
        }
    }
}
