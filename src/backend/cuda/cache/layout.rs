//! Where the components of each layer lie in a page.

use super::PAGE;
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
    kv_heads: usize,
    head_dim: usize,
) -> (Vec<[SideLayout; 2]>, usize, usize) {
    let (mut stored, mut counts) = (0, 0);
    let take = |from: &mut usize, bytes: usize| {
        let first = *from;
        *from += bytes;
        u32::try_from(first).expect("pages below 4 GiB")
    };
    let vectors = kv_heads * PAGE;
    let mut sides = Vec::with_capacity(storages.len());
    for layer in storages {
        let elements = layer.map(|storage| {
            let width = if matches!(storage, Storage::Native(_)) {
                2
            } else {
                1
            };
            take(&mut stored, vectors * head_dim * width)
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
    use crate::backend::conformance::Shape as TestShape;
    use crate::backend::storage;
    use crate::recipe::{CacheShape, NativeDtype, bytes_per_token};

    #[test]
    fn a_page_has_the_bytes_that_recipes_are_priced_by() {
        let shape = TestShape {
            layers: 3,
            heads: 4,
            kv_heads: 2,
            head_dim: 24,
        };
        for recipe in [
            "native",
            "AF",
            "AD",
            "RD",
            "SD",
            "k=int8:dynamic,v=e4m3:fixed,skip-layers=0",
        ] {
            let layout = shape.layout(recipe, NativeDtype::F16);
            let storages = storage::of_layers(&layout, "cuda").unwrap();
            let (sides, stored, _) = lay_out(&storages, 2, 24);
            let cache = CacheShape {
                layers: 3,
                kv_heads: 2,
                head_dim: 24,
            };
            assert_eq!(
                stored as u64,
                16 * bytes_per_token(&layout.recipe, &cache),
                "{recipe}"
            );
            // Copies of 16 bytes start at multiples of 16.
            assert!(sides.iter().flatten().all(|side| side.elements % 16 == 0));
        }
    }
}
