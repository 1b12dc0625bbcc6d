//! Compiled kernels of one device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use cudarc::driver::CudaFunction;

use super::attention::{AttentionFunctions, AttentionKind};
use super::compile::{self, Delivery, Unit};
use super::device::{Device, Grid};
use super::ptx;
use crate::backend::BackendError;

/// Everything in the files beside attention's.
const NAMES: [&str; 23] = [
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
    "round_queries",
    "slot_totals",
    "slot_absmax",
    "suppress",
    "argmax",
    "nll",
];

/// Where kernels are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The compiler or what it made earlier; embedded PTX where it is missing.
    Compiler,
    /// Embedded PTX.
    Embedded,
}

impl Source {
    /// The binary or PTX of `unit` for a device, and where it comes from.
    ///
    /// # Errors
    /// As [`compile::binary`] and [`ptx::embedded`].
    pub fn deliver(
        self,
        device: &Device,
        unit: &Unit,
    ) -> Result<(Vec<u8>, Delivery), BackendError> {
        match self {
            Source::Compiler => {
                let folder = compile::cache_folder();
                compile::binary(unit, device.capability(), folder.as_deref())
            }
            Source::Embedded => Ok((ptx::embedded(unit)?, Delivery::Embedded)),
        }
    }
}

/// A device and its kernels: by name, attention by kind; the latter are compiled when first asked
/// for.
pub struct Kernels {
    /// The device.
    pub device: Rc<Device>,
    /// Where everything but attention came from.
    pub delivery: Delivery,
    source: Source,
    rows: HashMap<&'static str, CudaFunction>,
    attention: RefCell<HashMap<AttentionKind, Rc<AttentionFunctions>>>,
}

impl Kernels {
    /// Compiles and loads everything but attention.
    ///
    /// # Errors
    /// As [`Source::deliver`].
    pub fn new(device: &Rc<Device>, source: Source) -> Result<Self, BackendError> {
        let source = match source {
            Source::Compiler if compile::version().is_ok() => Source::Compiler,
            Source::Compiler | Source::Embedded => Source::Embedded,
        };
        let (binary, delivery) = source.deliver(device, &Unit::rows())?;
        let module = device.load(binary)?;
        let mut rows = HashMap::new();
        for name in NAMES {
            rows.insert(name, device.function(&module, name, 0)?);
        }
        Ok(Kernels {
            device: Rc::clone(device),
            delivery,
            source,
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
        let built = Rc::new(AttentionFunctions::new(&self.device, self.source, kind)?);
        self.attention.borrow_mut().insert(kind, Rc::clone(&built));
        Ok(built)
    }
}
