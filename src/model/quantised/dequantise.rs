//! What codes of a checkpoint stand for: scales and zero points in one order for every form.

use rayon::prelude::*;

use ::safetensors::tensor::Dtype;

use super::super::ModelError;
use super::super::safetensors::numbers;
use super::super::tensors::missing;
use super::find::{Lookup, Stored};
use super::form::{AwqOrder, ByteKind, Form, NumberType};
use super::matrix::Matrix;
use crate::backend::{CodeKind, Codes, Zeros, interleaved_code, nibble};

impl Matrix {
    /// Its codes, which stand for numbers that are rounded to `numbers`.
    ///
    /// # Errors
    /// Names a part of another type than those that are read.
    pub(crate) fn codes<'a>(
        &self,
        numbers: NumberType,
        lookup: &Lookup<'a>,
    ) -> Result<Codes<'a>, ModelError> {
        let [rows, columns] = self.shape;
        let [_, groups] = self.grid();
        let part = |name: &str| self.required(&self.part(name), lookup);
        let scales = floats(&self.required(&self.scales, lookup)?, &self.scales)?;
        let (kind, codes, row_bytes, scales, zeros) = match self.form {
            Form::Awq {
                order: AwqOrder::Gemm,
                ..
            } => {
                let zeros = part("qzeros")?.bytes;
                let zero = |row, group| interleaved_code(zeros, rows, group, row);
                let scales = each(rows, groups, |row, group| scales[group * rows + row]);
                let zeros = Zeros::Each(each(rows, groups, zero));
                let codes = part("qweight")?;
                (CodeKind::Interleaved, codes, rows / 2, scales, zeros)
            }
            Form::Awq {
                order: AwqOrder::Gemv,
                ..
            } => {
                let (zeros, stride) = (part("qzeros")?.bytes, scales.len() / rows);
                let zero = |row, group| nibble(&zeros[row * stride / 2..], group);
                let scales = each(rows, groups, |row, group| scales[row * stride + group]);
                let zeros = Zeros::Each(each(rows, groups, zero));
                (
                    CodeKind::Nibble,
                    part("qweight")?,
                    columns / 2,
                    scales,
                    zeros,
                )
            }
            Form::Packed { bits, .. } => {
                let zeros = match lookup(&self.part("weight_zero_point")) {
                    None => Zeros::All(offset(bits)),
                    Some(stored) => Zeros::Each(packed_zeros(&stored, bits, rows, groups)),
                };
                let row_bytes = (columns * bits as usize).div_ceil(32) * 4;
                let kind = match bits {
                    4 => CodeKind::Nibble,
                    _ => CodeKind::Byte,
                };
                (kind, part("weight_packed")?, row_bytes, scales, zeros)
            }
            Form::Bytes { kind, .. } => {
                let kind = match kind {
                    ByteKind::E4m3 => CodeKind::E4m3,
                    ByteKind::Int8 => CodeKind::Int8,
                };
                (kind, part("weight")?, columns, scales, Zeros::All(0))
            }
        };
        Ok(Codes {
            shape: self.shape,
            kind,
            bytes: codes.bytes,
            row_bytes,
            tile: self.tile(),
            scales,
            zeros,
            numbers,
        })
    }

    fn required<'a>(&self, name: &str, lookup: &Lookup<'a>) -> Result<Stored<'a>, ModelError> {
        lookup(name).ok_or_else(|| missing(&self.module, name, &self.shape))
    }
}

/// `of(row, column)` of every place, row-major.
fn each<T: Send>(rows: usize, columns: usize, of: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
    let places = (0..rows * columns).into_par_iter();
    places.map(|at| of(at / columns, at % columns)).collect()
}

/// The code of 0 in compressed-tensors.
fn offset(bits: u32) -> u8 {
    1 << (bits - 1)
}

/// Codes of zero points `[rows, groups]`: signed bytes, or words down the columns.
fn packed_zeros(stored: &Stored<'_>, bits: u32, rows: usize, groups: usize) -> Vec<u8> {
    let bytes = stored.bytes;
    if stored.dtype == Dtype::I8 {
        return bytes
            .iter()
            .map(|byte| byte.wrapping_add(offset(bits)))
            .collect();
    }
    let per_word = 32 / bits as usize;
    each(rows, groups, |row, group| {
        let word = &bytes[(row / per_word * groups + group) * 4..][..4];
        match bits {
            4 => nibble(word, row % per_word),
            _ => word[row % per_word],
        }
    })
}

/// Numbers of a stored tensor of floats.
pub(super) fn floats(stored: &Stored<'_>, name: &str) -> Result<Vec<f32>, ModelError> {
    Ok(numbers(stored, name)?.read().into_f32())
}
