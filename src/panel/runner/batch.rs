//! One batch of cases handed to the engine, and the records that come back.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{
    CaseError, Engine, EngineError, GenerateObserver, Generation, Observer, Score, ScoreObserver,
};
use crate::schema::Record;

use super::RunError;
use super::event::{Event, Sink};
use super::work::{PanelWork, Requests};

/// Order in which a batch is handed over. Records are stored in plan order either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As planned.
    Plan,
    /// The second half first: the A/A arm shows that order does not matter.
    Rotated,
}

impl Order {
    /// Case indices of the batch `start..end`.
    fn indices(self, start: usize, end: usize) -> Vec<usize> {
        let mut indices: Vec<usize> = (start..end).collect();
        if self == Order::Rotated {
            indices.rotate_left((end - start) / 2);
        }
        indices
    }
}

/// What a batch left behind.
pub(super) struct BatchEnd {
    /// Records of the longest finished prefix of the batch, in plan order.
    pub records: Vec<Record>,
    /// Why the batch is not complete, where it is not.
    pub failure: Option<RunError>,
}

/// Runs the cases `start..end` of `work`. A stop or a worker failure keeps what was finished
/// before, as far as it is a prefix of the plan.
pub(super) fn run_batch(
    work: &PanelWork<'_>,
    (start, end): (usize, usize),
    order: Order,
    engine: &mut dyn Engine,
    stop: &AtomicBool,
    sink: &mut Sink<'_>,
) -> Result<BatchEnd, RunError> {
    let order = order.indices(start, end);
    let requests = work.requests(&order)?;
    let mut collector = Collector {
        work,
        start,
        order: &order,
        records: vec![None; end - start],
        violation: None,
        stop,
        sink,
    };
    let outcome = match &requests {
        Requests::Generate(requests) => engine.generate(requests, &mut collector),
        Requests::Score(requests) => engine.score(requests, &mut collector),
    };
    Ok(collector.end(outcome))
}

struct Collector<'a, 's> {
    work: &'a PanelWork<'a>,
    start: usize,
    /// Case index of each request.
    order: &'a [usize],
    /// By case index, from `start`.
    records: Vec<Option<Record>>,
    violation: Option<String>,
    stop: &'a AtomicBool,
    sink: &'a mut Sink<'s>,
}

impl Collector<'_, '_> {
    fn keep(&mut self, request: usize, record: impl FnOnce(&PanelWork<'_>, usize) -> Record) {
        let Some(&case) = self.order.get(request) else {
            self.violation = Some(format!(
                "outcome for request {request} of a batch of {}",
                self.order.len()
            ));
            return;
        };
        let slot = &mut self.records[case - self.start];
        if slot.is_some() {
            self.violation = Some(format!("two outcomes for request {request}"));
            return;
        }
        let record = slot.insert(record(self.work, case));
        (self.sink)(&Event::CaseFinished {
            arm: self.work.arm,
            panel: self.work.panel,
            record,
        });
    }

    fn end(self, outcome: Result<(), EngineError>) -> BatchEnd {
        let asked = self.records.len();
        let records: Vec<Record> = self
            .records
            .into_iter()
            .map_while(|record| record)
            .collect();
        let failure = match (outcome, self.violation) {
            (Err(error), _) => Some(RunError::engine(self.work.arm, error)),
            (Ok(()), Some(what)) => Some(RunError::contract(self.work.arm, what)),
            (Ok(()), None) if records.len() < asked && !self.stop.load(Ordering::Relaxed) => {
                let what = format!("{} of {asked} requests have an outcome", records.len());
                Some(RunError::contract(self.work.arm, what))
            }
            (Ok(()), None) => None,
        };
        BatchEnd { records, failure }
    }
}

impl Observer for Collector<'_, '_> {
    fn tokens(&mut self, tokens: u64) -> ControlFlow<()> {
        (self.sink)(&Event::TokensProcessed(tokens));
        stop_asked(self.stop)
    }
}

impl GenerateObserver for Collector<'_, '_> {
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>) {
        self.keep(index, |work, case| work.generated(case, outcome));
    }
}

impl ScoreObserver for Collector<'_, '_> {
    fn scored(&mut self, index: usize, outcome: Result<Score, CaseError>) {
        self.keep(index, |work, case| work.scored(case, outcome));
    }
}

/// Break where a stop was asked for.
pub(super) fn stop_asked(stop: &AtomicBool) -> ControlFlow<()> {
    if stop.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
