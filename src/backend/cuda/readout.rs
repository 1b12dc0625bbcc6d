//! Reading logits: results of a kernel per row, and which of them are errors.

use std::cell::RefCell;

use super::device::{Buffer, Purpose, launch};
use super::functions::Kernels;
use super::tensor::{CudaTensor, int};
use crate::backend::BackendError;

/// No index.
const NONE: u32 = u32::MAX;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Choice {
    index: u32,
    nan: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Likelihood {
    nll: f64,
    largest: f32,
    nan: u32,
}

/// Ids whose logits are -inf, on the device since they were first asked for.
#[derive(Default)]
pub struct Suppressed(RefCell<Option<(Vec<u32>, Buffer)>>);

impl Suppressed {
    /// Sets the logits of `ids` to -inf in every row.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn apply(
        &self,
        kernels: &Kernels,
        logits: &mut CudaTensor,
        ids: &[u32],
    ) -> Result<(), BackendError> {
        assert!(
            ids.iter().all(|&id| (id as usize) < logits.width),
            "suppressed ids within the vocabulary"
        );
        if ids.is_empty() {
            return Ok(());
        }
        let mut kept = self.0.borrow_mut();
        let known = kept.as_ref().filter(|(known, _)| known == ids);
        let at = match known {
            Some((_, buffer)) => buffer.pointer(),
            None => {
                let buffer = kernels.device.upload(ids, Purpose::Staging)?;
                kept.insert((ids.to_vec(), buffer)).1.pointer()
            }
        };
        let (to, width, count) = (logits.changed(kernels)?, int(logits.width), int(ids.len()));
        kernels.start("suppress", logits.rows as u32, |function, grid| {
            // SAFETY: ids lie within rows; a block per row.
            unsafe { launch!(kernels.device, function, grid, 256, 0; to, width, at, count) }
        })
    }
}

/// Index of the largest logit per row, the lowest on ties.
///
/// # Errors
/// [`BackendError::NotFinite`] names the first row that holds NaN.
pub fn argmax(kernels: &Kernels, logits: &CudaTensor) -> Result<Vec<u32>, BackendError> {
    if logits.rows == 0 {
        return Ok(Vec::new());
    }
    let device = &kernels.device;
    let out = device.allocate(logits.rows * size_of::<Choice>(), Purpose::Staging)?;
    let (from, width, to) = (logits.float(kernels)?, int(logits.width), out.pointer());
    let grid = (logits.rows as u32, 1, 1);
    // SAFETY: one result per row.
    unsafe { launch!(device, kernels.get("argmax")?, grid, 256, 0; from, width, to) }?;
    let found: Vec<Choice> = out.read(logits.rows)?;
    let choice = |(row, choice): (usize, Choice)| match choice.nan {
        NONE => Ok(choice.index),
        index => Err(not_a_number(row, index)),
    };
    found.into_iter().enumerate().map(choice).collect()
}

/// `logsumexp(logits[i]) - logits[i][targets[i]]` per row.
///
/// # Errors
/// [`BackendError::NotFinite`] names the first row that holds NaN or whose largest logit is not
/// finite.
pub fn nll(
    kernels: &Kernels,
    logits: &CudaTensor,
    targets: &[u32],
) -> Result<Vec<f64>, BackendError> {
    assert_eq!(logits.rows, targets.len(), "rows of logits and targets");
    assert!(
        targets
            .iter()
            .all(|&target| (target as usize) < logits.width),
        "targets within the vocabulary"
    );
    if logits.rows == 0 {
        return Ok(Vec::new());
    }
    let device = &kernels.device;
    let out = device.allocate(logits.rows * size_of::<Likelihood>(), Purpose::Staging)?;
    let targets = device.upload(targets, Purpose::Staging)?;
    let (from, width) = (logits.float(kernels)?, int(logits.width));
    let (targets, to) = (targets.pointer(), out.pointer());
    let grid = (logits.rows as u32, 1, 1);
    // SAFETY: one result per row, targets lie within rows.
    unsafe { launch!(device, kernels.get("nll")?, grid, 256, 0; from, width, targets, to) }?;
    let found: Vec<Likelihood> = out.read(logits.rows)?;
    let value = |(row, found): (usize, Likelihood)| match found {
        Likelihood { nan, .. } if nan != NONE => Err(not_a_number(row, nan)),
        Likelihood { largest, .. } if !largest.is_finite() => Err(BackendError::NotFinite {
            row,
            what: format!("the largest logit is {largest}, expected a finite number"),
        }),
        Likelihood { nll, .. } => Ok(nll),
    };
    found.into_iter().enumerate().map(value).collect()
}

fn not_a_number(row: usize, index: u32) -> BackendError {
    BackendError::NotFinite {
        row,
        what: format!("logit {index} is NaN, expected a number"),
    }
}
