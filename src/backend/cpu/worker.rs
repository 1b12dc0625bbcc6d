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
}

impl CpuBackend {
    /// Looks for the widest vector instructions of this machine.
    pub fn new() -> Self {
        Self::on(Arch::new())
    }

    pub(super) fn on(arch: Arch) -> Self {
        let ledger = Arc::default();
        CpuBackend {
            arch,
            product: Product::new(arch),
            experts: Mutex::new(Room::new(&ledger)),
            ledger,
        }
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}
