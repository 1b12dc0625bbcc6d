//! What tests do to a cache.

use super::{CpuCache, PAGE, PlaneShape, Side};

impl CpuCache {
    /// Overwrites everything that holds no token with patterns that decode to large numbers or
    /// NaN, free pages included.
    pub fn poison(&mut self) {
        let live: Vec<(usize, usize)> = self
            .slots
            .iter()
            .flat_map(|slot| {
                let most = slot.tokens.iter().copied().max().unwrap_or(0);
                let tokens = move |n: usize| most.saturating_sub(n * PAGE).min(PAGE);
                slot.pages
                    .iter()
                    .enumerate()
                    .map(move |(n, &page)| (page, tokens(n)))
            })
            .collect();
        for (slot, state) in self.slots.iter().enumerate() {
            self.sink
                .poison(slot, state.tokens.iter().copied().max().unwrap_or(0));
        }
        for (number, page) in self.pages.iter_mut().enumerate() {
            let kept = live
                .iter()
                .find(|(p, _)| *p == number)
                .map_or(0, |(_, kept)| *kept);
            for (layer, shape) in page.iter_mut().zip(&self.shapes) {
                for side in [Side::Key, Side::Value] {
                    layer.planes[side as usize].poison(side, PlaneShape::of(shape), kept);
                }
            }
        }
    }

    /// Pages that exist, used or free.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }
}
