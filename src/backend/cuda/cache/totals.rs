//! What a slot stored: read from its pages, and summed up of those that a window gave back.

use std::rc::Rc;

use super::super::device::{Buffer, Device, Purpose, launch};
use super::super::functions::Kernels;
use super::super::tensor::{Format, int};
use super::{CudaCache, Page};
use crate::backend::pages::{GivenBack, LayerKind, PAGE, Pages};
use crate::backend::storage::Storage;
use crate::backend::{BackendError, CacheLayer, CacheLayout};
use crate::schema::{ComponentTotals, KvTotals, LayerAbsmax};

/// Chunks of tokens that are searched side by side.
const SEARCHED: u32 = 64;

#[repr(C)]
struct SlotArguments {
    table: u64,
    per_kind: i64,
    kinds: u64,
    sides: u64,
    tokens: u64,
    shapes: u64,
    past: u64,
    sink: u64,
    native: i32,
    sink_tokens: i32,
}

#[repr(C)]
struct PastArguments {
    pages: u64,
    layers: u64,
    sides: u64,
    shapes: u64,
    past: u64,
    sink: u64,
    sink_bytes: u64,
    all_layers: i32,
    native: i32,
    sink_tokens: i32,
}

/// A page that is given back; layout as in the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct PastPage {
    page: Page,
    slot: i32,
    first: i32,
}

/// Counters, extremes of dynamic scales and the largest element of one component of one layer; layout
/// as in the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Totals {
    saturated: u64,
    changed: u64,
    scale_min: f32,
    scale_max: f32,
    absmax: f32,
    unused: f32,
}

impl Totals {
    const NONE: Totals = Totals {
        saturated: 0,
        changed: 0,
        scale_min: f32::INFINITY,
        scale_max: 0.0,
        absmax: 0.0,
        unused: 0.0,
    };
}

impl Default for Totals {
    fn default() -> Self {
        Totals::NONE
    }
}

/// What slots gave back.
pub struct Past {
    /// `[slots][layers][2]`.
    totals: Buffer,
    /// Components of a slot; none where nothing is ever given back.
    sides: usize,
    /// Slots that gave something back.
    used: Vec<bool>,
    /// Layers of every kind, on the device.
    layers: Vec<Buffer>,
    /// Kind of every layer, on the device.
    kinds: Buffer,
}

impl Past {
    /// Nothing yet.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(
        device: &Rc<Device>,
        layout: &CacheLayout,
        kept: &Pages<Page>,
    ) -> Result<Self, BackendError> {
        let forgets = kept.kinds().iter().any(|kind| kind.window.is_some());
        let sides = if forgets { 2 * layout.layers.len() } else { 0 };
        let layers = kept.kinds().iter().map(|kind| {
            let numbers: Vec<i32> = kind.layers.iter().map(|&layer| int(layer)).collect();
            device.upload(&numbers, Purpose::Staging)
        });
        let kinds = (0..layout.layers.len()).map(|layer| int(kept.kind_of(layer)));
        Ok(Past {
            totals: device.upload(&vec![Totals::NONE; layout.slots * sides], Purpose::Counters)?,
            sides,
            used: vec![false; layout.slots],
            layers: layers.collect::<Result<_, _>>()?,
            kinds: device.upload(&kinds.collect::<Vec<_>>(), Purpose::Staging)?,
        })
    }

    /// Forgets a slot's.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn forget(&mut self, slot: usize) -> Result<(), BackendError> {
        if !std::mem::take(&mut self.used[slot]) {
            return Ok(());
        }
        let first = slot * self.sides * size_of::<Totals>();
        self.totals.write_at(first, &vec![Totals::NONE; self.sides])
    }

    /// Address of a slot's; 0 where it gave nothing back.
    fn address(&self, slot: usize) -> u64 {
        match self.used[slot] {
            true => self.totals.pointer() + (slot * self.sides * size_of::<Totals>()) as u64,
            false => 0,
        }
    }
}

/// Bytes of the sums of all slots of a cache that is to be.
pub fn past_bytes(layout: &CacheLayout, kinds: &[LayerKind]) -> usize {
    match kinds.iter().any(|kind| kind.window.is_some()) {
        true => layout.slots * 2 * layout.layers.len() * size_of::<Totals>(),
        false => 0,
    }
}

impl CudaCache {
    /// Sums up pages that are given back, before others store in them.
    pub(super) fn count_as_past(
        &mut self,
        kernels: &Kernels,
        given: &[GivenBack<Page>],
    ) -> Result<(), BackendError> {
        for kind in 0..self.pools.len() {
            let of_kind = given.iter().filter(|given| given.kind == kind);
            let pages: Vec<PastPage> = of_kind
                .map(|given| PastPage {
                    page: given.page,
                    slot: int(given.slot),
                    first: int(given.number * PAGE),
                })
                .collect();
            if pages.is_empty() {
                continue;
            }
            let list = self.device.upload(&pages, Purpose::Staging)?;
            let arguments = PastArguments {
                pages: list.pointer(),
                layers: self.past.layers[kind].pointer(),
                sides: self.device_sides.pointer(),
                shapes: self.device_shapes.pointer(),
                past: self.past.totals.pointer(),
                sink: self.sink.device.pointer(),
                sink_bytes: self.sink.bytes as u64,
                all_layers: int(self.layers.len()),
                native: Format::from(self.native) as i32,
                sink_tokens: int(self.sink.tokens),
            };
            let sides = 2 * self.kept.kinds()[kind].layers.len();
            let grid = (pages.len() as u32, sides as u32, 1);
            // SAFETY: the pages are full of stored tokens; every slot has totals of every layer.
            unsafe { launch!(self.device, kernels.get("sum_up_pages")?, grid, 256, 0; arguments) }?;
        }
        for given in given {
            self.past.used[given.slot] = true;
        }
        Ok(())
    }

    /// What the slot stored, per layer; dynamic scales and counters are read back from the device.
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
                self.kept.tokens(layer, slot),
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
        let tokens: Vec<[i32; 2]> = (0..self.layers.len())
            .map(|layer| {
                let kept = self.kept.first_position(layer, slot);
                [kept, self.kept.tokens(layer, slot)].map(int)
            })
            .collect();
        let tokens = self.device.upload(&tokens, Purpose::Staging)?;
        let arguments = SlotArguments {
            table: self.table.address(0, slot),
            per_kind: self.table.per_kind() as i64,
            kinds: self.past.kinds.pointer(),
            sides: self.device_sides.pointer(),
            tokens: tokens.pointer(),
            shapes: self.device_shapes.pointer(),
            past: self.past.address(slot),
            sink: self.sink.device.pointer() + (slot * self.sink.bytes) as u64,
            native: Format::from(self.native) as i32,
            sink_tokens: int(self.sink.tokens),
        };
        Ok((arguments, tokens))
    }
}
