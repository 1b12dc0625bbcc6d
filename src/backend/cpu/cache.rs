//! The physical cache: pages of 16 tokens from a pool that grows on demand.
//!
//! A page holds all layers. Per layer and component it holds the stored elements and, for dynamic
//! scales, one f32 per token and head beside them. Keys lie `[kv_heads][head_dim][16]`: attention
//! takes tokens as vector lanes and reads whole pages without transposing them. Values lie
//! `[kv_heads][16][head_dim]`. There is no second copy in another format.
//!
//! Quantised components are converted from the f32 key or value as computed, not from its native
//! rounding: the worker's arithmetic is f32, and rounding twice would charge native storage's
//! error to the recipe as well.

//! The first tokens of a recipe with a sink lie natively beside the pages, in room of each slot's own;
//! their places in the pages stay empty.

mod counters;
mod packed;
mod plane;
mod sink;

use std::sync::Arc;

use pulp::Simd;
use rayon::prelude::*;

use super::recurrent::States;

pub use crate::backend::storage::Side;
use crate::backend::storage::{self, Storage};
use crate::backend::{BackendError, CacheLayer, CacheLayout, CacheRow, Held, Ledger, Purpose};
use crate::recipe::{ByteFormat, PAGE_TOKENS};
pub use plane::PlaneShape;
use plane::{HeadOf, Plane};
use sink::Sink;

/// Tokens of a page.
pub const PAGE: usize = PAGE_TOKENS as usize;

/// Fewest rows for which storing pages in parallel pays.
const PARALLEL_ROWS: usize = 32;

/// Physical cache of all layers and slots.
pub struct CpuCache {
    states: States,
    /// What attention has to know of every layer.
    shapes: Vec<CacheLayer>,
    /// Storage of keys and values per layer.
    layers: Vec<[Storage; 2]>,
    /// Format of queries per layer.
    queries: Vec<Option<ByteFormat>>,
    sink: Sink,
    slot_tokens: usize,
    slots: Vec<Slot>,
    pages: Vec<Vec<LayerPage>>,
    free: Vec<usize>,
    /// Stored bytes, those of sinks included, and counters.
    held: [Held; 2],
}

/// Pages of one sequence, in order of position, and how far each layer is filled.
#[derive(Clone, Default)]
struct Slot {
    pages: Vec<usize>,
    tokens: Vec<usize>,
}

/// One layer's share of a page.
struct LayerPage {
    planes: [Plane; 2],
    tallies: [[Tally; 2]; PAGE],
}

/// What storing one token's keys or values of one layer did.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    stored: bool,
    saturated: u32,
    changed: u32,
}

impl CpuCache {
    /// An empty cache, whose pages are entered in `ledger`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] names what the recipe asks for and this worker lacks, or
    /// which calibration it misses.
    pub fn new(layout: &CacheLayout, ledger: &Arc<Ledger>) -> Result<Self, BackendError> {
        let layers = storage::of_layers(layout)?;
        let sink = Sink::new(layout, &layers);
        let beside = sink.bytes();
        Ok(CpuCache {
            states: States::new(layout, ledger),
            shapes: layout.layers.clone(),
            layers,
            queries: storage::queries_of_layers(layout),
            sink,
            slot_tokens: layout.slot_tokens,
            slots: vec![
                Slot {
                    pages: Vec::new(),
                    tokens: vec![0; layout.layers.len()],
                };
                layout.slots
            ],
            pages: Vec::new(),
            free: Vec::new(),
            held: [(Purpose::Cache, beside), (Purpose::Counters, 0)]
                .map(|(purpose, bytes)| Held::new(ledger, purpose, bytes)),
        })
    }

    /// What attention has to know of a layer.
    pub fn layer(&self, layer: usize) -> CacheLayer {
        self.shapes[layer]
    }

    /// States of recurrent layers.
    pub fn states(&mut self) -> &mut States {
        &mut self.states
    }

    fn shape(&self, layer: usize) -> PlaneShape {
        PlaneShape::of(&self.shapes[layer])
    }

    /// Format that queries of a layer pass through.
    pub fn query_format(&self, layer: usize) -> Option<ByteFormat> {
        self.queries[layer]
    }

    /// Stores keys and values (`[rows, kv_heads * head_dim]`) of one layer. Where two rows name
    /// the same position, the later one counts.
    ///
    /// # Errors
    /// [`BackendError::NotFinite`] where an element, or what native storage makes of it, is not
    /// finite. That row is not stored and other rows may be: the row's slot needs a reset.
    ///
    /// # Panics
    /// Where a slot, position or width lies outside the layout.
    pub fn store(
        &mut self,
        layer: usize,
        k: &[f32],
        v: &[f32],
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        let shape = self.shape(layer);
        let width = shape.width();
        assert!(
            k.len() == rows.len() * width && v.len() == k.len(),
            "elements of keys and values"
        );
        for row in rows {
            self.reserve(*row);
        }
        let writer = Writer {
            layer,
            shape,
            storages: self.layers[layer],
            k,
            v,
            sink_tokens: self.sink.tokens(),
        };
        for (i, row) in rows.iter().enumerate() {
            if row.position < writer.sink_tokens {
                writer.store_in_sink(&mut self.sink, i, *row)?;
            }
        }
        if rows.len() >= PARALLEL_ROWS {
            self.store_pages(&writer, rows)?;
        } else {
            for (i, row) in rows.iter().enumerate() {
                let page = self.slots[row.slot].pages[row.position / PAGE];
                writer.store(&mut self.pages[page][layer], i, row.position)?;
            }
        }
        for row in rows {
            let tokens = &mut self.slots[row.slot].tokens[layer];
            *tokens = (*tokens).max(row.position + 1);
        }
        Ok(())
    }

    /// Stores rows, the pages in parallel.
    fn store_pages(&mut self, writer: &Writer, rows: &[CacheRow]) -> Result<(), BackendError> {
        let mut by_page: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.pages.len()];
        for (i, row) in rows.iter().enumerate() {
            let page = self.slots[row.slot].pages[row.position / PAGE];
            by_page[page].push((i, row.position));
        }
        let failures: Vec<(usize, BackendError)> = self
            .pages
            .par_iter_mut()
            .zip(by_page)
            .filter(|(_, rows)| !rows.is_empty())
            .flat_map_iter(|(page, rows)| {
                let page = &mut page[writer.layer];
                let store = |(i, position)| Some((i, writer.store(page, i, position).err()?));
                rows.into_iter().filter_map(store).collect::<Vec<_>>()
            })
            .collect();
        // The same row is named whatever the order in which pages were done.
        let first = failures.into_iter().min_by_key(|(row, _)| *row);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Makes sure that a page exists for `row`.
    fn reserve(&mut self, row: CacheRow) {
        let CacheRow { slot, position } = row;
        assert!(
            position < self.slot_tokens,
            "position {position} of a slot of {} tokens",
            self.slot_tokens
        );
        while self.slots[slot].pages.len() <= position / PAGE {
            let page = self.free.pop().unwrap_or_else(|| {
                let layers = self.shapes.iter().map(PlaneShape::of).zip(&self.layers);
                let fresh = layers.map(|(shape, s)| LayerPage::new(shape, s));
                self.pages.push(fresh.collect());
                enter(&mut self.held, &self.pages, self.sink.bytes());
                self.pages.len() - 1
            });
            self.slots[slot].pages.push(page);
        }
    }

    /// Tokens of a slot in one layer: its largest stored position plus one.
    pub fn tokens(&self, layer: usize, slot: usize) -> usize {
        self.slots[slot].tokens[layer]
    }

    /// Decodes one head of page number `page` of a slot: `[head_dim][16]` for keys, `[16][head_dim]`
    /// for values.
    #[inline(always)]
    pub fn decode<S: Simd>(
        &self,
        simd: S,
        (layer, side): (usize, Side),
        (slot, page): (usize, usize),
        head: usize,
        out: &mut [f32],
    ) {
        let at = HeadOf {
            shape: self.shape(layer),
            storage: self.layers[layer][side as usize],
            head,
        };
        let number = self.slots[slot].pages[page];
        self.pages[number][layer].planes[side as usize].decode(simd, side, at, out);
        if page * PAGE < self.sink.tokens() && !at.storage.is_native() {
            let first = page * PAGE;
            let lanes = (self.sink.tokens() - first).min(PAGE);
            for lane in 0..lanes {
                let vector = self.sink.vector((slot, layer, side), head, first + lane);
                vector.for_each(|(d, x)| out[at.shape.index(side, 0, lane, d)] = x);
            }
        }
    }

    /// Forgets a slot's tokens from `tokens` on, with their counters. Pages that become empty
    /// return to the pool.
    pub fn truncate(&mut self, slot: usize, tokens: usize) {
        let Slot {
            pages,
            tokens: filled,
        } = &mut self.slots[slot];
        for (number, &page) in pages.iter().enumerate().skip(tokens / PAGE) {
            let kept = tokens.saturating_sub(number * PAGE).min(PAGE);
            for layer in &mut self.pages[page] {
                layer.tallies[kept..].fill(Default::default());
            }
        }
        let kept = tokens.div_ceil(PAGE).min(pages.len());
        self.free.extend(pages.drain(kept..));
        for filled in filled {
            *filled = (*filled).min(tokens);
        }
    }
}

/// Enters what the pages, all of the same size, take beside `beside` bytes.
fn enter(held: &mut [Held; 2], pages: &[Vec<LayerPage>], beside: u64) {
    let (count, layers) = (
        pages.len() as u64,
        pages.last().map_or(&[][..], Vec::as_slice),
    );
    let planes = layers.iter().flat_map(|layer| &layer.planes);
    held[0].set(beside + count * planes.map(Plane::bytes).sum::<u64>());
    let tallies = layers
        .iter()
        .map(|layer| size_of_val(&layer.tallies) as u64);
    held[1].set(count * tallies.sum::<u64>());
}

/// Keys and values on their way into one layer.
struct Writer<'a> {
    layer: usize,
    shape: PlaneShape,
    storages: [Storage; 2],
    k: &'a [f32],
    v: &'a [f32],
    /// First tokens that lie in the sink where a component is quantised.
    sink_tokens: usize,
}

impl Writer<'_> {
    /// Keys and values of row `i`.
    fn sides(&self, i: usize) -> [(Side, &[f32]); 2] {
        let width = self.shape.width();
        let range = i * width..(i + 1) * width;
        [
            (Side::Key, &self.k[range.clone()]),
            (Side::Value, &self.v[range]),
        ]
    }

    fn is_in_sink(&self, side: Side, position: usize) -> bool {
        position < self.sink_tokens && !self.storages[side as usize].is_native()
    }

    /// Stores row `i` in a page, but for what the sink holds.
    fn store(&self, page: &mut LayerPage, i: usize, position: usize) -> Result<(), BackendError> {
        let lane = position % PAGE;
        for (side, x) in self.sides(i) {
            let at = side as usize;
            page.tallies[lane][at] = match self.is_in_sink(side, position) {
                true => Tally::UNCHANGED,
                false => page.planes[at]
                    .store(side, self.shape, self.storages[at], lane, x)
                    .map_err(|d| storage::not_finite(i, self.layer, side, x[d], d))?,
            };
        }
        Ok(())
    }

    /// Stores what the sink holds of row `i`.
    fn store_in_sink(&self, sink: &mut Sink, i: usize, row: CacheRow) -> Result<(), BackendError> {
        for (side, x) in self.sides(i) {
            if self.is_in_sink(side, row.position) {
                sink.store((row.slot, self.layer, side), row.position, x)
                    .map_err(|d| storage::not_finite(i, self.layer, side, x[d], d))?;
            }
        }
        Ok(())
    }
}

impl Tally {
    /// Of a token that is stored as native storage does.
    const UNCHANGED: Tally = Tally {
        stored: true,
        saturated: 0,
        changed: 0,
    };
}

impl LayerPage {
    fn new(shape: PlaneShape, storages: &[Storage; 2]) -> Self {
        LayerPage {
            planes: storages.map(|storage| Plane::new(shape, storage)),
            tallies: Default::default(),
        }
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
