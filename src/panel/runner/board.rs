//! Workers side by side: each takes the next job of the schedule until nothing is left.

use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::{BatchLayout, Engine, EngineError};
use crate::schema::{Manifest, ManifestArm};

use super::arm::ArmRun;
use super::batch::stop_asked;
use super::event::{Event, Sink};
use super::schedule::{Job, Next, Planned, Schedule};
use super::{Ended, Open, RunError, RunInput, calibration, compare};

/// How often a worker that waits for others looks whether it was asked to stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// The jobs of a run, shared by its workers.
pub(super) struct Board<'a> {
    input: &'a RunInput<'a>,
    manifest: &'a Manifest,
    /// Arms that the workers can run, in the order of the manifest.
    arms: Vec<&'a ManifestArm>,
    /// Whether there are workers to stop beside the one that fails.
    is_shared: bool,
    state: Mutex<State<'a>>,
    changed: Condvar,
}

struct State<'a> {
    schedule: Schedule,
    /// By place in `arms`; the worker that runs an arm takes it.
    runs: Vec<Option<ArmRun<'a>>>,
    /// The first failure.
    failure: Option<RunError>,
}

/// A job with what it works on.
enum Task<'a> {
    Run(Option<ArmRun<'a>>),
    Compare(&'a ManifestArm),
    Calibrate(&'a ManifestArm),
}

impl<'a> Board<'a> {
    /// Opens every arm that the workers can run: one worker, or several where it is shared.
    pub fn open(
        input: &'a RunInput<'a>,
        is_shared: bool,
        sink: &mut Sink<'_>,
    ) -> Result<Self, RunError> {
        let manifest = input.dir.manifest();
        let (mut arms, mut planned, mut runs) = (Vec::new(), Vec::new(), Vec::new());
        for arm in &manifest.arms {
            if let Some(reason) = &arm.unsupported {
                sink(&Event::ArmUnsupported {
                    arm: &arm.arm,
                    reason,
                });
                continue;
            }
            let run = ArmRun::open(input, arm)?;
            planned.push(Planned {
                role: arm.role,
                is_calibrated: run.needs_calibration(),
                is_finished: run.is_finished()?,
            });
            arms.push(arm);
            runs.push(run);
        }
        sink(&Event::RunStarted {
            run: input.dir.path(),
            cases: runs.iter().map(ArmRun::total).sum(),
            done: runs.iter().map(ArmRun::done).sum(),
        });
        Ok(Board {
            input,
            manifest,
            arms,
            is_shared,
            state: Mutex::new(State {
                schedule: Schedule::new(&planned),
                runs: runs.into_iter().map(Some).collect(),
                failure: None,
            }),
            changed: Condvar::new(),
        })
    }

    /// Workers beside the first one that would have something to do, out of `others`.
    pub fn useful(&self, others: usize) -> usize {
        others.min(self.lock().schedule.arms_left().saturating_sub(1))
    }

    /// Opens an engine and works on it. One that cannot be opened ends the run where it
    /// `is_needed` and anything is left; else the others go on without it.
    pub fn join(&self, open: &Open<'_>, is_needed: bool, sink: &mut Sink<'_>) {
        let _guard = Guard(self);
        match open().and_then(|(engine, layout)| Ok((self.check_same(engine)?, layout))) {
            Ok((mut engine, layout)) => self.work(engine.as_mut(), layout, sink),
            Err(error) if !is_needed => sink(&Event::WorkerMissing {
                reason: &error.to_string(),
            }),
            Err(_) if self.lock().schedule.is_complete() => {}
            Err(error) => self.fail(RunError::Open(error)),
        }
    }

    /// Does jobs until nothing is left that this worker could do.
    pub fn work(&self, engine: &mut dyn Engine, layout: BatchLayout, sink: &mut Sink<'_>) {
        let _guard = Guard(self);
        while let Some((number, task)) = self.take() {
            match self.perform(task, engine, layout, sink) {
                Ok(Ended::Complete) => self.lock().schedule.finish(number),
                Ok(Ended::Interrupted) => self.lock().schedule.stop(),
                Err(error) => self.fail(error),
            }
            self.changed.notify_all();
        }
    }

    /// How the run ended, once every worker has.
    pub fn end(self, sink: &mut Sink<'_>) -> Result<Ended, RunError> {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        let (event, ended) = if state.schedule.is_complete() {
            (Event::RunFinished, Ended::Complete)
        } else {
            (Event::Interrupted, Ended::Interrupted)
        };
        sink(&event);
        Ok(ended)
    }

    /// The next job; waits where all that is left depends on other workers.
    fn take(&self) -> Option<(usize, Task<'a>)> {
        let mut state = self.lock();
        loop {
            if stop_asked(self.input.stop).is_break() {
                state.schedule.stop();
            }
            match state.schedule.next() {
                Next::End => return None,
                Next::Job(number, Job::Arm(at)) => {
                    return Some((number, Task::Run(state.runs[at].take())));
                }
                Next::Job(number, Job::Compare(at)) => {
                    return Some((number, Task::Compare(self.arms[at])));
                }
                Next::Job(number, Job::Calibrate(at)) => {
                    return Some((number, Task::Calibrate(self.arms[at])));
                }
                Next::Wait => {
                    let waited = self.changed.wait_timeout(state, PATIENCE);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn perform(
        &self,
        task: Task<'a>,
        engine: &mut dyn Engine,
        layout: BatchLayout,
        sink: &mut Sink<'_>,
    ) -> Result<Ended, RunError> {
        match task {
            Task::Run(None) => Ok(Ended::Complete),
            Task::Run(Some(mut run)) => {
                let ended = run.run(engine, layout, sink)?;
                if ended == Ended::Complete {
                    compare::regenerated(self.input.dir, run.arm)?;
                }
                Ok(ended)
            }
            Task::Compare(arm) => {
                compare::native(self.input.dir, arm)?;
                Ok(Ended::Complete)
            }
            Task::Calibrate(arm) => {
                let found = calibration::of_run(self.input, &arm.arm, engine, sink)?;
                Ok(found.map_or(Ended::Interrupted, |_| Ended::Complete))
            }
        }
    }

    /// Arms of one run may come from any worker only if all of them compute alike.
    fn check_same(&self, engine: Box<dyn Engine>) -> Result<Box<dyn Engine>, EngineError> {
        let (found, expected) = (engine.worker(), &self.manifest.worker);
        if found != expected {
            return Err(EngineError::Worker(format!(
                "found a worker on {} with {}, expected one on {} with {}, as the first is: \
                 --device names the GPUs of one kind",
                found.device, found.arithmetic, expected.device, expected.arithmetic
            )));
        }
        Ok(engine)
    }

    /// Notes the first failure and stops every worker at its next forward pass.
    fn fail(&self, error: RunError) {
        let mut state = self.lock();
        state.failure.get_or_insert(error);
        drop(state);
        self.stop();
    }

    /// Lets every worker end at its next forward pass.
    fn stop(&self) {
        self.lock().schedule.stop();
        if self.is_shared {
            self.input.stop.store(true, Ordering::Relaxed);
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        // What a panicking worker leaves is a job that never ends, and the guard stops the others.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stops the other workers where this one panics: they would wait for its job for ever.
struct Guard<'b, 'a>(&'b Board<'a>);

impl Drop for Guard<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}
