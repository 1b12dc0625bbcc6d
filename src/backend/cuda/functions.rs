//! Compiled kernels of one device.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use cudarc::driver::CudaFunction;

use super::compile::{self, Delivery, Unit};
use super::device::{Device, Grid};
use super::ptx;
use crate::backend::BackendError;
use crate::recipe::NativeDtype;

/// Everything in the files beside attention's.
const NAMES: [&str; 19] = [
    "embed",
    "rms_norm",
    "rms_norm_heads",
    "rotary",
    "silu_mul",
    "gather",
    "add_bias",
    "to_half",
    "to_float",
    "product_large",
    "product_medium",
    "product_small",
    "compare",
    "store",
    "slot_totals",
    "slot_absmax",
    "suppress",
    "argmax",
    "nll",
];

/// Tokens of attention's tiles.
const TILE: usize = 64;
/// Query rows of a warp.
pub const WARP_ROWS: usize = 16;

/// What attention is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKind {
    /// Elements per head vector.
    pub head_dim: usize,
    /// 16-bit format of operands.
    pub native: NativeDtype,
    /// Queries and weights keep more than 16 bits.
    pub exact: bool,
}

/// Attention for one kind.
pub struct AttentionFunctions {
    /// Blocks of 16 query rows.
    pub few: CudaFunction,
    /// Shared memory of a block of `few`.
    pub few_shared: usize,
    /// Blocks of `many_warps` times 16 query rows.
    pub many: CudaFunction,
    /// Shared memory of a block of `many`.
    pub many_shared: usize,
    /// Warps of a block of `many`.
    pub many_warps: usize,
    /// Merges spans.
    pub merge: CudaFunction,
}

/// Where kernels are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The compiler or what it made earlier; embedded PTX where it is missing.
    Compiler,
    /// Embedded PTX.
    Embedded,
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
    /// As [`compile::deliver`].
    pub fn new(device: &Rc<Device>, source: Source) -> Result<Self, BackendError> {
        let (binary, delivery) = binary(device, source, &Unit::rows())?;
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
    /// [`BackendError::Unsupported`] where this device's blocks have too little shared memory.
    pub fn attention(&self, kind: AttentionKind) -> Result<Rc<AttentionFunctions>, BackendError> {
        if let Some(found) = self.attention.borrow().get(&kind) {
            return Ok(Rc::clone(found));
        }
        let built = Rc::new(self.build(kind)?);
        self.attention.borrow_mut().insert(kind, Rc::clone(&built));
        Ok(built)
    }

    fn build(&self, kind: AttentionKind) -> Result<AttentionFunctions, BackendError> {
        let many_warps = many_warps(kind, self.device.shared_limit()).ok_or_else(|| {
            BackendError::Unsupported(format!(
                "head_dim {}: attention needs {} bytes of shared memory, a block of {} has {}",
                kind.head_dim,
                many_shared(kind, 2).max(few_shared(kind)),
                self.device.name(),
                self.device.shared_limit()
            ))
        })?;
        let unit = attention_unit(kind, many_warps);
        let (binary, _) = binary(&self.device, self.source, &unit)?;
        let module = self.device.load(binary)?;
        let (few_shared, many_shared) = (few_shared(kind), many_shared(kind, many_warps));
        Ok(AttentionFunctions {
            few: self.device.function(&module, "attend_few", few_shared)?,
            few_shared,
            many: self.device.function(&module, "attend_many", many_shared)?,
            many_shared,
            many_warps,
            merge: self.device.function(&module, "merge_spans", 0)?,
        })
    }
}

/// Source of attention of a kind, `many` with `many_warps` warps a block.
fn attention_unit(kind: AttentionKind, many_warps: usize) -> Unit {
    Unit::attention(vec![
        format!("HD={}", kind.head_dim),
        format!("BF16={}", u8::from(kind.native == NativeDtype::Bf16)),
        format!("EXACT={}", u8::from(kind.exact)),
        format!("DOWN_MANY={many_warps}"),
    ])
}

/// What every kernel is compiled from on devices whose blocks have up to `shared_limit` bytes of
/// shared memory, attention for `head_dims`.
pub fn units(head_dims: &[usize], shared_limit: usize) -> Vec<Unit> {
    let mut units = vec![Unit::rows()];
    for &head_dim in head_dims {
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            for exact in [false, true] {
                let kind = AttentionKind {
                    head_dim,
                    native,
                    exact,
                };
                let warps = many_warps(kind, shared_limit);
                units.extend(warps.map(|warps| attention_unit(kind, warps)));
            }
        }
    }
    units
}

fn binary(
    device: &Device,
    source: Source,
    unit: &Unit,
) -> Result<(Vec<u8>, Delivery), BackendError> {
    match source {
        Source::Compiler => {
            let folder = compile::cache_folder();
            compile::deliver(unit, device.capability(), folder.as_deref())
        }
        Source::Embedded => Ok((ptx::embedded(unit)?, Delivery::Embedded)),
    }
}

/// Bytes of a row of a tile.
fn row_bytes(kind: AttentionKind) -> usize {
    (kind.head_dim.next_multiple_of(16) + 8) * 2
}

/// Queries of `rows`, two tiles each of keys and values, scales.
fn base_shared(kind: AttentionKind, rows: usize) -> usize {
    let parts = 1 + usize::from(kind.exact);
    parts * rows * row_bytes(kind) + 4 * TILE * row_bytes(kind) + 3 * TILE * 4
}

fn few_shared(kind: AttentionKind) -> usize {
    // Warps exchange scores, in the place of queries where those are kept in registers.
    let exchange = WARP_ROWS * (TILE + 4) * 4;
    let queries = WARP_ROWS * row_bytes(kind) * (1 + usize::from(kind.exact));
    let base = base_shared(kind, WARP_ROWS);
    if kind.head_dim <= 128 {
        base - queries + queries.max(exchange)
    } else {
        base + exchange
    }
}

fn many_shared(kind: AttentionKind, warps: usize) -> usize {
    base_shared(kind, WARP_ROWS * warps)
}

/// The most warps, up to 8, whose block fits.
fn many_warps(kind: AttentionKind, limit: usize) -> Option<usize> {
    let most = if kind.head_dim > 128 { 4 } else { 8 };
    let fits = |warps: &usize| many_shared(kind, *warps).max(few_shared(kind)) <= limit;
    [8, 4, 2]
        .into_iter()
        .filter(|warps| *warps <= most)
        .find(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_shrink_to_what_fits() {
        let kind = |head_dim, exact| AttentionKind {
            head_dim,
            native: NativeDtype::F16,
            exact,
        };
        let (hopper, ampere, ada) = (227 << 10, 163 << 10, 99 << 10);
        assert_eq!(many_warps(kind(128, false), hopper), Some(8));
        assert_eq!(many_warps(kind(128, true), hopper), Some(8));
        assert_eq!(many_warps(kind(256, false), hopper), Some(4));
        assert_eq!(many_warps(kind(256, false), ampere), Some(2));
        assert_eq!(many_warps(kind(128, false), ada), Some(4));
        assert_eq!(many_warps(kind(256, false), ada), None);
        assert_eq!(many_warps(kind(8, true), ada), Some(8));
    }
}
