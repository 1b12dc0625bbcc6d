//! One arm: opens it, runs what is left of each panel, proves engagement.

use crate::engine::{ArmSetup, BatchLayout, Engine};
use crate::recipe::Recipe;
use crate::schema::{ArmRole, CaseTask, Engagement, KvTotals, LayerAbsmax, ManifestArm, PanelCase};
use crate::score::Parser;
use crate::store::{CaseKey, RecordLog};

use super::batch::{Batch, Order, stop_asked};
use super::engaged::Engaged;
use super::event::{Event, Sink};
use super::plan::limited;
use super::resources::ResourceLog;
use super::work::PanelWork;
use super::{Ended, RunError, RunInput, calibration};

/// An arm with its record logs open.
pub(super) struct ArmRun<'a> {
    /// The arm as the manifest names it.
    pub arm: &'a ManifestArm,
    input: &'a RunInput<'a>,
    recipe: Recipe,
    panels: Vec<(PanelWork<'a>, RecordLog)>,
}

impl<'a> ArmRun<'a> {
    /// Writes down which protocol stands and opens the record logs of every supported panel.
    pub fn open(input: &'a RunInput<'a>, arm: &'a ManifestArm) -> Result<Self, RunError> {
        let recipe = Recipe::parse(&arm.recipe).map_err(|source| RunError::Recipe {
            arm: arm.arm.clone(),
            source,
        })?;
        input.dir.start_arm(&arm.arm)?;
        let mut panels = Vec::new();
        for (name, panel) in input.panels.supported() {
            let cases = limited(panel.cases.len(), input.dir.manifest().limit);
            let work = PanelWork {
                arm: &arm.arm,
                panel: name,
                cases: &panel.cases[..cases],
                hashes: &panel.case_sha256s[..cases],
                parser: parser(name, &panel.header.parser, &panel.cases)?,
            };
            let log = input.dir.record_log(&arm.arm, name, &keys(&work))?;
            panels.push((work, log));
        }
        Ok(ArmRun {
            arm,
            input,
            recipe,
            panels,
        })
    }

    /// Cases of all panels.
    pub fn total(&self) -> usize {
        self.panels.iter().map(|(work, _)| work.cases.len()).sum()
    }

    /// Cases that have a record.
    pub fn done(&self) -> usize {
        self.panels.iter().map(|(_, log)| log.done()).sum()
    }

    /// Whether its recipe has fixed scales.
    pub fn needs_calibration(&self) -> bool {
        self.recipe.needs_calibration()
    }

    /// Whether every case has a record and their totals are stored.
    pub fn is_finished(&self) -> Result<bool, RunError> {
        let stored = self.input.dir.engagement(&self.arm.arm)?;
        let has_totals = stored.is_some_and(|engagement| engagement.totals.is_some());
        Ok(has_totals && self.done() == self.total())
    }

    /// Runs what is left.
    pub fn run(
        &mut self,
        engine: &mut dyn Engine,
        layout: BatchLayout,
        sink: &mut Sink<'_>,
    ) -> Result<Ended, RunError> {
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
        let mut resources = ResourceLog::open(self.input.dir, &self.arm.arm, engine.watch())?;
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
        if !self.recipe.needs_calibration() {
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
            .open_arm(&setup)
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
        let (work, log) = &mut self.panels[at];
        let total = work.cases.len();
        if log.done() == total {
            return Ok(Ended::Complete);
        }
        sink(&Event::PanelStarted {
            arm: work.arm,
            panel: work.panel,
            total,
            done: log.done(),
        });
        let order = match self.arm.role {
            ArmRole::Aa => Order::Rotated,
            ArmRole::Control | ArmRole::Candidate => Order::Plan,
        };
        while log.done() < total {
            let batch = Batch {
                work,
                log,
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
            panel: work.panel,
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
        for (work, _) in &self.panels {
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

fn keys(work: &PanelWork<'_>) -> Vec<CaseKey> {
    work.cases
        .iter()
        .zip(work.hashes)
        .map(|(case, hash)| CaseKey {
            case: case.case.clone(),
            case_sha256: hash.clone(),
        })
        .collect()
}

/// The decisive parser of a panel with numeric answers.
fn parser(panel: &str, name: &str, cases: &[PanelCase]) -> Result<Option<Parser>, RunError> {
    let first = cases.first().map(|case| &case.task);
    let math = matches!(first, Some(CaseTask::Math { .. }));
    if !math {
        return Ok(None);
    }
    match Parser::from_name(name) {
        Some(parser) => Ok(Some(parser)),
        None => Err(RunError::Parser {
            panel: panel.to_owned(),
            found: name.to_owned(),
        }),
    }
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
