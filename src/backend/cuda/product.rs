//! Matrix products whose rows have the same bits whatever their number.
//!
//! For a shape that is met for the first time, cuBLASLt names algorithms for each range of row
//! counts, none of which may split a sum. They are run against each other on noise. Among those of a
//! range, and the first of each of the others, that give the bits of one reference, the library's order
//! decides; where steps of decoding are, one that is clearly faster goes before. Where a range is left
//! without one for every reference, and where the library is missing or the shape is not aligned, the kernels of
//! this crate are used, which sum in one order by construction. A pass of more rows than were compared is
//! cut.

pub mod lt;
mod trial;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::device::launch;
use super::functions::Kernels;
use super::tensor::{CudaTensor, CudaWeight, Format, Target, blocks, int};
use crate::backend::BackendError;
use lt::{Algorithm, Library, Operands, Problem};
use trial::Trial;

/// Most rows of each range. Tiles of 256 rows would be half empty at 300 rows: where steps of decoding are,
/// ranges are narrow. A step of 1,319 rows takes 49.4 ms with one of 128 rows for it, 54 with one of 1,024
/// (an H200, the shape of Qwen3-8B).
pub(super) const RANGES: [usize; 21] = [
    1, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536,
    2048, 8192,
];
/// Most rows of a step of decoding that algorithms are chosen for by the clock.
pub const STEP_ROWS: usize = 1536;
/// Rows from which the library's vectors of 16 bytes are aligned.
const ALIGNMENT: usize = 16;
/// A kernel of this crate: name, rows and columns of its tiles, threads of a block, and the blocks
/// from which it keeps a device busy.
type Tile = (&'static str, usize, u32, usize);
/// For many rows, the fastest first.
const TILES: [Tile; 3] = [
    ("product_large", 128, 256, 384),
    ("product_medium", 64, 256, 128),
    ("product_small", 32, 64, 0),
];
/// For few rows.
const FEW: Tile = ("product_few", 16, 256, 0);
/// Most descriptors of row counts that are kept.
const KEPT_PROBLEMS: usize = 64;

/// A weight's shape, format and use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Output features.
    pub columns: usize,
    /// Terms of a sum.
    pub inner: usize,
    /// Element type of both operands.
    pub format: Format,
    /// Element type of the output.
    pub out: Format,
    /// Whether products are added to what the output holds.
    pub add: bool,
}

/// What becomes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// `out = product`, in f32.
    Write,
    /// `out = product`, in the weight's element type.
    Round,
    /// `out += product`, in f32.
    Add,
}

/// How products of one shape are computed.
#[derive(Clone)]
enum Plan {
    /// The kernels of this crate.
    Own,
    /// Algorithms for each range, and the most rows at which they were compared.
    Library(Vec<Algorithm>, usize),
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
    out_format: i32,
    add: i32,
}

/// Products on one device.
pub struct Products {
    kernels: Rc<Kernels>,
    library: Option<Library>,
    plans: RefCell<HashMap<Shape, Rc<Plan>>>,
    /// Most bytes that finding a plan takes, over the weights so far.
    trial_bytes: Cell<usize>,
    problems: RefCell<HashMap<(Shape, usize), Rc<Problem>>>,
}

impl Products {
    /// Opens the library where there is one.
    ///
    /// # Errors
    /// [`BackendError::Device`] where the device fails.
    pub fn new(kernels: &Rc<Kernels>) -> Result<Self, BackendError> {
        Ok(Products {
            kernels: Rc::clone(kernels),
            // Without it products are slower, and no less right.
            library: Library::new(&kernels.device)?,
            plans: RefCell::default(),
            trial_bytes: Cell::new(0),
            problems: RefCell::default(),
        })
    }

    /// `x * weight^T`, into `out` as `finish` says.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn apply(
        &self,
        x: &CudaTensor,
        weight: &CudaWeight,
        out: &mut CudaTensor,
        finish: Finish,
    ) -> Result<(), BackendError> {
        assert!(
            x.width == weight.inner && out.width == weight.out && out.rows == x.rows,
            "shape of a product"
        );
        let operand = weight.format.half();
        let to = match finish {
            Finish::Write => out.written_as(Format::F32, operand)?,
            Finish::Round => out.written_as(weight.format, operand)?,
            Finish::Add => {
                let pointer = out.changed(&self.kernels)?;
                out.operand = operand.or(out.operand);
                let format = Format::F32;
                Target { pointer, format }
            }
        };
        if x.rows == 0 {
            return Ok(());
        }
        let shape = Shape {
            columns: weight.out,
            inner: weight.inner,
            format: weight.format,
            out: to.format,
            add: finish == Finish::Add,
        };
        let operands = Operands {
            x: x.operand_in(&self.kernels, weight.format)?,
            weight: weight.data.pointer(),
            out: to.pointer,
        };
        let plan = self.plan(shape, weight)?;
        match (&*plan, &self.library) {
            (Plan::Library(algorithms, longest), Some(library)) => {
                for first in (0..x.rows).step_by(*longest) {
                    let rows = (*longest).min(x.rows - first);
                    let problem = self.problem(shape, rows)?;
                    let operands = operands.behind(first, shape);
                    library.start(&problem, &algorithms[range(rows)], operands, shape.add)?;
                }
                Ok(())
            }
            _ => self.start_own(shape, operands, x.rows),
        }
    }

    /// Who computes them, in words.
    pub fn origin(&self) -> String {
        match (&self.library, lt::version()) {
            (Some(_), Ok((version, _))) => format!("cuBLASLt {version}"),
            _ => "own kernels".to_owned(),
        }
    }

    /// Hears of a weight that will be multiplied.
    pub fn expect(&self, columns: usize, inner: usize) {
        if self.library.is_some() {
            let bytes = trial::most_bytes(columns, inner);
            self.trial_bytes.set(bytes.max(self.trial_bytes.get()));
        }
    }

    /// Bytes that are taken for a while when a shape is first multiplied.
    pub fn trial_bytes(&self) -> usize {
        self.trial_bytes.get()
    }

    /// Shapes that are computed by the library, and all that were met.
    pub fn planned(&self) -> (usize, usize) {
        let plans = self.plans.borrow();
        let library = plans
            .values()
            .filter(|plan| matches!(***plan, Plan::Library(..)))
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

    fn start_own(&self, shape: Shape, operands: Operands, rows: usize) -> Result<(), BackendError> {
        let arguments = ProductArguments {
            x: operands.x,
            weight: operands.weight,
            out: operands.out,
            rows: int(rows),
            columns: int(shape.columns),
            inner: int(shape.inner),
            format: shape.format as i32,
            out_format: shape.out as i32,
            add: i32::from(shape.add),
        };
        // All give the same bits.
        let covering = |tile: usize| shape.columns.div_ceil(tile) * rows.div_ceil(tile);
        let busy = |(_, tile, _, least): &Tile| rows > FEW.1 && covering(*tile) >= *least;
        let (name, tile, threads, _) = TILES.into_iter().find(busy).unwrap_or(FEW);
        let grid = (blocks(shape.columns, tile), blocks(rows, tile), 1);
        // SAFETY: the operands have the sizes that the arguments state.
        unsafe {
            launch!(self.kernels.device, self.kernels.get(name)?, grid, threads, 0; arguments)
        }
    }

    fn plan(&self, shape: Shape, weight: &CudaWeight) -> Result<Rc<Plan>, BackendError> {
        if let Some(plan) = self.plans.borrow().get(&shape) {
            return Ok(Rc::clone(plan));
        }
        let aligned = [shape.columns, shape.inner]
            .iter()
            .all(|size| size.is_multiple_of(ALIGNMENT));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_count_has_a_range() {
        assert_eq!(
            [1, 2, 16, 17, 8192, 100_000].map(range),
            [0, 1, 1, 2, 20, 20]
        );
        assert_eq!(RANGES[range(STEP_ROWS)], STEP_ROWS);
    }
}
