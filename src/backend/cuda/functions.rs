//! Compiled kernels of one device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use cudarc::driver::CudaFunction;

use super::attention::{AttentionFunctions, AttentionKind};
use super::compile::{self, Unit};
use super::device::{Device, Grid};
use crate::backend::BackendError;

/// Everything in the files beside attention's.
const NAMES: [&str; 21] = [
    "embed",
    "rms_norm",
    "rms_norm_heads",
    "rotary",
    "silu_mul",
    "gather",
    "columns",
    "add_bias",
    "to_half",
    "to_float",
    "product_large",
    "product_medium",
    "product_small",
    "product_few",
    "compare",
    "store",
    "split_heads",
    "slot_totals",
    "slot_absmax",
    "argmax",
    "nll",
];

/// A device and its kernels: by name, attention by kind; the latter are compiled when first asked
/// for.
pub struct Kernels {
    /// The device.
    pub device: Rc<Device>,
    rows: HashMap<&'static str, CudaFunction>,
    attention: RefCell<HashMap<AttentionKind, Rc<AttentionFunctions>>>,
}

impl Kernels {
    /// Compiles and loads everything but attention.
    ///
    /// # Errors
    /// As [`compile::binary`].
    pub fn new(device: &Rc<Device>) -> Result<Self, BackendError> {
        let binary = binary(device, &Unit::rows())?;
        let module = device.load(binary)?;
        let mut rows = HashMap::new();
        for name in NAMES {
            rows.insert(name, device.function(&module, name, 0)?);
        }
        Ok(Kernels {
            device: Rc::clone(device),
            rows,
            attention: RefCell::default(),
        })
    }

    /// A kernel by name.
    ///
    /// # Errors
    /// [`BackendError::Device`] for a name that no file has.
    pub fn get(&self, name: &str) -> Result<&CudaFunction, BackendError> {
        let missing = || BackendError::Device(format!("cuda: no kernel `{name}`"));
        self.rows.get(name).ok_or_else(missing)
    }

    /// Starts a kernel over `blocks` blocks, unless there is nothing to do.
    ///
    /// # Errors
    /// What `start` reports.
    pub fn start(
        &self,
        name: &str,
        blocks: u32,
        start: impl FnOnce(&CudaFunction, Grid) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        if blocks == 0 {
            return Ok(());
        }
        start(self.get(name)?, (blocks, 1, 1))
    }

    /// Attention of a kind.
    ///
    /// # Errors
    /// As [`AttentionFunctions::new`].
    pub fn attention(&self, kind: AttentionKind) -> Result<Rc<AttentionFunctions>, BackendError> {
        if let Some(found) = self.attention.borrow().get(&kind) {
            return Ok(Rc::clone(found));
        }
        let built = Rc::new(AttentionFunctions::new(&self.device, kind)?);
        self.attention.borrow_mut().insert(kind, Rc::clone(&built));
        Ok(built)
    }
}

fn binary(device: &Device, unit: &Unit) -> Result<Vec<u8>, BackendError> {
    let folder = compile::cache_folder();
    compile::binary(unit, device.capability(), folder.as_deref())
}
