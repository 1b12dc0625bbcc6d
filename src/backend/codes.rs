//! Weights that stand as codes of few bits, and the numbers that they stand for.
//!
//! What a code stands for depends on its tile alone, so that on the host a table holds the few
//! numbers of a tile, each computed and rounded once; rows are taken side by side on every core.

use half::{bf16, f16};
use rayon::prelude::*;

use super::TensorData;
use crate::recipe::ByteFormat;

/// Rows that a thread takes at a time where tiles do not say more: 16 words of interleaved codes, a
/// line of most caches.
const ROWS: usize = 128;

/// Place in a word of interleaved codes of each of its eight outputs.
const PLACES: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The type of a weight's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberType {
    /// 32-bit floats.
    F32,
    /// IEEE halves.
    F16,
    /// bfloat16.
    Bf16,
}

impl NumberType {
    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            NumberType::F32 => "f32",
            NumberType::F16 => "f16",
            NumberType::Bf16 => "bf16",
        }
    }
}

/// What a code is and how codes lie; numbered as in the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CodeKind {
    /// Unsigned, 4 bits; words `[in, out / 8]`, in which those of eight outputs are interleaved (the
    /// GEMM order of AutoAWQ).
    Interleaved = 0,
    /// Unsigned, 4 bits, row by row, the lower half of a byte first.
    Nibble = 1,
    /// Unsigned, a byte each, row by row.
    Byte = 2,
    /// Signed, a byte each, row by row.
    Int8 = 3,
    /// FP8 E4M3, row by row.
    E4m3 = 4,
}

/// Codes of 0.
#[derive(Clone, Debug, PartialEq)]
pub enum Zeros {
    /// The same everywhere.
    All(u8),
    /// `[rows, columns of tiles]`.
    Each(Vec<u8>),
}

/// A weight `[out, in]` as codes: each stands for `(code - zero) * scale`, computed in f32 and
/// rounded once.
#[derive(Clone, Debug)]
pub struct Codes<'a> {
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// What a code is.
    pub kind: CodeKind,
    /// Codes as they are stored.
    pub bytes: &'a [u8],
    /// Bytes of a row of codes, of interleaved ones those of an input.
    pub row_bytes: usize,
    /// Rows and columns under one scale.
    pub tile: [usize; 2],
    /// `[rows of tiles, columns of tiles]`.
    pub scales: Vec<f32>,
    /// Codes of 0; 0 for signed codes and floats.
    pub zeros: Zeros,
    /// What numbers are rounded to.
    pub numbers: NumberType,
}

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

impl Codes<'_> {
    /// The numbers, row-major.
    pub fn decode(&self) -> TensorData {
        match self.numbers {
            NumberType::F32 => TensorData::F32(self.decoded()),
            NumberType::F16 => TensorData::F16(self.decoded()),
            NumberType::Bf16 => TensorData::Bf16(self.decoded()),
        }
    }

    /// Tiles beside each other.
    pub fn groups(&self) -> usize {
        self.shape[1].div_ceil(self.tile[1])
    }

    fn decoded<T: Rounded>(&self) -> Vec<T> {
        let [rows, columns] = self.shape;
        let mut numbers = vec![T::default(); rows * columns];
        let [tile_rows, _] = self.tile;
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
        let [_, columns] = self.shape;
        let [tile_rows, tile_columns] = self.tile;
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
        let row = |row: usize| &self.bytes[(first + row) * self.row_bytes..][..self.row_bytes];
        match self.kind {
            CodeKind::Interleaved => {
                let rows = codes.len() / width;
                for column in 0..width {
                    let words = &self.bytes[(start + column) * self.row_bytes + first / 2..];
                    for (word, bytes) in words.as_chunks::<4>().0.iter().take(rows / 8).enumerate()
                    {
                        let bits = u32::from_le_bytes(*bytes);
                        for (at, place) in PLACES.iter().enumerate() {
                            let code = (bits >> (4 * place)) & 0xf;
                            codes[(8 * word + at) * width + column] = code as u8;
                        }
                    }
                }
            }
            CodeKind::Nibble => {
                for (at, codes) in codes.chunks_exact_mut(width).enumerate() {
                    let bytes = row(at)[start / 2..].iter();
                    for (pair, byte) in codes.chunks_mut(2).zip(bytes) {
                        for (code, half) in pair.iter_mut().zip([byte & 0xf, byte >> 4]) {
                            *code = half;
                        }
                    }
                }
            }
            CodeKind::Byte | CodeKind::Int8 | CodeKind::E4m3 => {
                for (at, codes) in codes.chunks_exact_mut(width).enumerate() {
                    codes.copy_from_slice(&row(at)[start..start + width]);
                }
            }
        }
    }

    fn zero(&self, row: usize, group: usize) -> u8 {
        match &self.zeros {
            Zeros::All(zero) => *zero,
            Zeros::Each(zeros) => zeros[row * self.groups() + group],
        }
    }

    /// How many codes there are.
    fn levels(&self) -> usize {
        match self.kind {
            CodeKind::Interleaved | CodeKind::Nibble => 16,
            CodeKind::Byte | CodeKind::Int8 | CodeKind::E4m3 => 256,
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
    fn fill(&mut self, codes: &Codes<'_>, row: usize, group: usize) {
        let scale = codes.scales[row / codes.tile[0] * codes.groups() + group];
        let zero = i32::from(codes.zero(row, group));
        for (code, number) in (0i32..).zip(&mut self.numbers[..codes.levels()]) {
            let value = match codes.kind {
                CodeKind::E4m3 => ByteFormat::E4m3.table()[code as usize],
                CodeKind::Int8 => f32::from(code as u8 as i8),
                CodeKind::Interleaved | CodeKind::Nibble | CodeKind::Byte => (code - zero) as f32,
            };
            *number = T::rounded(value * scale);
        }
    }
}

/// Half of a byte, the low one first.
pub fn nibble(bytes: &[u8], at: usize) -> u8 {
    (bytes[at / 2] >> (4 * (at % 2))) & 0xf
}

/// The code of output `row` for input or group `line`, of interleaved words for `rows` outputs.
pub fn interleaved_code(bytes: &[u8], rows: usize, line: usize, row: usize) -> u8 {
    let word = line * rows / 2 + row / PLACES.len() * 4;
    nibble(&bytes[word..], PLACES[row % PLACES.len()] as usize)
}
