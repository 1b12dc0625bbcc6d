//! Which algorithms of the library give the same bits on one shape.

mod choice;
mod differing;
mod noise;

use std::rc::Rc;

use super::lt::{Algorithm, Library, Operands, Problem};
use super::{Plan, Products, RANGES, STEP_ROWS, Shape, range};
use crate::backend::BackendError;
use crate::backend::cuda::device::{Buffer, Device, Purpose};
use crate::backend::cuda::tensor::{CudaTensor, CudaWeight};
use differing::Differing;
use noise::noise_of;

/// Row counts at which rows are compared; the largest is the reference.
const COMPARED: [usize; 6] = [1, 3, 16, 64, 200, 512];
/// Sums of which rounding to 16 bits hides a difference in all but about one of some thousands:
/// so many are compared.
const COMPARED_ROUNDED: usize = 1 << 21;
/// Algorithms that are asked for per range.
const TRIED: usize = 6;
/// Most pieces of noise.
const MOST_PIECES: usize = 64;
/// Most rows that are compared: a prompt chunk of 8,192, and rows of a step that ride along.
const LONGEST: usize = 8192 + STEP_ROWS;
/// Rows after which the noise of such long passes repeats: odd, so that a row of the reference comes
/// to stand at other places of a tile.
const PERIOD: usize = 509;
/// Most bytes of such a pass: few, since memory that is new to the process takes long to come.
const LONG_BYTES: usize = 256 << 20;
/// Longer passes are cut at multiples of so many rows, where no tile is left partly empty.
const CUT: usize = 512;
/// Bytes that outputs consist of before products are added to them: small f32 numbers.
const ADDED_TO: u8 = 0x3c;

/// Most bytes that the trial of a shape takes for a while.
pub fn most_bytes(columns: usize, inner: usize) -> usize {
    let rows = COMPARED[COMPARED.len() - 1];
    // As for 16-bit outputs, of which the most are compared. Noise in f32 and in the weight's type;
    // the reference and one more output.
    let pieces = COMPARED_ROUNDED
        .div_ceil(rows * columns.max(1))
        .min(MOST_PIECES);
    LONG_BYTES + rows * (pieces * inner * (4 + 4) + (pieces + 1) * columns * 4)
}

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
    /// Room for passes longer than the noise, where there is any.
    long: Option<Long>,
}

/// A pass of `rows` rows, the noise of one piece over and over.
struct Long {
    rows: usize,
    /// `[rows, inner]`.
    x: Buffer,
    /// `[rows, columns]`.
    out: Buffer,
}

impl Long {
    /// As many rows as fit into [`LONG_BYTES`], up to [`LONGEST`]; none where the noise is as long.
    fn new(device: &Rc<Device>, shape: Shape, noise: u64) -> Result<Option<Self>, BackendError> {
        let [inner, columns] = [
            shape.inner * shape.format.bytes(),
            shape.columns * shape.out.bytes(),
        ];
        let rows = (LONG_BYTES / (inner + columns) / CUT * CUT).min(LONGEST);
        if rows <= CUT {
            return Ok(None);
        }
        let mut x = device.allocate(rows * inner, Purpose::Staging)?;
        for first in (0..rows).step_by(PERIOD) {
            let bytes = PERIOD.min(rows - first) * inner;
            // SAFETY: the noise has more rows and lives on behind this call.
            unsafe { x.copy_at(first * inner, noise, bytes) }?;
        }
        let out = device.allocate(rows * columns, Purpose::Staging)?;
        Ok(Some(Long { rows, x, out }))
    }

    fn operands(&self, weight: &CudaWeight) -> Operands {
        Operands {
            x: self.x.pointer(),
            weight: weight.data.pointer(),
            out: self.out.pointer(),
        }
    }
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
            long: Long::new(device, shape, x)?,
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

    /// Most rows at which algorithms were compared: longer passes are to be cut.
    fn longest(&self) -> usize {
        self.long.as_ref().map_or(CUT, |long| long.rows)
    }

    /// An algorithm for every range, all with the same bits.
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
                return Ok(Plan::Library(plan, self.longest()));
            }
        }
        Ok(Plan::Own)
    }

    /// An algorithm for every range that has the bits of the reference; `None` where a range has
    /// none. Which of several it is changes no bit, so the library's order and the clock may decide.
    fn around(
        &mut self,
        ranked: &[Vec<Algorithm>],
        reference: &Algorithm,
    ) -> Result<Option<Vec<Algorithm>>, BackendError> {
        let most = COMPARED[COMPARED.len() - 1];
        if !self.library.accepts(self.shape, most, reference)? {
            return Ok(None);
        }
        self.reference.fill(self.before())?;
        for piece in 0..self.pieces {
            let to = self.reference_of(piece);
            self.run(self.of_piece(piece, to), most, reference)?;
        }
        // Algorithms, and whether they can do `most` rows and give the reference.
        let mut known = Vec::new();
        let mut chosen = Vec::new();
        for own in 0..RANGES.len() {
            // Those ranked for the range, then the first of the others, the nearest before.
            let mut others: Vec<usize> = (0..RANGES.len()).filter(|&other| other != own).collect();
            others.sort_by_key(|&other| other.abs_diff(own));
            let others = others.into_iter().map(|other| ranked[other][0]);
            let candidates: Vec<Algorithm> = ranked[own].iter().copied().chain(others).collect();
            let best = self.best(&candidates, own, &mut known)?;
            match best {
                Some(algorithm) => chosen.push(algorithm),
                None => return Ok(None),
            }
        }
        Ok(Some(chosen))
    }

    /// Whether an algorithm can do all of a range and gives the reference's bits there: at the
    /// compared row counts of the range and its ends, at the most that are compared in short passes,
    /// and in a long pass. `known` says which algorithms do so at that most.
    fn agrees(
        &mut self,
        own: usize,
        algorithm: &Algorithm,
        known: &mut Vec<(Algorithm, bool)>,
    ) -> Result<bool, BackendError> {
        // Passes that are longer than what can be compared are cut to that.
        let longest = self.longest();
        let least = if own == 0 { 1 } else { RANGES[own - 1] + 1 };
        let end = match own + 1 == RANGES.len() {
            true => LONGEST,
            false => RANGES[own],
        };
        let ends = [least, end].map(|rows| rows.min(longest));
        for rows in ends {
            if !self.library.accepts(self.shape, rows, algorithm)? {
                return Ok(false);
            }
        }
        // What cannot be compared is not used.
        let most = COMPARED[COMPARED.len() - 1];
        let before = known.iter().find(|(known, _)| known == algorithm);
        let repeats = match before {
            Some((_, repeats)) => *repeats,
            None => {
                let accepts = self.library.accepts(self.shape, most, algorithm)?;
                let repeats = accepts && self.repeats(most, algorithm)?;
                known.push((*algorithm, repeats));
                repeats
            }
        };
        if !repeats {
            return Ok(false);
        }
        let inside = COMPARED.into_iter().filter(|&rows| range(rows) == own);
        let mut compared: Vec<usize> = ends.into_iter().chain(inside).collect();
        compared.sort_unstable();
        compared.dedup();
        for rows in compared.into_iter().filter(|&rows| rows != most) {
            let repeats = match rows < most {
                true => self.repeats(rows, algorithm)?,
                false => self.repeats_long(rows, algorithm)?,
            };
            if !repeats {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn reference_of(&self, piece: usize) -> u64 {
        let most = COMPARED[COMPARED.len() - 1];
        let bytes = most * self.shape.columns * self.shape.out.bytes();
        self.reference.pointer() + (piece * bytes) as u64
    }

    /// A piece of noise beside the weight.
    fn of_piece(&self, piece: usize, out: u64) -> Operands {
        let most = COMPARED[COMPARED.len() - 1];
        let first = piece * most * self.shape.inner * self.shape.format.bytes();
        Operands {
            x: self.x + first as u64,
            weight: self.weight.data.pointer(),
            out,
        }
    }

    fn run(
        &self,
        operands: Operands,
        rows: usize,
        algorithm: &Algorithm,
    ) -> Result<(), BackendError> {
        let problem = Problem::new(self.shape, rows)?;
        self.library
            .start(&problem, algorithm, operands, self.shape.add)
    }

    /// What the bytes of an output are before a product.
    fn before(&self) -> u8 {
        if self.shape.add { ADDED_TO } else { 0xff }
    }

    /// Whether the first `rows` of each piece of the reference come out again.
    fn repeats(&mut self, rows: usize, algorithm: &Algorithm) -> Result<bool, BackendError> {
        debug_assert!(self.pieces * rows <= self.noise.rows, "rows of noise");
        let differing = Differing::new(self.products)?;
        let found = self.found.pointer();
        for piece in 0..self.pieces {
            self.found.fill(self.before())?;
            self.run(self.of_piece(piece, found), rows, algorithm)?;
            differing.count(self.reference_of(piece), found, self.words(rows))?;
        }
        differing.is_none()
    }

    /// Whether the reference comes out again and again in a pass of `rows` rows.
    fn repeats_long(&mut self, rows: usize, algorithm: &Algorithm) -> Result<bool, BackendError> {
        let before = self.before();
        let Some(long) = &mut self.long else {
            return Ok(false);
        };
        long.out.fill(before)?;
        let operands = long.operands(self.weight);
        if !self.library.accepts(self.shape, rows, algorithm)? {
            return Ok(false);
        }
        self.run(operands, rows, algorithm)?;
        let differing = Differing::new(self.products)?;
        for first in (0..rows).step_by(PERIOD) {
            let at = operands.out + 4 * self.words(first) as u64;
            let words = self.words(PERIOD.min(rows - first));
            differing.count(self.reference.pointer(), at, words)?;
        }
        differing.is_none()
    }

    /// Words of 32 bits of `rows` rows of output: columns are a multiple of 16.
    fn words(&self, rows: usize) -> i64 {
        (rows * self.shape.columns * self.shape.out.bytes() / 4) as i64
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
