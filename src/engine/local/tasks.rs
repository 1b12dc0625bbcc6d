//! Scoring and calibrating with a driver, and what requests must keep to.

use std::ops::{ControlFlow, Range};

use crate::backend::{Backend, BackendError};
use crate::engine::{CaseError, Observer, Score, ScoreObserver, ScoreRequest};
use crate::schema::{KvTotals, LayerAbsmax};

use super::drive::{Slot, Task};
use super::schedule::Sequence;

/// What of a model decides whether a request can be run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Longest sequence in tokens.
    pub context: usize,
    /// Vocabulary entries.
    pub vocab_size: usize,
}

impl Bounds {
    /// Checks token ids to which `allowance` more tokens may be added.
    pub fn check(&self, ids: &[u32], allowance: usize) -> Result<(), CaseError> {
        if ids.is_empty() {
            return Err(CaseError("no token to start from".to_owned()));
        }
        let length = ids.len().saturating_add(allowance);
        if length > self.context {
            return Err(CaseError(format!(
                "{} tokens and {allowance} new ones: found {length}, expected at most the model's \
                 context of {}",
                ids.len(),
                self.context
            )));
        }
        match ids.iter().position(|&id| !self.holds(id)) {
            None => Ok(()),
            Some(at) => Err(CaseError(format!(
                "token {at}: found id {}, expected less than the vocabulary's {}",
                ids[at], self.vocab_size
            ))),
        }
    }

    /// Whether the vocabulary has this token.
    pub fn holds(&self, id: u32) -> bool {
        usize::try_from(id).is_ok_and(|id| id < self.vocab_size)
    }
}

/// Sum over the layers.
pub(super) fn sum(layers: &[KvTotals]) -> KvTotals {
    layers.iter().fold(KvTotals::default(), |mut sum, layer| {
        sum.merge(layer);
        sum
    })
}

/// A window whose last targets are scored.
pub(super) struct Window {
    ids: Vec<u32>,
    targets: usize,
    nll_sum: f64,
}

impl Window {
    /// Checks a request and starts on it.
    pub fn new(request: &ScoreRequest, bounds: Bounds) -> Result<Self, CaseError> {
        bounds.check(&request.ids, 0)?;
        let targets = request.targets as usize;
        if targets == 0 || targets >= request.ids.len() {
            return Err(CaseError(format!(
                "targets: found {targets}, expected between 1 and {} in a window of {} tokens",
                request.ids.len() - 1,
                request.ids.len()
            )));
        }
        Ok(Window {
            ids: request.ids.clone(),
            targets,
            nll_sum: 0.0,
        })
    }
}

impl Sequence for Window {
    fn feed(&self) -> &[u32] {
        // Nothing follows the last token: it is a target only.
        &self.ids[..self.ids.len() - 1]
    }

    fn wanted(&self) -> Range<usize> {
        self.ids.len() - 1 - self.targets..self.ids.len() - 1
    }

    fn capacity(&self) -> usize {
        self.ids.len() - 1
    }
}

/// Negative log-likelihood of windows' targets.
pub(super) struct Likelihood<'a> {
    /// Hears of progress and outcomes.
    pub observer: &'a mut dyn ScoreObserver,
}

impl Task for Likelihood<'_> {
    type Sequence = Window;
    type Value = f64;

    fn target(&self, sequence: &Window, position: usize) -> u32 {
        sequence.ids[position + 1]
    }

    fn read<B: Backend>(
        &self,
        backend: &B,
        logits: &B::Tensor,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<f64>, BackendError> {
        backend.nll(logits, targets, suppressed)
    }

    fn accept(&self, sequence: &mut Window, nll: f64) -> Result<Option<usize>, CaseError> {
        if !nll.is_finite() {
            return Err(CaseError(format!(
                "negative log-likelihood of a target: found {nll}, expected a finite number"
            )));
        }
        sequence.nll_sum += nll;
        Ok(None)
    }

    fn finish<B: Backend>(
        &mut self,
        index: usize,
        outcome: Result<(Window, Slot<'_, B>), CaseError>,
    ) -> Result<(), BackendError> {
        let outcome = match outcome {
            Ok((window, slot)) => Ok(Score {
                nll_sum: window.nll_sum,
                kv: Some(sum(&slot.totals()?)),
            }),
            Err(error) => Err(error),
        };
        self.observer.scored(index, outcome);
        Ok(())
    }

    fn progress(&mut self, tokens: u64) -> ControlFlow<()> {
        self.observer.tokens(tokens)
    }
}

/// A document with forced greedy tokens behind it, all of which are stored.
pub(super) struct Document {
    feed: Vec<u32>,
    prompt: usize,
    total: usize,
}

impl Document {
    /// Starts from checked ids.
    pub fn new(ids: &[u32], forced_tokens: u32) -> Self {
        Document {
            feed: ids.to_vec(),
            prompt: ids.len(),
            total: ids.len() + forced_tokens as usize,
        }
    }
}

impl Sequence for Document {
    fn feed(&self) -> &[u32] {
        &self.feed
    }

    fn wanted(&self) -> Range<usize> {
        self.prompt - 1..self.total - 1
    }

    fn capacity(&self) -> usize {
        self.total
    }
}

/// Extremes over documents, and what the first of them stored where it is a probe.
pub(super) struct Measure<'a> {
    /// Hears of progress.
    pub observer: &'a mut dyn Observer,
    /// Largest absolute values per layer over the documents so far.
    pub absmax: Vec<LayerAbsmax>,
    /// What the latest document stored, per layer.
    pub totals: Vec<KvTotals>,
    /// The first document that failed.
    pub failed: Option<(usize, CaseError)>,
}

impl<'a> Measure<'a> {
    /// Starts with nothing seen.
    pub fn new(observer: &'a mut dyn Observer, layers: usize) -> Self {
        Measure {
            observer,
            absmax: vec![LayerAbsmax { k: 0.0, v: 0.0 }; layers],
            totals: Vec::new(),
            failed: None,
        }
    }
}

impl Task for Measure<'_> {
    type Sequence = Document;
    type Value = u32;

    fn read<B: Backend>(
        &self,
        backend: &B,
        logits: &B::Tensor,
        _: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<u32>, BackendError> {
        backend.argmax(logits, suppressed)
    }

    fn accept(&self, sequence: &mut Document, id: u32) -> Result<Option<usize>, CaseError> {
        sequence.feed.push(id);
        Ok(None)
    }

    fn finish<B: Backend>(
        &mut self,
        index: usize,
        outcome: Result<(Document, Slot<'_, B>), CaseError>,
    ) -> Result<(), BackendError> {
        match outcome {
            Ok((_, slot)) => {
                for (seen, found) in self.absmax.iter_mut().zip(slot.absmax()?) {
                    seen.k = seen.k.max(found.k);
                    seen.v = seen.v.max(found.v);
                }
                self.totals = slot.totals()?;
            }
            Err(error) => {
                self.failed.get_or_insert((index, error));
            }
        }
        Ok(())
    }

    fn progress(&mut self, tokens: u64) -> ControlFlow<()> {
        if self.failed.is_some() {
            return ControlFlow::Break(());
        }
        self.observer.tokens(tokens)
    }
}
