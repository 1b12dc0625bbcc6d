//! Activations, weights and vectors on the device.

use std::cell::RefCell;
use std::rc::Rc;

use super::device::{Buffer, Device, Purpose, launch};
use super::functions::Functions;
use crate::backend::storage::Storage;
use crate::backend::{BackendError, TensorData};
use crate::recipe::{ByteFormat, NativeDtype};

/// Number format of elements, numbered as in the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Format {
    /// 32-bit floats.
    F32 = 0,
    /// IEEE half.
    F16 = 1,
    /// bfloat16.
    Bf16 = 2,
    /// FP8 E4M3.
    E4m3 = 3,
    /// FP8 E5M2.
    E5m2 = 4,
    /// Signed 8-bit integers.
    Int8 = 5,
}

impl Format {
    /// Format of stored cache elements.
    pub fn of_storage(storage: Storage) -> Self {
        match storage {
            Storage::Native(native) => native.into(),
            other => match other.byte_format() {
                ByteFormat::E4m3 => Format::E4m3,
                ByteFormat::E5m2 => Format::E5m2,
                ByteFormat::Int8 => Format::Int8,
            },
        }
    }
}

impl From<NativeDtype> for Format {
    fn from(native: NativeDtype) -> Self {
        match native {
            NativeDtype::F16 => Format::F16,
            NativeDtype::Bf16 => Format::Bf16,
        }
    }
}

/// Projection weight `[out, inner]`, row-major, in the element type of the checkpoint.
pub struct CudaWeight {
    pub(super) data: Buffer,
    pub(super) format: Format,
    pub(super) out: usize,
    pub(super) inner: usize,
}

impl CudaWeight {
    pub(super) fn new(
        device: &Rc<Device>,
        data: &TensorData,
        out: usize,
        inner: usize,
    ) -> Result<Self, BackendError> {
        assert_eq!(data.len(), out * inner, "elements of a weight");
        let (data, format) = match data {
            TensorData::F32(v) => (device.upload(v, Purpose::Weights)?, Format::F32),
            TensorData::F16(v) => (device.upload(v, Purpose::Weights)?, Format::F16),
            TensorData::Bf16(v) => (device.upload(v, Purpose::Weights)?, Format::Bf16),
        };
        Ok(CudaWeight {
            data,
            format,
            out,
            inner,
        })
    }
}

/// Norm weight or bias, `[width]` in f32.
pub struct CudaVector {
    pub(super) data: Buffer,
    pub(super) width: usize,
}

/// Activations `[rows, width]`, row-major in f32.
pub struct CudaTensor {
    pub(super) data: Buffer,
    pub(super) rows: usize,
    pub(super) width: usize,
    /// Computed from f32 weights: attention then keeps more than 16 bits of queries and weights.
    pub(super) exact: bool,
    /// The same numbers in 16 bits, made on demand for products.
    half: RefCell<Option<Half>>,
}

struct Half {
    data: Buffer,
    /// What it holds; `None` once the tensor changed.
    format: Option<Format>,
}

impl CudaTensor {
    pub(super) fn new(
        device: &Rc<Device>,
        rows: usize,
        width: usize,
    ) -> Result<Self, BackendError> {
        Ok(CudaTensor {
            data: device.allocate(rows * width * 4, Purpose::Staging)?,
            rows,
            width,
            exact: false,
            half: RefCell::new(None),
        })
    }

    pub(super) fn elements(&self) -> usize {
        self.rows * self.width
    }

    pub(super) fn resize(&mut self, rows: usize) -> Result<(), BackendError> {
        self.rows = rows;
        self.changed(self.exact);
        self.data.reserve(rows * self.width * 4)
    }

    /// Notes that the elements are about to change, and from what they come.
    pub(super) fn changed(&mut self, exact: bool) {
        self.exact = exact;
        if let Some(half) = self.half.get_mut() {
            half.format = None;
        }
    }

    /// Address of the elements in a 16-bit format.
    pub(super) fn half(
        &self,
        device: &Rc<Device>,
        functions: &Functions,
        format: Format,
    ) -> Result<u64, BackendError> {
        let bytes = self.elements() * 2;
        let mut half = self.half.borrow_mut();
        let half = match half.as_mut() {
            Some(half) => half,
            None => half.insert(Half {
                data: device.allocate(bytes, Purpose::Staging)?,
                format: None,
            }),
        };
        if half.format != Some(format) {
            half.data.reserve(bytes)?;
            let (from, to) = (self.data.pointer(), half.data.pointer());
            let elements = self.elements() as i64;
            let blocks = blocks(self.elements().div_ceil(4), 256);
            // SAFETY: both buffers hold `elements` elements.
            unsafe {
                launch!(device, functions.get("to_half")?, (blocks, 1, 1), 256, 0;
                    from, to, elements, format as i32)
            }?;
            half.format = Some(format);
        }
        Ok(half.data.pointer())
    }
}

/// Blocks of `threads` that cover `items`.
pub(super) fn blocks(items: usize, threads: usize) -> u32 {
    u32::try_from(items.div_ceil(threads)).unwrap_or(u32::MAX)
}

/// Sizes of kernels' parameters.
///
/// # Panics
/// Beyond 31 bits, which no tensor's side reaches.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).expect("sizes of tensors below 2^31")
}
