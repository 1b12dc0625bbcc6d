//! Compiled kernels of one device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::thread::JoinHandle;

use cudarc::driver::CudaFunction;

use super::attention::{AttentionFunctions, AttentionKind, AttentionUnit, Class};
use super::compile::{self, Delivery, Unit};
use super::device::{Device, Grid};
use super::experts::ExpertFunctions;
use super::ptx;
use super::tensor::Format;
use crate::backend::BackendError;
use crate::recipe::NativeDtype;

/// Everything in the files beside attention's and experts'.
const NAMES: [&str; 43] = [
    "embed",
    "rms_norm",
    "rms_norm_heads",
    "rotary",
    "rms_norm_add",
    "scale",
    "soft_cap",
    "gate",
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
    "store_wide",
    "split_heads",
    "split_heads_wide",
    "round_queries",
    "round_queries_wide",
    "slot_totals",
    "slot_absmax",
    "find_runs",
    "convolve",
    "keep_inputs",
    "prepare_heads",
    "delta_rule_32",
    "delta_rule_128",
    "delta_rule_256",
    "norm_and_gate",
    "gate_output",
    "suppress",
    "argmax",
    "nll",
    "route",
    "sort_pairs",
    "expert_few_gated",
    "expert_few_plain",
    "mix",
];

/// Where kernels are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The compiler or what it made earlier; embedded PTX where it is missing.
    Compiler,
    /// Embedded PTX.
    Embedded,
}

/// A binary or PTX, and where it comes from.
type Delivered = Result<(Vec<u8>, Delivery), BackendError>;

impl Source {
    /// The binary or PTX of `unit` for a device.
    ///
    /// # Errors
    /// As [`compile::binary`] and [`ptx::embedded`].
    fn deliver(self, device: &Device, unit: &Unit) -> Delivered {
        self.deliver_for(device.capability(), unit)
    }

    fn deliver_for(self, capability: (i32, i32), unit: &Unit) -> Delivered {
        match self {
            Source::Compiler => {
                let folder = compile::cache_folder();
                compile::binary(unit, capability, folder.as_deref())
            }
            Source::Embedded => Ok((ptx::embedded(unit)?, Delivery::Embedded)),
        }
    }
}

/// What a model will ask of attention, as far as it is known before anything is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Elements per head vector.
    pub head_dim: usize,
    /// Format of native components.
    pub native: NativeDtype,
    /// Weights are f32.
    pub exact: bool,
}

/// A unit that a thread of its own is compiling.
struct Ahead {
    unit: Unit,
    binary: JoinHandle<Delivered>,
}

/// A device and its kernels: by name, attention by kind, experts by format; the latter two are
/// compiled when first asked for.
pub struct Kernels {
    /// The device.
    pub device: Rc<Device>,
    /// Where everything but attention and experts came from.
    pub delivery: Delivery,
    /// Why the compiler does not serve.
    pub refusal: Option<BackendError>,
    source: Source,
    rows: HashMap<&'static str, CudaFunction>,
    attention: RefCell<HashMap<AttentionKind, Rc<AttentionFunctions>>>,
    experts: RefCell<HashMap<Format, Rc<ExpertFunctions>>>,
    ahead: RefCell<Option<Ahead>>,
}

impl Kernels {
    /// Compiles and loads everything but attention and experts. Native attention of what is `expected` is
    /// compiled beside, which takes about as long.
    ///
    /// # Errors
    /// As [`ptx::embedded`].
    pub fn new(
        device: &Rc<Device>,
        source: Source,
        expected: Option<Expected>,
    ) -> Result<Self, BackendError> {
        let ahead = match source {
            Source::Compiler => expected.and_then(|expected| compile_ahead(device, expected)),
            Source::Embedded => None,
        };
        let unit = Unit::rows();
        let (source, (binary, delivery), refusal) = match source.deliver(device, &unit) {
            Ok(delivered) => (source, delivered, None),
            Err(error) if source == Source::Embedded => return Err(error),
            Err(refusal) => {
                let embedded = Source::Embedded.deliver(device, &unit)?;
                (Source::Embedded, embedded, Some(refusal))
            }
        };
        let module = device.load(binary)?;
        let mut rows = HashMap::new();
        for name in NAMES {
            rows.insert(name, device.function(&module, name, 0)?);
        }
        Ok(Kernels {
            device: Rc::clone(device),
            delivery,
            refusal,
            source,
            rows,
            attention: RefCell::default(),
            experts: RefCell::default(),
            ahead: RefCell::new(ahead),
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
        let of = AttentionUnit::new(&self.device, self.source, kind)?;
        let (binary, _) = self.deliver(&of.unit)?;
        let built = Rc::new(AttentionFunctions::new(&self.device, kind, &of, binary)?);
        self.attention.borrow_mut().insert(kind, Rc::clone(&built));
        Ok(built)
    }

    /// Products of experts with weights of a 16-bit format.
    ///
    /// # Errors
    /// As [`ExpertFunctions::new`].
    pub fn experts(&self, format: Format) -> Result<Rc<ExpertFunctions>, BackendError> {
        if let Some(found) = self.experts.borrow().get(&format) {
            return Ok(Rc::clone(found));
        }
        let unit = ExpertFunctions::unit(&self.device, self.source, format);
        let (binary, _) = self.deliver(&unit)?;
        let built = Rc::new(ExpertFunctions::new(self, format, (&unit, binary))?);
        self.experts.borrow_mut().insert(format, Rc::clone(&built));
        Ok(built)
    }

    fn deliver(&self, unit: &Unit) -> Delivered {
        let ahead = self.ahead.borrow_mut().take_if(|ahead| ahead.unit == *unit);
        let binary = ahead.and_then(|ahead| ahead.binary.join().ok());
        binary.unwrap_or_else(|| self.source.deliver(&self.device, unit))
    }
}

/// Starts to compile native attention; nothing where a device cannot run it, which whoever asks for
/// it will hear.
fn compile_ahead(device: &Device, expected: Expected) -> Option<Ahead> {
    let kind = AttentionKind {
        head_dim: expected.head_dim,
        native: expected.native,
        exact: expected.exact,
        stored: [Class::Native; 2],
        sink: false,
    };
    let unit = AttentionUnit::new(device, Source::Compiler, kind)
        .ok()?
        .unit;
    let (capability, compiled) = (device.capability(), unit.clone());
    let binary = std::thread::spawn(move || Source::Compiler.deliver_for(capability, &compiled));
    Some(Ahead { unit, binary })
}
