//! The runner: plan, resume, run, append, event.
//!
//! The manifest of the run directory says which arms and panels there are; the stored records say
//! what is left. Nothing else decides, so a run that was killed at any moment ends, once resumed,
//! with the same bytes as one that was not.

mod aa;
mod arm;
mod batch;
mod board;
mod calibration;
mod compare;
mod engaged;
mod event;
mod plan;
mod resources;
mod schedule;
mod servers;
mod work;

#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::engine::{BatchLayout, Engine, EngineError};
use crate::recipe::RecipeError;
use crate::schema::{AnswerMode, ArmRole, ManifestArm};
use crate::store::{RunDir, StoreError};

use super::{BuiltPanels, PanelError};
use board::Board;

pub use calibration::{calibrate, of_checkpoint};
pub use event::{Event, Sink, WorkersSink};
pub use plan::{manifest, store_panels};
pub use servers::{control_arms, fit_context, fit_probe, probe_material, server_manifest};

/// What a run works on. The manifest in `dir` says the rest.
pub struct RunInput<'a> {
    /// Run directory, opened for writing.
    pub dir: &'a RunDir,
    /// Panels of the protocol, calibration documents and the probe.
    pub panels: &'a BuiltPanels,
    /// Batch layout of the first worker, for every arm but the A/A one, which gets another.
    pub layout: BatchLayout,
    /// Candidate arms of a built-in worker verify the control's answers instead of generating
    /// theirs token by token.
    pub verify: bool,
    /// Set from outside to stop at the next forward pass, and by the first failure.
    pub stop: &'a AtomicBool,
}

impl RunInput<'_> {
    /// How the answers of an arm come about.
    fn answers(&self, arm: &ManifestArm) -> AnswerMode {
        let is_built_in = self.dir.manifest().worker.kind != "http";
        if self.verify && is_built_in && arm.role == ArmRole::Candidate {
            AnswerMode::Verified
        } else {
            AnswerMode::Plain
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every supported arm has a record for every case.
    Complete,
    /// It was asked to stop and can be resumed.
    Interrupted,
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A panel.
    #[error(transparent)]
    Panel(#[from] PanelError),
    /// The manifest holds a recipe that does not parse.
    #[error("arm {arm}: {source}")]
    Recipe {
        /// Arm.
        arm: String,
        /// Cause.
        source: RecipeError,
    },
    /// The engine.
    #[error("arm {arm}: {source}")]
    Engine {
        /// Arm.
        arm: String,
        /// Cause.
        source: EngineError,
    },
    /// One more worker could not be opened, or computes in another way than the first.
    #[error(transparent)]
    Open(EngineError),
    /// What the worker stored is not what the arm's recipe says.
    #[error("arm {arm}: recipe {recipe} is not engaged: {what}")]
    NotEngaged {
        /// Arm.
        arm: String,
        /// Canonical recipe.
        recipe: String,
        /// Where, what was found and what was expected.
        what: String,
    },
    /// A panel holds cases to generate and cases to score.
    #[error("panel {panel}: found cases of different kinds, expected one kind per panel")]
    MixedPanel {
        /// Panel.
        panel: String,
    },
    /// The panel names a parser that this version does not have.
    #[error("panel {panel}: found parser `{found}`, expected one that this version has")]
    Parser {
        /// Panel.
        panel: String,
        /// What the panel's header says.
        found: String,
    },
    /// The stored calibration belongs to something else.
    #[error("calibration.json: {field}: found {found}, expected {expected}")]
    Calibration {
        /// Field.
        field: &'static str,
        /// Stored value.
        found: String,
        /// Value of this run.
        expected: String,
    },
    /// A fixed-scale recipe, and nothing that scales could come from.
    #[error(
        "arm {arm}: its recipe needs fixed scales, and there is nothing that the protocol takes \
         them from"
    )]
    NoCalibration {
        /// Arm.
        arm: String,
    },
    /// The native cache against itself: no figure of this worker can be trusted.
    #[error(
        "A/A difference: panel {panel}, case {case}: {what} differs between `{first}` and `{second}`"
    )]
    AaDiffers {
        /// Panel.
        panel: String,
        /// First case that differs, in plan order.
        case: String,
        /// What differs.
        what: &'static str,
        /// Control arm.
        first: String,
        /// A/A arm.
        second: String,
    },
    /// A verified answer is not the one that the arm generates: no figure of the arm can be
    /// trusted.
    #[error(
        "arm {arm}, panel {panel}, case {case}: {what} of the verified answer differs from the \
         plainly generated one"
    )]
    RegenerationDiffers {
        /// Arm.
        arm: String,
        /// Panel.
        panel: String,
        /// First case that differs, in plan order.
        case: String,
        /// What differs.
        what: &'static str,
    },
}

impl RunError {
    fn engine(arm: &str, source: EngineError) -> Self {
        RunError::Engine {
            arm: arm.to_owned(),
            source,
        }
    }

    /// The engine broke its contract.
    fn contract(arm: &str, what: String) -> Self {
        RunError::engine(arm, EngineError::Worker(what))
    }
}

/// Opens the engine of one more worker, on the thread that will use it, with its batch layout.
pub type Open<'a> =
    dyn Fn() -> Result<(Box<dyn Engine>, BatchLayout), EngineError> + Send + Sync + 'a;

/// Runs every arm of the manifest that has work left, controls first, then the A/A arm, whose
/// difference from the control on a built-in worker ends the run before any candidate. So does a
/// verified answer that differs from its plainly generated one.
///
/// # Errors
/// [`RunError`]; what was finished before stays stored and resumable.
pub fn run(
    input: &RunInput<'_>,
    engine: &mut dyn Engine,
    sink: &mut Sink<'_>,
) -> Result<Ended, RunError> {
    let board = Board::open(input, false, sink)?;
    board.work(engine, input.layout, sink);
    board.end(sink)
}

/// As [`run`], with arms side by side: on `engine` on this thread, and on as many of `others` as
/// have something to do, each on a thread of its own. The same records are stored, whichever
/// worker runs an arm. The first failure sets the stop flag, so that every worker ends at its next
/// forward pass. One of `others` that cannot be opened is a failure if they `are_needed`.
///
/// # Errors
/// As [`run`]; [`RunError::Open`].
pub fn run_side_by_side(
    input: &RunInput<'_>,
    engine: &mut dyn Engine,
    others: &[Box<Open<'_>>],
    are_needed: bool,
    sink: &mut WorkersSink<'_>,
) -> Result<Ended, RunError> {
    let sink = Mutex::new(sink);
    let tell = |worker: usize, event: &Event<'_>| {
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink(worker, event);
    };
    let board = Board::open(input, !others.is_empty(), &mut |event| tell(0, event))?;
    let useful = &others[..board.useful(others.len())];
    thread::scope(|scope| {
        for (worker, open) in (1..).zip(useful) {
            let (board, tell) = (&board, &tell);
            let mut tell = move |event: &Event<'_>| tell(worker, event);
            scope.spawn(move || board.join(open.as_ref(), are_needed, &mut tell));
        }
        board.work(engine, input.layout, &mut |event| tell(0, event));
    });
    board.end(&mut |event| tell(0, event))
}
