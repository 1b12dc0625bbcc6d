//! Who hears of outcomes and passes while work is timed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use crate::engine::{
    CaseError, GenerateObserver, Generation, Observer, Score, ScoreObserver, TokenText,
};

use super::{BenchError, Work};

/// Decodes nothing and stops nowhere.
pub(super) struct Silent;

impl TokenText for Silent {
    fn decode(&self, _: &[u32]) -> String {
        String::new()
    }

    fn eos_ids(&self) -> &[u32] {
        &[]
    }
}

/// Hears and never stops.
pub(super) struct Unstopped;

impl Observer for Unstopped {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Counts outcomes and keeps the time of each pass.
pub(super) struct Count {
    /// New tokens of each case, by its number.
    pub answers: BTreeMap<usize, Vec<u32>>,
    failed: usize,
    first: Option<CaseError>,
    /// Seconds and rows of every pass.
    pub passes: Vec<(f64, u64)>,
    last: Instant,
}

impl Count {
    /// Starts the clock of the first pass.
    pub fn new() -> Self {
        Count {
            answers: BTreeMap::new(),
            failed: 0,
            first: None,
            passes: Vec::new(),
            last: Instant::now(),
        }
    }

    fn fail(&mut self, error: CaseError) {
        self.failed += 1;
        self.first.get_or_insert(error);
    }

    /// # Errors
    /// [`BenchError::Cases`] where a case failed.
    pub fn check(&self, work: Work, cases: usize) -> Result<(), BenchError> {
        match &self.first {
            None => Ok(()),
            Some(first) => Err(BenchError::Cases {
                work: work.name(),
                failed: self.failed,
                cases,
                first: first.to_string(),
            }),
        }
    }
}

impl Observer for Count {
    fn tokens(&mut self, tokens: u64) -> ControlFlow<()> {
        let now = Instant::now();
        let seconds = now.duration_since(self.last).as_secs_f64();
        self.passes.push((seconds, tokens));
        self.last = now;
        ControlFlow::Continue(())
    }
}

impl GenerateObserver for Count {
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>) {
        match outcome {
            Ok(generation) => {
                self.answers.insert(index, generation.ids);
            }
            Err(error) => self.fail(error),
        }
    }
}

impl ScoreObserver for Count {
    fn scored(&mut self, _: usize, outcome: Result<Score, CaseError>) {
        if let Err(error) = outcome {
            self.fail(error);
        }
    }
}
