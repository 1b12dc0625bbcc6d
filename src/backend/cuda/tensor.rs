//! Activations, weights and vectors on the device.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::device::{Buffer, Device, Purpose, launch};
use super::functions::Kernels;
use super::staging::Staging;
use crate::backend::storage::Storage;
use crate::backend::{
    Activation, BackendError, NumberType, StoredNumbers, TensorData, concatenated,
};
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
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::E4m3 | Format::E5m2 | Format::Int8 => 1,
        }
    }

    /// The format where it has 16 bits.
    pub fn half(self) -> Option<Self> {
        (self.bytes() == 2).then_some(self)
    }

    /// Format of stored cache elements.
    pub fn of_storage(storage: Storage) -> Self {
        match storage {
            Storage::Native(native) => native.into(),
            other => other.byte_format().into(),
        }
    }
}

impl From<ByteFormat> for Format {
    fn from(format: ByteFormat) -> Self {
        match format {
            ByteFormat::E4m3 => Format::E4m3,
            ByteFormat::E5m2 => Format::E5m2,
            ByteFormat::Int8 => Format::Int8,
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
    /// Room for a weight, to be filled.
    pub(super) fn room(
        device: &Rc<Device>,
        format: Format,
        out: usize,
        inner: usize,
    ) -> Result<Self, BackendError> {
        Ok(CudaWeight {
            data: device.allocate(out * inner * format.bytes(), Purpose::Weights)?,
            format,
            out,
            inner,
        })
    }

    /// Takes over `parts`, one after another, all of one type.
    pub(super) fn new(
        device: &Rc<Device>,
        staging: &mut Staging,
        parts: &[TensorData],
        out: usize,
        inner: usize,
    ) -> Result<Self, BackendError> {
        let elements: usize = parts.iter().map(TensorData::len).sum();
        assert_eq!(elements, out * inner, "elements of a weight");
        let format = parts.first().map_or(Format::F32, format_of);
        for part in parts {
            assert_eq!(format_of(part), format, "element type of a weight's parts");
        }
        let weight = CudaWeight::room(device, format, out, inner)?;
        let parts: Vec<&[u8]> = parts.iter().map(bytes_of).collect();
        staging.fill(&weight.data, &parts)?;
        Ok(weight)
    }

    /// Takes over `parts`, one after another, as a file holds them; `None` where a number is not finite,
    /// or their types differ.
    pub(super) fn of_stored(
        device: &Rc<Device>,
        staging: &mut Staging,
        parts: &[StoredNumbers<'_>],
        out: usize,
        inner: usize,
    ) -> Result<Option<Self>, BackendError> {
        let numbers = parts.first().map_or(NumberType::F32, |part| part.numbers);
        if parts.iter().any(|part| part.numbers != numbers) {
            return Ok(None);
        }
        let format = Format::from(numbers);
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.bytes).collect();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(bytes, out * inner * format.bytes(), "bytes of a weight");
        let weight = CudaWeight::room(device, format, out, inner)?;
        let is_right = |bytes: &[u8]| StoredNumbers::are_finite(numbers, bytes);
        let all_right = staging.fill_checked(&weight.data, &parts, is_right)?;
        Ok(all_right.then_some(weight))
    }
}

/// The bytes of a host tensor.
fn bytes_of(data: &TensorData) -> &[u8] {
    fn of<T: Copy>(numbers: &[T]) -> &[u8] {
        let (first, bytes) = (numbers.as_ptr().cast(), size_of_val(numbers));
        // SAFETY: the numbers that tensors are made of have no padding.
        unsafe { std::slice::from_raw_parts(first, bytes) }
    }
    match data {
        TensorData::F32(numbers) => of(numbers),
        TensorData::F16(numbers) => of(numbers),
        TensorData::Bf16(numbers) => of(numbers),
    }
}

/// Format of a host tensor.
pub(super) fn format_of(data: &TensorData) -> Format {
    match data {
        TensorData::F32(_) => Format::F32,
        TensorData::F16(_) => Format::F16,
        TensorData::Bf16(_) => Format::Bf16,
    }
}

/// Parts of a weight as they are where they have one element type, otherwise as one of f32.
pub(super) fn of_one_type(parts: Vec<TensorData>) -> Vec<TensorData> {
    let mut pairs = parts.windows(2);
    if pairs.all(|pair| format_of(&pair[0]) == format_of(&pair[1])) {
        parts
    } else {
        vec![concatenated(parts)]
    }
}

/// Norm weight or bias, `[width]` in f32.
pub struct CudaVector {
    pub(super) data: Buffer,
    pub(super) width: usize,
}

/// Activations `[rows, width]`, row-major, in f32 or in 16 bits, or in both.
///
/// What is computed from 16-bit weights and rounded to 16 bits by everything that reads it is
/// written in 16 bits only; the other form, and its memory, is made when it is asked for.
pub struct CudaTensor {
    pub(super) rows: usize,
    pub(super) width: usize,
    /// The 16-bit format of the weights that this was computed from; `None` for f32 ones, beside
    /// which nothing is rounded.
    pub(super) operand: Option<Format>,
    float: RefCell<Buffer>,
    half: RefCell<Buffer>,
    /// Whether `float` holds the elements.
    holds_float: Cell<bool>,
    /// In which format `half` holds them.
    holds_half: Cell<Option<Format>>,
}

/// Where elements lie: address and format.
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
            rows,
            width,
            operand: None,
            float: RefCell::new(device.allocate(0, Purpose::Staging)?),
            half: RefCell::new(device.allocate(0, Purpose::Staging)?),
            holds_float: Cell::new(false),
            holds_half: Cell::new(None),
        })
    }

    pub(super) fn elements(&self) -> usize {
        self.rows * self.width
    }

    /// Sets the number of rows; contents are lost.
    pub(super) fn resize(&mut self, rows: usize) {
        self.rows = rows;
        self.forget();
    }

    fn forget(&mut self) {
        self.holds_float.set(false);
        self.holds_half.set(None);
    }

    /// Copies rows from the host.
    pub(super) fn write(&mut self, data: &[f32]) -> Result<(), BackendError> {
        self.written(None)?;
        self.float.get_mut().write(data)
    }

    /// Copies the rows to the host.
    pub(super) fn read(&self, kernels: &Kernels) -> Result<Vec<f32>, BackendError> {
        self.float(kernels)?;
        self.float.borrow().read(self.elements())
    }

    /// Address to which the elements are about to be written in f32.
    pub(super) fn written(&mut self, operand: Option<Format>) -> Result<u64, BackendError> {
        Ok(self.written_as(Format::F32, operand)?.pointer)
    }

    /// Where the elements are about to be written in a format.
    pub(super) fn written_as(
        &mut self,
        format: Format,
        operand: Option<Format>,
    ) -> Result<Target, BackendError> {
        self.forget();
        self.operand = operand;
        let half = format.half();
        self.holds_half.set(half);
        self.holds_float.set(half.is_none());
        let buffer = match half {
            Some(_) => &mut self.half,
            None => &mut self.float,
        };
        let buffer = buffer.get_mut();
        buffer.reserve(self.rows * self.width * format.bytes())?;
        let pointer = buffer.pointer();
        Ok(Target { pointer, format })
    }

    /// The same for what products alone will read: in 16 bits where they come from 16-bit weights.
    pub(super) fn written_for_products(
        &mut self,
        operand: Option<Format>,
    ) -> Result<Target, BackendError> {
        self.written_as(operand.unwrap_or(Format::F32), operand)
    }

    /// Address of the elements in f32, which are about to be changed in place.
    pub(super) fn changed(&mut self, kernels: &Kernels) -> Result<u64, BackendError> {
        let pointer = self.float(kernels)?;
        self.holds_half.set(None);
        Ok(pointer)
    }

    /// The elements in the form that there is: in f32 where there are both.
    pub(super) fn held(&self) -> Result<Target, BackendError> {
        let (buffer, format) = match (self.holds_float.get(), self.holds_half.get()) {
            (true, _) => (&self.float, Format::F32),
            (false, Some(format)) => (&self.half, format),
            (false, None) => {
                return Err(BackendError::Device(
                    "cuda: a tensor without elements".into(),
                ));
            }
        };
        let pointer = buffer.borrow().pointer();
        Ok(Target { pointer, format })
    }

    /// Address of the elements in f32.
    pub(super) fn float(&self, kernels: &Kernels) -> Result<u64, BackendError> {
        let held = self.held()?;
        if held.format == Format::F32 {
            return Ok(held.pointer);
        }
        let mut float = self.float.borrow_mut();
        float.reserve(self.elements() * Format::F32.bytes())?;
        let (from, to, elements) = (held.pointer, float.pointer(), self.elements() as i64);
        let format = held.format as i32;
        kernels.start(
            "to_float",
            blocks(self.elements(), 256),
            |function, grid| {
                // SAFETY: both buffers hold `elements` elements.
                unsafe {
                    launch!(kernels.device, function, grid, 256, 0; from, to, elements, format)
                }
            },
        )?;
        self.holds_float.set(true);
        Ok(to)
    }

    /// Address and format of the elements where they lie: in the 16-bit `format`, or in f32.
    pub(super) fn as_it_is(
        &self,
        kernels: &Kernels,
        format: Format,
    ) -> Result<(u64, Format), BackendError> {
        match self.holds_half.get() {
            Some(held) if held == format => Ok((self.half.borrow().pointer(), format)),
            _ => Ok((self.float(kernels)?, Format::F32)),
        }
    }

    /// Address of the elements in a 16-bit format.
    pub(super) fn half(&self, kernels: &Kernels, format: Format) -> Result<u64, BackendError> {
        if self.holds_half.get() == Some(format) {
            return Ok(self.half.borrow().pointer());
        }
        let from = self.float(kernels)?;
        let mut half = self.half.borrow_mut();
        half.reserve(self.elements() * format.bytes())?;
        let (to, elements, number) = (half.pointer(), self.elements() as i64, format as i32);
        kernels.start(
            "to_half",
            blocks(self.elements(), 1024),
            |function, grid| {
                // SAFETY: both buffers hold `elements` elements.
                unsafe {
                    launch!(kernels.device, function, grid, 256, 0; from, to, elements, number)
                }
            },
        )?;
        self.holds_half.set(Some(format));
        Ok(to)
    }

    /// Address of the elements in a format of products: 32-bit or 16-bit floats.
    pub(super) fn operand_in(
        &self,
        kernels: &Kernels,
        format: Format,
    ) -> Result<u64, BackendError> {
        match format.half() {
            Some(format) => self.half(kernels, format),
            None => self.float(kernels),
        }
    }
}

/// Numbers of activations in the kernels.
pub(super) fn activation_number(activation: Activation) -> i32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
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
