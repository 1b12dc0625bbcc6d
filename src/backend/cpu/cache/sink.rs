//! The first tokens of every sequence, stored natively where the recipe quantises.

use super::Side;
use super::plane::{PlaneShape, store_native, widen_native};
use crate::backend::CacheLayout;
use crate::backend::storage::Storage;
use crate::recipe::NativeDtype;

/// Room for the first tokens of all slots.
pub struct Sink {
    shape: PlaneShape,
    native: NativeDtype,
    tokens: usize,
    layers: usize,
    /// `[slots][layers][2]` of `[tokens][kv_heads][head_dim]`, empty where the component is native.
    areas: Vec<[Box<[u16]>; 2]>,
}

/// Slot, layer and component.
pub type Place = (usize, usize, Side);

impl Sink {
    /// Room for the sink of `layout`, whose layers are stored as `storages` say.
    pub fn new(shape: PlaneShape, layout: &CacheLayout, storages: &[[Storage; 2]]) -> Self {
        let tokens = layout.recipe.sink as usize;
        let area = |storage: Storage| {
            let kept = if storage.is_native() { 0 } else { tokens };
            vec![0_u16; kept * shape.width()].into()
        };
        let slot = || storages.iter().map(|sides| sides.map(area));
        Sink {
            shape,
            native: layout.native,
            tokens,
            layers: storages.len(),
            areas: (0..layout.slots).flat_map(|_| slot()).collect(),
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
        let first = position * self.shape.width();
        let area = &mut self.areas[slot * self.layers + layer][side as usize];
        store_native(area, |d| first + d, self.native, x)
    }

    /// The elements of one head vector, counted.
    pub fn vector(
        &self,
        (slot, layer, side): Place,
        head: usize,
        position: usize,
    ) -> impl Iterator<Item = (usize, f32)> {
        let first = position * self.shape.width() + head * self.shape.head_dim;
        let area = &self.areas[slot * self.layers + layer][side as usize];
        let stored = &area[first..first + self.shape.head_dim];
        let widened = stored.iter().map(|&bits| widen_native(self.native, bits));
        widened.enumerate()
    }

    /// Overwrites a slot's tokens from `kept` on with NaN.
    #[cfg(test)]
    pub fn poison(&mut self, slot: usize, kept: usize) {
        let width = self.shape.width();
        for area in self.areas[slot * self.layers..][..self.layers]
            .iter_mut()
            .flatten()
        {
            area.iter_mut()
                .skip(kept * width)
                .for_each(|bits| *bits = 0x7fff);
        }
    }
}
