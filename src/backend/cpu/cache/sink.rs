//! The first tokens of every sequence, stored natively where the recipe quantises.

use super::Side;
use super::plane::{PlaneShape, store_native, widen_native};
use crate::backend::CacheLayout;
use crate::backend::storage::Storage;
use crate::recipe::NativeDtype;

/// Room for the first tokens of all slots.
pub struct Sink {
    /// Of every layer.
    shapes: Vec<PlaneShape>,
    native: NativeDtype,
    tokens: usize,
    /// `[slots][layers][2]` of `[tokens][kv_heads][head_dim]`, empty where the component is native.
    areas: Vec<[Box<[u16]>; 2]>,
}

/// Slot, layer and component.
pub type Place = (usize, usize, Side);

impl Sink {
    /// Room for the sink of `layout`, whose layers are stored as `storages` say.
    pub fn new(layout: &CacheLayout, storages: &[[Storage; 2]]) -> Self {
        let tokens = layout.recipe.sink as usize;
        let shapes: Vec<PlaneShape> = layout.layers.iter().map(PlaneShape::of).collect();
        let area = |shape: PlaneShape, storage: Storage| {
            let kept = if storage.is_native() { 0 } else { tokens };
            vec![0_u16; kept * shape.width()].into()
        };
        let layers = || storages.iter().zip(&shapes);
        let slot = || layers().map(|(sides, shape)| sides.map(|storage| area(*shape, storage)));
        let areas = (0..layout.slots).flat_map(|_| slot()).collect();
        Sink {
            shapes,
            native: layout.native,
            tokens,
            areas,
        }
    }

    /// First tokens of a sequence that it holds.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How they are stored.
    pub fn storage(&self) -> Storage {
        Storage::Native(self.native)
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        let areas = self.areas.iter().flatten();
        areas.map(|area| size_of_val(&area[..]) as u64).sum()
    }

    /// Stores one token (`x` is `[kv_heads * head_dim]`).
    ///
    /// # Errors
    /// The index of the first element that native storage cannot hold.
    pub fn store(
        &mut self,
        (slot, layer, side): Place,
        position: usize,
        x: &[f32],
    ) -> Result<(), usize> {
        let first = position * self.shapes[layer].width();
        let area = &mut self.areas[slot * self.shapes.len() + layer][side as usize];
        store_native(area, |d| first + d, self.native, x)
    }

    /// The elements of one head vector, counted.
    pub fn vector(
        &self,
        (slot, layer, side): Place,
        head: usize,
        position: usize,
    ) -> impl Iterator<Item = (usize, f32)> {
        let shape = self.shapes[layer];
        let first = position * shape.width() + head * shape.head_dim;
        let area = &self.areas[slot * self.shapes.len() + layer][side as usize];
        let stored = &area[first..first + shape.head_dim];
        let widened = stored.iter().map(|&bits| widen_native(self.native, bits));
        widened.enumerate()
    }

    /// Overwrites a slot's tokens from `kept` on with NaN.
    #[cfg(test)]
    pub fn poison(&mut self, slot: usize, kept: usize) {
        let layers = &mut self.areas[slot * self.shapes.len()..][..self.shapes.len()];
        for (areas, shape) in layers.iter_mut().zip(&self.shapes) {
            for area in areas {
                let poisoned = area.iter_mut().skip(kept * shape.width());
                poisoned.for_each(|bits| *bits = 0x7fff);
            }
        }
    }
}
