//! What a run tells its sinks. The runner prints nothing.

use std::path::Path;

use crate::engine::DraftUse;
use crate::schema::Record;

/// One event of a run, in the order in which it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// The run directory stands; `cases` of all arms together, `done` of them from before.
    RunStarted {
        /// Run directory.
        run: &'a Path,
        /// Cases of every supported arm and panel.
        cases: usize,
        /// Cases that already had a final record.
        done: usize,
    },
    /// A worker beside the first one could not be opened; the others go on without it.
    WorkerMissing {
        /// Why.
        reason: &'a str,
    },
    /// The manifest names an arm that this worker cannot run.
    ArmUnsupported {
        /// Arm.
        arm: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// Fixed scales are being calibrated on the native cache.
    CalibrationStarted {
        /// Documents.
        documents: usize,
        /// Tokens that will be stored, forced tokens included.
        tokens: u64,
    },
    /// `calibration.json` is written.
    CalibrationFinished,
    /// An arm with work left begins.
    ArmStarted {
        /// Arm.
        arm: &'a str,
        /// Canonical recipe.
        recipe: &'a str,
    },
    /// A panel with work left begins.
    PanelStarted {
        /// Arm.
        arm: &'a str,
        /// Panel.
        panel: &'a str,
        /// Cases of the panel.
        total: usize,
        /// Cases that already had a final record.
        done: usize,
    },
    /// So many more tokens went through the model.
    TokensProcessed(u64),
    /// A case that had the control's answer as its draft has its outcome.
    Drafted(DraftUse),
    /// A case has its outcome. Cases finish in any order.
    CaseFinished {
        /// Arm.
        arm: &'a str,
        /// Panel.
        panel: &'a str,
        /// The record; it is stored when its batch is complete.
        record: &'a Record,
    },
    /// Every case of the panel has a stored record.
    PanelFinished {
        /// Arm.
        arm: &'a str,
        /// Panel.
        panel: &'a str,
    },
    /// Every panel of the arm is finished.
    ArmFinished {
        /// Arm.
        arm: &'a str,
    },
    /// The run was asked to stop; what was finished is stored.
    Interrupted,
    /// Every arm is finished.
    RunFinished,
}

/// Receives events.
pub type Sink<'s> = dyn FnMut(&Event<'_>) + 's;

/// Receives the events of every worker, with the worker's number from 0.
pub type WorkersSink<'s> = dyn FnMut(usize, &Event<'_>) + Send + 's;
