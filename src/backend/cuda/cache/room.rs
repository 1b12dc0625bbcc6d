//! How many tokens fit into so much memory, before anything is allocated.

use super::super::recurrent::state_bytes;
use super::layout::lay_out;
use super::pool::slab_pages;
use super::{PAGE, Page};
use crate::backend::storage;
use crate::backend::{BackendError, CacheLayout};

/// Share of the memory that pages may take: the rest is for what allocators round up, and for
/// other processes of the GPU.
const SHARE: f64 = 0.9;

/// Sizes of a cache that is to be.
#[derive(Clone, Copy, Debug)]
pub struct CacheRoom {
    /// Bytes of a page, counters included.
    page: usize,
    /// Pages that are allocated at once.
    slab: usize,
    /// Bytes of the table of pages, of the slots' first tokens and of recurrent states.
    beside: usize,
    /// Pages that the slots can hold together.
    most: usize,
}

impl CacheRoom {
    /// The sizes of a cache of this layout.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] names what the recipe asks for and this worker lacks.
    pub fn new(layout: &CacheLayout) -> Result<Self, BackendError> {
        let storages = storage::of_layers(layout)?;
        let laid_out = lay_out(&storages, &layout.layers, layout.recipe.sink as usize);
        let (stored, counts) = (laid_out.stored, laid_out.counts);
        let most = layout.slots * layout.slot_tokens.div_ceil(PAGE);
        Ok(CacheRoom {
            page: stored + counts,
            slab: slab_pages(stored),
            beside: state_bytes(layout)
                .saturating_add(most * size_of::<Page>() + layout.slots * laid_out.sink),
            most,
        })
    }

    /// Most tokens whose pages fit into `bytes`, however they are spread over slots in whole
    /// pages.
    pub fn tokens_in(&self, bytes: usize) -> usize {
        let share = (bytes as f64 * SHARE) as usize;
        let pages = share.saturating_sub(self.beside) / self.page.max(1);
        // Pages come in whole slabs, but for the one that completes the slots.
        let pages = if pages >= self.most {
            self.most
        } else {
            pages / self.slab * self.slab
        };
        pages * PAGE
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::conformance::Shape;
    use crate::recipe::NativeDtype;

    fn room(recipe: &str, slots: usize, slot_tokens: usize) -> CacheRoom {
        let shape = Shape {
            layers: 3,
            heads: 4,
            kv_heads: 2,
            head_dim: 24,
        };
        let layout = CacheLayout {
            slots,
            slot_tokens,
            ..shape.layout(recipe, NativeDtype::F16)
        };
        CacheRoom::new(&layout).unwrap()
    }

    #[test]
    fn a_page_counts_what_it_stores_and_counts() {
        // Two heads of 24 elements in three layers: 16 tokens of 2 or 1 bytes an element; a scale
        // and a counter of 4 bytes each per head vector.
        let (elements, vectors) = (3 * 2 * 24 * 16, 3 * 2 * 16);
        assert_eq!(room("native", 1, 16).page, 2 * elements * 2);
        assert_eq!(room("SF", 1, 16).page, 2 * elements + 2 * 4 * vectors);
        assert_eq!(room("AD", 1, 16).page, 3 * elements + 8 * vectors);
        assert_eq!(room("native", 5, 40).most, 15);
    }

    proptest! {
        /// What is allowed is allocated in whole slabs and fits; one slab more would not.
        #[test]
        fn what_is_allowed_fits_in_whole_slabs(
            bytes in 0usize..100_000_000_000,
            slots in 1usize..600,
            slot_tokens in 1usize..9000,
        ) {
            let room = room("SD", slots, slot_tokens);
            let pages = room.tokens_in(bytes) / PAGE;
            let allocated = pages.next_multiple_of(room.slab).min(room.most);
            prop_assert!(pages == 0 || allocated * room.page + room.beside <= bytes);
            prop_assert!(pages <= room.most);
            let more = (pages + room.slab).min(room.most);
            let needs = more * room.page + room.beside;
            prop_assert!(pages == room.most || needs as f64 > 0.89 * bytes as f64);
        }
    }
}
