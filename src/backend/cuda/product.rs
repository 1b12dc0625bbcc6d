//! Matrix products whose rows have the same bits whatever their number.
//!
//! For a shape that is met for the first time, cuBLASLt names an algorithm for each range of row
//! counts, none of which may split a sum. They are run against each other on noise: a range whose
//! algorithm gives other bits takes that of a neighbour. Where a range is left without one, and
//! where the library is missing or the shape is not aligned, the kernels of
//! this crate are used, which sum in one order by construction.

pub mod lt;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::device::{Buffer, Purpose, launch};
use super::functions::Kernels;
use super::tensor::{CudaTensor, CudaWeight, Format, blocks, int};
use crate::backend::BackendError;
use lt::{Algorithm, Library, Operands, Problem};

/// Most rows of each range.
const RANGES: [usize; 10] = [1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192];
/// Row counts at which rows are compared; the largest is the reference.
const COMPARED: [usize; 6] = [1, 3, 16, 64, 200, 512];
/// Rows from which the library's vectors of 16 bytes are aligned.
const ALIGNMENT: usize = 16;
/// Most descriptors of row counts that are kept.
const KEPT_PROBLEMS: usize = 64;

/// A weight's shape and format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Output features.
    pub columns: usize,
    /// Terms of a sum.
    pub inner: usize,
    /// Element type of both operands.
    pub format: Format,
}

/// How products of one shape are computed.
#[derive(Clone)]
enum Plan {
    /// The kernels of this crate.
    Own,
    /// Algorithms for each range.
    Library(Vec<Algorithm>),
}

#[repr(C)]
struct ProductArguments {
    x: u64,
    weight: u64,
    out: u64,
    rows: i32,
    columns: i32,
    inner: i32,
    format: i32,
    add: i32,
}

/// Products on one device.
pub struct Products {
    kernels: Rc<Kernels>,
    library: Option<Library>,
    plans: RefCell<HashMap<Shape, Rc<Plan>>>,
    problems: RefCell<HashMap<(Shape, usize), Rc<Problem>>>,
}

impl Products {
    /// Opens the library where there is one.
    ///
    /// # Errors
    /// [`BackendError::Device`] where the device fails.
    pub fn new(kernels: &Rc<Kernels>) -> Result<Self, BackendError> {
        let library = match lt::version() {
            Ok(_) => Some(Library::new(&kernels.device)?),
            // Slower, and no less right.
            Err(_) => None,
        };
        Ok(Products {
            kernels: Rc::clone(kernels),
            library,
            plans: RefCell::default(),
            problems: RefCell::default(),
        })
    }

    /// `out = x * weight^T`, added to `out` where `add` is set.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn apply(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        out: &mut CudaTensor,
        add: bool,
    ) -> Result<(), BackendError> {
        assert!(
            x.width == weight.inner && out.width == weight.out && out.rows == x.rows,
            "shape of a product"
        );
        let operand = match weight.format {
            Format::F32 if add => out.operand,
            Format::F32 => None,
            format => Some(format),
        };
        let to = if add {
            out.changed(&self.kernels)?
        } else {
            out.written(operand)
        };
        out.operand = operand;
        if x.rows == 0 {
            return Ok(());
        }
        let shape = Shape {
            columns: weight.out,
            inner: weight.inner,
            format: weight.format,
        };
        let plan = self.plan(shape, weight)?;
        match (&*plan, &self.library) {
            (Plan::Library(algorithms), Some(library)) => {
                let input = match weight.format {
                    Format::F32 => x.float(&self.kernels)?,
                    format => x.half(&self.kernels, format)?,
                };
                let operands = Operands {
                    x: input,
                    weight: weight.data.pointer(),
                    out: to,
                };
                let problem = self.problem(shape, x.rows)?;
                library.start(&problem, &algorithms[range(x.rows)], operands, add)
            }
            _ => self.start_own(x.float(&self.kernels)?, weight, to, x.rows, add),
        }
    }

    /// Shapes that are computed by the library, and all that were met.
    pub fn planned(&self) -> (usize, usize) {
        let plans = self.plans.borrow();
        let library = plans
            .values()
            .filter(|plan| matches!(***plan, Plan::Library(_)))
            .count();
        (library, plans.len())
    }

    fn problem(&self, shape: Shape, rows: usize) -> Result<Rc<Problem>, BackendError> {
        let mut problems = self.problems.borrow_mut();
        if let Some(problem) = problems.get(&(shape, rows)) {
            return Ok(Rc::clone(problem));
        }
        if problems.keys().filter(|(of, _)| *of == shape).count() >= KEPT_PROBLEMS {
            problems.retain(|(of, _), _| *of != shape);
        }
        let problem = Rc::new(Problem::new(shape, rows)?);
        problems.insert((shape, rows), Rc::clone(&problem));
        Ok(problem)
    }

    fn start_own(
        &self,
        x: u64,
        weight: &CudaWeight,
        out: u64,
        rows: usize,
        add: bool,
    ) -> Result<(), BackendError> {
        let arguments = ProductArguments {
            x,
            weight: weight.data.pointer(),
            out,
            rows: int(rows),
            columns: int(weight.out),
            inner: int(weight.inner),
            format: weight.format as i32,
            add: i32::from(add),
        };
        let (name, tile) = if rows <= 64 {
            ("product_small", 16)
        } else {
            ("product_large", 64)
        };
        let grid = (blocks(weight.out, tile), blocks(rows, tile), 1);
        // SAFETY: the operands have the sizes that the arguments state.
        unsafe { launch!(self.kernels.device, self.kernels.get(name)?, grid, 256, 0; arguments) }
    }

    fn plan(&self, shape: Shape, weight: &CudaWeight) -> Result<Rc<Plan>, BackendError> {
        if let Some(plan) = self.plans.borrow().get(&shape) {
            return Ok(Rc::clone(plan));
        }
        let aligned = shape.columns % ALIGNMENT == 0 && shape.inner % ALIGNMENT == 0;
        let plan = match &self.library {
            Some(library) if aligned => Trial::new(self, library, shape, weight)?.plan()?,
            _ => Plan::Own,
        };
        let plan = Rc::new(plan);
        self.plans.borrow_mut().insert(shape, Rc::clone(&plan));
        Ok(plan)
    }
}

/// The range that a row count belongs to.
fn range(rows: usize) -> usize {
    RANGES
        .iter()
        .position(|&most| rows <= most)
        .unwrap_or(RANGES.len() - 1)
}

/// Algorithms run against each other on one shape.
struct Trial<'a> {
    products: &'a Products,
    library: &'a Library,
    shape: Shape,
    weight: &'a CudaWeight,
    /// Noise, `[512, inner]` in the shape's format.
    x: u64,
    noise: CudaTensor,
    /// `[512, columns]`.
    reference: Buffer,
    found: Buffer,
}

impl<'a> Trial<'a> {
    fn new(
        products: &'a Products,
        library: &'a Library,
        shape: Shape,
        weight: &'a CudaWeight,
    ) -> Result<Self, BackendError> {
        let device = &products.kernels.device;
        let rows = COMPARED[COMPARED.len() - 1];
        let mut noise = CudaTensor::new(device, rows, shape.inner)?;
        noise.write(&noise_of(rows * shape.inner))?;
        let x = match shape.format {
            Format::F32 => noise.float(&products.kernels)?,
            format => noise.half(&products.kernels, format)?,
        };
        let out = || device.allocate(rows * shape.columns * 4, Purpose::Staging);
        Ok(Trial {
            products,
            library,
            shape,
            weight,
            x,
            noise,
            reference: out()?,
            found: out()?,
        })
    }

    /// The algorithms of most ranges that agree with one another, each range having its fastest
    /// where that agrees, else the nearest range's.
    fn plan(&mut self) -> Result<Plan, BackendError> {
        let mut fastest = Vec::new();
        for rows in RANGES {
            match self.library.fastest(self.shape, rows)? {
                Some(algorithm) => fastest.push(algorithm),
                None => return Ok(Plan::Own),
            }
        }
        for reference in [8192, 512, 256, 64].map(range) {
            if let Some(plan) = self.around(&fastest, reference)? {
                return Ok(Plan::Library(plan));
            }
        }
        Ok(Plan::Own)
    }

    /// An algorithm for every range that has the bits of the reference's; `None` where a range has
    /// none.
    fn around(
        &mut self,
        fastest: &[Algorithm],
        reference: usize,
    ) -> Result<Option<Vec<Algorithm>>, BackendError> {
        let most = COMPARED[COMPARED.len() - 1];
        if !self
            .library
            .accepts(self.shape, most, &fastest[reference])?
        {
            return Ok(None);
        }
        self.run(most, &fastest[reference], true)?;
        let mut chosen = Vec::new();
        for own in 0..RANGES.len() {
            let mut candidates: Vec<usize> = (0..RANGES.len()).collect();
            candidates.sort_by_key(|&other| other.abs_diff(own));
            let mut found = None;
            for candidate in candidates {
                if self.agrees(own, &fastest[candidate])? {
                    found = Some(fastest[candidate]);
                    break;
                }
            }
            match found {
                Some(algorithm) => chosen.push(algorithm),
                None => return Ok(None),
            }
        }
        Ok(Some(chosen))
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

    fn run(&self, rows: usize, algorithm: &Algorithm, reference: bool) -> Result<(), BackendError> {
        let out = if reference {
            &self.reference
        } else {
            &self.found
        };
        let operands = Operands {
            x: self.x,
            weight: self.weight.data.pointer(),
            out: out.pointer(),
        };
        let problem = Problem::new(self.shape, rows)?;
        self.library.start(&problem, algorithm, operands, false)
    }

    /// Whether the first `rows` of the reference come out again.
    fn repeats(&mut self, rows: usize, algorithm: &Algorithm) -> Result<bool, BackendError> {
        debug_assert!(rows <= self.noise.rows, "rows of noise");
        self.found.fill(0xff)?;
        self.run(rows, algorithm, false)?;
        let device = &self.products.kernels.device;
        let count = device.upload(&[0_u32], Purpose::Staging)?;
        let elements = (rows * self.shape.columns) as i64;
        let (a, b, to) = (
            self.reference.pointer(),
            self.found.pointer(),
            count.pointer(),
        );
        let function = self.products.kernels.get("compare")?;
        // SAFETY: both outputs hold at least `elements` elements.
        unsafe { launch!(device, function, (1024, 1, 1), 256, 0; a, b, elements, to) }?;
        Ok(count.read::<u32>(1)? == [0])
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
    fn every_row_count_has_a_range() {
        assert_eq!([1, 2, 16, 17, 8192, 100_000].map(range), [0, 1, 1, 2, 9, 9]);
    }

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
