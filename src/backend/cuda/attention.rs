//! Attention over a cache: arguments and launches.

mod kind;

use std::cell::RefCell;
use std::rc::Rc;

use super::cache::{CudaCache, SideLayout};
use super::device::{Buffer, Device, Purpose, launch};
use super::functions::Kernels;
use super::plan::Blocks;
use super::rows::DeviceRows;
use super::tensor::{CudaTensor, int};
use crate::backend::{BackendError, CacheRow};
#[cfg(test)]
pub use kind::testing;
pub use kind::{
    AttentionFunctions, AttentionKind, AttentionUnit, Class, WARP_ROWS, embedded_units,
};
use kind::{FEW_THREADS, PROMPT_ROWS, PROMPT_THREADS};

/// A window that no sequence is longer than, and that a position can be less without overflow.
const ALL: usize = 1 << 30;

/// Arguments of every attention kernel; layout as in the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct Arguments {
    q: u64,
    out: u64,
    partial: u64,
    partial_sums: u64,
    table: u64,
    pages_per_slot: i32,
    rows: u64,
    members: u64,
    jobs: u64,
    sink: u64,
    sink_bytes: u64,
    heads: i32,
    kv_heads: i32,
    spans: i32,
    q_format: i32,
    out_format: i32,
    window: i32,
    sink_tokens: i32,
    factor: f32,
    k: SideLayout,
    v: SideLayout,
}

/// Sums of spans on their way to be merged; grows with the largest pass.
pub struct Partials {
    sums: RefCell<Buffer>,
    weights: RefCell<Buffer>,
}

impl Partials {
    /// Without room.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(device: &Rc<Device>) -> Result<Self, BackendError> {
        Ok(Partials {
            sums: RefCell::new(device.allocate(0, Purpose::Staging)?),
            weights: RefCell::new(device.allocate(0, Purpose::Staging)?),
        })
    }

    /// Room for `vectors` sums of `head_dim` elements.
    fn reserve(&self, vectors: usize, head_dim: usize) -> Result<[u64; 2], BackendError> {
        let (mut sums, mut weights) = (self.sums.borrow_mut(), self.weights.borrow_mut());
        sums.reserve(vectors * head_dim * 4)?;
        weights.reserve(vectors * 8)?;
        Ok([sums.pointer(), weights.pointer()])
    }
}

/// What attention needs of the backend.
pub struct Attention<'a> {
    /// The device and its kernels.
    pub kernels: &'a Kernels,
    /// Room for sums of spans.
    pub partials: &'a Partials,
}

impl Attention<'_> {
    /// Attention of every query row over the stored bytes of its slot.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the device cannot run this shape;
    /// [`BackendError::Device`].
    ///
    /// # Panics
    /// Where shapes do not fit or a position was never stored.
    pub fn run(
        &self,
        cache: &CudaCache,
        layer: usize,
        q: &CudaTensor,
        (rows, device_rows): (&[CacheRow], &DeviceRows),
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        check(cache, layer, q, rows, out);
        let shape = cache.layer(layer);
        let heads = q.width / shape.head_dim;
        let group = heads / shape.kv_heads;
        let kind = kind(cache, layer, q.operand.is_none());
        let functions = self.kernels.attention(kind)?;
        let blocks = Blocks {
            group,
            many: match (&functions.prompt, &functions.many) {
                (Some(_), _) => PROMPT_ROWS,
                (None, Some(many)) => many.rows,
                (None, None) => WARP_ROWS,
            },
            whole: functions.prompt.is_some(),
            window: shape.window,
        };
        check_group(group, blocks.many)?;
        let device = &self.kernels.device;
        let plan = device_rows.plan(device, blocks)?;
        let (spans, long) = (plan.plan.spans, plan.plan.long_rows.len());
        let [partial, partial_sums] = self
            .partials
            .reserve(long * heads * spans, shape.head_dim)?;
        let at = plan.addresses();
        let (table, pages_per_slot) = cache.table(layer);
        let ([k, v], sink) = (cache.sides(layer), cache.sink());
        let to = out.written_for_products(q.operand)?;
        // Rounded ones serve as they are: the kernels round no other way.
        let (q, q_format) = q.as_it_is(self.kernels, cache.native().into())?;
        let arguments = Arguments {
            q,
            out: to.pointer,
            partial,
            partial_sums,
            table,
            pages_per_slot: int(pages_per_slot),
            rows: device_rows.places(),
            members: at.members,
            jobs: at.few,
            sink: sink.address,
            sink_bytes: sink.bytes,
            heads: int(heads),
            kv_heads: int(shape.kv_heads),
            spans: int(spans),
            q_format: q_format as i32,
            out_format: to.format as i32,
            window: int(shape.window.map_or(ALL, |window| window.min(ALL))),
            sink_tokens: sink.tokens,
            factor: std::f32::consts::LOG2_E / shape.score_divisor,
            k,
            v,
        };
        let kv_heads = shape.kv_heads as u32;
        let (few, many) = (plan.plan.few.len() as u32, plan.plan.many.len() as u32);
        if few > 0 {
            // Blocks stay and take rows and heads in turns.
            let grid = ((few * kv_heads).min(functions.few_resident), 1, 1);
            let (shared, jobs) = (functions.few_shared, int(few as usize));
            // SAFETY: the plan names rows of the tensors and pages of the table only.
            unsafe { launch!(device, &functions.few, grid, FEW_THREADS, shared; arguments, jobs) }?;
        }
        if many > 0 {
            let arguments = Arguments {
                jobs: at.many,
                ..arguments
            };
            if let Some(prompt) = &functions.prompt {
                // Likewise.
                let turns = many * kv_heads;
                let grid = (turns.min(device.multiprocessors() as u32), 1, 1);
                let (shared, jobs) = (functions.prompt_shared, int(many as usize));
                // SAFETY: as above.
                unsafe { launch!(device, prompt, grid, PROMPT_THREADS, shared; arguments, jobs) }?;
            } else if let Some(block) = &functions.many {
                let (grid, threads) = ((many, kv_heads, 1), block.threads);
                // SAFETY: as above.
                unsafe {
                    launch!(device, &block.function, grid, threads, block.shared; arguments)
                }?;
            }
        }
        if long > 0 {
            let grid = (long as u32, heads as u32, 1);
            let long_rows = at.long_rows;
            // SAFETY: as above; the partial sums were reserved for `long` rows.
            unsafe { launch!(device, &functions.merge, grid, 128, 0; arguments, long_rows) }?;
        }
        Ok(())
    }
}

/// Whether attention of `heads` query heads, of more than 16 bits where `exact`, would run over a layer of
/// `cache`; compiles nothing.
///
/// # Errors
/// What [`Attention::run`] would refuse.
pub fn supports(
    kernels: &Kernels,
    (cache, layer): (&CudaCache, usize),
    heads: usize,
    exact: bool,
) -> Result<(), BackendError> {
    let largest = kernels.largest_group(kind(cache, layer, exact))?;
    check_group(heads / cache.layer(layer).kv_heads, largest)
}

fn kind(cache: &CudaCache, layer: usize, exact: bool) -> AttentionKind {
    let stored = cache.storages(layer).map(Class::from);
    AttentionKind {
        head_dim: cache.layer(layer).head_dim,
        native: cache.native(),
        exact,
        // A native layer's first tokens lie in its pages.
        sink: cache.sink().tokens > 0 && stored != [Class::Native; 2],
        stored,
    }
}

fn check_group(group: usize, largest: usize) -> Result<(), BackendError> {
    if group <= largest {
        return Ok(());
    }
    Err(BackendError::Unsupported(format!(
        "{group} query heads per key/value head, the cuda worker has at most {largest}"
    )))
}

fn check(cache: &CudaCache, layer: usize, q: &CudaTensor, rows: &[CacheRow], out: &CudaTensor) {
    let shape = cache.layer(layer);
    assert!(
        q.rows == rows.len() && out.rows == q.rows && out.width == q.width,
        "shape of queries"
    );
    assert_eq!(
        q.width % (shape.kv_heads * shape.head_dim),
        0,
        "query heads per key/value head"
    );
    for row in rows {
        cache.check_visible(layer, *row);
    }
}
