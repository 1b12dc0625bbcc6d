//! Weights from codes: decoded where they will stay, so that only codes cross the bus.

use super::CudaBackend;
use super::device::{Purpose, launch};
use super::tensor::{CudaWeight, Format, blocks, int};
use crate::backend::{BackendError, Codes, NumberType, Zeros};

/// Numbers of a block of the kernel.
const DECODED: usize = 1024;

/// Arguments of the kernel.
#[repr(C)]
struct Arguments {
    codes: u64,
    scales: u64,
    zeros: u64,
    out: u64,
    broken: u64,
    row_bytes: i64,
    rows: i32,
    columns: i32,
    tile_rows: i32,
    tile_columns: i32,
    groups: i32,
    kind: i32,
    zero: i32,
    format: i32,
}

impl From<NumberType> for Format {
    fn from(numbers: NumberType) -> Self {
        match numbers {
            NumberType::F32 => Format::F32,
            NumberType::F16 => Format::F16,
            NumberType::Bf16 => Format::Bf16,
        }
    }
}

impl CudaBackend {
    /// Weights from codes, one after another: see [`crate::backend::Backend::stored_weight`].
    pub(super) fn decode(
        &self,
        parts: &[Codes<'_>],
        out: usize,
        inner: usize,
    ) -> Result<Option<CudaWeight>, BackendError> {
        let device = &self.kernels.device;
        let elements: usize = parts.iter().map(|part| part.shape[0] * part.shape[1]).sum();
        assert_eq!(elements, out * inner, "elements of a weight");
        let format = parts
            .first()
            .map_or(Format::F32, |part| part.numbers.into());
        let weight = CudaWeight::room(device, format, out, inner)?;
        let broken = device.upload(&[0_i32], Purpose::Staging)?;
        let mut to = weight.data.pointer();
        for part in parts {
            assert_eq!(
                Format::from(part.numbers),
                format,
                "type of a weight's parts"
            );
            self.decode_part(part, to, broken.pointer())?;
            to += (part.shape[0] * part.shape[1] * format.bytes()) as u64;
        }
        let all_right = broken.read::<i32>(1)? == [0];
        Ok(all_right.then_some(weight))
    }

    fn decode_part(&self, part: &Codes<'_>, out: u64, broken: u64) -> Result<(), BackendError> {
        let device = &self.kernels.device;
        let [rows, columns] = part.shape;
        let codes = device.allocate(part.bytes.len(), Purpose::Staging)?;
        let mut staging = self.staging.borrow_mut();
        staging.fill(&codes, &[part.bytes])?;
        let scales = device.upload(&part.scales, Purpose::Staging)?;
        let (zeros, zero) = match &part.zeros {
            Zeros::All(zero) => (None, *zero),
            Zeros::Each(zeros) => (Some(device.upload(zeros, Purpose::Staging)?), 0),
        };
        let arguments = Arguments {
            codes: codes.pointer(),
            scales: scales.pointer(),
            zeros: zeros.as_ref().map_or(0, |zeros| zeros.pointer()),
            out,
            broken,
            row_bytes: part.row_bytes as i64,
            rows: int(rows),
            columns: int(columns),
            tile_rows: int(part.tile[0]),
            tile_columns: int(part.tile[1]),
            groups: int(part.groups()),
            kind: part.kind as i32,
            zero: i32::from(zero),
            format: Format::from(part.numbers) as i32,
        };
        let covered = blocks(rows * columns, DECODED);
        self.kernels
            .start("decode_weight", covered, |function, grid| {
                // SAFETY: codes, scales and zeros cover the shape, as whoever made them checked; `out`
                // has room for it. Buffers are freed behind the kernel, in the order of the stream.
                unsafe { launch!(device, function, grid, 256, 0; arguments) }
            })
    }
}
