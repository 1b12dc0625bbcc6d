//! What attention is compiled for, and the compiled kernels.

use cudarc::driver::{CudaFunction, CudaModule};
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::BackendError;
use crate::backend::cuda::compile::Unit;
use crate::backend::cuda::device::{Device, Purpose, launch};
use crate::backend::cuda::functions::Source;
use crate::backend::cuda::plan::Job;
use crate::backend::storage::Storage;
use crate::recipe::{ByteFormat, GroupSize, NativeDtype};

/// Tokens of attention's tiles.
const TILE: usize = 64;
/// Query rows of a warp.
pub const WARP_ROWS: usize = 16;
/// Threads of a block of `few`.
pub const FEW_THREADS: u32 = 128;
/// Query rows of a block of `prompt`.
pub const PROMPT_ROWS: usize = 128;
/// Threads of a block of `prompt`: two warpgroups compute, one copies.
pub const PROMPT_THREADS: u32 = 384;
/// Bytes of the stored scales of a tile.
const STORED_SCALES_BYTES: usize = 2 * TILE * 4;
/// Bytes of the scales of a tile.
const SCALES_BYTES: usize = 3 * TILE * 4;
/// Bytes of the addresses of a span's pages.
const ADDRESSES_BYTES: usize = 1024 / 16 * 8;
/// Bytes of a job.
const JOB_BYTES: usize = size_of::<Job>();

/// Class of stored elements that kernels are compiled for, numbered as in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 16-bit floats.
    Native = 0,
    /// 8-bit floats.
    Float8 = 1,
    /// 8-bit integers.
    Integer8 = 2,
    /// 4-bit integers in groups of 32.
    Integer4 = 3,
    /// 4-bit integers in groups of 64.
    Integer4Wide = 4,
}

impl From<Storage> for Class {
    fn from(storage: Storage) -> Self {
        match storage {
            Storage::Native(_) => Class::Native,
            Storage::Grouped(GroupSize::Of32, _) => Class::Integer4,
            Storage::Grouped(GroupSize::Of64, _) => Class::Integer4Wide,
            Storage::Fixed(format, ..) | Storage::Dynamic(format, _) => match format {
                ByteFormat::E4m3 | ByteFormat::E5m2 => Class::Float8,
                ByteFormat::Int8 => Class::Integer8,
            },
        }
    }
}

impl Class {
    fn is_grouped(self) -> bool {
        matches!(self, Class::Integer4 | Class::Integer4Wide)
    }
}

/// What attention is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKind {
    /// Elements per head vector.
    pub head_dim: usize,
    /// 16-bit format of operands.
    pub native: NativeDtype,
    /// Queries and weights keep more than 16 bits.
    pub exact: bool,
    /// Stored keys and values.
    pub stored: [Class; 2],
    /// The first tokens are native where others are not.
    pub sink: bool,
}

impl AttentionKind {
    /// Whether elements of this class become operands tile by tile before they are multiplied.
    fn stages(self, class: Class) -> bool {
        class.is_grouped() || (self.sink && class != Class::Native)
    }
}

/// Attention for one kind.
pub struct AttentionFunctions {
    /// Blocks of 16 query rows.
    pub few: CudaFunction,
    /// Shared memory of a block of `few`.
    pub few_shared: usize,
    /// Blocks of `few` that the device runs at a time.
    pub few_resident: u32,
    /// Blocks of `many_warps` times 16 query rows.
    pub many: CudaFunction,
    /// Shared memory of a block of `many`.
    pub many_shared: usize,
    /// Warps of a block of `many`.
    pub many_warps: usize,
    /// Blocks of [`PROMPT_ROWS`] query rows over all of their spans, in place of `many`; `None`
    /// where the device lacks their instructions, or these round differently.
    pub prompt: Option<CudaFunction>,
    /// Shared memory of a block of `prompt`.
    pub prompt_shared: usize,
    /// Merges spans.
    pub merge: CudaFunction,
}

/// Source of attention of a kind, and what its launches follow.
pub struct AttentionUnit {
    /// What is compiled.
    pub unit: Unit,
    many_warps: usize,
    hopper: bool,
}

impl AttentionUnit {
    /// What is to be compiled for a device.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where this device's blocks have too little shared memory.
    pub fn new(device: &Device, source: Source, kind: AttentionKind) -> Result<Self, BackendError> {
        let limit = device.shared_limit();
        let many_warps = match source {
            Source::Compiler => many_warps(kind, limit),
            Source::Embedded => embedded_warps(kind).filter(|&warps| fits(kind, warps, limit)),
        };
        let many_warps = many_warps.ok_or_else(|| {
            BackendError::Unsupported(format!(
                "head_dim {}: attention needs {} bytes of shared memory, a block of {} has {limit}",
                kind.head_dim,
                many_shared(kind, 2).max(few_shared(kind)),
                device.name(),
            ))
        })?;
        // PTX for all generations has no instructions of one.
        let hopper = source == Source::Compiler
            && has_prompt(kind, device.capability())
            && prompt_shared(kind.head_dim) <= limit;
        Ok(AttentionUnit {
            unit: unit(kind, many_warps, hopper),
            many_warps,
            hopper,
        })
    }
}

impl AttentionFunctions {
    /// Loads `binary`, which was compiled from `of`.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(
        device: &Rc<Device>,
        kind: AttentionKind,
        of: &AttentionUnit,
        binary: Vec<u8>,
    ) -> Result<Self, BackendError> {
        let &AttentionUnit {
            many_warps, hopper, ..
        } = of;
        let prompt_shared = prompt_shared(kind.head_dim);
        let module = device.load(binary)?;
        let (few_shared, many_shared) = (few_shared(kind), many_shared(kind, many_warps));
        let prompt = match hopper && round_alike(device, &module)? {
            true => Some(device.function(&module, "attend_prompt", prompt_shared)?),
            false => None,
        };
        let few = device.function(&module, "attend_few", few_shared)?;
        Ok(AttentionFunctions {
            few_resident: device.resident(&few, FEW_THREADS, few_shared)?,
            few,
            few_shared,
            many: device.function(&module, "attend_many", many_shared)?,
            many_shared,
            many_warps,
            prompt,
            prompt_shared,
            merge: device.function(&module, "merge_spans", 0)?,
        })
    }
}

/// Source and definitions of a kind.
fn unit(kind: AttentionKind, many_warps: usize, hopper: bool) -> Unit {
    let mut defines = vec![
        format!("HD={}", kind.head_dim),
        format!("BF16={}", u8::from(kind.native == NativeDtype::Bf16)),
        format!("EXACT={}", u8::from(kind.exact)),
        format!("K_CLASS={}", kind.stored[0] as i32),
        format!("V_CLASS={}", kind.stored[1] as i32),
        format!("SINK={}", u8::from(kind.sink)),
        format!("DOWN_MANY={many_warps}"),
    ];
    if hopper {
        defines.push(format!("PROMPT_SHARED={}", prompt_shared(kind.head_dim)));
    }
    Unit::attention(defines, hopper)
}

/// Whether blocks of prompts with asynchronous tensor-core instructions exist for a kind.
fn has_prompt(kind: AttentionKind, capability: (i32, i32)) -> bool {
    let staged = kind.stored.iter().any(|&class| kind.stages(class));
    capability == (9, 0) && !kind.exact && !staged && matches!(kind.head_dim, 64 | 128)
}

/// Whether both kinds of tensor-core instructions give the same bits on this device: on noise over
/// one power of two, where all terms count, and over many, where alignment cuts bits off.
fn round_alike(device: &Rc<Device>, module: &Arc<CudaModule>) -> Result<bool, BackendError> {
    const TILES: u32 = 512;
    let function = device.function(module, "compare_products", 0)?;
    let differing = device.upload(&[0_u32], Purpose::Staging)?;
    let count = differing.pointer();
    for (seed, spread) in [(1_u32, 1_i32), (2, 6), (3, 14)] {
        // SAFETY: the counter is one number.
        unsafe { launch!(device, &function, (TILES, 1, 1), 128, 0; seed, spread, count) }?;
    }
    Ok(differing.read::<u32>(1)? == [0])
}

/// Bytes of a row of a tile of operands: padded, so that rows fall on different banks.
fn operand_row(kind: AttentionKind) -> usize {
    (kind.head_dim.next_multiple_of(16) + 8) * 2
}

/// Bytes of a row of one-byte elements, likewise.
fn byte_row(kind: AttentionKind) -> usize {
    let width = kind.head_dim.next_multiple_of(16);
    if (width / 16).is_multiple_of(2) {
        width + 16
    } else {
        width
    }
}

/// Bytes of a row of elements that are staged, as they are copied.
fn raw_row(kind: AttentionKind, class: Class) -> usize {
    let width = kind.head_dim;
    let bytes = match class {
        Class::Native => 2 * width,
        Class::Float8 | Class::Integer8 => width,
        Class::Integer4 => width / 2 + width / 32 * 4,
        Class::Integer4Wide => width / 2 + width / 64 * 4,
    };
    bytes.next_multiple_of(16)
}

fn parts(kind: AttentionKind) -> usize {
    1 + usize::from(kind.exact)
}

/// Two tiles as stored, one of operands where elements are staged, queries and weights (where queries stay in registers, weights take their
/// place), largest scores, scales of two tiles, addresses of two spans, four jobs.
fn few_shared(kind: AttentionKind) -> usize {
    let side = |class| match class {
        Class::Native => 2 * operand_row(kind),
        _ if kind.stages(class) => 2 * raw_row(kind, class) + operand_row(kind),
        _ => 2 * byte_row(kind),
    };
    let tiles = TILE * kind.stored.map(side).iter().sum::<usize>();
    let (queries, weights) = (operand_row(kind), (TILE + 8) * 2);
    let both = match kind.head_dim <= 128 {
        true => queries.max(weights),
        false => queries + weights,
    };
    tiles
        + parts(kind) * WARP_ROWS * both
        + 4 * WARP_ROWS * 4
        + 2 * STORED_SCALES_BYTES
        + 2 * ADDRESSES_BYTES
        + 4 * JOB_BYTES
}

/// Queries, two tiles per side (as stored where they are bytes, and then a widened one), scales,
/// addresses.
fn many_shared(kind: AttentionKind, warps: usize) -> usize {
    let side = |class| match class {
        Class::Native => 2 * TILE * operand_row(kind),
        _ if kind.stages(class) => TILE * (2 * raw_row(kind, class) + operand_row(kind)),
        _ => TILE * (2 * byte_row(kind) + operand_row(kind)),
    };
    parts(kind) * WARP_ROWS * warps * operand_row(kind)
        + kind.stored.map(side).iter().sum::<usize>()
        + SCALES_BYTES
        + ADDRESSES_BYTES
}

/// Three stages of a tile, queries, sums of earlier spans, scales and barriers; the kernel checks
/// it against its own sizes when it is compiled.
fn prompt_shared(head_dim: usize) -> usize {
    let operands = TILE * head_dim * 2;
    let stages = 3 * (2 * operands + SCALES_BYTES + 16);
    // Swizzled tiles begin at multiples of 1,024 bytes.
    1024 + stages + 2 * operands + PROMPT_ROWS * head_dim * 4
}

fn fits(kind: AttentionKind, warps: usize, limit: usize) -> bool {
    many_shared(kind, warps).max(few_shared(kind)) <= limit
}

/// The most warps, up to 8, whose block fits.
fn many_warps(kind: AttentionKind, limit: usize) -> Option<usize> {
    let most = if kind.head_dim > 128 { 4 } else { 8 };
    [8, 4, 2]
        .into_iter()
        .filter(|warps| *warps <= most)
        .find(|&warps| fits(kind, warps, limit))
}

/// Warps of embedded kernels: what fits blocks of compute capability 8.6, or else of 8.0.
fn embedded_warps(kind: AttentionKind) -> Option<usize> {
    many_warps(kind, 99 << 10).or_else(|| many_warps(kind, 163 << 10))
}

/// What attention is compiled from for embedding: native and 8-bit float elements.
pub fn embedded_units(head_dims: &[usize]) -> Vec<Unit> {
    const STORED: [Class; 2] = [Class::Native, Class::Float8];
    let mut units = Vec::new();
    for &head_dim in head_dims {
        for native in [NativeDtype::F16, NativeDtype::Bf16] {
            for exact in [false, true] {
                for stored in STORED.iter().flat_map(|&k| STORED.map(|v| [k, v])) {
                    let kind = AttentionKind {
                        head_dim,
                        native,
                        exact,
                        stored,
                        sink: false,
                    };
                    units.extend(embedded_warps(kind).map(|warps| unit(kind, warps, false)));
                }
            }
        }
    }
    units
}

#[cfg(test)]
pub mod testing;

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(head_dim: usize, exact: bool) -> AttentionKind {
        AttentionKind {
            head_dim,
            native: NativeDtype::F16,
            exact,
            stored: [Class::Native; 2],
            sink: false,
        }
    }

    #[test]
    fn blocks_shrink_to_what_fits() {
        let (hopper, ampere, ada) = (227 << 10, 163 << 10, 99 << 10);
        assert_eq!(many_warps(kind(128, false), hopper), Some(8));
        assert_eq!(many_warps(kind(128, true), hopper), Some(8));
        assert_eq!(many_warps(kind(256, false), hopper), Some(4));
        assert_eq!(many_warps(kind(256, false), ampere), Some(2));
        assert_eq!(many_warps(kind(128, false), ada), Some(4));
        assert_eq!(many_warps(kind(256, false), ada), None);
        assert_eq!(many_warps(kind(8, true), ada), Some(8));
        assert!(prompt_shared(128) <= hopper);
    }
}
