//! Activations, weights and vectors on the device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::device::{Buffer, Device, Purpose, launch};
use super::functions::Kernels;
use super::staging::Staging;
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
        staging: &mut Staging,
        data: &TensorData,
        out: usize,
        inner: usize,
    ) -> Result<Self, BackendError> {
        assert_eq!(data.len(), out * inner, "elements of a weight");
        let purpose = Purpose::Weights;
        let (data, format) = match data {
            TensorData::F32(v) => (staging.upload(device, v, purpose)?, Format::F32),
            TensorData::F16(v) => (staging.upload(device, v, purpose)?, Format::F16),
            TensorData::Bf16(v) => (staging.upload(device, v, purpose)?, Format::Bf16),
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

/// Activations `[rows, width]`, row-major, in f32 and in the 16-bit format of products.
///
/// What is computed from 16-bit weights and read by products only is written in 16 bits only; the
/// other form is made when it is asked for.
pub struct CudaTensor {
    data: Buffer,
    pub(super) rows: usize,
    pub(super) width: usize,
    /// The 16-bit format of the weights that this was computed from; `None` for f32 ones, beside
    /// which nothing is rounded.
    pub(super) operand: Option<Format>,
    half: RefCell<Option<Half>>,
    /// Whether `data` holds the elements.
    has_float: Cell<bool>,
}

struct Half {
    data: Buffer,
    /// What it holds; `None` where the tensor changed since.
    format: Option<Format>,
}

/// Where a kernel writes: address and format.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) pointer: u64,
    pub(super) format: Format,
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
            operand: None,
            half: RefCell::new(None),
            has_float: Cell::new(true),
        })
    }

    pub(super) fn elements(&self) -> usize {
        self.rows * self.width
    }

    /// Sets the number of rows; contents are lost.
    pub(super) fn resize(&mut self, rows: usize) -> Result<(), BackendError> {
        self.rows = rows;
        self.written(self.operand);
        self.data.reserve(rows * self.width * 4)
    }

    /// Copies rows from the host.
    pub(super) fn write(&mut self, data: &[f32]) -> Result<(), BackendError> {
        self.written(None);
        self.data.write(data)
    }

    /// Copies the rows to the host.
    pub(super) fn read(&self, kernels: &Kernels) -> Result<Vec<f32>, BackendError> {
        self.float(kernels)?;
        self.data.read(self.elements())
    }

    /// Address to which the elements are about to be written in f32.
    pub(super) fn written(&mut self, operand: Option<Format>) -> u64 {
        self.operand = operand;
        self.has_float.set(true);
        if let Some(half) = self.half.get_mut() {
            half.format = None;
        }
        self.data.pointer()
    }

    /// The same for what products alone will read: in 16 bits where they come from 16-bit weights.
    pub(super) fn written_for_products(
        &mut self,
        kernels: &Kernels,
        operand: Option<Format>,
    ) -> Result<Target, BackendError> {
        let pointer = self.written(operand);
        let Some(format) = operand else {
            let format = Format::F32;
            return Ok(Target { pointer, format });
        };
        self.has_float.set(false);
        let pointer = self.half_buffer(kernels, Some(format))?;
        Ok(Target { pointer, format })
    }

    /// Address of the elements in f32, which are about to be changed in place.
    pub(super) fn changed(&mut self, kernels: &Kernels) -> Result<u64, BackendError> {
        self.float(kernels)?;
        Ok(self.written(self.operand))
    }

    /// Address of the elements in f32.
    pub(super) fn float(&self, kernels: &Kernels) -> Result<u64, BackendError> {
        if !self.has_float.get() {
            let half = self.half.borrow();
            let Some((from, format)) = half
                .as_ref()
                .and_then(|half| Some((half.data.pointer(), half.format?)))
            else {
                return Err(BackendError::Device(
                    "cuda: a tensor without elements".into(),
                ));
            };
            let (to, elements) = (self.data.pointer(), self.elements() as i64);
            kernels.start(
                "to_float",
                blocks(self.elements(), 256),
                |function, grid| {
                    // SAFETY: both buffers hold `elements` elements.
                    unsafe {
                        launch!(kernels.device, function, grid, 256, 0;
                        from, to, elements, format as i32)
                    }
                },
            )?;
            self.has_float.set(true);
        }
        Ok(self.data.pointer())
    }

    /// Address of the elements in a 16-bit format.
    pub(super) fn half(&self, kernels: &Kernels, format: Format) -> Result<u64, BackendError> {
        if let Some(half) = &*self.half.borrow()
            && half.format == Some(format)
        {
            return Ok(half.data.pointer());
        }
        let from = self.float(kernels)?;
        let to = self.half_buffer(kernels, Some(format))?;
        let elements = self.elements() as i64;
        kernels.start("to_half", blocks(self.elements(), 1024), |function, grid| {
            // SAFETY: both buffers hold `elements` elements.
            unsafe {
                launch!(kernels.device, function, grid, 256, 0; from, to, elements, format as i32)
            }
        })?;
        Ok(to)
    }

    /// Room for the 16-bit form, which will hold `format`.
    fn half_buffer(&self, kernels: &Kernels, format: Option<Format>) -> Result<u64, BackendError> {
        let bytes = self.elements() * 2;
        let mut half = self.half.borrow_mut();
        let half = match half.as_mut() {
            Some(half) => half,
            None => half.insert(Half {
                data: kernels.device.allocate(bytes, Purpose::Staging)?,
                format: None,
            }),
        };
        half.data.reserve(bytes)?;
        half.format = format;
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
