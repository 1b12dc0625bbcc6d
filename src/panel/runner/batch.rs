//! One batch of cases handed to the engine, and the records that come back.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{
    CaseError, DraftUse, Engine, EngineError, FailedAttempt, GenerateObserver, Generation,
    Observer, Score, ScoreObserver,
};
use crate::schema::{Attempt, Record};
use crate::store::{AttemptLog, RecordLog};

use super::RunError;
use super::engaged::Engaged;
use super::event::{Event, Sink};
use super::resources::ResourceLog;
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
    /// Case indices of the batch `start..end`, rotated in blocks of so many.
    fn indices(self, start: usize, end: usize, block: usize) -> Vec<usize> {
        let mut indices: Vec<usize> = (start..end).collect();
        if self == Order::Rotated {
            for block in indices.chunks_mut(block.max(1)) {
                block.rotate_left(block.len() / 2);
            }
        }
        indices
    }
}

/// Finished cases that wait at most to be stored while their batch still runs.
const UNSTORED: usize = 8;
/// Shortest time between two syncs where the engine streams, unless so many wait.
const SYNCED_EVERY: Duration = Duration::from_millis(100);
/// Longest time that what can be stored waits where the engine streams: a run that is killed loses
/// no more.
const STORED_WITHIN: Duration = Duration::from_millis(500);
/// See [`SYNCED_EVERY`].
const MOST_UNSTORED: usize = 256;

/// What a batch needs besides the engine.
pub(super) struct Batch<'a, 'r, 's> {
    /// The panel on the arm.
    pub work: &'a PanelWork<'a>,
    /// Its stored records: the batch starts where they end.
    pub log: &'a mut RecordLog,
    /// Hears of failed attempts.
    pub attempts: &'a mut AttemptLog,
    /// What every case must have stored.
    pub engaged: &'a Engaged<'a>,
    /// What the arm takes of the machine.
    pub resources: &'a mut ResourceLog<'r>,
    /// Order of the requests.
    pub order: Order,
    /// Set from outside to stop.
    pub stop: &'a AtomicBool,
    /// Hears of tokens and finished cases.
    pub sink: &'a mut Sink<'s>,
}

impl Batch<'_, '_, '_> {
    /// Runs the next cases and stores their records in plan order. A stop or a failure keeps what
    /// was finished before, as far as it is a prefix of the plan.
    pub fn run(self, engine: &mut dyn Engine) -> Result<(), RunError> {
        let start = self.log.done();
        let (total, block) = (self.work.cases.len(), engine.batch_cases().max(1));
        let end = match engine.is_streaming() {
            true => total,
            false => total.min(start + block),
        };
        let order = self.order.indices(start, end, block);
        let requests = self.work.requests(&order)?;
        let mut collector = Collector {
            batch: self,
            start,
            order: &order,
            records: vec![None; end - start],
            stored: 0,
            failure: None,
            is_streaming: engine.is_streaming(),
            synced: Instant::now(),
        };
        let outcome = match &requests {
            Requests::Generate(requests) => engine.generate(requests, &mut collector),
            Requests::Score(requests) => engine.score(requests, &mut collector),
        };
        collector.end(outcome)
    }
}

struct Collector<'a, 'r, 's> {
    batch: Batch<'a, 'r, 's>,
    /// First case of the batch.
    start: usize,
    /// Case index of each request.
    order: &'a [usize],
    /// By case index, from `start`; taken out once stored.
    records: Vec<Option<Record>>,
    /// Records of `records` that are stored, from the first.
    stored: usize,
    /// What ends the batch early: a full disk, an engine that breaks its contract.
    failure: Option<RunError>,
    is_streaming: bool,
    /// When records were stored last.
    synced: Instant,
}

impl Collector<'_, '_, '_> {
    fn keep(&mut self, request: usize, record: impl FnOnce(&PanelWork<'_>, usize) -> Record) {
        let work = self.batch.work;
        let Some(&case) = self.order.get(request) else {
            let asked = self.order.len();
            return self.violation(format!(
                "outcome for request {request} of a batch of {asked}"
            ));
        };
        let slot = &mut self.records[case - self.start];
        if slot.is_some() || case - self.start < self.stored {
            return self.violation(format!("two outcomes for request {request}"));
        }
        let record = record(work, case);
        if let Err(error) = self.batch.engaged.check_record(work.panel, &record) {
            self.failure.get_or_insert(error);
            return;
        }
        let record = slot.insert(record);
        (self.batch.sink)(&Event::CaseFinished {
            arm: work.arm,
            panel: &work.stored_as,
            record,
        });
        // Replies come faster than a disk syncs: what has queued up is stored together.
        let is_early = self.is_streaming && self.synced.elapsed() < SYNCED_EVERY;
        self.store(if is_early { MOST_UNSTORED } else { UNSTORED });
    }

    fn violation(&mut self, what: String) {
        self.failure
            .get_or_insert(RunError::contract(self.batch.work.arm, what));
    }

    /// Stores the finished records that follow the stored ones, where there are at least `least`.
    fn store(&mut self, least: usize) {
        let waiting = self.records[self.stored..].iter().map_while(Option::as_ref);
        if self.failure.is_some() || waiting.clone().take(least).count() < least {
            return;
        }
        let ready: Vec<Record> = waiting.cloned().collect();
        match self.batch.log.append(&ready) {
            Ok(()) => {
                for record in &mut self.records[self.stored..][..ready.len()] {
                    *record = None;
                }
                self.stored += ready.len();
                self.synced = Instant::now();
            }
            Err(error) => self.failure = Some(error.into()),
        }
    }

    fn end(mut self, outcome: Result<(), EngineError>) -> Result<(), RunError> {
        self.store(1);
        let arm = self.batch.work.arm;
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        outcome.map_err(|error| RunError::engine(arm, error))?;
        let (stored, asked) = (self.stored, self.records.len());
        if stored < asked && stop_asked(self.batch.stop).is_continue() {
            let what = format!("an outcome for {stored} requests, not for all {asked}");
            return Err(RunError::contract(arm, what));
        }
        Ok(())
    }
}

impl Observer for Collector<'_, '_, '_> {
    fn tokens(&mut self, tokens: u64) -> ControlFlow<()> {
        (self.batch.sink)(&Event::TokensProcessed(tokens));
        if let Err(error) = self.batch.resources.tick() {
            self.failure.get_or_insert(error);
        }
        // Also heard while nothing comes.
        if self.is_streaming && self.synced.elapsed() >= STORED_WITHIN {
            self.store(1);
        }
        if self.failure.is_some() {
            return ControlFlow::Break(());
        }
        stop_asked(self.batch.stop)
    }

    fn attempt_failed(&mut self, index: usize, failure: &FailedAttempt) {
        let work = self.batch.work;
        let Some(&case) = self.order.get(index) else {
            return self.violation(format!("a failed attempt at request {index}"));
        };
        let attempt = Attempt {
            case: work.cases[case].case.clone(),
            attempt: failure.attempt,
            status: failure.status,
            error: failure.error.clone(),
            wait_ms: failure.wait_ms,
        };
        if let Err(error) = self.batch.attempts.append(&attempt) {
            self.failure.get_or_insert(error.into());
        }
    }
}

impl GenerateObserver for Collector<'_, '_, '_> {
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>) {
        self.keep(index, |work, case| work.generated(case, outcome));
    }

    fn drafted(&mut self, draft: DraftUse) {
        (self.batch.sink)(&Event::Drafted(draft));
    }
}

impl ScoreObserver for Collector<'_, '_, '_> {
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
