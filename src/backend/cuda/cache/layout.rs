//! Where the components of each layer lie in a page.

use std::ops::Range;

use super::PAGE;
use crate::backend::cuda::tensor::Format;
use crate::backend::pages::LayerKind;
use crate::backend::storage::Storage;
use crate::backend::{BackendError, CacheLayer};
use crate::recipe::GroupSize;

/// One component of one layer; layout as in the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SideLayout {
    format: i32,
    dynamic: i32,
    scale: f32,
    /// Offset of elements in a page.
    pub elements: u32,
    /// Offset of inline scales in a page.
    pub scales: u32,
    counts: u32,
    /// Offset in a slot's room for its first tokens.
    sink: u32,
}

impl SideLayout {
    /// Bytes of a page that hold inline scales of `kv_heads` heads.
    pub fn scale_bytes(&self, kv_heads: usize) -> Range<usize> {
        let first = self.scales as usize;
        let vectors = if self.dynamic == 0 {
            0
        } else {
            kv_heads * PAGE
        };
        first..first + vectors * size_of::<f32>()
    }
}

/// Where each component of each layer lies, and the bytes of what they lie in.
pub struct Layout {
    /// Keys and values per layer, in pages of the layer's kind.
    pub sides: Vec<[SideLayout; 2]>,
    /// By kind.
    pub kinds: Vec<PageBytes>,
    /// Bytes of a slot's first tokens.
    pub sink: usize,
}

/// Sizes of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageBytes {
    /// Bytes of elements and scales.
    pub stored: usize,
    /// Bytes of counters.
    pub counts: usize,
}

/// Number of a storage's format in the kernels.
fn number(storage: Storage) -> i32 {
    match storage {
        Storage::Grouped(GroupSize::Of32, _) => 6,
        Storage::Grouped(GroupSize::Of64, _) => 7,
        other => Format::of_storage(other) as i32,
    }
}

/// The widest heads that this worker has kernels for.
pub const LARGEST_HEAD_DIM: usize = 512;

/// Whether this worker has kernels for heads of `dim` elements.
pub fn has_head_dim(dim: usize) -> bool {
    dim.is_multiple_of(8) && (8..=LARGEST_HEAD_DIM).contains(&dim)
}

/// Checks that kernels hold the head vectors of every layer.
///
/// # Errors
/// [`BackendError::Unsupported`].
pub fn check_layers(layers: &[CacheLayer]) -> Result<(), BackendError> {
    let attention = layers.iter().filter(|layer| layer.recurrent.is_none());
    let mut head_dims = attention.map(|layer| layer.head_dim);
    match head_dims.find(|&dim| !has_head_dim(dim)) {
        None => Ok(()),
        Some(head_dim) => Err(BackendError::Unsupported(format!(
            "head_dim {head_dim}: the cuda worker has multiples of 8 up to {LARGEST_HEAD_DIM}"
        ))),
    }
}

/// Lays out a page of every kind, and `sink_tokens` native tokens of a slot.
pub fn lay_out(
    storages: &[[Storage; 2]],
    layers: &[CacheLayer],
    kinds: &[LayerKind],
    sink_tokens: usize,
) -> Layout {
    let mut sizes = vec![PageBytes::default(); kinds.len()];
    let mut sink = 0;
    let take = |from: &mut usize, bytes: usize| {
        let first = *from;
        *from += bytes;
        u32::try_from(first).expect("pages below 4 GiB")
    };
    let mut sides = Vec::with_capacity(storages.len());
    for (at, (layer, shape)) in storages.iter().zip(layers).enumerate() {
        let kind = kinds.iter().position(|kind| kind.layers.contains(&at));
        let PageBytes { stored, counts } = &mut sizes[kind.unwrap_or_default()];
        let CacheLayer {
            kv_heads, head_dim, ..
        } = *shape;
        let vectors = kv_heads * PAGE;
        let elements = layer.map(|storage| {
            let bytes = match storage {
                Storage::Native(_) => 2 * head_dim,
                Storage::Fixed(..) | Storage::Dynamic(..) => head_dim,
                Storage::Grouped(size, _) => size.stored_bytes(head_dim as u64) as usize,
            };
            take(stored, vectors * bytes)
        });
        let mut side = |which: usize| {
            let (dynamic, scale) = match layer[which] {
                Storage::Native(_) | Storage::Grouped(..) => (false, 1.0),
                Storage::Fixed(_, _, scale) => (false, scale),
                Storage::Dynamic(..) => (true, 1.0),
            };
            let quantised = !layer[which].is_native();
            let first_tokens = usize::from(quantised) * sink_tokens;
            SideLayout {
                format: number(layer[which]),
                dynamic: i32::from(dynamic),
                scale,
                elements: elements[which],
                scales: take(stored, if dynamic { vectors * 4 } else { 0 }),
                counts: take(counts, if quantised { vectors * 4 } else { 0 }),
                sink: take(&mut sink, 2 * first_tokens * kv_heads * head_dim),
            }
        };
        sides.push([side(0), side(1)]);
    }
    Layout {
        sides,
        kinds: sizes,
        sink,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::CacheLayout;
    use crate::backend::storage;
    use crate::recipe::{
        CacheShape, NativeDtype, Recipe, bytes_per_token, cache_bytes, sink_bytes,
    };
    use crate::schema::LayerAbsmax;

    const LAYERS: usize = 3;
    const HEAD_DIMS: [usize; 6] = [24, 64, 96, 128, 256, 512];
    const KV_HEADS: [usize; 5] = [1, 2, 5, 8, 10];

    /// Every pair of formats and scale policies, and a recipe that skips layers.
    fn recipes() -> Vec<Recipe> {
        let sides = [
            "native",
            "e4m3:fixed",
            "e4m3:dynamic",
            "e5m2:fixed",
            "e5m2:dynamic",
            "int8:fixed",
            "int8:dynamic",
        ];
        let mut texts = vec!["k=int8:dynamic,v=e4m3:fixed,sink=5,skip-layers=0".to_owned()];
        for k in sides {
            texts.extend(sides.map(|v| format!("k={k},v={v}")));
        }
        let parsed = texts.iter().map(|text| Recipe::parse(text).unwrap());
        parsed.collect()
    }

    fn laid_out(recipe: &Recipe, kv_heads: usize, head_dim: usize) -> Layout {
        let layout = CacheLayout {
            layers: vec![CacheLayer::new(kv_heads, head_dim); LAYERS],
            native: NativeDtype::Bf16,
            slots: 1,
            slot_tokens: PAGE,
            pass_tokens: PAGE,
            recipe: recipe.clone(),
            absmax: Some(vec![LayerAbsmax { k: 3.0, v: 2.0 }; LAYERS]),
        };
        let storages = storage::of_layers(&layout).unwrap();
        let kinds = LayerKind::of(&layout);
        lay_out(&storages, &layout.layers, &kinds, recipe.sink as usize)
    }

    #[test]
    fn pages_take_the_bytes_that_memory_figures_give() {
        let mut pages = 0;
        for (head_dim, kv_heads) in HEAD_DIMS
            .iter()
            .flat_map(|&dim| KV_HEADS.map(|heads| (dim, heads)))
        {
            let shape = CacheShape {
                layers: LAYERS as u32,
                kv_heads: kv_heads as u32,
                head_dim: head_dim as u32,
            };
            let groups = match head_dim % 64 {
                0 => &["k=int4,v=int4-64,sink=7", "k=int4-64,v=e4m3"][..],
                32 => &["k=native,v=int4"],
                _ => &[],
            };
            let groups = groups.iter().map(|text| Recipe::parse(text).unwrap());
            for recipe in recipes().into_iter().chain(groups) {
                let found = laid_out(&recipe, kv_heads, head_dim);
                let (sides, stored) = (&found.sides, found.kinds[0].stored as u64);
                assert_eq!(found.sink as u64, sink_bytes(&recipe, &shape));
                let place = format!("{} at {kv_heads} heads of {head_dim}", recipe.name);
                let per_token = bytes_per_token(&recipe, &shape);
                for count in [1, 7, 18_188] {
                    let expected = cache_bytes(count, per_token);
                    assert_eq!(Some(count * stored), expected, "{place}");
                }
                // Copies of 16 bytes start at multiples of 16.
                let aligned = |side: &SideLayout| side.elements.is_multiple_of(16);
                assert!(sides.iter().flatten().all(aligned), "{place}");
                pages += 1;
            }
        }
        // Of six widths four are whole groups of 64, one of 32.
        assert_eq!(pages, 30 * 50 + 5 * (4 * 2 + 1));
    }

    #[test]
    fn keys_and_values_in_exchanged_formats_take_the_same_bytes() {
        for (a, r) in [("AF", "RF"), ("AD", "RD")] {
            let [a, r] = [a, r].map(|name| Recipe::parse(name).unwrap());
            for head_dim in HEAD_DIMS {
                for kv_heads in KV_HEADS {
                    let bytes = |recipe| {
                        let found = laid_out(recipe, kv_heads, head_dim);
                        found.kinds
                    };
                    assert_eq!(bytes(&a), bytes(&r), "{kv_heads} heads of {head_dim}");
                }
            }
        }
    }
}
