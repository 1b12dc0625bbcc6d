//! The physical cache: pages of 16 tokens, each with all layers.
//!
//! Within a page a layer holds keys `[kv_heads][16][head_dim]`, values likewise, and for dynamic
//! scales one f32 per head and token beside each; where elements have 4 bits, a vector's codes are
//! followed by its groups' scales and minima. The first tokens of a recipe with a sink lie natively in
//! room of each slot's own, and their places in pages stay empty. Attention reads exactly these bytes. Counters of
//! what changed or saturated lie in pages of their own, so a cache takes
//! `pages * 16 * bytes_per_token` bytes whatever is counted.

mod layout;
mod pool;
mod room;

use std::ops::Range;
use std::rc::Rc;

use super::device::{Buffer, Device, Purpose, launch};
use super::functions::Kernels;
use super::recurrent::States;
use super::tensor::{Format, int};
use crate::backend::storage::{self, Storage};
use crate::backend::{BackendError, CacheLayer, CacheLayout, CacheRow};
use crate::recipe::{ByteFormat, NativeDtype, PAGE_TOKENS};
use crate::schema::{ComponentTotals, KvTotals, LayerAbsmax};
pub use layout::{LARGEST_HEAD_DIM, SideLayout, has_head_dim};
use layout::{Layout, check_layers, lay_out};
pub use pool::Page;
use pool::{Pool, PoolShape};
pub use room::CacheRoom;

/// Tokens of a page.
const PAGE: usize = PAGE_TOKENS as usize;
/// Chunks of tokens that are searched side by side.
const SEARCHED: u32 = 64;

/// Physical cache of all layers and slots.
pub struct CudaCache {
    device: Rc<Device>,
    layers: Vec<CacheLayer>,
    native: NativeDtype,
    /// Most tokens of a slot.
    slot_tokens: usize,
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
    slots: Vec<Slot>,
    pool: Pool,
    table: Table,
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

/// Pages of one sequence, in order of position, and how far each layer is filled.
#[derive(Clone, Default)]
struct Slot {
    pages: Vec<Page>,
    tokens: Vec<usize>,
}

/// Pages of all slots, `[slots][pages per slot]`, on both sides.
struct Table {
    pages: Vec<Page>,
    per_slot: usize,
    device: Buffer,
    changed: bool,
}

#[repr(C)]
struct SlotArguments {
    table: u64,
    sides: u64,
    tokens: u64,
    shapes: u64,
    sink: u64,
    native: i32,
    sink_tokens: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Totals {
    saturated: u64,
    changed: u64,
    scale_min: f32,
    scale_max: f32,
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
        let Layout {
            sides,
            stored,
            counts,
            sink,
        } = lay_out(&storages, &layout.layers, sink_tokens);
        let shapes = layout.layers.iter();
        let shapes: Vec<[i32; 2]> = shapes
            .map(|layer| [int(layer.kv_heads), int(layer.head_dim)])
            .collect();
        let per_slot = layout.slot_tokens.div_ceil(PAGE);
        let pages = vec![Page::default(); layout.slots * per_slot];
        Ok(CudaCache {
            states: States::new(device, layout)?,
            device_sides: device.upload(&sides, Purpose::Staging)?,
            device_shapes: device.upload(&shapes, Purpose::Staging)?,
            table: Table {
                device: device.upload(&pages, Purpose::Staging)?,
                pages,
                per_slot,
                changed: false,
            },
            pool: Pool::new(
                device,
                PoolShape {
                    stored,
                    counts,
                    most: layout.slots * per_slot,
                },
            ),
            device: Rc::clone(device),
            layers: layout.layers.clone(),
            native: layout.native,
            slot_tokens: layout.slot_tokens,
            storages,
            queries: storage::queries_of_layers(layout),
            sides,
            sink: Sink {
                tokens: sink_tokens,
                bytes: sink,
                device: device.allocate(layout.slots * sink, Purpose::Cache)?,
            },
            slots: vec![
                Slot {
                    pages: Vec::new(),
                    tokens: vec![0; layout.layers.len()],
                };
                layout.slots
            ],
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

    /// The table on the device, and pages per slot.
    pub fn table(&self) -> (u64, usize) {
        (self.table.device.pointer(), self.table.per_slot)
    }

    /// Tokens of a slot in one layer: its largest stored position plus one.
    pub fn tokens(&self, layer: usize, slot: usize) -> usize {
        self.slots[slot].tokens[layer]
    }

    /// Pages that exist, used or free.
    pub fn pages(&self) -> usize {
        self.pool.pages()
    }

    /// Makes sure that a page exists for every row, and that the device knows it; the rows count as
    /// stored in `layers` from then on.
    ///
    /// # Errors
    /// [`BackendError::Device`] where memory is out.
    ///
    /// # Panics
    /// Where a row lies beyond its slot or leaves a gap.
    pub fn reserve(&mut self, layers: Range<usize>, rows: &[CacheRow]) -> Result<(), BackendError> {
        for row in rows {
            let CacheRow { slot, position } = *row;
            let most = self.slot_tokens;
            assert!(
                position < most,
                "position {position} of a slot of {most} tokens"
            );
            while self.slots[slot].pages.len() <= position / PAGE {
                let page = self.pool.take()?;
                let number = self.slots[slot].pages.len();
                self.slots[slot].pages.push(page);
                self.table.pages[slot * self.table.per_slot + number] = page;
                self.table.changed = true;
            }
        }
        if self.table.changed {
            self.table.device.write(&self.table.pages)?;
            self.table.changed = false;
        }
        for &CacheRow { slot, position } in rows {
            for tokens in &mut self.slots[slot].tokens[layers.clone()] {
                assert!(
                    position <= *tokens,
                    "a gap before position {position} of slot {slot}"
                );
                *tokens = (*tokens).max(position + 1);
            }
        }
        Ok(())
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.sides.len()
    }

    /// Forgets a slot's tokens from `tokens` on. Pages that become empty return to the pool.
    pub fn truncate(&mut self, slot: usize, tokens: usize) {
        let slot = &mut self.slots[slot];
        let kept = tokens.div_ceil(PAGE).min(slot.pages.len());
        for page in slot.pages.drain(kept..) {
            self.pool.give(page);
        }
        for filled in &mut slot.tokens {
            *filled = (*filled).min(tokens);
        }
    }

    /// What the slot holds, per layer; dynamic scales and counters are read back from the device.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn totals(&self, kernels: &Kernels, slot: usize) -> Result<Vec<KvTotals>, BackendError> {
        let sides = self.sides.len() * 2;
        let out = self
            .device
            .allocate(sides * size_of::<Totals>(), Purpose::Staging)?;
        let (arguments, _tokens) = self.slot_arguments(slot)?;
        let (to, grid) = (out.pointer(), (sides as u32, 1, 1));
        // SAFETY: one result per layer and side; the tables cover the slot's tokens.
        unsafe { launch!(self.device, kernels.get("slot_totals")?, grid, 256, 0; arguments, to) }?;
        let found: Vec<Totals> = out.read(sides)?;
        let totals = |layer: usize, side: usize| {
            self.component_totals(
                layer,
                side,
                self.tokens(layer, slot),
                found[2 * layer + side],
            )
        };
        Ok((0..self.sides.len())
            .map(|layer| KvTotals {
                k: totals(layer, 0),
                v: totals(layer, 1),
            })
            .collect())
    }

    fn component_totals(
        &self,
        layer: usize,
        side: usize,
        tokens: usize,
        found: Totals,
    ) -> ComponentTotals {
        if tokens == 0 || self.layers[layer].recurrent.is_some() {
            return ComponentTotals::default();
        }
        let storage = self.storages[layer][side];
        let CacheLayer {
            kv_heads, head_dim, ..
        } = self.layers[layer];
        let in_sink = match storage {
            Storage::Native(_) => 0,
            _ => tokens.min(self.sink.tokens),
        };
        let (scale_min, scale_max) = match storage {
            Storage::Native(_) => (None, None),
            _ if in_sink == tokens => (None, None),
            Storage::Fixed(_, _, scale) => (Some(scale), Some(scale)),
            Storage::Dynamic(..) | Storage::Grouped(..) => {
                (Some(found.scale_min), Some(found.scale_max))
            }
        };
        let bytes = |tokens: usize, storage: Storage| {
            tokens as u64 * storage.token_bytes(kv_heads, head_dim)
        };
        ComponentTotals {
            bytes: bytes(tokens - in_sink, storage) + bytes(in_sink, Storage::Native(self.native)),
            elements: (tokens * kv_heads * head_dim) as u64,
            saturated: found.saturated,
            changed: found.changed,
            scale_min,
            scale_max,
        }
    }

    /// Largest absolute stored key and value of the slot, per layer.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn absmax(&self, kernels: &Kernels, slot: usize) -> Result<Vec<LayerAbsmax>, BackendError> {
        let sides = self.sides.len() * 2;
        let out = self
            .device
            .upload(&vec![0.0_f32; sides], Purpose::Staging)?;
        let (arguments, _tokens) = self.slot_arguments(slot)?;
        let (to, grid) = (out.pointer(), (sides as u32, SEARCHED, 1));
        // SAFETY: as in `totals`.
        unsafe { launch!(self.device, kernels.get("slot_absmax")?, grid, 256, 0; arguments, to) }?;
        let found: Vec<f32> = out.read(sides)?;
        Ok(found
            .chunks_exact(2)
            .map(|side| LayerAbsmax {
                k: side[0],
                v: side[1],
            })
            .collect())
    }

    /// Arguments about one slot, and the buffer of its token counts, which must outlive the call.
    fn slot_arguments(&self, slot: usize) -> Result<(SlotArguments, Buffer), BackendError> {
        let tokens: Vec<i32> = self.slots[slot].tokens.iter().map(|&t| int(t)).collect();
        let tokens = self.device.upload(&tokens, Purpose::Staging)?;
        let first = slot * self.table.per_slot * size_of::<Page>();
        let arguments = SlotArguments {
            table: self.table.device.pointer() + first as u64,
            sides: self.device_sides.pointer(),
            tokens: tokens.pointer(),
            shapes: self.device_shapes.pointer(),
            sink: self.sink.device.pointer() + (slot * self.sink.bytes) as u64,
            native: Format::from(self.native) as i32,
            sink_tokens: int(self.sink.tokens),
        };
        Ok((arguments, tokens))
    }
}

#[cfg(test)]
mod testing;
