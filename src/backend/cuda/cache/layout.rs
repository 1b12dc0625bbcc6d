//! Where the components of each layer lie in a page.

use super::PAGE;
use crate::backend::CacheLayer;
use crate::backend::cuda::tensor::Format;
use crate::backend::storage::Storage;

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
}

/// Where each component of each layer lies in a page, and the page's bytes of stored elements and
/// of counters.
pub fn lay_out(
    storages: &[[Storage; 2]],
    layers: &[CacheLayer],
) -> (Vec<[SideLayout; 2]>, usize, usize) {
    let (mut stored, mut counts) = (0, 0);
    let take = |from: &mut usize, bytes: usize| {
        let first = *from;
        *from += bytes;
        u32::try_from(first).expect("pages below 4 GiB")
    };
    let mut sides = Vec::with_capacity(storages.len());
    for (layer, shape) in storages.iter().zip(layers) {
        let vectors = shape.kv_heads * PAGE;
        let elements = layer.map(|storage| {
            let width = if matches!(storage, Storage::Native(_)) {
                2
            } else {
                1
            };
            take(&mut stored, vectors * shape.head_dim * width)
        });
        let mut side = |which: usize| {
            let (dynamic, scale) = match layer[which] {
                Storage::Native(_) => (false, 1.0),
                Storage::Fixed(_, _, scale) => (false, scale),
                Storage::Dynamic(..) => (true, 1.0),
            };
            let quantised = !matches!(layer[which], Storage::Native(_));
            SideLayout {
                format: Format::of_storage(layer[which]) as i32,
                dynamic: i32::from(dynamic),
                scale,
                elements: elements[which],
                scales: take(&mut stored, if dynamic { vectors * 4 } else { 0 }),
                counts: take(&mut counts, if quantised { vectors * 4 } else { 0 }),
            }
        };
        sides.push([side(0), side(1)]);
    }
    (sides, stored, counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::CacheLayout;
    use crate::backend::storage;
    use crate::recipe::{CacheShape, NativeDtype, Recipe, bytes_per_token, cache_bytes};
    use crate::schema::LayerAbsmax;

    const LAYERS: usize = 3;
    const HEAD_DIMS: [usize; 5] = [24, 64, 96, 128, 256];
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
        let mut texts = vec!["k=int8:dynamic,v=e4m3:fixed,skip-layers=0".to_owned()];
        for k in sides {
            texts.extend(sides.map(|v| format!("k={k},v={v}")));
        }
        let parsed = texts.iter().map(|text| Recipe::parse(text).unwrap());
        parsed.collect()
    }

    fn page(recipe: &Recipe, kv_heads: usize, head_dim: usize) -> (Vec<[SideLayout; 2]>, [u64; 2]) {
        let layout = CacheLayout {
            layers: vec![CacheLayer::new(kv_heads, head_dim); LAYERS],
            native: NativeDtype::Bf16,
            slots: 1,
            slot_tokens: PAGE,
            recipe: recipe.clone(),
            absmax: Some(vec![LayerAbsmax { k: 3.0, v: 2.0 }; LAYERS]),
        };
        let storages = storage::of_layers(&layout, "cuda").unwrap();
        let (sides, stored, counts) = lay_out(&storages, &layout.layers);
        (sides, [stored as u64, counts as u64])
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
            for recipe in recipes() {
                let (sides, [stored, _]) = page(&recipe, kv_heads, head_dim);
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
        assert_eq!(pages, 25 * 50);
    }

    #[test]
    fn keys_and_values_in_exchanged_formats_take_the_same_bytes() {
        for (a, r) in [("AF", "RF"), ("AD", "RD")] {
            let [a, r] = [a, r].map(|name| Recipe::parse(name).unwrap());
            for head_dim in HEAD_DIMS {
                for kv_heads in KV_HEADS {
                    let bytes = |recipe| page(recipe, kv_heads, head_dim).1;
                    assert_eq!(bytes(&a), bytes(&r), "{kv_heads} heads of {head_dim}");
                }
            }
        }
    }
}
