//! The worker on NVIDIA GPUs of compute capability 8.0 and newer.
//!
//! Libraries are opened at run time, so one binary serves machines with and without a GPU. The
//! residual stream, norms, rotary and all sums are f32. Weights stay in the checkpoint's element
//! type: beside 16-bit weights, what products read and what they write for heads and gates is
//! rounded to that type, beside f32 weights products are f32. Attention works on tensor cores in the native format; where queries come from f32
//! weights it splits them, and its weights, into two 16-bit parts, which leaves f32's rounding.
//!
//! Everything happens in the order of one stream. A number that cannot be stored is noted on the
//! device and reported by [`Backend::settle`], so that a pass need not wait for each layer.

mod attention;
mod cache;
mod codes;
mod compile;
mod device;
mod experts;
mod functions;
mod library;
mod memory;
mod operations;
mod parts;
mod plan;
mod product;
mod projections;
mod ptx;
mod readout;
mod recording;
mod recurrent;
mod rows;
mod rowwise;
mod self_test;
mod staging;
mod survey;
mod tensor;
mod timing;

use std::cell::RefCell;
use std::rc::Rc;

use super::storage::{self, Side};
use super::{BackendError, CacheRow, StoredParts, TensorData};
use attention::{Attention, Partials};
pub use cache::{CudaCache, LARGEST_HEAD_DIM, has_head_dim};
pub use device::Purpose;
use device::{Buffer, Device, PURPOSES, launch};
pub use functions::Expected;
use functions::{Kernels, Source};
pub use product::STEP_ROWS;
use product::lt::WORKSPACE;
use product::{Finish, Products};
pub use ptx::archive as ptx_archive;
use readout::Suppressed;
use recording::Recordings;
use rows::Kept;
use staging::Staging;
pub use survey::{Found, Gpu, Survey, gpu_count, survey};
pub use tensor::{CudaTensor, CudaVector, CudaWeight};
use tensor::{blocks, int};

/// Key of no number that cannot be stored.
const NOTHING_BROKEN: u64 = u64::MAX;

/// The worker on one GPU. Belongs to one thread.
pub struct CudaBackend {
    kernels: Rc<Kernels>,
    products: Products,
    partials: Partials,
    kept: Kept,
    staging: RefCell<Staging>,
    suppressed: Suppressed,
    recordings: Recordings,
    /// The first number that could not be stored since the last check.
    broken: RefCell<Buffer>,
    /// Most memory of the device that may be in use.
    most_bytes: Option<usize>,
}

impl CudaBackend {
    /// Opens GPU number `ordinal` and compiles the kernels, or takes them from the cache folder, or
    /// from the binary where there is no compiler.
    ///
    /// # Errors
    /// [`BackendError::Device`] says what is missing: driver, GPU, kernels.
    pub fn new(ordinal: usize) -> Result<Self, BackendError> {
        Self::with_kernels(ordinal, Source::Compiler, None)
    }

    /// The same for a model of which it is known what it will ask for: its attention is compiled
    /// while weights are loaded.
    ///
    /// # Errors
    /// As [`CudaBackend::new`].
    pub fn expecting(ordinal: usize, expected: Expected) -> Result<Self, BackendError> {
        Self::with_kernels(ordinal, Source::Compiler, Some(expected))
    }

    /// The same with kernels from a source.
    fn with_kernels(
        ordinal: usize,
        source: Source,
        expected: Option<Expected>,
    ) -> Result<Self, BackendError> {
        let device = Device::open(ordinal)?;
        let kernels = Rc::new(Kernels::new(&device, source, expected)?);
        let products = Products::new(&kernels)?;
        let broken = device.upload(&[NOTHING_BROKEN], Purpose::Staging)?;
        Ok(CudaBackend {
            partials: Partials::new(&device)?,
            kept: Kept::default(),
            staging: RefCell::default(),
            suppressed: Suppressed::default(),
            recordings: Recordings::default(),
            broken: RefCell::new(broken),
            most_bytes: None,
            products,
            kernels,
        })
    }

    /// Bytes that are allocated, by purpose.
    pub fn allocated(&self) -> Vec<(&'static str, u64)> {
        let bytes = |(purpose, name)| (name, self.kernels.device.allocated(purpose));
        PURPOSES.map(bytes).to_vec()
    }

    /// Free and total memory of the device in bytes, as far as it may be used.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn memory(&self) -> Result<(usize, usize), BackendError> {
        Ok(within(self.most_bytes, self.kernels.device.memory()?))
    }

    /// Bytes that are left for a cache beside activations of so many. What earlier passes grew to is held,
    /// and does not count as free; the product library's workspace is no part of activations.
    fn free_beside(&self, activations: usize) -> Result<usize, BackendError> {
        let (free, _) = self.memory()?;
        let held = self.kernels.device.allocated(Purpose::Staging) as usize;
        let wanted = activations.saturating_sub(held.saturating_sub(WORKSPACE));
        let reserved = wanted.saturating_add(self.products.trial_bytes());
        Ok(free.saturating_sub(reserved))
    }

    /// Takes the device for one of at most `bytes` bytes of memory: caches are no larger than what is left
    /// of that.
    pub fn keep_within(&mut self, bytes: Option<u64>) {
        self.most_bytes = bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Weight shapes whose products cuBLASLt computes, and all that were multiplied so far; the
    /// rest is computed by kernels of this crate.
    pub fn planned_products(&self) -> (usize, usize) {
        self.products.planned()
    }

    /// How many passes were started from recorded graphs.
    pub fn recorded_passes(&self) -> u64 {
        self.recordings.started()
    }

    /// What bits may depend on beside the device: who computes products, and who made the kernels.
    fn arithmetic_and_origin(&self) -> String {
        format!(
            "products, heads and gates in the weights' type with f32 sums, all else f32; products by {}, \
             kernels by {}",
            self.products.origin(),
            self.kernels.origin()
        )
    }

    /// See [`super::Backend::attend`].
    fn start_attention(
        &self,
        (cache, layer): (&CudaCache, usize),
        q: &CudaTensor,
        rows: &[CacheRow],
        out: &mut CudaTensor,
    ) -> Result<(), BackendError> {
        let device_rows = self.kept.rows(&self.kernels.device, rows)?;
        let attention = Attention {
            kernels: &self.kernels,
            partials: &self.partials,
        };
        attention.run(cache, layer, q, (rows, &device_rows), out)
    }

    /// Reports the first number that could not be stored since the last call.
    fn report_broken(&self) -> Result<(), BackendError> {
        let mut broken = self.broken.borrow_mut();
        let key = broken.read::<u64>(1)?[0];
        if key == NOTHING_BROKEN {
            return Ok(());
        }
        broken.write(&[NOTHING_BROKEN])?;
        Err(what_broke(key))
    }

    /// Takes over a weight's parts, one after another, all of one type.
    fn take_over(
        &self,
        parts: Vec<TensorData>,
        out: usize,
        inner: usize,
    ) -> Result<CudaWeight, BackendError> {
        let staging = &mut self.staging.borrow_mut();
        let weight = CudaWeight::new(&self.kernels.device, staging, &parts, out, inner)?;
        // Giving pages back to the system takes longer than the bus takes to copy them.
        rayon::spawn(move || drop(parts));
        Ok(weight)
    }

    /// See [`super::Backend::stored_weight`]: straight from the file's bytes.
    fn take_over_stored(
        &self,
        parts: &StoredParts<'_>,
        out: usize,
        inner: usize,
    ) -> Result<Option<CudaWeight>, BackendError> {
        match parts {
            StoredParts::Codes(parts) => self.decode(parts, out, inner),
            StoredParts::Numbers(parts) => {
                let staging = &mut self.staging.borrow_mut();
                CudaWeight::of_stored(&self.kernels.device, staging, parts, out, inner)
            }
        }
    }

    fn product(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        bias: Option<&CudaVector>,
        out: &mut CudaTensor,
        finish: Finish,
    ) -> Result<(), BackendError> {
        self.products.apply(x, weight, out, finish)?;
        let Some(bias) = bias else { return Ok(()) };
        assert_eq!(bias.width, weight.out, "width of a bias");
        let (to, from) = (out.changed(&self.kernels)?, bias.data.pointer());
        let (elements, width) = (out.elements() as i64, int(out.width));
        let kernels = &self.kernels;
        kernels.start("add_bias", blocks(out.elements(), 256), |function, grid| {
            // SAFETY: `out` has `elements` elements, the bias as many as `out` is wide.
            unsafe { launch!(kernels.device, function, grid, 256, 0; to, from, elements, width) }
        })
    }
}

/// Free and total bytes of a device of which at most `most` may be in use.
fn within(most: Option<usize>, (free, total): (usize, usize)) -> (usize, usize) {
    let most = most.unwrap_or(total).min(total);
    (free.saturating_sub(total - most), most)
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
