//! One arm: opens it, runs what is left of each panel, proves engagement.

use crate::certify::regenerated_cases;
use crate::engine::{ArmSetup, BatchLayout, Engine};
use crate::recipe::Recipe;
use crate::schema::{
    AnswerMode, ArmRole, Engagement, HTTP_WORKER, KvTotals, LayerAbsmax, ManifestArm,
};
use crate::store::RecordLog;

use super::batch::{Batch, Order, stop_asked};
use super::engaged::Engaged;
use super::event::{Event, Sink};
use super::resources::ResourceLog;
use super::work::PanelWork;
use super::{Ended, RunError, RunInput, calibration};

/// An arm with its record logs open.
pub(super) struct ArmRun<'a> {
    /// The arm as the manifest names it.
    pub arm: &'a ManifestArm,
    input: &'a RunInput<'a>,
    recipe: Recipe,
    answers: AnswerMode,
    /// The panels, then the cases of a verified arm that are generated plainly as well.
    panels: Vec<(RecordLog, PanelWork<'a>)>,
}

impl<'a> ArmRun<'a> {
    /// Writes down which protocol stands and opens the record logs of every supported panel.
    pub fn open(input: &'a RunInput<'a>, arm: &'a ManifestArm) -> Result<Self, RunError> {
        let recipe = Recipe::parse(&arm.recipe).map_err(|source| RunError::Recipe {
            arm: arm.arm.clone(),
            source,
        })?;
        let answers = input.answers(arm);
        input.dir.start_arm(&arm.arm, answers)?;
        let manifest = input.dir.manifest();
        let mut panels = Vec::new();
        for (name, panel) in input.panels.supported() {
            let work = PanelWork::new(&arm.arm, name, panel, manifest.extent())?;
            panels.push((open_log(input, &work)?, work));
        }
        if answers == AnswerMode::Verified {
            let chosen = regenerated_cases(manifest);
            let of_panel = |work: &PanelWork<'a>| Some(work.regenerated(chosen.get(work.panel)?));
            let again: Vec<_> = panels
                .iter()
                .filter_map(|(_, work)| of_panel(work))
                .collect();
            for work in again {
                panels.push((open_log(input, &work)?, work));
            }
        }
        Ok(ArmRun {
            arm,
            input,
            recipe,
            answers,
            panels,
        })
    }

    /// Cases of all panels.
    pub fn total(&self) -> usize {
        self.panels.iter().map(|(_, work)| work.cases.len()).sum()
    }

    /// Cases that have a record.
    pub fn done(&self) -> usize {
        self.panels.iter().map(|(log, _)| log.done()).sum()
    }

    /// Whether its recipe has fixed scales that a built-in worker has to measure.
    pub fn needs_calibration(&self) -> bool {
        let is_server = self.input.dir.manifest().worker.kind == HTTP_WORKER;
        !is_server && self.recipe.needs_calibration()
    }

    /// Whether every case has a record and their totals are stored.
    pub fn is_finished(&self) -> Result<bool, RunError> {
        let stored = self.input.dir.engagement(&self.arm.arm)?;
        // Servers have no totals: nothing of theirs is read back.
        let is_server = self.input.dir.manifest().worker.kind == HTTP_WORKER;
        let has_totals = stored.is_some_and(|found| is_server || found.totals.is_some());
        Ok(has_totals && self.done() == self.total())
    }

    /// Runs what is left.
    pub fn run(
        &mut self,
        engine: &mut dyn Engine,
        layout: BatchLayout,
        sink: &mut Sink<'_>,
    ) -> Result<Ended, RunError> {
        if self.is_finished()? {
            return Ok(Ended::Complete);
        }
        let absmax = match self.absmax(engine, sink)? {
            Absmax::Ready(absmax) => absmax,
            Absmax::Interrupted => return Ok(Ended::Interrupted),
        };
        sink(&Event::ArmStarted {
            arm: &self.arm.arm,
            recipe: &self.arm.recipe,
        });
        let engaged = Engaged {
            arm: self.arm,
            recipe: self.recipe.clone(),
            manifest: self.input.dir.manifest(),
            absmax,
        };
        let engagement = self.open_engine(engine, layout, &engaged)?;
        let mut resources = ResourceLog::open(
            self.input.dir,
            &self.arm.arm,
            self.done() > 0,
            engine.watch(),
        )?;
        let ended = self.run_panels(engine, &engaged, &mut resources, sink);
        // Before an arm is said to be finished, and also where it failed.
        let written = resources.write();
        if ended? == Ended::Interrupted {
            return Ok(Ended::Interrupted);
        }
        written?;
        self.write_totals(engagement, &engaged)?;
        sink(&Event::ArmFinished { arm: &self.arm.arm });
        Ok(Ended::Complete)
    }

    fn absmax(&self, engine: &mut dyn Engine, sink: &mut Sink<'_>) -> Result<Absmax, RunError> {
        if !self.needs_calibration() {
            return Ok(Absmax::Ready(None));
        }
        let found = calibration::of_run(self.input, &self.arm.arm, engine, sink)?;
        Ok(match found {
            Some(calibration) => Absmax::Ready(Some(calibration.layers)),
            None => Absmax::Interrupted,
        })
    }

    /// Opens the arm and looks at what its probe stored, which must not have changed since the run
    /// was interrupted.
    fn open_engine(
        &self,
        engine: &mut dyn Engine,
        layout: BatchLayout,
        engaged: &Engaged<'_>,
    ) -> Result<Engagement, RunError> {
        let layout = match self.arm.role {
            ArmRole::Aa => other_layout(layout),
            ArmRole::Control | ArmRole::Candidate => layout,
        };
        let setup = ArmSetup {
            recipe: self.recipe.clone(),
            absmax: engaged.absmax.clone(),
            layout,
            probe: self.input.panels.probe.clone(),
        };
        let engagement = engine
            .name_arm(&self.arm.arm)
            .and_then(|()| engine.open_arm(&setup))
            .map_err(|error| RunError::engine(&self.arm.arm, error))?;
        let stored = self.input.dir.engagement(&self.arm.arm)?;
        engaged.check_probe(&engagement, stored)?;
        self.input
            .dir
            .write_engagement(&self.arm.arm, &engagement)?;
        Ok(engagement)
    }

    fn run_panels(
        &mut self,
        engine: &mut dyn Engine,
        engaged: &Engaged<'_>,
        resources: &mut ResourceLog<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Ended, RunError> {
        for at in 0..self.panels.len() {
            if self.run_panel(at, engine, engaged, resources, sink)? == Ended::Interrupted {
                return Ok(Ended::Interrupted);
            }
        }
        Ok(Ended::Complete)
    }

    fn run_panel(
        &mut self,
        at: usize,
        engine: &mut dyn Engine,
        engaged: &Engaged<'_>,
        resources: &mut ResourceLog<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<Ended, RunError> {
        let (log, work) = &mut self.panels[at];
        let total = work.cases.len();
        if log.done() == total {
            return Ok(Ended::Complete);
        }
        if self.answers == AnswerMode::Verified && !work.is_regenerated() {
            let dir = self.input.dir;
            if let Some(control) = dir.manifest().first_control() {
                work.take_drafts(dir.records(&control.arm, work.panel)?);
            }
        }
        sink(&Event::PanelStarted {
            arm: work.arm,
            panel: &work.stored_as,
            total,
            done: log.done(),
        });
        let order = match self.arm.role {
            ArmRole::Aa => Order::Rotated,
            ArmRole::Control | ArmRole::Candidate => Order::Plan,
        };
        let mut attempts = self.input.dir.attempt_log(work.arm, &work.stored_as)?;
        while log.done() < total {
            let batch = Batch {
                work,
                log,
                attempts: &mut attempts,
                engaged,
                resources,
                order,
                stop: self.input.stop,
                sink,
            };
            batch.run(engine)?;
            if stop_asked(self.input.stop).is_break() {
                return Ok(Ended::Interrupted);
            }
        }
        sink(&Event::PanelFinished {
            arm: work.arm,
            panel: &work.stored_as,
        });
        Ok(Ended::Complete)
    }

    /// Sums what every record says it stored, where the worker says so, those of earlier processes
    /// included.
    fn write_totals(
        &self,
        mut engagement: Engagement,
        engaged: &Engaged<'_>,
    ) -> Result<(), RunError> {
        let mut totals: Option<KvTotals> = None;
        let own = |(_, work): &&(RecordLog, PanelWork<'_>)| !work.is_regenerated();
        for (_, work) in self.panels.iter().filter(own) {
            for record in self.input.dir.records(work.arm, work.panel)? {
                engaged.check_record(work.panel, &record)?;
                if let Some(kv) = record.kv {
                    totals.get_or_insert_default().merge(&kv);
                }
            }
        }
        engaged.check_totals(totals.as_ref())?;
        engagement.totals = totals;
        self.input
            .dir
            .write_engagement(&self.arm.arm, &engagement)?;
        Ok(())
    }
}

enum Absmax {
    Ready(Option<Vec<LayerAbsmax>>),
    Interrupted,
}

fn open_log(input: &RunInput<'_>, work: &PanelWork<'_>) -> Result<RecordLog, RunError> {
    let log = input
        .dir
        .record_log(work.arm, &work.stored_as, &work.keys())?;
    Ok(log)
}

/// Fewer slots (or one more than one) and a shorter, odd prompt chunk.
fn other_layout(layout: BatchLayout) -> BatchLayout {
    let BatchLayout {
        slots,
        prefill_chunk,
    } = layout;
    BatchLayout {
        slots: if slots > 1 {
            slots - slots.div_ceil(4)
        } else {
            2
        },
        prefill_chunk: if prefill_chunk > 8 {
            (prefill_chunk * 3 / 4) | 1
        } else {
            prefill_chunk + 1
        },
    }
}
