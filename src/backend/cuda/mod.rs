//! The worker on NVIDIA GPUs of compute capability 8.0 and newer.
//!
//! Libraries are opened at run time, so one binary serves machines with and without a GPU. The
//! residual stream, norms, rotary and all sums are f32. Weights stay in the checkpoint's element
//! type: beside 16-bit weights activations are rounded to that type, beside f32 weights products
//! are f32. Attention works on tensor cores in the native format; where queries come from f32
//! weights it splits them, and its weights, into two 16-bit parts, which leaves f32's rounding.
//!
//! Everything happens in the order of one stream. A number that cannot be stored is noted on the
//! device and reported by [`Backend::settle`], so that a pass need not wait for each layer.

mod attention;
mod cache;
mod compile;
mod device;
mod functions;
mod library;
mod plan;
mod product;
mod readout;
mod rows;
mod survey;
mod tensor;

use std::cell::RefCell;
use std::rc::Rc;

use super::storage::{self, Side};
use super::{Backend, BackendError, CacheLayout, CacheRow, RotaryTable, TensorData};
use crate::schema::{KvTotals, LayerAbsmax};
use attention::{Attention, Partials};
pub use cache::CudaCache;
pub use device::Purpose;
use device::{Buffer, Device, PURPOSES, launch};
use functions::Functions;
use product::Products;
use rows::Kept;
pub use survey::{Found, Gpu, Survey, is_present, survey};
pub use tensor::{CudaTensor, CudaVector, CudaWeight};
use tensor::{Format, blocks, int};

/// Key of no number that cannot be stored.
const NOTHING_BROKEN: u64 = u64::MAX;

/// The worker on one GPU. Belongs to one thread.
pub struct CudaBackend {
    device: Rc<Device>,
    functions: Rc<Functions>,
    products: Products,
    partials: Partials,
    kept: Kept,
    /// The first number that could not be stored since the last check.
    broken: RefCell<Buffer>,
}

#[repr(C)]
struct StoreArguments {
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
    sides: [cache::SideLayout; 2],
    broken: u64,
}

impl CudaBackend {
    /// Opens GPU number `ordinal` and compiles the kernels, or takes them from the cache folder.
    ///
    /// # Errors
    /// [`BackendError::Device`] says what is missing: driver, GPU, compiler.
    pub fn new(ordinal: usize) -> Result<Self, BackendError> {
        let device = Device::open(ordinal)?;
        let functions = Rc::new(Functions::new(&device)?);
        let products = Products::new(&device, &functions)?;
        let broken = device.upload(&[NOTHING_BROKEN], Purpose::Staging)?;
        Ok(CudaBackend {
            partials: Partials::new(&device)?,
            kept: Kept::default(),
            broken: RefCell::new(broken),
            products,
            functions,
            device,
        })
    }

    /// Bytes that are allocated, by purpose.
    pub fn allocated(&self) -> Vec<(&'static str, u64)> {
        let bytes = |(purpose, name)| (name, self.device.allocated(purpose));
        PURPOSES.map(bytes).to_vec()
    }

    /// Free and total memory of the device in bytes.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn memory(&self) -> Result<(usize, usize), BackendError> {
        self.device.memory()
    }

    /// Weight shapes whose products cuBLASLt computes, and all that were multiplied so far; the
    /// rest is computed by kernels of this crate.
    pub fn planned_products(&self) -> (usize, usize) {
        self.products.planned()
    }

    fn product(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaVector>,
        out: &mut CudaTensor,
        add: bool,
    ) -> Result<(), BackendError> {
        self.products.apply(x, weight, out, add)?;
        let Some(bias) = bias else { return Ok(()) };
        assert_eq!(bias.width, weight.out, "width of a bias");
        let (to, from) = (out.data.pointer(), bias.data.pointer());
        let (elements, width) = (out.elements() as i64, int(out.width));
        self.start("add_bias", blocks(out.elements(), 256), |function, grid| {
            // SAFETY: `out` has `elements` elements, the bias as many as `out` is wide.
            unsafe { launch!(self.device, function, grid, 256, 0; to, from, elements, width) }
        })
    }

    /// Starts a kernel over `blocks` blocks, unless there is nothing to do.
    fn start(
        &self,
        name: &str,
        blocks: u32,
        start: impl FnOnce(&cudarc::driver::CudaFunction, device::Grid) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        if blocks == 0 {
            return Ok(());
        }
        start(self.functions.get(name)?, (blocks, 1, 1))
    }
}

impl Backend for CudaBackend {
    type Tensor = CudaTensor;
    type Weight = CudaWeight;
    type Vector = CudaVector;
    type Cache = CudaCache;

    fn device(&self) -> String {
        let (major, minor) = self.device.capability();
        format!("{} (sm_{major}{minor})", self.device.name())
    }

    fn arithmetic(&self) -> String {
        "products in the weights' type with f32 sums, all else f32".into()
    }

    fn weight(
        &self,
        data: TensorData,
        out: usize,
        inner: usize,
    ) -> Result<CudaWeight, BackendError> {
        CudaWeight::new(&self.device, &data, out, inner)
    }

    fn vector(&self, data: TensorData) -> Result<CudaVector, BackendError> {
        let data: Vec<f32> = match data {
            TensorData::F32(v) => v,
            TensorData::F16(v) => v.into_iter().map(f32::from).collect(),
            TensorData::Bf16(v) => v.into_iter().map(f32::from).collect(),
        };
        Ok(CudaVector {
            width: data.len(),
            data: self.device.upload(&data, Purpose::Weights)?,
        })
    }

    fn tensor(&self, rows: usize, width: usize) -> Result<CudaTensor, BackendError> {
        CudaTensor::new(&self.device, rows, width)
    }

    fn resize(&self, tensor: &mut CudaTensor, rows: usize) -> Result<(), BackendError> {
        tensor.resize(rows)
    }

    fn cache(&self, layout: &CacheLayout) -> Result<CudaCache, BackendError> {
        CudaCache::new(&self.device, layout)
    }

    fn embed(
        &self,
        table: &CudaWeight,
        ids: &[u32],
        x: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            x.rows == ids.len() && x.width == table.inner,
            "shape of embeddings"
        );
        let known = |&id: &u32| (id as usize) < table.out;
        assert!(ids.iter().all(known), "ids within the table");
        x.changed(table.format == Format::F32);
        let ids = self.device.upload(ids, Purpose::Staging)?;
        let (from, format, width) = (table.data.pointer(), table.format as i32, int(x.width));
        let (ids, to) = (ids.pointer(), x.data.pointer());
        self.start("embed", x.rows as u32, |function, grid| {
            // SAFETY: ids lie within the table, one row of `x` for each.
            unsafe { launch!(self.device, function, grid, 256, 0; from, format, ids, to, width) }
        })
    }

    fn rms_norm(
        &self,
        x: &CudaTensor,
        weight: &CudaVector,
        eps: f32,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            x.width == weight.width && out.width == x.width && out.rows >= x.rows,
            "shape of a norm"
        );
        out.changed(x.exact);
        let (from, by, to) = (x.data.pointer(), weight.data.pointer(), out.data.pointer());
        let width = int(x.width);
        self.start("rms_norm", x.rows as u32, |function, grid| {
            // SAFETY: the tensors have the same shape, the weight is as wide.
            unsafe { launch!(self.device, function, grid, 256, 0; from, by, eps, to, width) }
        })
    }

    fn rms_norm_heads(
        &self,
        x: &mut CudaTensor,
        weight: &CudaVector,
        eps: f32,
    ) -> Result<(), BackendError> {
        assert_eq!(x.width % weight.width, 0, "width of whole head vectors");
        x.changed(x.exact);
        let vectors = x.elements() / weight.width;
        let (to, by) = (x.data.pointer(), weight.data.pointer());
        let (count, width) = (vectors as i64, int(weight.width));
        self.start("rms_norm_heads", blocks(vectors, 8), |function, grid| {
            // SAFETY: `x` holds `count` vectors as wide as the weight.
            unsafe { launch!(self.device, function, grid, 256, 0; to, by, eps, count, width) }
        })
    }

    fn matmul(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaVector>,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.product(x, weight, bias, out, false)
    }

    fn matmul_add(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaVector>,
        residual: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        self.product(x, weight, bias, residual, true)
    }

    fn rotary(
        &self,
        x: &mut CudaTensor,
        table: &RotaryTable,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        assert_eq!(x.rows, rows.len(), "rows to rotate");
        assert_eq!(x.width % (2 * table.half), 0, "width of whole head vectors");
        let furthest = rows.iter().map(|row| row.position + 1).max().unwrap_or(0);
        assert!(
            furthest * table.half <= table.cos.len(),
            "positions of a table"
        );
        x.changed(x.exact);
        let rows = self.kept.rows(&self.device, rows)?;
        let [cos, sin] = self.kept.table(&self.device, table)?.addresses();
        let (to, places, pairs) = (x.data.pointer(), rows.places(), x.elements() / 2);
        let (count, width, half) = (pairs as i64, int(x.width), int(table.half));
        self.start("rotary", blocks(pairs, 256), |function, grid| {
            // SAFETY: positions lie within the table, `x` holds `count` pairs.
            unsafe {
                launch!(self.device, function, grid, 256, 0;
                    to, cos, sin, places, count, width, half)
            }
        })
    }

    fn store(
        &self,
        cache: &mut CudaCache,
        layer: usize,
        k: &CudaTensor,
        v: &CudaTensor,
        rows: &[CacheRow],
    ) -> Result<(), BackendError> {
        let shape = cache.shape();
        let width = shape.kv_heads * shape.head_dim;
        for x in [k, v] {
            assert!(
                x.rows == rows.len() && x.width == width,
                "shape of keys and values"
            );
        }
        cache.reserve(layer, rows)?;
        let places = self.kept.rows(&self.device, rows)?;
        let (table, pages_per_slot) = cache.table();
        let arguments = StoreArguments {
            k: k.data.pointer(),
            v: v.data.pointer(),
            rows: places.places(),
            table,
            pages_per_slot: int(pages_per_slot),
            row_count: int(rows.len()),
            kv_heads: int(shape.kv_heads),
            head_dim: int(shape.head_dim),
            layer: int(layer),
            native: Format::from(shape.native) as i32,
            sides: cache.sides(layer),
            broken: self.broken.borrow().pointer(),
        };
        let vectors = rows.len() * 2 * shape.kv_heads;
        self.start("store", blocks(vectors, 8), |function, grid| {
            // SAFETY: every row has a page; keys and values have a row each.
            unsafe { launch!(self.device, function, grid, 256, 0; arguments) }
        })
    }

    fn attend(
        &self,
        cache: &CudaCache,
        layer: usize,
        q: &CudaTensor,
        rows: &[CacheRow],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        let device_rows = self.kept.rows(&self.device, rows)?;
        let attention = Attention {
            device: &self.device,
            functions: &self.functions,
            partials: &self.partials,
        };
        attention.run(cache, layer, q, (rows, &device_rows), out)
    }

    fn silu_mul(
        &self,
        gate: &CudaTensor,
        up: &CudaTensor,
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            gate.elements() == out.elements() && up.elements() == out.elements(),
            "elements of a gate"
        );
        out.changed(gate.exact && up.exact);
        let (g, u, to) = (gate.data.pointer(), up.data.pointer(), out.data.pointer());
        let elements = out.elements() as i64;
        self.start("silu_mul", blocks(out.elements(), 256), |function, grid| {
            // SAFETY: all tensors have `elements` elements.
            unsafe { launch!(self.device, function, grid, 256, 0; g, u, to, elements) }
        })
    }

    fn gather(
        &self,
        x: &CudaTensor,
        rows: &[usize],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        assert!(
            out.rows == rows.len() && out.width == x.width,
            "shape of gathered rows"
        );
        assert!(rows.iter().all(|&row| row < x.rows), "rows of a tensor");
        out.changed(x.exact);
        let rows: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let rows = self.device.upload(&rows, Purpose::Staging)?;
        let (from, at, to) = (x.data.pointer(), rows.pointer(), out.data.pointer());
        let width = int(x.width);
        self.start("gather", out.rows as u32, |function, grid| {
            // SAFETY: rows lie within `x`, one row of `out` for each.
            unsafe { launch!(self.device, function, grid, 256, 0; from, at, to, width) }
        })
    }

    fn argmax(&self, logits: &CudaTensor) -> Result<Vec<u32>, BackendError> {
        readout::argmax(&self.device, &self.functions, logits)
    }

    fn nll(&self, logits: &CudaTensor, targets: &[u32]) -> Result<Vec<f64>, BackendError> {
        readout::nll(&self.device, &self.functions, logits, targets)
    }

    fn settle(&self) -> Result<(), BackendError> {
        let mut broken = self.broken.borrow_mut();
        let key = broken.read::<u64>(1)?[0];
        if key == NOTHING_BROKEN {
            return Ok(());
        }
        broken.write(&[NOTHING_BROKEN])?;
        Err(what_broke(key))
    }

    fn to_host(&self, x: &CudaTensor) -> Result<Vec<f32>, BackendError> {
        x.data.read(x.elements())
    }

    fn truncate_slot(
        &self,
        cache: &mut CudaCache,
        slot: usize,
        tokens: usize,
    ) -> Result<(), BackendError> {
        cache.truncate(slot, tokens);
        Ok(())
    }

    fn reset_slot(&self, cache: &mut CudaCache, slot: usize) -> Result<(), BackendError> {
        cache.truncate(slot, 0);
        Ok(())
    }

    fn slot_totals(&self, cache: &CudaCache, slot: usize) -> Result<Vec<KvTotals>, BackendError> {
        cache.totals(&self.functions, slot)
    }

    fn slot_absmax(
        &self,
        cache: &CudaCache,
        slot: usize,
    ) -> Result<Vec<LayerAbsmax>, BackendError> {
        cache.absmax(&self.functions, slot)
    }
}

/// Reads a key as `report` in the kernels makes it: layer, row, side, element, and the number
/// without its last 12 bits.
fn what_broke(key: u64) -> BackendError {
    let bits = |from: u32, count: u32| (key >> from) as usize & ((1 << count) - 1);
    let side = if bits(36, 1) == 0 {
        Side::Key
    } else {
        Side::Value
    };
    let x = f32::from_bits((bits(0, 20) as u32) << 12);
    storage::not_finite(bits(37, 17), bits(54, 10), side, x, bits(20, 16))
}

#[cfg(test)]
mod tests;
