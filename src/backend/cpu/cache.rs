//! The physical cache: pages of 16 tokens from a pool that grows on demand.
//!
//! A page holds all layers that keep the same tokens ([`crate::backend::pages`]). Per layer and
//! component it holds the stored elements and, for dynamic scales, one f32 per token and head beside
//! them. Keys lie `[kv_heads][head_dim][16]`: attention
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
mod pool;
mod sink;

use std::convert::Infallible;
use std::sync::Arc;

use pulp::Simd;
use rayon::prelude::*;

use super::recurrent::States;
use super::worker::Precision;
use crate::backend::pages::{GivenBack, Pages};
pub use crate::backend::storage::Side;
use crate::backend::storage::{self, Storage};
use crate::backend::{BackendError, CacheLayer, CacheLayout, CacheRow, Held, Ledger, Purpose};
use crate::recipe::ByteFormat;
use counters::Past;
use plane::HeadOf;
pub use plane::PlaneShape;
use pool::{LayerPage, Pool, Tally};
use sink::Sink;

pub use crate::backend::pages::PAGE;

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
    /// Which pages of its kind's pool every slot keeps.
    kept: Pages<usize>,
    /// By kind.
    pools: Vec<Pool>,
    /// Place of every layer in a page of its kind.
    places: Vec<usize>,
    /// What slots stored and gave back, `[slots][layers]`.
    past: Vec<Vec<[Past; 2]>>,
    /// Stored bytes, those of sinks included, and counters.
    held: [Held; 2],
}

impl CpuCache {
    /// An empty cache, whose pages are entered in `ledger`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] names what the recipe asks for and this worker lacks, or
    /// which calibration it misses.
    pub fn new(
        layout: &CacheLayout,
        precision: Precision,
        ledger: &Arc<Ledger>,
    ) -> Result<Self, BackendError> {
        let layers = storage::of_layers(layout)?;
        let sink = Sink::new(layout, &layers);
        let kept = Pages::new(layout);
        let mut places = vec![0; layers.len()];
        for kind in kept.kinds() {
            let of_kind = kind.layers.iter().enumerate();
            of_kind.for_each(|(place, &layer)| places[layer] = place);
        }
        let pools = kept.kinds().iter().map(|kind| {
            let of_layer = |&layer: &usize| (PlaneShape::of(&layout.layers[layer]), layers[layer]);
            Pool::new(kind.layers.iter().map(of_layer).collect(), precision)
        });
        let pools = pools.collect();
        let mut cache = CpuCache {
            states: States::new(layout, precision, ledger),
            shapes: layout.layers.clone(),
            layers,
            queries: storage::queries_of_layers(layout),
            sink,
            pools,
            kept,
            places,
            past: vec![vec![Default::default(); layout.layers.len()]; layout.slots],
            held: [Purpose::Cache, Purpose::Counters].map(|purpose| Held::new(ledger, purpose, 0)),
        };
        cache.enter();
        Ok(cache)
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
        self.reserve(layer, rows);
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
                let (page, place) = (self.page_of(layer, *row), self.places[layer]);
                let pool = &mut self.pools[self.kept.kind_of(layer)];
                writer.store(&mut pool.pages[page][place], i, row.position)?;
            }
        }
        self.kept.stored(&(layer..layer + 1), rows);
        Ok(())
    }

    /// The page of a row that was reserved, in the pool of its layer's kind.
    fn page_of(&self, layer: usize, row: CacheRow) -> usize {
        let run = self.kept.run(self.kept.kind_of(layer), row.slot);
        let page = run.get(row.position / PAGE);
        page.unwrap_or_else(|| unreachable!("{row:?} was reserved"))
    }

    /// Stores rows, the pages in parallel.
    fn store_pages(&mut self, writer: &Writer, rows: &[CacheRow]) -> Result<(), BackendError> {
        let pool = &self.pools[self.kept.kind_of(writer.layer)];
        let mut by_page: Vec<Vec<(usize, usize)>> = vec![Vec::new(); pool.pages.len()];
        for (i, row) in rows.iter().enumerate() {
            by_page[self.page_of(writer.layer, *row)].push((i, row.position));
        }
        let (kind, place) = (self.kept.kind_of(writer.layer), self.places[writer.layer]);
        let failures: Vec<(usize, BackendError)> = self.pools[kind]
            .pages
            .par_iter_mut()
            .zip(by_page)
            .filter(|(_, rows)| !rows.is_empty())
            .flat_map_iter(|(page, rows)| {
                let page = &mut page[place];
                let store = |(i, position)| Some((i, writer.store(page, i, position).err()?));
                rows.into_iter().filter_map(store).collect::<Vec<_>>()
            })
            .collect();
        // The same row is named whatever the order in which pages were done.
        let first = failures.into_iter().min_by_key(|(row, _)| *row);
        first.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Gives back what no row sees any more, and makes sure that a page exists for every one.
    fn reserve(&mut self, layer: usize, rows: &[CacheRow]) {
        let layers = layer..layer + 1;
        for page in self.kept.begin(&layers, rows) {
            self.count_as_past(page);
            self.pools[page.kind].give(page.page);
        }
        let (pools, mut grew) = (&mut self.pools, false);
        let take = |kind: usize, _, _| {
            let (page, is_new) = pools[kind].take();
            grew |= is_new;
            Ok::<_, Infallible>(page)
        };
        let Ok(()) = self.kept.grow(&layers, rows, take);
        if grew {
            self.enter();
        }
    }

    /// Enters what pages and sinks take.
    fn enter(&mut self) {
        let of_pools = self.pools.iter().map(Pool::bytes);
        let (stored, counts) = of_pools.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let past = self
            .past
            .iter()
            .map(|layers| size_of_val(&layers[..]) as u64);
        self.held[0].set(self.sink.bytes() + stored);
        self.held[1].set(past.sum::<u64>() + counts);
    }

    /// Tokens of a slot in one layer: its largest stored position plus one.
    pub fn tokens(&self, layer: usize, slot: usize) -> usize {
        self.kept.tokens(layer, slot)
    }

    /// Checks that what a row sees of a layer is stored and kept.
    ///
    /// # Panics
    /// Where it is not.
    pub fn check_visible(&self, layer: usize, row: CacheRow) {
        self.kept.check_visible(layer, row);
    }

    /// Decodes one head of page number `page` of a slot: `[head_dim][16]` for keys, `[16][head_dim]`
    /// for values; zeros of a page that was given back.
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
        let kind = self.kept.kind_of(layer);
        let Some(number) = self.kept.run(kind, slot).get(page) else {
            out.fill(0.0);
            return;
        };
        let stored = &self.pools[kind].pages[number][self.places[layer]];
        stored.planes[side as usize].decode(simd, side, at, out);
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
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the next row would see what was given back.
    pub fn truncate(&mut self, slot: usize, tokens: usize) -> Result<(), BackendError> {
        for GivenBack { kind, page, .. } in self.kept.cut(slot, tokens)? {
            self.pools[kind].give(page);
        }
        for (kind, pool) in self.pools.iter_mut().enumerate() {
            // A page that is partly kept is the last one.
            if let Some(page) = self.kept.run(kind, slot).get(tokens / PAGE) {
                pool.forget(page, tokens % PAGE);
            }
        }
        if tokens == 0 {
            self.past[slot].fill(Default::default());
        }
        Ok(())
    }
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

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
