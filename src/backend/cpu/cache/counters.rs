//! What a slot stored, told from its stored bytes and the counters beside them; what a window gave back
//! was summed up before.

use super::plane::Plane;
use super::pool::{LayerPage, Tally};
use super::{CpuCache, GivenBack, PAGE, Side};
use crate::backend::storage::Storage;
use crate::schema::{ComponentTotals, KvTotals, LayerAbsmax};

/// What a component of a slot's layer gave back.
#[derive(Clone, Default)]
pub struct Past {
    totals: ComponentTotals,
    absmax: f32,
}

/// Slot, layer and component.
type Place = (usize, usize, Side);

/// A stored token of one component.
struct Stored<'a> {
    plane: &'a Plane,
    position: usize,
    tally: Tally,
}

impl CpuCache {
    /// What the slot stored, per layer; scales are read back from where attention reads them.
    pub fn totals(&self, slot: usize) -> Vec<KvTotals> {
        let component = |layer: usize, side: Side| {
            let place = (slot, layer, side);
            let mut totals = self.past[slot][layer][side as usize].totals.clone();
            totals.merge(&self.totals_of(place, self.kept_tokens(place)));
            totals
        };
        (0..self.layers.len())
            .map(|layer| KvTotals {
                k: component(layer, Side::Key),
                v: component(layer, Side::Value),
            })
            .collect()
    }

    /// Largest absolute stored key and value of the slot, per layer.
    pub fn absmax(&self, slot: usize) -> Vec<LayerAbsmax> {
        let component = |layer: usize, side: Side| {
            let place = (slot, layer, side);
            let past = self.past[slot][layer][side as usize].absmax;
            past.max(self.absmax_of(place, self.kept_tokens(place)))
        };
        (0..self.layers.len())
            .map(|layer| LayerAbsmax {
                k: component(layer, Side::Key),
                v: component(layer, Side::Value),
            })
            .collect()
    }

    /// Sums up a page that is given back.
    pub(super) fn count_as_past(&mut self, given: GivenBack<usize>) {
        let GivenBack {
            kind,
            slot,
            number,
            page,
        } = given;
        for &layer in &self.kept.kinds()[kind].layers {
            for side in [Side::Key, Side::Value] {
                let place = (slot, layer, side);
                let stored = &self.pools[kind].pages[page][self.places[layer]];
                let totals = self.totals_of(place, tokens_of(stored, number, side));
                let absmax = self.absmax_of(place, tokens_of(stored, number, side));
                let past = &mut self.past[slot][layer][side as usize];
                past.totals.merge(&totals);
                past.absmax = past.absmax.max(absmax);
            }
        }
    }

    /// Tokens that a slot keeps.
    fn kept_tokens(&self, (slot, layer, side): Place) -> impl Iterator<Item = Stored<'_>> {
        let kind = self.kept.kind_of(layer);
        let pages = self.kept.run(kind, slot).iter();
        pages.flat_map(move |(number, page)| {
            let page = &self.pools[kind].pages[page][self.places[layer]];
            tokens_of(page, number, side)
        })
    }

    /// How a token is stored: natively in the sink.
    fn storage_at(&self, layer: usize, side: Side, position: usize) -> Storage {
        match self.layers[layer][side as usize] {
            _ if position < self.sink.tokens() => self.sink.storage(),
            storage => storage,
        }
    }

    fn totals_of<'a>(
        &self,
        (_, layer, side): Place,
        tokens: impl Iterator<Item = Stored<'a>>,
    ) -> ComponentTotals {
        let shape = self.shape(layer);
        let mut totals = ComponentTotals::default();
        for stored in tokens {
            let storage = self.storage_at(layer, side, stored.position);
            let lane = stored.position % PAGE;
            let (low, high) = stored.plane.scales(storage, shape, lane);
            totals.merge(&ComponentTotals {
                bytes: storage.token_bytes(shape.kv_heads, shape.head_dim),
                elements: shape.width() as u64,
                saturated: u64::from(stored.tally.saturated),
                changed: u64::from(stored.tally.changed),
                scale_min: low,
                scale_max: high,
            });
        }
        totals
    }

    fn absmax_of<'a>(
        &self,
        (slot, layer, side): Place,
        tokens: impl Iterator<Item = Stored<'a>>,
    ) -> f32 {
        let storage = self.layers[layer][side as usize];
        let shape = self.shape(layer);
        let mut vector = vec![0.0; shape.head_dim];
        let mut absmax = 0.0_f32;
        for Stored {
            plane, position, ..
        } in tokens
        {
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

/// Tokens of page number `number` of a sequence.
fn tokens_of(page: &LayerPage, number: usize, side: Side) -> impl Iterator<Item = Stored<'_>> {
    let plane = &page.planes[side as usize];
    let lanes = page.tallies.iter().enumerate();
    let stored = lanes.map(move |(lane, tallies)| Stored {
        plane,
        position: number * PAGE + lane,
        tally: tallies[side as usize],
    });
    stored.filter(|stored| stored.tally.stored)
}
