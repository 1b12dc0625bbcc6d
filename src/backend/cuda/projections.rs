//! What follows fused projections: heads split, normed, rotated and stored, and gates.

use super::CudaBackend;
use super::cache::{CudaCache, SideLayout};
use super::device::launch;
use super::product::Finish;
use super::tensor::{CudaTensor, CudaVector, Format, activation_number, blocks, int};
use crate::backend::{
    Activation, Backend, BackendError, CacheRow, Destination, HeadProjection, RotaryTable,
    project_heads,
};

/// Where head vectors are stored; layout as in the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct StoreArguments {
    k: u64,
    v: u64,
    rows: u64,
    table: u64,
    pages_per_slot: i32,
    row_count: i32,
    kv_heads: i32,
    head_dim: i32,
    layer: i32,
    native: i32,
    turned: i32,
    sides: [SideLayout; 2],
    broken: u64,
    sink: u64,
    sink_bytes: u64,
    sink_tokens: i32,
}

#[repr(C)]
struct HeadArguments {
    packed: u64,
    bias: u64,
    q_norm: u64,
    k_norm: u64,
    v_norm: u64,
    q_table: [u64; 2],
    k_table: [u64; 2],
    q: u64,
    format: i32,
    q_format: i32,
    heads: i32,
    eps: f32,
    queries: i32,
    keys_are_values: i32,
    store: StoreArguments,
}

/// The kernel for head vectors of `head_dim` elements: the second one takes those above 256.
fn of_width([usual, wide]: [&'static str; 2], head_dim: usize) -> &'static str {
    if head_dim > 256 { wide } else { usual }
}

/// Rows from which blocks of one row each keep a device busy.
pub(super) const MANY_ROWS: usize = 256;

/// Blocks that split `heads` heads of each of `rows` rows, and how many of them share a row.
fn split_blocks(rows: usize, heads: usize) -> (u32, i32) {
    let parts = if rows < MANY_ROWS {
        heads.div_ceil(8)
    } else {
        1
    };
    (blocks(rows * parts, 1), int(parts))
}

/// Rows that a key of a number that cannot be stored has bits for: see `what_broke`.
const MOST_ROWS: usize = 1 << 17;

/// Elements that a block of the gate takes of a row.
const GATE_PART: usize = 2048;

impl CudaBackend {
    /// Makes room for the rows of a layer; `[k, v]` are addresses of what is to be stored, `turned`
    /// is half of the elements of a head vector that rotary turns.
    pub(super) fn store_arguments(
        &self,
        cache: &mut CudaCache,
        layer: usize,
        rows: &[CacheRow],
        [k, v]: [u64; 2],
        turned: usize,
    ) -> Result<StoreArguments, BackendError> {
        if rows.len() > MOST_ROWS {
            return Err(BackendError::Unsupported(format!(
                "a pass of {} rows, the cuda worker takes at most {MOST_ROWS}",
                rows.len()
            )));
        }
        cache.reserve(&self.kernels, layer..layer + 1, rows)?;
        let shape = cache.layer(layer);
        let places = self.kept.rows(&self.kernels.device, rows)?;
        let ((table, pages_per_slot), sink) = (cache.table(layer), cache.sink());
        Ok(StoreArguments {
            k,
            v,
            rows: places.places(),
            table,
            pages_per_slot: int(pages_per_slot),
            row_count: int(rows.len()),
            kv_heads: int(shape.kv_heads),
            head_dim: int(shape.head_dim),
            layer: int(layer),
            native: Format::from(cache.native()) as i32,
            turned: int(turned),
            sides: cache.sides(layer),
            broken: self.broken.borrow().pointer(),
            sink: sink.address,
            sink_bytes: sink.bytes,
            sink_tokens: sink.tokens,
        })
    }

    /// See [`crate::backend::Backend::store`].
    pub(super) fn start_store(
        &self,
        cache: &mut CudaCache,
        layer: usize,
        [k, v]: [&CudaTensor; 2],
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        let shape = cache.layer(layer);
        let width = shape.width();
        for x in [k, v] {
            assert!(
                x.rows == rows.len() && x.width == width,
                "shape of keys and values"
            );
        }
        let arguments = self.store_arguments(
            cache,
            layer,
            rows,
            [k.float(&self.kernels)?, v.float(&self.kernels)?],
            shape.head_dim / 2,
        )?;
        let vectors = rows.len() * 2 * shape.kv_heads;
        let kernel = of_width(["store", "store_wide"], shape.head_dim);
        self.kernels
            .start(kernel, blocks(vectors, 8), |function, grid| {
                // SAFETY: every row has a page; keys and values have a row each.
                unsafe { launch!(self.kernels.device, function, grid, 256, 0; arguments) }
            })
    }

    /// See [`crate::backend::Backend::project_heads`].
    pub(super) fn start_heads(
        &self,
        x: &CudaTensor,
        heads: &HeadProjection<'_, Self>,
        to: Destination<'_, Self>,
        packed: &mut CudaTensor,
        q: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        if !heads.rotary[1].half.is_multiple_of(2) {
            // One kernel for all turns pairs of neighbouring elements.
            let width = heads.kv_width(packed.width, q.width);
            let mut k = self.tensor(to.rows.len(), width)?;
            let mut v = self.tensor(to.rows.len(), width)?;
            return project_heads(self, x, heads, to, [packed, q, &mut k, &mut v]);
        }
        self.products
            .apply(x, heads.weight, packed, Finish::Round)?;
        self.split_heads(packed, heads, to, q)
    }

    /// Norms and rotates the heads of `packed`, stores keys and values, and writes queries: beside
    /// 16-bit weights in the 16-bit format in which attention multiplies them.
    pub(super) fn split_heads(
        &self,
        packed: &CudaTensor,
        heads: &HeadProjection<'_, Self>,
        to: Destination<'_, Self>,
        q: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        let Destination { cache, layer, rows } = to;
        let shape = cache.layer(layer);
        let kv_width = shape.width();
        assert!(
            packed.rows == rows.len() && q.rows == rows.len(),
            "rows of heads"
        );
        assert!(
            heads.kv_width(packed.width, q.width) == kv_width
                && q.width.is_multiple_of(shape.head_dim),
            "width of queries, keys and values"
        );
        let [q_table, k_table] = heads.rotary;
        let turned = k_table.half;
        for table in heads.rotary {
            assert!(
                table.head_dim == shape.head_dim && table.half == turned,
                "width of a rotation"
            );
        }
        let known = |vector: Option<&CudaVector>, width: usize| {
            assert!(vector.is_none_or(|v| v.width == width), "width of a vector");
            vector.map_or(0, |vector| vector.data.pointer())
        };
        let norms = heads.norms.as_ref();
        let norm = |vector| known(vector, shape.head_dim);
        let bias = known(heads.bias, packed.width);
        let furthest = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        let covers = |table: &RotaryTable| furthest * turned <= table.cos.len();
        assert!(covers(q_table) && covers(k_table), "positions of a table");
        let kernels = &self.kernels;
        let q_table = self.kept.table(&kernels.device, q_table)?;
        let k_table = self.kept.table(&kernels.device, k_table)?;
        let native = Format::from(cache.native());
        let written = packed.operand.map_or(Format::F32, |_| native);
        let held = packed.held()?;
        let target = q.written_as(written, packed.operand)?;
        let arguments = HeadArguments {
            packed: held.pointer,
            bias,
            q_norm: norm(norms.map(|norms| norms.q)),
            k_norm: norm(norms.map(|norms| norms.k)),
            v_norm: norm(norms.and_then(|norms| norms.v)),
            q_table: q_table.addresses(),
            k_table: k_table.addresses(),
            q: target.pointer,
            format: held.format as i32,
            q_format: target.format as i32,
            heads: int(q.width / shape.head_dim),
            eps: norms.map_or(0.0, |norms| norms.eps),
            keys_are_values: i32::from(heads.keys_are_values),
            queries: cache
                .query_format(layer)
                .map_or(0, |format| Format::from(format) as i32),
            store: self.store_arguments(cache, layer, rows, [0, 0], turned)?,
        };
        let kernel = match shape.head_dim {
            ..=128 => "split_heads",
            129..=256 => "split_heads_256",
            _ => "split_heads_512",
        };
        let heads = (q.width + 2 * kv_width) / shape.head_dim;
        let (each, parts) = split_blocks(rows.len(), heads);
        kernels.start(kernel, each, |function, grid| {
            // SAFETY: the tensors have a row for each of `rows`, every row has a page, positions
            // lie within the table.
            unsafe { launch!(kernels.device, function, grid, 256, 0; arguments, parts) }
        })
    }

    /// Passes query head vectors through `format`, in place.
    pub(super) fn round_heads(
        &self,
        format: Format,
        head_dim: usize,
        q: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert_eq!(q.width % head_dim, 0, "width of whole head vectors");
        let vectors = q.elements() / head_dim;
        let (to, count) = (q.changed(&self.kernels)?, vectors as i64);
        let (width, format) = (int(head_dim), format as i32);
        let device = &self.kernels.device;
        let kernel = of_width(["round_queries", "round_queries_wide"], head_dim);
        self.kernels
            .start(kernel, blocks(vectors, 8), |function, grid| {
                // SAFETY: `q` holds `count` vectors of `width` elements.
                unsafe { launch!(device, function, grid, 256, 0; to, count, width, format) }
            })
    }

    /// `out = activation(gate) * up`, where the rows of `packed`, with `bias` added, hold gate and
    /// up.
    pub(super) fn start_gate(
        &self,
        packed: &CudaTensor,
        bias: Option<&CudaVector>,
        activation: Activation,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            packed.rows == out.rows && packed.width == 2 * out.width,
            "shape of a gate"
        );
        assert!(
            bias.is_none_or(|bias| bias.width == packed.width),
            "width of a bias"
        );
        let held = packed.held()?;
        let to = out.written_for_products(packed.operand)?;
        let (from, format) = (held.pointer, held.format as i32);
        let bias = bias.map_or(0, |bias| bias.data.pointer());
        let (to, out_format) = (to.pointer, to.format as i32);
        let (width, parts) = (int(out.width), out.width.div_ceil(GATE_PART));
        let count = int(parts);
        let activation = activation_number(activation);
        let kernels = &self.kernels;
        kernels.start("gate", blocks(out.rows * parts, 1), |function, grid| {
            // SAFETY: `out` has the rows of `packed`, which are twice as wide, as is the bias.
            unsafe {
                launch!(kernels.device, function, grid, 256, 0;
                    from, format, bias, to, out_format, width, count, activation)
            }
        })
    }
}
