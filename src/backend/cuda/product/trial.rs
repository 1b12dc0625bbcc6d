//! Which algorithms of the library give the same bits on one shape.

use std::time::{Duration, Instant};

use super::lt::{Algorithm, Library, Operands, Problem};
use super::{Plan, Products, RANGES, Shape, range};
use crate::backend::BackendError;
use crate::backend::cuda::device::{Buffer, Purpose, launch};
use crate::backend::cuda::tensor::{CudaTensor, CudaWeight};

/// Row counts at which rows are compared; the largest is the reference.
const COMPARED: [usize; 6] = [1, 3, 16, 64, 200, 512];
/// Sums of which rounding to 16 bits hides a difference in all but about one of some thousands:
/// so many are compared.
const COMPARED_ROUNDED: usize = 1 << 21;
/// Algorithms that are asked for per range, and products that are timed together.
const TRIED: usize = 6;
const TIMED: usize = 8;
/// Most pieces of noise.
const MOST_PIECES: usize = 64;
/// Algorithms run against each other on one shape.
pub struct Trial<'a> {
    products: &'a Products,
    library: &'a Library,
    shape: Shape,
    weight: &'a CudaWeight,
    /// Noise, `[pieces][512, inner]` in the shape's format.
    x: u64,
    pieces: usize,
    noise: CudaTensor,
    /// `[pieces][512, columns]`.
    reference: Buffer,
    /// `[512, columns]`.
    found: Buffer,
}

impl<'a> Trial<'a> {
    /// Prepares noise for `shape` beside a weight of that shape.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn new(
        products: &'a Products,
        library: &'a Library,
        shape: Shape,
        weight: &'a CudaWeight,
    ) -> Result<Self, BackendError> {
        let device = &products.kernels.device;
        let rows = COMPARED[COMPARED.len() - 1];
        let pieces = pieces(shape);
        let mut noise = CudaTensor::new(device, pieces * rows, shape.inner)?;
        noise.write(&noise_of(pieces * rows * shape.inner))?;
        let x = noise.operand_in(&products.kernels, shape.format)?;
        let out = |pieces| {
            let bytes = pieces * rows * shape.columns * shape.out.bytes();
            device.allocate(bytes, Purpose::Staging)
        };
        Ok(Trial {
            products,
            library,
            shape,
            weight,
            x,
            pieces,
            noise,
            reference: out(pieces)?,
            found: out(1)?,
        })
    }

    /// An algorithm for every range, all with the same bits: the fastest that were found.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn plan(&mut self) -> Result<Plan, BackendError> {
        let mut ranked = Vec::new();
        for rows in RANGES {
            let algorithms = self.library.ranked(self.shape, rows, TRIED)?;
            if algorithms.is_empty() {
                return Ok(Plan::Own);
            }
            ranked.push(algorithms);
        }
        for reference in [8192, 512, 256, 64].map(range) {
            if let Some(plan) = self.around(&ranked, &ranked[reference][0])? {
                return Ok(Plan::Library(plan));
            }
        }
        Ok(Plan::Own)
    }

    /// An algorithm for every range that has the bits of the reference; `None` where a range has
    /// none. Which of several it is changes no bit, so the clock may decide.
    fn around(
        &mut self,
        ranked: &[Vec<Algorithm>],
        reference: &Algorithm,
    ) -> Result<Option<Vec<Algorithm>>, BackendError> {
        let most = COMPARED[COMPARED.len() - 1];
        if !self.library.accepts(self.shape, most, reference)? {
            return Ok(None);
        }
        for piece in 0..self.pieces {
            let to = self.reference_of(piece);
            self.run(piece, most, reference, to)?;
        }
        let mut chosen = Vec::new();
        for own in 0..RANGES.len() {
            // Those ranked for the range, then the first of the others, the nearest before.
            let mut others: Vec<usize> = (0..RANGES.len()).filter(|&other| other != own).collect();
            others.sort_by_key(|&other| other.abs_diff(own));
            let others = others.into_iter().map(|other| ranked[other][0]);
            let mut tried: Vec<Algorithm> = Vec::new();
            let mut best: Option<(Duration, Algorithm)> = None;
            for algorithm in ranked[own].iter().copied().chain(others) {
                if tried.contains(&algorithm) || !self.agrees(own, &algorithm)? {
                    continue;
                }
                tried.push(algorithm);
                if RANGES[own] > most {
                    // Too many rows to time: the library's order holds.
                    best = Some((Duration::ZERO, algorithm));
                    break;
                }
                let taken = self.time(RANGES[own], &algorithm)?;
                if best.is_none_or(|(least, _)| taken < least) {
                    best = Some((taken, algorithm));
                }
            }
            match best {
                Some((_, algorithm)) => chosen.push(algorithm),
                None => return Ok(None),
            }
        }
        Ok(Some(chosen))
    }

    /// The shorter of two times of some products of `rows`.
    fn time(&self, rows: usize, algorithm: &Algorithm) -> Result<Duration, BackendError> {
        let device = &self.products.kernels.device;
        let mut least = Duration::MAX;
        for _ in 0..2 {
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..TIMED {
                self.run(0, rows, algorithm, self.found.pointer())?;
            }
            device.synchronize()?;
            least = least.min(start.elapsed());
        }
        Ok(least)
    }

    /// Whether an algorithm can do all of a range and gives the reference's bits there: at the
    /// compared row counts of the range, and at the most that are compared where it accepts those.
    fn agrees(&mut self, own: usize, algorithm: &Algorithm) -> Result<bool, BackendError> {
        let least = if own == 0 { 1 } else { RANGES[own - 1] + 1 };
        for rows in [least, RANGES[own]] {
            if !self.library.accepts(self.shape, rows, algorithm)? {
                return Ok(false);
            }
        }
        let most = COMPARED[COMPARED.len() - 1];
        let ends = [least, RANGES[own]]
            .into_iter()
            .filter(|&rows| rows <= most);
        let inside = COMPARED.into_iter().filter(|&rows| range(rows) == own);
        for rows in ends.chain(inside) {
            if !self.repeats(rows, algorithm)? {
                return Ok(false);
            }
        }
        let accepts = self.library.accepts(self.shape, most, algorithm)?;
        // What cannot be compared is not used.
        Ok(accepts && self.repeats(most, algorithm)?)
    }

    fn reference_of(&self, piece: usize) -> u64 {
        let most = COMPARED[COMPARED.len() - 1];
        let bytes = most * self.shape.columns * self.shape.out.bytes();
        self.reference.pointer() + (piece * bytes) as u64
    }

    fn run(
        &self,
        piece: usize,
        rows: usize,
        algorithm: &Algorithm,
        out: u64,
    ) -> Result<(), BackendError> {
        let most = COMPARED[COMPARED.len() - 1];
        let first = piece * most * self.shape.inner * self.shape.format.bytes();
        let operands = Operands {
            x: self.x + first as u64,
            weight: self.weight.data.pointer(),
            out,
        };
        let problem = Problem::new(self.shape, rows)?;
        self.library.start(&problem, algorithm, operands, false)
    }

    /// Whether the first `rows` of each piece of the reference come out again.
    fn repeats(&mut self, rows: usize, algorithm: &Algorithm) -> Result<bool, BackendError> {
        debug_assert!(self.pieces * rows <= self.noise.rows, "rows of noise");
        let device = &self.products.kernels.device;
        let count = device.upload(&[0_u32], Purpose::Staging)?;
        let function = self.products.kernels.get("compare")?;
        // Columns are a multiple of 16, so 16-bit outputs are whole words.
        let words = (rows * self.shape.columns * self.shape.out.bytes() / 4) as i64;
        for piece in 0..self.pieces {
            self.found.fill(0xff)?;
            self.run(piece, rows, algorithm, self.found.pointer())?;
            let (a, b, to) = (
                self.reference_of(piece),
                self.found.pointer(),
                count.pointer(),
            );
            // SAFETY: both outputs hold at least `words` words.
            unsafe { launch!(device, function, (1024, 1, 1), 256, 0; a, b, words, to) }?;
        }
        Ok(count.read::<u32>(1)? == [0])
    }
}

/// Pieces of noise of 512 rows that are compared.
fn pieces(shape: Shape) -> usize {
    let rows = COMPARED[COMPARED.len() - 1];
    match shape.out.half() {
        Some(_) => COMPARED_ROUNDED
            .div_ceil(rows * shape.columns)
            .min(MOST_PIECES),
        None => 1,
    }
}

/// Numbers in -1..1 from a counter.
fn noise_of(count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let bits = i.wrapping_mul(0x9e37_79b1) ^ i.wrapping_mul(0x85eb_ca6b).rotate_left(13);
            let bits = (bits ^ (bits >> 15)).wrapping_mul(0x2c1b_3c6d);
            ((bits ^ (bits >> 12)) >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_fills_its_interval_without_repeating() {
        let noise = noise_of(100_000);
        let mean = noise.iter().map(|&x| f64::from(x)).sum::<f64>() / noise.len() as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!(noise.iter().all(|x| (-1.0..1.0).contains(x)));
        let mut bits: Vec<u32> = noise.iter().map(|x| x.to_bits()).collect();
        bits.sort_unstable();
        bits.dedup();
        assert!(bits.len() > 99_000, "{}", bits.len());
    }
}
