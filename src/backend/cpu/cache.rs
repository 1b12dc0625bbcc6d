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

mod plane;

use std::sync::Arc;

use rayon::prelude::*;

use super::recurrent::States;

pub use crate::backend::storage::Side;
use crate::backend::storage::{self, Storage};
use crate::backend::{BackendError, CacheLayer, CacheLayout, CacheRow, Held, Ledger, Purpose};
use crate::recipe::PAGE_TOKENS;
use crate::schema::{ComponentTotals, KvTotals, LayerAbsmax};
pub use plane::{HeadOf, Plane, PlaneShape};

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
    slot_tokens: usize,
    slots: Vec<Slot>,
    pages: Vec<Vec<LayerPage>>,
    free: Vec<usize>,
    /// Stored bytes and counters of all pages.
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
        let layers = storage::of_layers(layout, "cpu")?;
        Ok(CpuCache {
            states: States::new(layout, ledger),
            shapes: layout.layers.clone(),
            layers,
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
            held: [Purpose::Cache, Purpose::Counters].map(|purpose| Held::new(ledger, purpose, 0)),
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
        };
        if rows.len() >= PARALLEL_ROWS {
            self.store_pages(&writer, rows)?;
        } else {
            for (i, row) in rows.iter().enumerate() {
                let page = self.slots[row.slot].pages[row.position / PAGE];
                writer.store(&mut self.pages[page][layer], i, row.position % PAGE)?;
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
            by_page[page].push((i, row.position % PAGE));
        }
        let failures: Vec<(usize, BackendError)> = self
            .pages
            .par_iter_mut()
            .zip(by_page)
            .filter(|(_, rows)| !rows.is_empty())
            .flat_map_iter(|(page, rows)| {
                let page = &mut page[writer.layer];
                let store = |(i, lane)| Some((i, writer.store(page, i, lane).err()?));
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
                enter(&mut self.held, &self.pages);
                self.pages.len() - 1
            });
            self.slots[slot].pages.push(page);
        }
    }

    /// Tokens of a slot in one layer: its largest stored position plus one.
    pub fn tokens(&self, layer: usize, slot: usize) -> usize {
        self.slots[slot].tokens[layer]
    }

    /// Plane of page number `page` of a slot.
    pub fn plane(&self, layer: usize, slot: usize, page: usize, side: Side) -> &Plane {
        let page = self.slots[slot].pages[page];
        &self.pages[page][layer].planes[side as usize]
    }

    /// How to read one head of one component of one layer.
    pub fn head(&self, layer: usize, head: usize, side: Side) -> HeadOf {
        HeadOf {
            shape: self.shape(layer),
            storage: self.layers[layer][side as usize],
            head,
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

    /// What the slot holds, per layer; scales are read back from where attention reads them.
    pub fn totals(&self, slot: usize) -> Vec<KvTotals> {
        (0..self.layers.len())
            .map(|layer| KvTotals {
                k: self.component_totals(slot, layer, Side::Key),
                v: self.component_totals(slot, layer, Side::Value),
            })
            .collect()
    }

    fn component_totals(&self, slot: usize, layer: usize, side: Side) -> ComponentTotals {
        let storage = self.layers[layer][side as usize];
        let mut totals = ComponentTotals::default();
        for &page in &self.slots[slot].pages {
            let page = &self.pages[page][layer];
            for (lane, tallies) in page.tallies.iter().enumerate() {
                let tally = tallies[side as usize];
                if tally.stored {
                    let plane = &page.planes[side as usize];
                    totals.merge(&token_totals(
                        self.shape(layer),
                        storage,
                        plane,
                        lane,
                        tally,
                    ));
                }
            }
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
        for &page in &self.slots[slot].pages {
            let page = &self.pages[page][layer];
            let stored = (0..PAGE).filter(|&lane| page.tallies[lane][side as usize].stored);
            for lane in stored {
                for head in 0..shape.kv_heads {
                    let plane = &page.planes[side as usize];
                    plane.vector(side, shape, storage, head, lane, &mut vector);
                    absmax = vector.iter().fold(absmax, |m, x| m.max(x.abs()));
                }
            }
        }
        absmax
    }
}

#[cfg(test)]
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

fn token_totals(
    shape: PlaneShape,
    storage: Storage,
    plane: &Plane,
    lane: usize,
    tally: Tally,
) -> ComponentTotals {
    let scales = || (0..shape.kv_heads).filter_map(|h| plane.scale(storage, h, lane));
    ComponentTotals {
        bytes: storage.token_bytes(shape.kv_heads, shape.head_dim),
        elements: shape.width() as u64,
        saturated: u64::from(tally.saturated),
        changed: u64::from(tally.changed),
        scale_min: scales().reduce(f32::min),
        scale_max: scales().reduce(f32::max),
    }
}

/// Enters what the pages take; all of them have the same size.
fn enter(held: &mut [Held; 2], pages: &[Vec<LayerPage>]) {
    let (count, layers) = (
        pages.len() as u64,
        pages.last().map_or(&[][..], Vec::as_slice),
    );
    let planes = layers.iter().flat_map(|layer| &layer.planes);
    held[0].set(count * planes.map(Plane::bytes).sum::<u64>());
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
}

impl Writer<'_> {
    /// Stores row `i` as token `lane` of a page.
    fn store(&self, page: &mut LayerPage, i: usize, lane: usize) -> Result<(), BackendError> {
        let width = self.shape.width();
        let range = i * width..(i + 1) * width;
        for (side, x) in [
            (Side::Key, &self.k[range.clone()]),
            (Side::Value, &self.v[range]),
        ] {
            let at = side as usize;
            page.tallies[lane][at] = page.planes[at]
                .store(side, self.shape, self.storages[at], lane, x)
                .map_err(|element| storage::not_finite(i, self.layer, side, x[element], element))?;
        }
        Ok(())
    }
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
mod tests;
