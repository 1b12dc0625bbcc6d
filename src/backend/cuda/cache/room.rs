//! How many sequences and tokens fit into so much memory, before anything is allocated.

use super::super::recurrent::state_bytes;
use super::layout::{PageBytes, lay_out};
use super::pool::slab_pages;
use super::totals::past_bytes;
use super::{PAGE, Page};
use crate::backend::pages::LayerKind;
use crate::backend::storage;
use crate::backend::{BackendError, CacheLayout, CacheLimit};

/// Share of the memory that pages may take: the rest is for what allocators round up, and for
/// other processes of the GPU.
const SHARE: f64 = 0.9;

/// Sizes of a cache that is to be.
#[derive(Clone, Debug)]
pub struct CacheRoom<'a> {
    layout: &'a CacheLayout,
    kinds: Vec<KindRoom>,
    /// Bytes of the tables of pages, of the slots' first tokens, of what stands in for pages and sums
    /// them up, and of recurrent states.
    beside: usize,
}

/// Pages of one kind of layers.
#[derive(Clone, Debug)]
struct KindRoom {
    kind: LayerKind,
    /// Bytes of a page, counters included.
    page: usize,
    /// Pages that are allocated at once.
    slab: usize,
}

impl KindRoom {
    /// Bytes that are allocated where `pages` of at most `most` pages are needed: whole slabs, but for
    /// the one that completes the slots.
    fn allocated(&self, pages: usize, most: usize) -> usize {
        let pages = pages.next_multiple_of(self.slab).min(most);
        pages.saturating_mul(self.page)
    }
}

impl<'a> CacheRoom<'a> {
    /// The sizes of a cache of this layout.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] names what the recipe asks for and this worker lacks.
    pub fn new(layout: &'a CacheLayout) -> Result<Self, BackendError> {
        let storages = storage::of_layers(layout)?;
        let kinds = LayerKind::of(layout);
        let sink_tokens = layout.recipe.sink as usize;
        let laid_out = lay_out(&storages, &layout.layers, &kinds, sink_tokens);
        let tables = kinds.len() * layout.slots * layout.slot_tokens.div_ceil(PAGE);
        let windowed = kinds.iter().zip(&laid_out.kinds);
        let stand_ins = windowed.filter(|(kind, _)| kind.window.is_some());
        let stand_ins: usize = stand_ins.map(|(_, bytes)| bytes.stored).sum();
        let beside = tables * size_of::<Page>() + layout.slots * laid_out.sink + stand_ins;
        let room = |(kind, bytes): (LayerKind, &PageBytes)| KindRoom {
            kind,
            page: bytes.stored + bytes.counts,
            slab: slab_pages(bytes.stored),
        };
        let beside = beside + past_bytes(layout, &kinds);
        Ok(CacheRoom {
            beside: state_bytes(layout).saturating_add(beside),
            kinds: kinds.into_iter().zip(&laid_out.kinds).map(room).collect(),
            layout,
        })
    }

    /// What has room in `bytes`, however tokens are spread over slots in whole pages. As many sequences
    /// as fit at their full length have room for their windows; the rest is for tokens of layers that
    /// keep all of them.
    pub fn limit_in(&self, bytes: usize) -> CacheLimit {
        let share = (bytes as f64 * SHARE) as usize;
        let room = share.saturating_sub(self.beside);
        let slots = self.layout.slots;
        let full = |sequences: &usize| {
            let windows = self.bytes_of(*sequences, |kind| kind.window.is_some());
            let every = self.bytes_of(*sequences, |kind| kind.window.is_none());
            windows.saturating_add(every) <= room
        };
        let is_bounded = self.kinds.iter().any(|of| of.kind.window.is_some());
        let sequences = if is_bounded {
            (1..=slots).rev().find(full).unwrap_or(1)
        } else {
            slots
        };
        let windows = self.bytes_of(sequences, |kind| kind.window.is_some());
        let Some(left) = room.checked_sub(windows) else {
            return CacheLimit {
                tokens: 0,
                sequences: 0,
            };
        };
        let most = slots * self.layout.slot_tokens.div_ceil(PAGE);
        let every = self.kinds.iter().find(|of| of.kind.window.is_none());
        let pages = every.map_or(most, |of| match left / of.page.max(1) {
            pages if pages >= most => most,
            pages => pages / of.slab * of.slab,
        });
        CacheLimit {
            tokens: pages * PAGE,
            sequences,
        }
    }

    /// Bytes of pages of some kinds for so many sequences of full length.
    fn bytes_of(&self, sequences: usize, is_counted: impl Fn(&LayerKind) -> bool) -> usize {
        let counted = self.kinds.iter().filter(|of| is_counted(&of.kind));
        let bytes = counted.map(|of| {
            let most = of.kind.most_pages(self.layout, self.layout.slots);
            of.allocated(of.kind.most_pages(self.layout, sequences), most)
        });
        bytes.fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::conformance::Shape;
    use crate::recipe::NativeDtype;

    const SHAPE: Shape = Shape {
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 24,
    };

    /// Of the three layers, the first ones have a window.
    fn layout(recipe: &str, windows: &[usize], slots: usize, slot_tokens: usize) -> CacheLayout {
        let mut layout = CacheLayout {
            slots,
            slot_tokens,
            pass_tokens: 256,
            ..SHAPE.layout(recipe, NativeDtype::F16)
        };
        for (layer, &window) in layout.layers.iter_mut().zip(windows) {
            layer.window = Some(window);
        }
        layout
    }

    fn pages(layout: &CacheLayout) -> Vec<usize> {
        let room = CacheRoom::new(layout).unwrap();
        room.kinds.iter().map(|of| of.page).collect()
    }

    #[test]
    fn a_page_counts_what_it_stores_and_counts() {
        // Two heads of 24 elements a layer: 16 tokens of 2 or 1 bytes an element; a scale
        // and a counter of 4 bytes each per head vector.
        let (elements, vectors) = (2 * 24 * 16, 2 * 16);
        let of = |recipe, windows: &[usize]| pages(&layout(recipe, windows, 1, 500));
        assert_eq!(of("native", &[]), [3 * 2 * elements * 2]);
        assert_eq!(of("SF", &[]), [3 * (2 * elements + 2 * 4 * vectors)]);
        assert_eq!(of("AD", &[]), [3 * (3 * elements + 8 * vectors)]);
        let layer = 2 * elements + 2 * 4 * vectors;
        assert_eq!(of("SF", &[20, 20]), [layer, 2 * layer]);
        assert_eq!(of("SF", &[30, 500, 20]), [layer; 3]);
        assert_eq!(of("SF", &[20, 20, 20]), [3 * layer]);
    }

    #[test]
    fn windows_take_what_tokens_behind_them_leave() {
        let bounded = layout("native", &[20, 20], 4, 8192);
        let room = CacheRoom::new(&bounded).unwrap();
        let page = 2 * 2 * 24 * 16 * 2;
        let sequence = |tokens: usize| tokens / 16 * page;
        let bytes = |sequences: usize| {
            let windows = sequences * 3 + (256 + 15 * sequences) / 16;
            2 * windows * page + sequences * sequence(8192)
        };
        let limit = |bytes: usize| room.limit_in((bytes as f64 / SHARE) as usize + 2);
        let all = CacheLimit {
            tokens: 4 * 8192,
            sequences: 4,
        };
        assert_eq!(limit(room.beside + bytes(4)), all);
        // Slabs are larger than this cache: less than all tokens means none.
        let less = limit(room.beside + bytes(4) - 16);
        assert_eq!((less.sequences, less.tokens), (1, 0));
        assert_eq!(limit(room.beside).sequences, 0);
        // All layers alike: sequences alone count.
        let alike = layout("native", &[20, 20, 20], 4, 8192);
        let room = CacheRoom::new(&alike).unwrap();
        let found = room.limit_in(1 << 30);
        assert_eq!((found.sequences, found.tokens), (4, 4 * 8192));
    }

    proptest! {
        /// What is allowed is allocated in whole slabs and fits; one slab more would not.
        #[test]
        fn what_is_allowed_fits_in_whole_slabs(
            bytes in 0usize..100_000_000_000,
            slots in 1usize..600,
            slot_tokens in 1usize..9000,
        ) {
            let layout = layout("SD", &[], slots, slot_tokens);
            let room = CacheRoom::new(&layout).unwrap();
            let of = &room.kinds[0];
            let most = slots * slot_tokens.div_ceil(PAGE);
            let found = room.limit_in(bytes);
            let pages = found.tokens / PAGE;
            prop_assert_eq!(found.sequences, slots);
            let allocated = of.allocated(pages, most);
            prop_assert!(pages == 0 || allocated + room.beside <= bytes);
            prop_assert!(pages <= most);
            let more = (pages + of.slab).min(most);
            let needs = more * of.page + room.beside;
            prop_assert!(pages == most || needs as f64 > 0.89 * bytes as f64);
        }

        /// With windows too; and where not all sequences have room, those that have could not be more
        /// at their full length.
        #[test]
        fn windows_and_tokens_fit_together(
            bytes in 0usize..100_000_000_000,
            slots in 1usize..600,
            slot_tokens in 1usize..9000,
            windows in proptest::collection::vec(1usize..5000, 1..4),
        ) {
            let layout = layout("SD", &windows, slots, slot_tokens);
            let room = CacheRoom::new(&layout).unwrap();
            let found = room.limit_in(bytes);
            let is_window = |kind: &LayerKind| kind.window.is_some();
            let every = room.kinds.iter().find(|of| of.kind.window.is_none());
            let taken = room.bytes_of(found.sequences, is_window)
                + every.map_or(0, |of| of.page * found.tokens / PAGE);
            prop_assert!(found.sequences <= slots && found.tokens <= slots * slot_tokens.next_multiple_of(PAGE));
            if found.sequences > 0 {
                prop_assert!(taken + room.beside <= bytes, "{taken} of {bytes}");
            }
            if (1..slots).contains(&found.sequences) {
                let more = room.bytes_of(found.sequences + 1, |_| true);
                prop_assert!((more + room.beside) as f64 > 0.89 * bytes as f64);
            }
        }
    }
}
