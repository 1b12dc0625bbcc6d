//! The reference worker itself.

use std::sync::{Arc, Mutex};

use pulp::Arch;

use super::experts::Room;
use super::product::Product;
use crate::backend::Ledger;

/// The reference worker.
pub struct CpuBackend {
    pub(super) arch: Arch,
    pub(super) product: Product,
    /// Room for the rows of one expert at a time.
    pub(super) experts: Mutex<Room>,
    /// Weights stay in it: they live as long as the backend.
    pub(super) ledger: Arc<Ledger>,
    /// How caches keep what is native.
    pub(super) precision: Precision,
}

/// How a cache keeps native components and inputs of convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// In the native format.
    Native,
    /// In f32.
    Whole,
}

impl CpuBackend {
    /// Looks for the widest vector instructions of this machine.
    pub fn new() -> Self {
        Self::on(Arch::new())
    }

    /// A worker that rounds nothing: what is native, inputs of convolutions included, is kept in f32,
    /// though counted as native. Its logits can be compared with those of other f32 implementations to
    /// the last digits, where two that round may store neighbours. No arm runs on it.
    pub fn unrounded() -> Self {
        CpuBackend {
            precision: Precision::Whole,
            ..Self::new()
        }
    }

    pub(super) fn on(arch: Arch) -> Self {
        let ledger = Arc::default();
        CpuBackend {
            arch,
            product: Product::new(arch),
            experts: Mutex::new(Room::new(&ledger)),
            ledger,
            precision: Precision::Native,
        }
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}
