//! What attention is compiled for, and the compiled kernels.

mod tiles;

use cudarc::driver::{CudaFunction, CudaModule};
use std::rc::Rc;
use std::sync::Arc;

use crate::backend::BackendError;
use crate::backend::cuda::compile::Unit;
use crate::backend::cuda::device::{Device, Purpose, launch};
use crate::backend::cuda::functions::Source;
use crate::backend::storage::Storage;
use crate::recipe::{ByteFormat, GroupSize, NativeDtype};
use tiles::{Many, Tiles};

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
/// Bytes of the scales of a tile.
const SCALES_BYTES: usize = 3 * TILE * 4;

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
    /// Larger blocks; `None` where those of 16 query rows have to do.
    pub many: Option<ManyFunction>,
    /// Blocks of [`PROMPT_ROWS`] query rows over all of their spans, in place of `many`; `None`
    /// where the device lacks their instructions, or these round differently.
    pub prompt: Option<CudaFunction>,
    /// Shared memory of a block of `prompt`.
    pub prompt_shared: usize,
    /// Merges spans.
    pub merge: CudaFunction,
}

/// Blocks of several times 16 query rows.
pub struct ManyFunction {
    /// The kernel.
    pub function: CudaFunction,
    /// Shared memory of a block.
    pub shared: usize,
    /// Query rows of a block.
    pub rows: usize,
    /// Threads of a block.
    pub threads: u32,
}

/// Source of attention of a kind, and what its launches follow.
pub struct AttentionUnit {
    /// What is compiled.
    pub unit: Unit,
    tiles: Tiles,
    hopper: bool,
}

impl AttentionUnit {
    /// What is to be compiled for a device.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where this device's blocks have too little shared memory.
    pub fn new(device: &Device, source: Source, kind: AttentionKind) -> Result<Self, BackendError> {
        let limit = device.shared_limit();
        let tiles = match source {
            Source::Compiler => Tiles::new(kind, limit),
            Source::Embedded => Tiles::embedded(kind)
                .into_iter()
                .find(|t| t.fit(kind, limit)),
        };
        let tiles = tiles.ok_or_else(|| {
            BackendError::Unsupported(format!(
                "head_dim {}: attention needs {} bytes of shared memory, a block of {} has {limit}",
                kind.head_dim,
                Tiles::least_bytes(kind),
                device.name(),
            ))
        })?;
        // PTX for all generations has no instructions of one.
        let hopper = source == Source::Compiler
            && has_prompt(kind, device.capability())
            && prompt_shared(kind.head_dim) <= limit;
        Ok(AttentionUnit {
            unit: unit(kind, tiles, hopper),
            tiles,
            hopper,
        })
    }

    /// Query rows of the largest blocks that are sure to run.
    pub fn rows(&self) -> usize {
        self.tiles.many.map_or(WARP_ROWS, Many::rows)
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
        let &AttentionUnit { tiles, hopper, .. } = of;
        let prompt_shared = prompt_shared(kind.head_dim);
        let module = device.load(binary)?;
        let few_shared = tiles.few.few_shared(kind);
        let many = |many: Many| {
            let shared = many.shared(kind);
            Ok(ManyFunction {
                function: device.function(&module, "attend_many", shared)?,
                shared,
                rows: many.rows(),
                threads: many.threads(kind),
            })
        };
        let prompt = match hopper && round_alike(device, &module)? {
            true => Some(device.function(&module, "attend_prompt", prompt_shared)?),
            false => None,
        };
        let few = device.function(&module, "attend_few", few_shared)?;
        Ok(AttentionFunctions {
            few_resident: device.resident(&few, FEW_THREADS, few_shared)?,
            few,
            few_shared,
            many: tiles.many.map(many).transpose()?,
            prompt,
            prompt_shared,
            merge: device.function(&module, "merge_spans", 0)?,
        })
    }
}

/// Source and definitions of a kind.
fn unit(kind: AttentionKind, tiles: Tiles, hopper: bool) -> Unit {
    let mut defines = vec![
        format!("HD={}", kind.head_dim),
        format!("BF16={}", u8::from(kind.native == NativeDtype::Bf16)),
        format!("EXACT={}", u8::from(kind.exact)),
        format!("K_CLASS={}", kind.stored[0] as i32),
        format!("V_CLASS={}", kind.stored[1] as i32),
        format!("SINK={}", u8::from(kind.sink)),
    ];
    defines.extend(tiles.defines(kind));
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

/// Three stages of a tile, queries, sums of earlier spans, scales and barriers; the kernel checks
/// it against its own sizes when it is compiled.
fn prompt_shared(head_dim: usize) -> usize {
    let operands = TILE * head_dim * 2;
    let stages = 3 * (2 * operands + SCALES_BYTES + 16);
    // Swizzled tiles begin at multiples of 1,024 bytes.
    1024 + stages + 2 * operands + PROMPT_ROWS * head_dim * 4
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
                    let variants = Tiles::embedded(kind).into_iter();
                    units.extend(variants.map(|tiles| unit(kind, tiles, false)));
                }
            }
        }
    }
    units
}

#[cfg(test)]
pub mod testing;
