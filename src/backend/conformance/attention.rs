//! Attention against f64 over exactly the stored numbers, and bit for bit under every batching.

use super::storage::{RECIPES, SMALL, stored_rows};
use super::{Shape, Suite, bits, noise, oracle, round, span, within};
use crate::backend::{Backend, CacheLayout, CacheRow, TensorData};
use crate::recipe::{NativeDtype, ScalePolicy};

/// One sequence: queries, keys and values of every position.
struct Sequence {
    shape: Shape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Sequence {
    fn new(shape: Shape, seed: u64, tokens: usize) -> Self {
        // Large queries make some weights vanish.
        let q = noise(seed, tokens * shape.q_width());
        Sequence {
            shape,
            q: q.into_iter().map(|x| x * 6.0).collect(),
            k: noise(seed + 1, tokens * shape.kv_width()),
            v: noise(seed + 2, tokens * shape.kv_width()),
        }
    }

    /// Small values, and every third of them a vector of zeros. Dynamic scales of the former are far
    /// below that of the latter, which is 1 by convention.
    fn small_beside_zeros(shape: Shape, seed: u64, tokens: usize) -> Self {
        let unit = 2.0_f32.powi(-9);
        let mut sequence = Sequence::new(shape, seed, tokens);
        for (i, values) in sequence.v.chunks_mut(shape.head_dim).enumerate() {
            let factor = if i % 3 == 0 { 0.0 } else { unit };
            values.iter_mut().for_each(|x| *x *= factor);
        }
        sequence
    }

    fn kv(&self, row: CacheRow) -> [&[f32]; 2] {
        let width = self.shape.kv_width();
        let range = row.position * width..(row.position + 1) * width;
        [&self.k[range.clone()], &self.v[range]]
    }

    fn query(&self, row: CacheRow) -> &[f32] {
        let width = self.shape.q_width();
        &self.q[row.position * width..(row.position + 1) * width]
    }
}

impl<B: Backend> Suite<'_, B> {
    pub fn attention(&self) {
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            for recipe in RECIPES {
                let layout = SMALL.layout(recipe, native);
                self.attends_to_what_is_stored(Sequence::new(SMALL, 60, 150), &layout);
                if layout.recipe.v.scale == Some(ScalePolicy::Dynamic) {
                    let sequence = Sequence::small_beside_zeros(SMALL, 63, 150);
                    self.attends_to_what_is_stored(sequence, &layout);
                }
            }
        }
        for (heads, kv_heads, head_dim) in [(9, 3, 64), (4, 1, 128), (2, 2, 8), (3, 1, 80)] {
            let shape = Shape {
                layers: 1,
                heads,
                kv_heads,
                head_dim,
            };
            for recipe in ["native", "AD", "SF"] {
                let layout = shape.layout(recipe, NativeDtype::F16);
                self.attends_to_what_is_stored(Sequence::new(shape, 60, 150), &layout);
                self.batching_changes_no_bit(shape, &layout);
            }
        }
        self.windows();
    }

    /// Windows within a block of tokens, over several, and longer than any sequence; scores divided
    /// by something else than usual.
    fn windows(&self) {
        for (heads, kv_heads, head_dim, recipe, window) in [
            (4, 2, 64, "native", 1),
            (4, 2, 64, "SD", 16),
            (2, 1, 128, "native", 24),
            (6, 2, 24, "AF", 64),
            (2, 1, 128, "RD", 65),
            (2, 1, 256, "native", 130),
            (4, 2, 64, "SF", 1000),
        ] {
            let shape = Shape {
                layers: 1,
                heads,
                kv_heads,
                head_dim,
            };
            let mut layout = shape.layout(recipe, NativeDtype::F16);
            layout.layers[0].window = Some(window);
            layout.layers[0].score_divisor = 13.0;
            self.attends_to_what_is_stored(Sequence::new(shape, 66, 150), &layout);
            self.batching_changes_no_bit(shape, &layout);
        }
        // Beyond the boundaries at which workers split sequences.
        let shape = Shape {
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 64,
        };
        for window in [100, 1300] {
            let mut layout = shape.layout("native", NativeDtype::F16);
            layout.slot_tokens = 2200;
            layout.layers[0].window = Some(window);
            self.attends_to_what_is_stored(Sequence::new(shape, 69, 2200), &layout);
        }
    }

    fn step(
        &self,
        native: NativeDtype,
        cache: &mut B::Cache,
        sequences: &[Sequence],
        rows: &[CacheRow],
    ) -> Vec<Vec<u32>> {
        let shape = sequences[0].shape;
        let of = |side: usize| {
            let rows = rows
                .iter()
                .flat_map(|r| sequences[r.slot].kv(*r)[side].to_vec());
            self.upload(&rows.collect::<Vec<_>>(), shape.kv_width())
        };
        let (k, v) = (of(0), of(1));
        self.backend.store(cache, 0, &k, &v, rows).expect("storage");
        let q: Vec<f32> = rows
            .iter()
            .flat_map(|r| sequences[r.slot].query(*r).to_vec())
            .collect();
        let q = self.upload_as(self.queries(native, q), shape.q_width());
        let mut out = self
            .backend
            .tensor(rows.len(), shape.q_width())
            .expect("a tensor");
        self.backend
            .attend(cache, 0, &q, rows, &mut out)
            .expect("attention");
        self.host(&out).chunks(shape.q_width()).map(bits).collect()
    }

    /// Queries as f32 numbers, or in the native format.
    fn queries(&self, native: NativeDtype, q: Vec<f32>) -> TensorData {
        match (self.native_queries, native) {
            (false, _) => TensorData::F32(q),
            (true, NativeDtype::F16) => {
                TensorData::F16(q.into_iter().map(half::f16::from_f32).collect())
            }
            (true, NativeDtype::Bf16) => {
                TensorData::Bf16(q.into_iter().map(half::bf16::from_f32).collect())
            }
        }
    }

    fn attends_to_what_is_stored(&self, sequence: Sequence, layout: &CacheLayout) {
        let shape = sequence.shape;
        let tokens = sequence.k.len() / shape.kv_width();
        let sequences = [sequence];
        let mut cache = self.backend.cache(layout).expect("a cache");
        let rows = span(0, 0, tokens);
        let got = self.step(layout.native, &mut cache, &sequences, &rows);
        let [k, v] = stored_rows(layout, 0, &sequences[0].k, &sequences[0].v);
        for (row, got) in rows.iter().zip(got) {
            let got: Vec<f32> = got.into_iter().map(f32::from_bits).collect();
            let mut q = sequences[0].query(*row).to_vec();
            if self.native_queries {
                q.iter_mut().for_each(|x| *x = round(layout.native, *x));
            }
            let mut expected = oracle::attention(layout.layers[0], &q, row.position, [&k, &v]);
            if self.native_queries && layout.native == NativeDtype::F16 {
                // Outputs are F16 as well, whose steps no longer shrink below the smallest normal
                // number.
                let normal = f64::from(half::f16::MIN_POSITIVE);
                expected
                    .iter_mut()
                    .for_each(|(_, size)| *size = size.max(normal));
            }
            let what = format!("{} at {}", layout.recipe.name, row.position);
            let tolerance = match layout.native {
                NativeDtype::F16 => self.tolerance.attention_f16,
                NativeDtype::Bf16 => self.tolerance.attention_bf16,
            };
            within(tolerance, &what, &got, &expected);
        }
    }

    fn batching_changes_no_bit(&self, shape: Shape, layout: &CacheLayout) {
        let tokens = 200;
        let sequences: Vec<_> = (0..3)
            .map(|s| Sequence::new(shape, 70 + 3 * s, tokens))
            .collect();
        let mut cache = self.backend.cache(layout).expect("a cache");
        let whole: Vec<Vec<Vec<u32>>> = (0..3)
            .map(|slot| {
                self.step(
                    layout.native,
                    &mut cache,
                    &sequences,
                    &span(slot, 0, tokens),
                )
            })
            .collect();
        for chunk in [1, 7, 64, 65, 113] {
            let mut cache = self.backend.cache(layout).expect("a cache");
            for from in (0..tokens).step_by(chunk) {
                let to = (from + chunk).min(tokens);
                // All slots at once, their rows interleaved.
                let mut rows: Vec<_> = (0..3).flat_map(|slot| span(slot, from, to)).collect();
                rows.sort_by_key(|row| (row.position, (row.slot + row.position) % 3));
                let got = self.step(layout.native, &mut cache, &sequences, &rows);
                for (row, got) in rows.iter().zip(got) {
                    assert!(
                        got == whole[row.slot][row.position],
                        "{}: {row:?} in chunks of {chunk}",
                        layout.recipe.name
                    );
                }
            }
        }
        self.a_reused_slot_is_a_new_one(layout, &mut cache, &sequences, &whole[0]);
    }

    fn a_reused_slot_is_a_new_one(
        &self,
        layout: &CacheLayout,
        cache: &mut B::Cache,
        sequences: &[Sequence],
        expected: &[Vec<u32>],
    ) {
        self.backend
            .truncate_slot(cache, 0, 90)
            .expect("truncation");
        let got = self.step(layout.native, cache, sequences, &span(0, 90, 130));
        assert!(got == expected[90..130], "{}", layout.recipe.name);
        self.backend.reset_slot(cache, 1).expect("a reset");
        self.backend.reset_slot(cache, 0).expect("a reset");
        for from in (0..100).step_by(10) {
            let got = self.step(layout.native, cache, sequences, &span(0, from, from + 10));
            assert!(got == expected[from..from + 10], "{}", layout.recipe.name);
        }
    }
}
