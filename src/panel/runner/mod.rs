//! The runner: plan, resume, run, append, event.
//!
//! The manifest of the run directory says which arms and panels there are; the stored records say
//! what is left. Nothing else decides, so a run that was killed at any moment ends, once resumed,
//! with the same bytes as one that was not.

mod aa;
mod arm;
mod batch;
mod calibration;
mod engaged;
mod event;
mod plan;
mod work;

#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;

use crate::certify::{record_difference, regenerated_name};
use crate::engine::{BatchLayout, Engine, EngineError};
use crate::recipe::RecipeError;
use crate::schema::{AnswerMode, ArmRole, Manifest, ManifestArm};
use crate::store::{RunDir, StoreError};

use super::{BuiltPanels, PanelError};
use arm::ArmRun;
use batch::stop_asked;

pub use calibration::calibrate;
pub use event::{Event, Sink};
pub use plan::{limited, manifest, store_panels};

/// What a run works on. The manifest in `dir` says the rest.
pub struct RunInput<'a> {
    /// Run directory, opened for writing.
    pub dir: &'a RunDir,
    /// Panels of the protocol, calibration documents and the probe.
    pub panels: &'a BuiltPanels,
    /// Batch layout of every arm but the A/A one, which gets another.
    pub layout: BatchLayout,
    /// Candidate arms of a built-in worker verify the control's answers instead of generating
    /// theirs token by token.
    pub verify: bool,
    /// Set from outside to stop at the next forward pass.
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
    /// A fixed-scale recipe, and a protocol without calibration documents.
    #[error(
        "arm {arm}: its recipe needs calibration, and the protocol has no calibration documents"
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
    let manifest = input.dir.manifest();
    let runs = open_arms(input, manifest, sink)?;
    sink(&Event::RunStarted {
        run: input.dir.path(),
        cases: runs.iter().map(ArmRun::total).sum(),
        done: runs.iter().map(ArmRun::done).sum(),
    });
    for mut arm in runs {
        let ended = if stop_asked(input.stop).is_break() {
            Ended::Interrupted
        } else {
            arm.run(engine, sink)?
        };
        if ended == Ended::Interrupted {
            sink(&Event::Interrupted);
            return Ok(Ended::Interrupted);
        }
        if arm.arm.role == ArmRole::Aa && manifest.worker.kind != "http" {
            check_aa(input, manifest, arm.arm)?;
        }
        check_regenerated(input, manifest, arm.arm)?;
    }
    sink(&Event::RunFinished);
    Ok(Ended::Complete)
}

fn open_arms<'a>(
    input: &'a RunInput<'a>,
    manifest: &'a Manifest,
    sink: &mut Sink<'_>,
) -> Result<Vec<ArmRun<'a>>, RunError> {
    let mut runs = Vec::new();
    for arm in &manifest.arms {
        match &arm.unsupported {
            Some(reason) => sink(&Event::ArmUnsupported {
                arm: &arm.arm,
                reason,
            }),
            None => runs.push(ArmRun::open(input, arm)?),
        }
    }
    Ok(runs)
}

fn check_aa(
    input: &RunInput<'_>,
    manifest: &Manifest,
    aa_arm: &ManifestArm,
) -> Result<(), RunError> {
    let Some(control) = manifest.first_control() else {
        return Ok(());
    };
    for panel in manifest.panels.iter().filter(|panel| panel.file.is_some()) {
        let first = input.dir.records(&control.arm, &panel.panel)?;
        let second = input.dir.records(&aa_arm.arm, &panel.panel)?;
        if let Some((case, what)) = aa::first_difference(&first, &second) {
            return Err(RunError::AaDiffers {
                panel: panel.panel.clone(),
                case,
                what,
                first: control.arm.clone(),
                second: aa_arm.arm.clone(),
            });
        }
    }
    Ok(())
}

/// Compares what an arm verified with what it generated plainly as well.
fn check_regenerated(
    input: &RunInput<'_>,
    manifest: &Manifest,
    arm: &ManifestArm,
) -> Result<(), RunError> {
    for panel in manifest.panels.iter().filter(|panel| panel.file.is_some()) {
        let again = input
            .dir
            .records(&arm.arm, &regenerated_name(&panel.panel))?;
        if again.is_empty() {
            continue;
        }
        let records = input.dir.records(&arm.arm, &panel.panel)?;
        for second in &again {
            let first = records
                .iter()
                .find(|record| record.case_sha256 == second.case_sha256);
            let what = first.map_or(Some("the record"), |first| record_difference(first, second));
            if let Some(what) = what {
                return Err(RunError::RegenerationDiffers {
                    arm: arm.arm.clone(),
                    panel: panel.panel.clone(),
                    case: second.case.clone(),
                    what,
                });
            }
        }
    }
    Ok(())
}
