//! Compiled kernels of one device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::thread::JoinHandle;

use cudarc::driver::CudaFunction;

use super::attention::{AttentionFunctions, AttentionKind, AttentionUnit, Class};
use super::compile::{self, Delivery, Unit};
use super::device::{Device, Grid, driver_version};
use super::experts::ExpertFunctions;
use super::parts::PARTS;
use super::ptx;
use super::tensor::Format;
use crate::backend::BackendError;
use crate::recipe::NativeDtype;

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
/// The same of every part.
type Parts = Vec<(Vec<u8>, Delivery)>;

impl Source {
    /// The binary or PTX of `unit` for a compute capability.
    ///
    /// # Errors
    /// As [`compile::binary`] and [`ptx::embedded`].
    fn deliver(self, capability: (i32, i32), unit: &Unit) -> Delivered {
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
    ahead: RefCell<Vec<Ahead>>,
}

impl Kernels {
    /// Compiles and loads everything but attention and experts, part beside part. Native attention of
    /// what is `expected` is compiled beside them, which takes about as long.
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
        let delivered = deliver_parts(source, device.capability());
        let mut start = Start::new(source, delivered, ahead, device.capability())?;
        let loaded = match load(device, &start.parts) {
            // A driver that is older than the compiler does not take what that makes.
            Err(refused) if start.source == Source::Compiler => {
                start = Start::new(Source::Compiler, Err(refused), None, device.capability())?;
                load(device, &start.parts)
            }
            loaded => loaded,
        };
        let Loaded { rows, delivery } = loaded?;
        let Start {
            source,
            refusal,
            ahead,
            ..
        } = start;
        Ok(Kernels {
            device: Rc::clone(device),
            delivery,
            refusal,
            source,
            rows,
            attention: RefCell::default(),
            experts: RefCell::default(),
            ahead: RefCell::new(ahead.into_iter().collect()),
        })
    }

    /// Who made them, in words, as far as bits may depend on it.
    pub fn origin(&self) -> String {
        let (who, version) = match self.source {
            Source::Compiler => ("NVRTC", compile::version().map(|(version, _)| version)),
            Source::Embedded => ("embedded PTX under CUDA", driver_version()),
        };
        // Both were asked before there were kernels.
        let (major, minor) = version.unwrap_or_default();
        format!("{who} {major}.{minor}")
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

    /// Most query heads per key/value head that attention of a kind takes; compiles nothing.
    ///
    /// # Errors
    /// As [`AttentionUnit::new`] and [`ptx::embedded`]: what [`Kernels::attention`] would meet.
    pub fn largest_group(&self, kind: AttentionKind) -> Result<usize, BackendError> {
        let of = AttentionUnit::new(&self.device, self.source, kind)?;
        if self.source == Source::Embedded {
            ptx::embedded(&of.unit)?;
        }
        Ok(of.rows())
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

    /// Starts to compile products of experts with weights of `format`, which will be asked for.
    pub fn expect_experts(&self, format: Format) {
        let Some(format) = format.half() else { return };
        let unit = ExpertFunctions::unit(&self.device, self.source, format);
        let mut ahead = self.ahead.borrow_mut();
        let is_known = |ahead: &Ahead| ahead.unit == unit;
        let is_needed = self.source == Source::Compiler
            && !self.experts.borrow().contains_key(&format)
            && !ahead.iter().any(is_known);
        if is_needed {
            ahead.push(Ahead::new(&self.device, unit));
        }
    }

    fn deliver(&self, unit: &Unit) -> Delivered {
        let mut ahead = self.ahead.borrow_mut();
        let known = ahead.iter().position(|ahead| ahead.unit == *unit);
        let binary = known.and_then(|at| ahead.swap_remove(at).binary.join().ok());
        binary.unwrap_or_else(|| self.source.deliver(self.device.capability(), unit))
    }
}

/// What kernels begin with.
struct Start {
    source: Source,
    parts: Parts,
    refusal: Option<BackendError>,
    ahead: Option<Ahead>,
}

impl Start {
    /// What was `delivered` from `source`, or embedded PTX where the compiler refused: nothing that is
    /// being compiled ahead counts then, as it would be refused as well.
    fn new(
        source: Source,
        delivered: Result<Parts, BackendError>,
        ahead: Option<Ahead>,
        capability: (i32, i32),
    ) -> Result<Self, BackendError> {
        match delivered {
            Ok(parts) => Ok(Start {
                source,
                parts,
                refusal: None,
                ahead,
            }),
            Err(error) if source == Source::Embedded => Err(error),
            Err(refusal) => Ok(Start {
                source: Source::Embedded,
                parts: deliver_parts(Source::Embedded, capability)?,
                refusal: Some(refusal),
                ahead: None,
            }),
        }
    }
}

/// Kernels on a device.
struct Loaded {
    rows: HashMap<&'static str, CudaFunction>,
    delivery: Delivery,
}

fn load(device: &Rc<Device>, parts: &Parts) -> Result<Loaded, BackendError> {
    let mut loaded = Loaded {
        rows: HashMap::new(),
        delivery: Delivery::Kept,
    };
    for (part, (binary, from)) in PARTS.iter().zip(parts) {
        // One part that was not kept makes the start a longer one.
        if *from != Delivery::Kept {
            loaded.delivery = *from;
        }
        let module = device.load(binary.clone())?;
        for name in part.kernels {
            let function = device.function(&module, name, 0)?;
            loaded.rows.insert(*name, function);
        }
    }
    Ok(loaded)
}

/// Binaries or PTX of every part, which are compiled side by side.
fn deliver_parts(source: Source, capability: (i32, i32)) -> Result<Parts, BackendError> {
    let deliver = |part| source.deliver(capability, &Unit::part(part));
    std::thread::scope(|scope| {
        let threads = PARTS.iter().map(|part| scope.spawn(move || deliver(part)));
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|delivered| match delivered {
                Ok(delivered) => delivered,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
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
    Some(Ahead::new(device, unit))
}

impl Ahead {
    fn new(device: &Device, unit: Unit) -> Self {
        let (capability, own) = (device.capability(), unit.clone());
        let binary = std::thread::spawn(move || Source::Compiler.deliver(capability, &own));
        Ahead { unit, binary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attention that a model is expected to need was asked of the compiler that then refused: it has to
    /// come from the binary like everything else.
    #[test]
    fn nothing_waits_for_a_compiler_that_refused() {
        let refuse = |what: &str| BackendError::Device(format!("libnvrtc {what}"));
        let ahead = Ahead {
            unit: Unit::part(&PARTS[0]),
            binary: std::thread::spawn(move || Err(refuse("is missing"))),
        };
        let start = Start::new(
            Source::Compiler,
            Err(refuse("refused")),
            Some(ahead),
            (8, 9),
        );
        let start = start.unwrap();
        assert_eq!(start.source, Source::Embedded);
        assert!(start.ahead.is_none());
        assert!(start.refusal.unwrap().to_string().contains("refused"));
        assert_eq!(start.parts.len(), PARTS.len());
        let embedded = |(_, from): &(Vec<u8>, Delivery)| *from == Delivery::Embedded;
        assert!(start.parts.iter().all(embedded));
        let own = Start::new(Source::Embedded, Err(refuse("damaged")), None, (8, 9));
        assert!(own.is_err());
    }
}
