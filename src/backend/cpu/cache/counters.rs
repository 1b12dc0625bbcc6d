//! What a slot holds, told from its stored bytes and the counters beside them.

use super::plane::Plane;
use super::{CpuCache, PAGE, Side, Tally};
use crate::backend::storage::Storage;
use crate::schema::{ComponentTotals, KvTotals, LayerAbsmax};

impl CpuCache {
    /// What the slot holds, per layer; scales are read back from where attention reads them.
    pub fn totals(&self, slot: usize) -> Vec<KvTotals> {
        (0..self.layers.len())
            .map(|layer| KvTotals {
                k: self.component_totals(slot, layer, Side::Key),
                v: self.component_totals(slot, layer, Side::Value),
            })
            .collect()
    }

    /// Stored tokens of one component: plane, position and counters.
    fn stored(
        &self,
        slot: usize,
        layer: usize,
        side: Side,
    ) -> impl Iterator<Item = (&Plane, usize, Tally)> {
        let pages = self.slots[slot].pages.iter().enumerate();
        pages
            .flat_map(move |(number, &page)| {
                let page = &self.pages[page][layer];
                let plane = &page.planes[side as usize];
                let lanes = page.tallies.iter().enumerate();
                lanes.map(move |(lane, tallies)| {
                    (plane, number * PAGE + lane, tallies[side as usize])
                })
            })
            .filter(|(_, _, tally)| tally.stored)
    }

    /// How a token is stored: natively in the sink.
    fn storage_at(&self, layer: usize, side: Side, position: usize) -> Storage {
        match self.layers[layer][side as usize] {
            _ if position < self.sink.tokens() => self.sink.storage(),
            storage => storage,
        }
    }

    fn component_totals(&self, slot: usize, layer: usize, side: Side) -> ComponentTotals {
        let shape = self.shape(layer);
        let mut totals = ComponentTotals::default();
        for (plane, position, tally) in self.stored(slot, layer, side) {
            let storage = self.storage_at(layer, side, position);
            let (low, high) = plane.scales(storage, shape, position % PAGE);
            totals.merge(&ComponentTotals {
                bytes: storage.token_bytes(shape.kv_heads, shape.head_dim),
                elements: shape.width() as u64,
                saturated: u64::from(tally.saturated),
                changed: u64::from(tally.changed),
                scale_min: low,
                scale_max: high,
            });
        }
        totals
    }

    /// Largest absolute stored key and value of the slot, per layer.
    pub fn absmax(&self, slot: usize) -> Vec<LayerAbsmax> {
        (0..self.layers.len())
            .map(|layer| LayerAbsmax {
                k: self.component_absmax(slot, layer, Side::Key),
                v: self.component_absmax(slot, layer, Side::Value),
            })
            .collect()
    }

    fn component_absmax(&self, slot: usize, layer: usize, side: Side) -> f32 {
        let storage = self.layers[layer][side as usize];
        let shape = self.shape(layer);
        let mut vector = vec![0.0; shape.head_dim];
        let mut absmax = 0.0_f32;
        for (plane, position, _) in self.stored(slot, layer, side) {
            let in_sink = position < self.sink.tokens() && !storage.is_native();
            for head in 0..shape.kv_heads {
                if in_sink {
                    let stored = self.sink.vector((slot, layer, side), head, position);
                    stored.for_each(|(d, x)| vector[d] = x);
                } else {
                    let lane = position % PAGE;
                    plane.vector(side, shape, storage, head, lane, &mut vector);
                }
                absmax = vector.iter().fold(absmax, |m, x| m.max(x.abs()));
            }
        }
        absmax
    }
}
