//! What every backend must do, against plain f64 arithmetic, and bit for bit against itself.
//!
//! A backend's tests call [`conformance_tests`]; the checks know nothing of the backend but its trait.

mod attention;
mod codes;
mod experts;
mod invariance;
mod oracle;
mod projections;
mod readout;
mod recurrent;
mod repeats;
mod rows;
pub mod storage;
mod stored;
mod windows;

pub use projections::MANY_TOKENS;

use super::{Backend, CacheLayer, CacheLayout, CacheRow, TensorData};
use crate::recipe::{NativeDtype, Recipe};
use crate::schema::LayerAbsmax;

/// How far arithmetic may lie from f64, relative to the size of what is summed.
#[derive(Clone, Copy)]
pub struct Tolerance {
    /// Operations on f32, products with f32 weights included.
    pub f32: f64,
    /// Products with F16 weights.
    pub f16: f64,
    /// Products with BF16 weights.
    pub bf16: f64,
    /// Attention of f32 queries over F16 keys and values.
    pub attention_f16: f64,
    /// The same over BF16 ones.
    pub attention_bf16: f64,
}

impl Tolerance {
    /// The same for everything.
    pub fn of_f32(tolerance: f64) -> Self {
        Tolerance {
            f32: tolerance,
            f16: tolerance,
            bf16: tolerance,
            attention_f16: tolerance,
            attention_bf16: tolerance,
        }
    }
}

/// A backend, how exact it is, and whether queries are numbers of the native format instead of f32
/// ones.
pub struct Suite<'a, B> {
    pub backend: &'a B,
    pub tolerance: Tolerance,
    pub native_queries: bool,
}

/// A test for each check, so that they run side by side: `$run` takes a check and hands it the suite of
/// a backend, where there is one.
macro_rules! conformance_tests {
    ($run:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $run(|suite| suite.$name());
            }
        )*
    };
    ($run:ident) => {
        crate::backend::conformance::conformance_tests! {
            $run: rows products readout codes stored invariance storage
            attention_in_f16 attention_in_bf16 attention_within_windows
            attention_of_heads_of_8 attention_of_heads_of_64 attention_of_heads_of_80
            attention_of_heads_of_128
            projections projections_of_sizes projections_of_keys projections_of_wide_heads
            projections_of_many_heads gated_projections what_cannot_be_stored_is_named
            experts recurrent repeats repeats_in_bf16 repeats_in_f32 repeats_over_groups
            windows windows_over_groups cuts_behind_the_last_pass_are_refused
            numbers_of_other_sequences_never_enter sequences_take_the_bytes_that_memory_figures_give
        }
    };
}
pub(super) use conformance_tests;

/// Rounds to a native format.
pub fn round(native: NativeDtype, x: f32) -> f32 {
    match native {
        NativeDtype::F16 => half::f16::from_f32(x).to_f32(),
        NativeDtype::Bf16 => half::bf16::from_f32(x).to_f32(),
    }
}

/// Numbers in -1..1 from a counter and a seed.
pub fn noise(seed: u64, len: usize) -> Vec<f32> {
    (0..len as u64)
        .map(|i| {
            let mut z = (seed << 32 ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z >> 40) as f32 / (1 << 23) as f32) - 1.0
        })
        .collect()
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Shape of the caches under test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Shape {
    pub fn q_width(self) -> usize {
        self.heads * self.head_dim
    }

    pub fn kv_width(self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub fn layout(self, recipe: &str, native: NativeDtype) -> CacheLayout {
        let recipe = Recipe::parse(recipe).expect("a recipe");
        CacheLayout {
            layers: vec![CacheLayer::new(self.kv_heads, self.head_dim); self.layers],
            native,
            slots: 3,
            slot_tokens: 512,
            pass_tokens: 3 * 512,
            absmax: recipe.needs_calibration().then(|| self.absmax()),
            recipe,
        }
    }

    /// Below 1, the largest magnitude of [`noise`], so that fixed scales saturate.
    pub fn absmax(self) -> Vec<LayerAbsmax> {
        (0..self.layers)
            .map(|l| LayerAbsmax {
                k: 0.5 + 0.1 * l as f32,
                v: 0.75 + 0.1 * l as f32,
            })
            .collect()
    }
}

/// Positions `from..to` of a slot.
pub fn span(slot: usize, from: usize, to: usize) -> Vec<CacheRow> {
    (from..to)
        .map(|position| CacheRow { slot, position })
        .collect()
}

impl<B: Backend> Suite<'_, B> {
    /// Puts rows on the device: an embedding table that is read row by row.
    pub fn upload(&self, data: &[f32], width: usize) -> B::Tensor {
        self.upload_as(TensorData::F32(data.to_vec()), width)
    }

    /// The same, of another element type.
    pub fn upload_as(&self, data: TensorData, width: usize) -> B::Tensor {
        let rows = data.len() / width;
        let b = self.backend;
        let mut x = b.tensor(rows, width).expect("a tensor");
        if rows > 0 {
            let table = b.weight(data, rows, width).expect("a table");
            let ids: Vec<u32> = (0..rows as u32).collect();
            b.embed(&table, &ids, &mut x).expect("embeddings");
        }
        x
    }

    pub fn vector(&self, data: &[f32]) -> B::Vector {
        self.backend
            .vector(TensorData::F32(data.to_vec()))
            .expect("a vector")
    }

    pub fn host(&self, x: &B::Tensor) -> Vec<f32> {
        self.backend.to_host(x).expect("a copy")
    }

    /// Checks `got` against `expected`, an f32 operation.
    pub fn near(&self, what: &str, got: &[f32], expected: &[(f64, f64)]) {
        within(self.tolerance.f32, what, got, expected);
    }
}

/// Checks `got` against `expected`, `size` being the sum of magnitudes behind each element.
pub fn within(tolerance: f64, what: &str, got: &[f32], expected: &[(f64, f64)]) {
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    for (i, (&got, &(value, size))) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - value).abs();
        assert!(
            error <= tolerance * size.max(1e-30),
            "{what}: element {i} is {got}, expected {value} within {:e}",
            tolerance * size
        );
    }
}
