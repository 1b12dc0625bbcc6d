//! Pages of one kind of layers, which are made on demand and used again.

use super::PAGE;
use super::plane::{Plane, PlaneShape};
use crate::backend::cpu::worker::Precision;
use crate::backend::storage::Storage;

/// One layer's share of a page.
pub struct LayerPage {
    /// Keys and values.
    pub planes: [Plane; 2],
    /// By token.
    pub tallies: [[Tally; 2]; PAGE],
}

/// What storing one token's keys or values of one layer did.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    /// A token is stored.
    pub stored: bool,
    /// Elements that saturated.
    pub saturated: u32,
    /// Elements that native storage would hold otherwise.
    pub changed: u32,
}

impl Tally {
    /// Of a token that is stored as native storage does.
    pub const UNCHANGED: Tally = Tally {
        stored: true,
        saturated: 0,
        changed: 0,
    };
}

/// Pages of one kind.
pub struct Pool {
    /// Shape and storage of the kind's layers.
    layers: Vec<(PlaneShape, [Storage; 2])>,
    precision: Precision,
    /// All that exist, `[pages][layers]`.
    pub pages: Vec<Vec<LayerPage>>,
    free: Vec<usize>,
}

impl Pool {
    /// No pages yet, of layers of these shapes and storages.
    pub fn new(layers: Vec<(PlaneShape, [Storage; 2])>, precision: Precision) -> Self {
        Pool {
            layers,
            precision,
            pages: Vec::new(),
            free: Vec::new(),
        }
    }

    /// A page without tokens, and whether it was made for this.
    pub fn take(&mut self) -> (usize, bool) {
        if let Some(page) = self.free.pop() {
            return (page, false);
        }
        let layers = self.layers.iter();
        let fresh = layers.map(|(shape, storages)| LayerPage {
            planes: storages.map(|storage| Plane::new(*shape, storage, self.precision)),
            tallies: Default::default(),
        });
        self.pages.push(fresh.collect());
        (self.pages.len() - 1, true)
    }

    /// Takes a page back.
    pub fn give(&mut self, page: usize) {
        self.forget(page, 0);
        self.free.push(page);
    }

    /// Forgets the tallies of a page's tokens from `kept` on.
    pub fn forget(&mut self, page: usize, kept: usize) {
        for layer in &mut self.pages[page] {
            layer.tallies[kept..].fill(Default::default());
        }
    }

    /// Bytes of stored elements and scales, and of counters.
    pub fn bytes(&self) -> (u64, u64) {
        let layers = self.pages.last().map_or(&[][..], Vec::as_slice);
        let planes = layers.iter().flat_map(|layer| &layer.planes);
        let tallies = layers
            .iter()
            .map(|layer| size_of_val(&layer.tallies) as u64);
        let pages = self.pages.len() as u64;
        (
            pages * planes.map(Plane::bytes).sum::<u64>(),
            pages * tallies.sum::<u64>(),
        )
    }
}
