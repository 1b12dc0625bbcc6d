//! From codes to numbers, row by row on every core.
//!
//! What a code stands for depends on its tile alone, so that a table holds the few numbers of a
//! tile, each computed and rounded once.

use half::{bf16, f16};
use rayon::prelude::*;

use ::safetensors::tensor::Dtype;

use super::super::ModelError;
use super::super::safetensors::read;
use super::super::tensors::missing;
use super::find::{AWQ_PER_WORD, Lookup, Stored};
use super::form::{AwqOrder, ByteKind, Form, NumberType};
use super::matrix::Matrix;
use crate::backend::TensorData;
use crate::recipe::ByteFormat;

/// Rows that a thread takes at a time where tiles do not say more: 16 words of AutoAWQ's GEMM
/// order, a line of most caches.
const ROWS: usize = 128;

/// Place in a word of AutoAWQ's GEMM order of each of its eight outputs.
const GEMM_PLACES: [u32; AWQ_PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A number of a weight.
trait Rounded: Copy + Default + Send + Sync {
    /// The nearest one, ties to even.
    fn rounded(number: f32) -> Self;
}

impl Rounded for f32 {
    fn rounded(number: f32) -> Self {
        number
    }
}

impl Rounded for f16 {
    fn rounded(number: f32) -> Self {
        f16::from_f32(number)
    }
}

impl Rounded for bf16 {
    fn rounded(number: f32) -> Self {
        bf16::from_f32(number)
    }
}

impl Matrix {
    /// The numbers `[out, in]`, rounded to `numbers`.
    ///
    /// # Errors
    /// Names a part of another type than those that are read.
    pub(crate) fn load<'a>(
        &'a self,
        numbers: NumberType,
        lookup: &Lookup<'a>,
    ) -> Result<TensorData, ModelError> {
        let plan = Plan::new(self, lookup)?;
        Ok(match numbers {
            NumberType::F32 => TensorData::F32(plan.numbers()),
            NumberType::F16 => TensorData::F16(plan.numbers()),
            NumberType::Bf16 => TensorData::Bf16(plan.numbers()),
        })
    }

    fn required<'a>(&self, name: &str, lookup: &Lookup<'a>) -> Result<Stored<'a>, ModelError> {
        lookup(name).ok_or_else(|| missing(&self.module, name, &self.shape))
    }
}

/// Everything that the numbers of a matrix follow from.
struct Plan<'a> {
    matrix: &'a Matrix,
    codes: &'a [u8],
    /// Bytes of a row of codes.
    row_bytes: usize,
    /// `[rows of tiles, columns of tiles]`.
    scales: Vec<f32>,
    /// `[rows, columns of tiles]`, or one for all.
    zeros: Zeros,
}

enum Zeros {
    All(u8),
    Each(Vec<u8>),
}

impl<'a> Plan<'a> {
    fn new(matrix: &'a Matrix, lookup: &Lookup<'a>) -> Result<Self, ModelError> {
        let [rows, columns] = matrix.shape;
        let [_, groups] = matrix.grid();
        let required = |name: &str| matrix.required(name, lookup);
        let part = |name: &str| required(&matrix.part(name));
        let scales = floats(&required(&matrix.scales)?, &matrix.scales)?;
        let (codes, row_bytes, scales, zeros) = match matrix.form {
            Form::Awq {
                order: AwqOrder::Gemm,
                ..
            } => {
                let zeros = part("qzeros")?.bytes;
                let zero = |row, group| gemm_code(zeros, rows, group, row);
                let scales = each(rows, groups, |row, group| scales[group * rows + row]);
                let zeros = Zeros::Each(each(rows, groups, zero));
                (part("qweight")?, rows / 2, scales, zeros)
            }
            Form::Awq {
                order: AwqOrder::Gemv,
                ..
            } => {
                let (zeros, stride) = (part("qzeros")?.bytes, scales.len() / rows);
                let zero = |row, group| nibble(&zeros[row * stride / 2..], group);
                let scales = each(rows, groups, |row, group| scales[row * stride + group]);
                let zeros = Zeros::Each(each(rows, groups, zero));
                (part("qweight")?, columns / 2, scales, zeros)
            }
            Form::Packed { bits, .. } => {
                let zeros = match lookup(&matrix.part("weight_zero_point")) {
                    None => Zeros::All(offset(bits)),
                    Some(stored) => Zeros::Each(packed_zeros(&stored, bits, rows, groups)),
                };
                let row_bytes = (columns * bits as usize).div_ceil(32) * 4;
                (part("weight_packed")?, row_bytes, scales, zeros)
            }
            Form::Bytes { .. } => (part("weight")?, columns, scales, Zeros::All(0)),
        };
        Ok(Plan {
            matrix,
            codes: codes.bytes,
            row_bytes,
            scales,
            zeros,
        })
    }

    fn numbers<T: Rounded>(&self) -> Vec<T> {
        let [rows, columns] = self.matrix.shape;
        let mut numbers = vec![T::default(); rows * columns];
        let [tile_rows, _] = self.matrix.tile();
        // Whole tiles, unless one is much of the matrix.
        let together = if tile_rows > 1 && tile_rows < ROWS {
            tile_rows
        } else {
            ROWS
        };
        numbers
            .par_chunks_mut(together * columns)
            .enumerate()
            .for_each(|(chunk, numbers)| self.rows(chunk * together, numbers));
        numbers
    }

    /// Fills consecutive rows from `first` on.
    fn rows<T: Rounded>(&self, first: usize, numbers: &mut [T]) {
        let [_, columns] = self.matrix.shape;
        let [tile_rows, tile_columns] = self.matrix.tile();
        let count = numbers.len() / columns;
        let mut codes = vec![0u8; count * tile_columns.min(columns)];
        for (group, start) in (0..columns).step_by(tile_columns).enumerate() {
            let width = tile_columns.min(columns - start);
            let codes = &mut codes[..count * width];
            self.unpack(first, start, width, codes);
            let mut table = Table::default();
            for (row, codes) in codes.chunks_exact(width).enumerate() {
                let row = first + row;
                if row == first || row.is_multiple_of(tile_rows) {
                    table.fill(self, row, group);
                }
                let at = (row - first) * columns + start;
                let numbers = &mut numbers[at..at + width];
                for (number, code) in numbers.iter_mut().zip(codes) {
                    *number = table.numbers[usize::from(*code)];
                }
            }
        }
    }

    /// Codes of `width` columns from `start` on, of as many rows as `codes` has room for.
    fn unpack(&self, first: usize, start: usize, width: usize, codes: &mut [u8]) {
        let row = |row: usize| &self.codes[(first + row) * self.row_bytes..][..self.row_bytes];
        match self.matrix.form {
            Form::Awq {
                order: AwqOrder::Gemm,
                ..
            } => {
                let rows = codes.len() / width;
                for column in 0..width {
                    let words = &self.codes[(start + column) * self.row_bytes + first / 2..];
                    for (word, bytes) in words.as_chunks::<4>().0.iter().take(rows / 8).enumerate()
                    {
                        let bits = u32::from_le_bytes(*bytes);
                        for (at, place) in GEMM_PLACES.iter().enumerate() {
                            let code = (bits >> (4 * place)) & 0xf;
                            codes[(8 * word + at) * width + column] = code as u8;
                        }
                    }
                }
            }
            Form::Awq {
                order: AwqOrder::Gemv,
                ..
            }
            | Form::Packed { bits: 4, .. } => {
                for (at, codes) in codes.chunks_exact_mut(width).enumerate() {
                    let bytes = row(at)[start / 2..].iter();
                    for (pair, byte) in codes.chunks_mut(2).zip(bytes) {
                        for (code, half) in pair.iter_mut().zip([byte & 0xf, byte >> 4]) {
                            *code = half;
                        }
                    }
                }
            }
            Form::Packed { .. } | Form::Bytes { .. } => {
                for (at, codes) in codes.chunks_exact_mut(width).enumerate() {
                    codes.copy_from_slice(&row(at)[start..start + width]);
                }
            }
        }
    }

    fn zero(&self, row: usize, group: usize) -> u8 {
        match &self.zeros {
            Zeros::All(zero) => *zero,
            Zeros::Each(zeros) => zeros[row * self.matrix.grid()[1] + group],
        }
    }

    /// How many codes there are.
    fn levels(&self) -> usize {
        match self.matrix.form {
            Form::Awq { .. } => 16,
            Form::Packed { bits, .. } => 1 << bits,
            Form::Bytes { .. } => 256,
        }
    }
}

/// The numbers of a tile by their codes.
struct Table<T> {
    numbers: [T; 256],
}

impl<T: Rounded> Default for Table<T> {
    fn default() -> Self {
        let numbers = [T::default(); 256];
        Table { numbers }
    }
}

impl<T: Rounded> Table<T> {
    fn fill(&mut self, plan: &Plan<'_>, row: usize, group: usize) {
        let [tile_rows, _] = plan.matrix.tile();
        let scale = plan.scales[row / tile_rows * plan.matrix.grid()[1] + group];
        let zero = i32::from(plan.zero(row, group));
        for (code, number) in (0i32..).zip(&mut self.numbers[..plan.levels()]) {
            let value = match plan.matrix.form {
                Form::Bytes {
                    kind: ByteKind::E4m3,
                    ..
                } => ByteFormat::E4m3.table()[code as usize],
                Form::Bytes {
                    kind: ByteKind::Int8,
                    ..
                } => f32::from(code as u8 as i8),
                Form::Awq { .. } | Form::Packed { .. } => (code - zero) as f32,
            };
            *number = T::rounded(value * scale);
        }
    }
}

/// `of(row, column)` of every place, row-major.
fn each<T: Send>(rows: usize, columns: usize, of: impl Fn(usize, usize) -> T + Sync) -> Vec<T> {
    let places = (0..rows * columns).into_par_iter();
    places.map(|at| of(at / columns, at % columns)).collect()
}

/// Half of a byte, the low one first.
fn nibble(bytes: &[u8], at: usize) -> u8 {
    (bytes[at / 2] >> (4 * (at % 2))) & 0xf
}

/// The code of output `row` for input or group `line`, of words in GEMM order for `rows` outputs.
fn gemm_code(bytes: &[u8], rows: usize, line: usize, row: usize) -> u8 {
    let word = line * rows / 2 + row / AWQ_PER_WORD * 4;
    nibble(&bytes[word..], GEMM_PLACES[row % AWQ_PER_WORD] as usize)
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
    Ok(read(stored, name)?.into_f32())
}
