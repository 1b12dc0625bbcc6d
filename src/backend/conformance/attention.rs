//! Attention against f64 over exactly the stored numbers, and bit for bit under every batching.

use super::storage::{recipes, stored_rows};
use super::{Shape, Suite, bits, noise, oracle, round, span, within};
use crate::backend::{Backend, CacheLayout, CacheRow, TensorData, storage};
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
        // Large queries make some weights vanish; of long vectors, whose scores sum more, smaller ones
        // do.
        let q = noise(seed, tokens * shape.q_width());
        let size = 6.0 * (128.0 / shape.head_dim as f32).sqrt().min(1.0);
        Sequence {
            shape,
            q: q.into_iter().map(|x| x * size).collect(),
            k: noise(seed + 1, tokens * shape.kv_width()),
            v: noise(seed + 2, tokens * shape.kv_width()),
        }
    }

    /// Small values, and every third of them a vector of zeros. Dynamic scales of the former are far
    /// below that of the latter, which is 1 by convention.
    fn small_beside_zeros(shape: Shape, seed: u64, tokens: usize, exponent: i32) -> Self {
        let unit = 2.0_f32.powi(exponent);
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

/// Query heads, heads of keys and values and their size; a recipe; a window.
type WideCase<'a> = ((usize, usize, usize), &'a str, Option<usize>);

impl<B: Backend> Suite<'_, B> {
    pub fn attention_in_f16(&self) {
        self.attention_in(NativeDtype::F16);
    }

    pub fn attention_in_bf16(&self) {
        self.attention_in(NativeDtype::Bf16);
    }

    fn attention_in(&self, native: NativeDtype) {
        for (shape, recipe) in recipes() {
            let layout = shape.layout(recipe, native);
            self.attends_to_what_is_stored(Sequence::new(shape, 60, 150), &layout);
            if layout.recipe.v.scale == Some(ScalePolicy::Dynamic) {
                // Beside native tokens, scales below 2^-14 cost bits of 16-bit weights.
                let exponent = if layout.recipe.sink > 0 { -5 } else { -9 };
                let sequence = Sequence::small_beside_zeros(shape, 63, 150, exponent);
                self.attends_to_what_is_stored(sequence, &layout);
            }
        }
    }

    pub fn attention_of_heads_of_8(&self) {
        self.attention_of((2, 2, 8));
    }

    pub fn attention_of_heads_of_64(&self) {
        self.attention_of((9, 3, 64));
    }

    pub fn attention_of_heads_of_80(&self) {
        self.attention_of((3, 1, 80));
    }

    pub fn attention_of_heads_of_128(&self) {
        self.attention_of((4, 1, 128));
    }

    /// Query heads, heads of keys and values and their size.
    fn attention_of(&self, (heads, kv_heads, head_dim): (usize, usize, usize)) {
        let shape = Shape {
            layers: 1,
            heads,
            kv_heads,
            head_dim,
        };
        let plain = [
            "native",
            "AD",
            "SF",
            "k=e4m3:fixed,v=e5m2:dynamic,sink=70,q=e4m3",
        ];
        let grouped = ["k=int4,v=int4-64", "k=native,v=int4-64,sink=3"];
        let grouped = grouped.into_iter().filter(|_| head_dim % 64 == 0);
        for recipe in plain.into_iter().chain(grouped) {
            let layout = shape.layout(recipe, NativeDtype::F16);
            self.attends_to_what_is_stored(Sequence::new(shape, 60, 150), &layout);
            self.batching_changes_no_bit(shape, &layout);
        }
    }

    /// Heads of more than 256 elements.
    pub fn wide_heads(&self) {
        self.heads_under(&[
            ((2, 1, 512), "native", None),
            ((2, 1, 512), "AD", None),
            ((2, 1, 512), "SF", Some(70)),
            ((2, 1, 512), "k=int8:dynamic,v=e5m2:dynamic,q=e4m3", None),
            ((16, 1, 512), "SD", None),
            ((3, 1, 320), "RF", None),
            ((4, 2, 264), "native", Some(90)),
        ]);
    }

    /// The same under recipes in groups and with native first tokens.
    pub fn wide_heads_in_groups(&self) {
        self.heads_under(&[
            ((2, 1, 512), "k=int4,v=int4-64", None),
            (
                (4, 2, 512),
                "k=e4m3:fixed,v=e5m2:dynamic,sink=70,q=e4m3",
                None,
            ),
            ((2, 1, 512), "k=native,v=int4-64,sink=3", Some(90)),
        ]);
    }

    fn heads_under(&self, cases: &[WideCase<'_>]) {
        for (turn, &(shape, recipe, window)) in cases.iter().enumerate() {
            let (heads, kv_heads, head_dim) = shape;
            let shape = Shape {
                layers: 1,
                heads,
                kv_heads,
                head_dim,
            };
            let native = [NativeDtype::F16, NativeDtype::Bf16][turn % 2];
            let mut layout = shape.layout(recipe, native);
            layout.layers[0].window = window;
            self.attends_to_what_is_stored(Sequence::new(shape, 60, 100), &layout);
            self.batching_changes_no_bit(shape, &layout);
        }
    }

    /// Windows within a block of tokens, over several, and longer than any sequence; scores divided
    /// by something else than usual.
    pub fn attention_within_windows(&self) {
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
        let mut q = self.upload_as(self.queries(native, q), shape.q_width());
        self.backend
            .round_queries(cache, 0, &mut q)
            .expect("rounded queries");
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

    /// A prompt of some tiles under every pair of classes of elements: little enough for tools that
    /// watch every access to memory.
    pub fn prompts(&self) {
        for (head_dim, native) in [(64, NativeDtype::F16), (128, NativeDtype::Bf16)] {
            let shape = Shape {
                layers: 1,
                heads: 4,
                kv_heads: 2,
                head_dim,
            };
            for recipe in ["native", "AF", "RF", "SF", "AD", "RD", "SD"] {
                let layout = shape.layout(recipe, native);
                self.attends_to_what_is_stored(Sequence::new(shape, 66, 400), &layout);
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
            let native = |q: &mut [f32]| q.iter_mut().for_each(|x| *x = round(layout.native, *x));
            if self.native_queries {
                native(&mut q);
            }
            if let Some(format) = layout
                .recipe
                .queries_at(0, layout.layers.len())
                .byte_format()
            {
                let vectors = q.chunks_exact_mut(layout.layers[0].head_dim);
                vectors.for_each(|x| storage::round_query(format, x));
            }
            if self.native_queries {
                native(&mut q);
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
        // Long vectors take long.
        let (tokens, chunks) = match shape.head_dim > 256 {
            true => (100, &[1, 65][..]),
            false => (200, &[1, 7, 64, 65, 113][..]),
        };
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
        for &chunk in chunks {
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
        self.a_reused_slot_is_a_new_one(layout, &mut cache, &sequences, &whole);
    }

    fn a_reused_slot_is_a_new_one(
        &self,
        layout: &CacheLayout,
        cache: &mut B::Cache,
        sequences: &[Sequence],
        expected: &[Vec<Vec<u32>>],
    ) {
        // The slot of the last pass: what lies behind the windows of others is gone.
        let end = expected[2].len().min(130);
        self.backend
            .truncate_slot(cache, 2, 90)
            .expect("truncation");
        let got = self.step(layout.native, cache, sequences, &span(2, 90, end));
        assert!(got == expected[2][90..end], "{}", layout.recipe.name);
        self.backend.reset_slot(cache, 1).expect("a reset");
        self.backend.reset_slot(cache, 0).expect("a reset");
        for from in (0..100).step_by(10) {
            let got = self.step(layout.native, cache, sequences, &span(0, from, from + 10));
            assert!(
                got == expected[0][from..from + 10],
                "{}",
                layout.recipe.name
            );
        }
    }
}
