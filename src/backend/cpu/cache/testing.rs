//! What tests do to a cache.

use super::{CpuCache, PAGE, PlaneShape, Side};

impl CpuCache {
    /// Overwrites everything that holds no token with patterns that decode to large numbers or
    /// NaN, free pages included.
    pub fn poison(&mut self) {
        for slot in 0..self.past.len() {
            let tokens = (0..self.shapes.len()).map(|layer| self.kept.tokens(layer, slot));
            let most = tokens.max().unwrap_or(0);
            self.sink.poison(slot, most);
        }
        for (number, kind) in self.kept.kinds().iter().enumerate() {
            let live: Vec<(usize, usize)> = (0..self.past.len())
                .flat_map(|slot| {
                    let tokens = kind
                        .layers
                        .iter()
                        .map(|&layer| self.kept.tokens(layer, slot));
                    let most = tokens.max().unwrap_or(0);
                    let kept = move |n: usize| most.saturating_sub(n * PAGE).min(PAGE);
                    let run = self.kept.run(number, slot).iter();
                    run.map(move |(n, page)| (page, kept(n)))
                })
                .collect();
            for (at, page) in self.pools[number].pages.iter_mut().enumerate() {
                let kept = live
                    .iter()
                    .find(|(p, _)| *p == at)
                    .map_or(0, |(_, kept)| *kept);
                for (layer, number) in page.iter_mut().zip(&kind.layers) {
                    let shape = PlaneShape::of(&self.shapes[*number]);
                    for side in [Side::Key, Side::Value] {
                        layer.planes[side as usize].poison(side, shape, kept);
                    }
                }
            }
        }
    }

    /// Pages that exist, used or free, of all kinds.
    pub fn page_count(&self) -> usize {
        self.pools.iter().map(|pool| pool.pages.len()).sum()
    }
}
