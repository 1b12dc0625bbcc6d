//! Reading logits: the greedy choice, and the likelihood of a target, of every row apart.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::rowwise::{LANES, larger, tree, vectorised};
use super::tensor::CpuTensor;
use crate::backend::BackendError;

/// Sets the logits of `ids` to -inf in every row.
pub fn suppress(logits: &mut CpuTensor, ids: &[u32]) {
    for row in logits.data.chunks_exact_mut(logits.width) {
        for &id in ids {
            row[id as usize] = f32::NEG_INFINITY;
        }
    }
}

/// Rows of logits, which are -inf where they are suppressed and finite elsewhere.
pub struct Logits<'a> {
    data: &'a [f32],
    width: usize,
    suppressed: &'a [u32],
}

/// What there is in a row.
struct Scan {
    largest: f32,
    /// Elements that are -inf.
    lowest: u32,
    /// Whether any is NaN or +inf.
    is_broken: bool,
}

impl<'a> Logits<'a> {
    /// Rows of a tensor.
    pub fn new(tensor: &'a CpuTensor, suppressed: &'a [u32]) -> Self {
        Logits {
            data: &tensor.data,
            width: tensor.width,
            suppressed,
        }
    }

    /// See [`crate::backend::Backend::argmax`].
    pub fn argmax(&self, arch: Arch) -> Result<Vec<u32>, BackendError> {
        let rows = self.data.par_chunks(self.width).enumerate();
        let rows = rows.map(|(row, logits)| {
            let largest = self.check(arch, row, logits)?;
            let index = logits.iter().position(|&x| x == largest);
            Ok(index.unwrap_or_default() as u32)
        });
        of_every_row(rows)
    }

    /// See [`crate::backend::Backend::nll`]: in f64, terms added by ascending index.
    pub fn nll(&self, arch: Arch, targets: &[u32]) -> Result<Vec<f64>, BackendError> {
        assert_eq!(
            self.data.len(),
            targets.len() * self.width,
            "rows of logits and targets"
        );
        let rows = self.data.par_chunks(self.width).zip(targets).enumerate();
        let rows = rows.map(|(row, (logits, &target))| {
            let largest = f64::from(self.check(arch, row, logits)?);
            let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
            Ok(largest + sum.ln() - f64::from(logits[target as usize]))
        });
        of_every_row(rows)
    }

    /// The largest logit, which is finite, of a row that holds what it should.
    fn check(&self, arch: Arch, row: usize, logits: &[f32]) -> Result<f32, BackendError> {
        let scan = scan(arch, logits);
        let mut suppressed = self.suppressed.iter();
        let is_sound = !scan.is_broken
            && scan.lowest as usize == self.suppressed.len()
            && suppressed.all(|&id| logits[id as usize] == f32::NEG_INFINITY);
        if is_sound && scan.largest.is_finite() {
            return Ok(scan.largest);
        }
        let is_suppressed = |index: usize| self.suppressed.iter().any(|&id| id as usize == index);
        let is_wrong = |(index, x): &(usize, &f32)| match is_suppressed(*index) {
            true => **x != f32::NEG_INFINITY,
            false => !x.is_finite(),
        };
        let what = match logits.iter().enumerate().find(is_wrong) {
            Some((index, x)) if is_suppressed(index) => {
                format!("logit {index} is {x}, expected -inf for a suppressed token")
            }
            Some((index, x)) => format!("logit {index} is {x}, expected a finite number"),
            None => "every token is suppressed, expected a logit that is not".to_owned(),
        };
        Err(BackendError::NotFinite { row, what })
    }
}

fn scan(arch: Arch, x: &[f32]) -> Scan {
    vectorised!(arch, |x: &'a [f32]| -> Scan { scan_lanes(x) })
}

#[inline(always)]
fn scan_lanes(x: &[f32]) -> Scan {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut lowest = [0_u32; LANES];
    let mut is_broken = [false; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for x in chunks.iter().map(<[f32; LANES]>::as_slice).chain([rest]) {
        for (lane, &x) in x.iter().enumerate() {
            largest[lane] = larger(largest[lane], x);
            lowest[lane] += u32::from(x == f32::NEG_INFINITY);
            is_broken[lane] |= x.is_nan() || x == f32::INFINITY;
        }
    }
    Scan {
        largest: tree(largest, larger),
        lowest: lowest.iter().sum(),
        is_broken: is_broken.contains(&true),
    }
}

/// Results of all rows, or the first row's error: which thread fails first is chance.
fn of_every_row<T: Send>(
    rows: impl IndexedParallelIterator<Item = Result<T, BackendError>>,
) -> Result<Vec<T>, BackendError> {
    rows.collect::<Vec<_>>().into_iter().collect()
}
