//! Reading logits: results of a kernel per row, and which of them are errors.

use std::cell::RefCell;

use super::device::{Buffer, Purpose, launch};
use super::functions::Kernels;
use super::tensor::{CudaTensor, int};
use crate::backend::BackendError;

/// No index.
const NONE: u32 = u32::MAX;

/// What a kernel found in a row: the lowest index of a logit that is not what it should be, with
/// that logit; where there is none, the largest logit.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    wrong: u32,
    value: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Choice {
    index: u32,
    found: Found,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Likelihood {
    nll: f64,
    found: Found,
}

impl Found {
    fn check(self, row: usize, suppressed: &[u32]) -> Result<(), BackendError> {
        let Found { wrong, value } = self;
        let what = match wrong {
            NONE if value.is_finite() => return Ok(()),
            NONE => "every token is suppressed, expected a logit that is not".to_owned(),
            _ if suppressed.contains(&wrong) => {
                format!("logit {wrong} is {value}, expected -inf for a suppressed token")
            }
            _ => format!("logit {wrong} is {value}, expected a finite number"),
        };
        Err(BackendError::NotFinite { row, what })
    }
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
        let at = self.address(kernels, ids)?;
        let (to, width, count) = (logits.changed(kernels)?, int(logits.width), int(ids.len()));
        kernels.start("suppress", logits.rows as u32, |function, grid| {
            // SAFETY: ids lie within rows; a block per row.
            unsafe { launch!(kernels.device, function, grid, 256, 0; to, width, at, count) }
        })
    }

    /// Where `ids` lie on the device.
    fn address(&self, kernels: &Kernels, ids: &[u32]) -> Result<u64, BackendError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let mut kept = self.0.borrow_mut();
        if let Some((_, buffer)) = kept.as_ref().filter(|(known, _)| known == ids) {
            return Ok(buffer.pointer());
        }
        let buffer = kernels.device.upload(ids, Purpose::Staging)?;
        Ok(kept.insert((ids.to_vec(), buffer)).1.pointer())
    }
}

/// Index of the largest logit per row, the lowest on ties.
///
/// # Errors
/// [`BackendError::NotFinite`] names the first row that holds other logits than it should.
pub fn argmax(
    kernels: &Kernels,
    logits: &CudaTensor,
    (ids, kept): (&[u32], &Suppressed),
) -> Result<Vec<u32>, BackendError> {
    if logits.rows == 0 {
        return Ok(Vec::new());
    }
    let (at, count) = (kept.address(kernels, ids)?, int(ids.len()));
    let device = &kernels.device;
    let out = device.allocate(logits.rows * size_of::<Choice>(), Purpose::Staging)?;
    let (from, width, to) = (logits.float(kernels)?, int(logits.width), out.pointer());
    let grid = (logits.rows as u32, 1, 1);
    // SAFETY: one result per row.
    unsafe { launch!(device, kernels.get("argmax")?, grid, 256, 0; from, width, at, count, to) }?;
    let found: Vec<Choice> = out.read(logits.rows)?;
    let choice = |(row, choice): (usize, Choice)| {
        choice.found.check(row, ids)?;
        Ok(choice.index)
    };
    found.into_iter().enumerate().map(choice).collect()
}

/// `logsumexp(logits[i]) - logits[i][targets[i]]` per row.
///
/// # Errors
/// [`BackendError::NotFinite`] names the first row that holds other logits than it should.
pub fn nll(
    kernels: &Kernels,
    logits: &CudaTensor,
    targets: &[u32],
    (ids, kept): (&[u32], &Suppressed),
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
    let (at, count) = (kept.address(kernels, ids)?, int(ids.len()));
    let device = &kernels.device;
    let out = device.allocate(logits.rows * size_of::<Likelihood>(), Purpose::Staging)?;
    let targets = device.upload(targets, Purpose::Staging)?;
    let (from, width) = (logits.float(kernels)?, int(logits.width));
    let (targets, to) = (targets.pointer(), out.pointer());
    let grid = (logits.rows as u32, 1, 1);
    // SAFETY: one result per row, targets lie within rows.
    unsafe {
        launch!(device, kernels.get("nll")?, grid, 256, 0; from, width, targets, at, count, to)
    }?;
    let found: Vec<Likelihood> = out.read(logits.rows)?;
    let value = |(row, likelihood): (usize, Likelihood)| {
        likelihood.found.check(row, ids)?;
        Ok(likelihood.nll)
    };
    found.into_iter().enumerate().map(value).collect()
}
