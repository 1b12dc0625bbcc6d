//! The physical cache: pages of 16 tokens, each with all layers that keep the same tokens
//! ([`crate::backend::pages`]).
//!
//! Within a page a layer holds keys `[kv_heads][16][head_dim]`, values likewise, and for dynamic
//! scales one f32 per head and token beside each; where elements have 4 bits, a vector's codes are
//! followed by its groups' scales and minima. The first tokens of a recipe with a sink lie natively in
//! room of each slot's own, and their places in pages stay empty. Attention reads exactly these bytes. Counters of
//! what changed or saturated lie in pages of their own, so a cache takes
//! `pages * 16 * bytes_per_token` bytes whatever is counted.
//!
//! Attention takes tokens in whole tiles, and so meets pages that a window gave back, whose tokens nobody
//! sees. In the table a page of zeros stands in for them: what others stored there since, numbers that
//! are not finite included, never enters arithmetic.

mod layout;
mod pool;
mod room;
mod table;
mod totals;

use std::ops::Range;
use std::rc::Rc;

use super::device::{Buffer, Device, Purpose};
use super::functions::Kernels;
use super::recurrent::States;
use super::tensor::int;
use crate::backend::pages::{PAGE, Pages};
use crate::backend::storage::{self, Storage};
use crate::backend::{BackendError, CacheLayer, CacheLayout, CacheRow};
use crate::recipe::{ByteFormat, NativeDtype};
pub use layout::{LARGEST_HEAD_DIM, SideLayout, has_head_dim};
use layout::{Layout, check_layers, lay_out};
pub use pool::Page;
use pool::{Pool, PoolShape};
pub use room::CacheRoom;
use table::Table;
use totals::Past;

/// Physical cache of all layers and slots.
pub struct CudaCache {
    device: Rc<Device>,
    layers: Vec<CacheLayer>,
    native: NativeDtype,
    storages: Vec<[Storage; 2]>,
    /// Format of queries per layer.
    queries: Vec<Option<ByteFormat>>,
    sides: Vec<[SideLayout; 2]>,
    /// First tokens of all slots.
    sink: Sink,
    /// `sides` on the device.
    device_sides: Buffer,
    /// Heads and elements per head vector of every layer, on the device.
    device_shapes: Buffer,
    states: States,
    kept: Pages<Page>,
    /// By kind.
    pools: Vec<Pool>,
    table: Table,
    past: Past,
}

/// The first tokens of all slots, stored natively where the recipe quantises.
struct Sink {
    tokens: usize,
    /// Bytes of a slot.
    bytes: usize,
    device: Buffer,
}

/// Where first tokens lie; as the kernels take it.
#[derive(Clone, Copy)]
pub struct SinkPlace {
    /// Address of the first slot's.
    pub address: u64,
    /// Bytes of a slot.
    pub bytes: u64,
    /// Tokens of a slot.
    pub tokens: i32,
}

impl CudaCache {
    /// An empty cache; pages are allocated when tokens need them.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] names what the recipe or shape asks for and this worker
    /// lacks, or which calibration is missing; [`BackendError::Device`] where memory is out.
    pub fn new(device: &Rc<Device>, layout: &CacheLayout) -> Result<Self, BackendError> {
        let storages = storage::of_layers(layout)?;
        check_layers(&layout.layers)?;
        let sink_tokens = layout.recipe.sink as usize;
        let kept = Pages::new(layout);
        let Layout { sides, kinds, sink } =
            lay_out(&storages, &layout.layers, kept.kinds(), sink_tokens);
        let shapes = layout.layers.iter();
        let shapes: Vec<[i32; 2]> = shapes
            .map(|layer| [int(layer.kv_heads), int(layer.head_dim)])
            .collect();
        let pools = kept.kinds().iter().zip(&kinds).map(|(kind, bytes)| {
            let shape = PoolShape {
                stored: bytes.stored,
                counts: bytes.counts,
                most: kind.most_pages(layout, layout.slots),
            };
            let scales = kind.layers.iter().flat_map(|&layer| {
                let heads = layout.layers[layer].kv_heads;
                sides[layer].map(|side| side.scale_bytes(heads))
            });
            // What is never given back needs nothing in its place.
            let stand_in = kind.window.map(|_| scales.collect());
            Pool::new(device, shape, stand_in)
        });
        Ok(CudaCache {
            states: States::new(device, layout)?,
            device_sides: device.upload(&sides, Purpose::Staging)?,
            device_shapes: device.upload(&shapes, Purpose::Staging)?,
            table: Table::new(device, kinds.len(), layout)?,
            pools: pools.collect::<Result<_, _>>()?,
            past: Past::new(device, layout, &kept)?,
            kept,
            device: Rc::clone(device),
            layers: layout.layers.clone(),
            native: layout.native,
            storages,
            queries: storage::queries_of_layers(layout),
            sides,
            sink: Sink {
                tokens: sink_tokens,
                bytes: sink,
                device: device.allocate(layout.slots * sink, Purpose::Cache)?,
            },
        })
    }

    /// What attention has to know of a layer.
    pub fn layer(&self, layer: usize) -> CacheLayer {
        self.layers[layer]
    }

    /// States of recurrent layers.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// Format of native components.
    pub fn native(&self) -> NativeDtype {
        self.native
    }

    /// Keys and values of a layer.
    pub fn sides(&self, layer: usize) -> [SideLayout; 2] {
        self.sides[layer]
    }

    /// Storage of keys and values of a layer.
    pub fn storages(&self, layer: usize) -> [Storage; 2] {
        self.storages[layer]
    }

    /// Format that queries of a layer pass through.
    pub fn query_format(&self, layer: usize) -> Option<ByteFormat> {
        self.queries[layer]
    }

    /// Where the first tokens lie.
    pub fn sink(&self) -> SinkPlace {
        SinkPlace {
            address: self.sink.device.pointer(),
            bytes: self.sink.bytes as u64,
            tokens: int(self.sink.tokens),
        }
    }

    /// The table of a layer's pages on the device, and pages per slot.
    pub fn table(&self, layer: usize) -> (u64, usize) {
        let kind = self.kept.kind_of(layer);
        (self.table.address(kind, 0), self.table.per_slot())
    }

    /// Address of the tables of all layers.
    pub fn tables(&self) -> u64 {
        self.table.address(0, 0)
    }

    /// Checks that what a row sees of a layer is stored and kept.
    ///
    /// # Panics
    /// Where it is not.
    pub fn check_visible(&self, layer: usize, row: CacheRow) {
        self.kept.check_visible(layer, row);
    }

    /// Gives back what no row sees any more, makes sure that a page exists for every row, and that the
    /// device knows it; the rows count as stored in `layers` from then on.
    ///
    /// # Errors
    /// [`BackendError::Device`] where memory is out.
    ///
    /// # Panics
    /// Where a row lies beyond its slot, sees what was given back or leaves a gap.
    pub fn reserve(
        &mut self,
        kernels: &Kernels,
        layers: Range<usize>,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        let given = self.kept.begin(&layers, rows);
        if !given.is_empty() {
            self.count_as_past(kernels, &given)?;
        }
        for page in given {
            let pool = &mut self.pools[page.kind];
            self.table
                .put((page.kind, page.slot, page.number), pool.stand_in());
            pool.give(page.page);
        }
        let (pools, table) = (&mut self.pools, &mut self.table);
        self.kept.grow(&layers, rows, |kind, slot, number| {
            let page = pools[kind].take()?;
            table.put((kind, slot, number), page);
            Ok(page)
        })?;
        self.table.write()?;
        self.kept.stored(&layers, rows);
        Ok(())
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.sides.len()
    }

    /// Forgets a slot's tokens from `tokens` on. Pages that become empty return to the pool.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the next row would see what was given back;
    /// [`BackendError::Device`].
    pub fn truncate(&mut self, slot: usize, tokens: usize) -> Result<(), BackendError> {
        for page in self.kept.cut(slot, tokens)? {
            self.pools[page.kind].give(page.page);
        }
        if tokens == 0 {
            self.past.forget(slot)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod testing;
