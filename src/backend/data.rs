//! What operations take and give: elements, layers and layouts of caches, places of rows, rotary
//! tables.

use std::sync::Arc;

use rayon::prelude::*;

use super::RecurrentLayer;
use crate::recipe::{NativeDtype, Recipe};
use crate::schema::LayerAbsmax;

/// Elements that one thread looks at in one go.
const CHUNK: usize = 1 << 16;

/// Elements of one tensor, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// 32-bit floats (F32 checkpoints and dequantised GGUF blocks).
    F32(Vec<f32>),
    /// IEEE half.
    F16(Vec<half::f16>),
    /// bfloat16.
    Bf16(Vec<half::bf16>),
}

impl TensorData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            TensorData::F32(v) => v.len(),
            TensorData::F16(v) => v.len(),
            TensorData::Bf16(v) => v.len(),
        }
    }

    /// The elements as 32-bit floats, exactly.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            TensorData::F32(v) => v,
            TensorData::F16(v) => v.into_iter().map(f32::from).collect(),
            TensorData::Bf16(v) => v.into_iter().map(f32::from).collect(),
        }
    }

    /// Index and value of the first element that is NaN or infinite.
    pub fn first_non_finite(&self) -> Option<(usize, f32)> {
        match self {
            TensorData::F32(v) => find(v, |x| !x.is_finite()).map(|i| (i, v[i])),
            TensorData::F16(v) => find(v, |x| !x.is_finite()).map(|i| (i, v[i].to_f32())),
            TensorData::Bf16(v) => find(v, |x| !x.is_finite()).map(|i| (i, v[i].to_f32())),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Index of the first bad element; all cores search.
fn find<T: Copy + Sync>(values: &[T], bad: impl Fn(T) -> bool + Sync) -> Option<usize> {
    let (block, inner) =
        values
            .par_chunks(CHUNK)
            .enumerate()
            .find_map_first(|(block, chunk)| {
                let inner = chunk.iter().position(|x| bad(*x))?;
                Some((block, inner))
            })?;
    Some(block * CHUNK + inner)
}

/// Keys and values of one decoder layer, and how attention reads them, or a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheLayer {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements per head vector.
    pub head_dim: usize,
    /// Tokens that a query sees, its own included; `None` for all before it.
    pub window: Option<usize>,
    /// What products of queries and keys are divided by.
    pub score_divisor: f32,
    /// The layer has no attention, hence no keys and values, but this.
    pub recurrent: Option<RecurrentLayer>,
}

impl CacheLayer {
    /// Elements per head vector that it stores; 0 where it stores no keys and values.
    pub fn stored_head_dim(&self) -> usize {
        self.recurrent.map_or(self.head_dim, |_| 0)
    }

    /// Attention to all tokens before, scores divided by the square root of `head_dim`.
    pub fn new(kv_heads: usize, head_dim: usize) -> Self {
        CacheLayer {
            kv_heads,
            head_dim,
            window: None,
            score_divisor: (head_dim as f32).sqrt(),
            recurrent: None,
        }
    }

    /// A recurrent layer: zero keys and values.
    pub fn recurrent(layer: RecurrentLayer) -> Self {
        CacheLayer {
            recurrent: Some(layer),
            ..CacheLayer::new(0, 0)
        }
    }

    /// Elements of a token's keys, and of its values.
    pub fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The first position that a query at `position` sees.
    pub fn first_visible(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// Shape and recipe of a physical cache.
#[derive(Clone, Debug)]
pub struct CacheLayout {
    /// Decoder layers, the first one first.
    pub layers: Vec<CacheLayer>,
    /// Format of native components.
    pub native: NativeDtype,
    /// Sequences held side by side.
    pub slots: usize,
    /// Most tokens per sequence.
    pub slot_tokens: usize,
    /// Most tokens that a pass stores beyond one per slot: for these, layers with a window have room
    /// beside their windows. A pass of more grows beyond what was planned for.
    pub pass_tokens: usize,
    /// What is stored.
    pub recipe: Recipe,
    /// Largest absolute values per layer, where the recipe has fixed scales.
    pub absmax: Option<Vec<LayerAbsmax>>,
}

/// What a cache has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimit {
    /// Tokens of all slots together, in whole pages, in layers that keep every token.
    pub tokens: usize,
    /// Sequences at a time, in layers with a window.
    pub sequences: usize,
}

/// Where a row belongs: its sequence and its position therein.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRow {
    /// Slot number.
    pub slot: usize,
    /// Position from 0.
    pub position: usize,
}

/// What the layers of a pass have in common with each other.
///
/// A backend may record what `run` of [`super::Backend::layers`] starts, and start that again in
/// later passes over as many rows in place of calling `run`. So `run` starts the same operations
/// whenever it gets the same state, cache and tables and as many rows, reads nothing back, and may be
/// called twice.
#[derive(Clone, Copy, Debug)]
pub struct LayerPass<'a> {
    /// Where each token belongs.
    pub rows: &'a [CacheRow],
    /// Every rotary table that the layers look at.
    pub rotary: &'a [RotaryTable],
}

/// Rotary angles per position: `cos` and `sin` are `[positions, half]`. Of a head vector the first
/// `2 * half` elements are rotated, element `i` with element `i + half`; the others stay.
///
/// They are immutable and shared: a device knows its copy by the identity of what was copied.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryTable {
    /// Cosines, already multiplied by the attention factor.
    pub cos: Arc<[f32]>,
    /// Sines, likewise.
    pub sin: Arc<[f32]>,
    /// Half of the elements that are rotated.
    pub half: usize,
    /// Elements per head vector.
    pub head_dim: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_element_is_found_across_chunks() {
        let mut values = vec![0.5f32; 3 * CHUNK];
        assert_eq!(TensorData::F32(values.clone()).first_non_finite(), None);
        values[2 * CHUNK + 7] = f32::NAN;
        values[CHUNK + 3] = f32::INFINITY;
        let found = TensorData::F32(values).first_non_finite();
        assert_eq!(found, Some((CHUNK + 3, f32::INFINITY)));
        let halves = vec![half::f16::ONE, half::f16::NEG_INFINITY];
        let found = TensorData::F16(halves).first_non_finite();
        assert_eq!(found, Some((1, f32::NEG_INFINITY)));
    }
}
