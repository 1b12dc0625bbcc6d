//! Greedy generation with a driver, by way of a draft where there is one.

use std::ops::{ControlFlow, Range};

use crate::backend::{Backend, BackendError};
use crate::engine::{CaseError, GenerateObserver, GenerateRequest, Generation};
use crate::schema::{Finish, KvTotals};

use super::TokenText;
use super::draft::Draft;
use super::drive::{Slot, Task};
use super::schedule::Sequence;
use super::tasks::sum;

/// A greedy continuation under way.
pub(super) struct Continuation {
    /// Prompt, then `output` without a last token that is not stored, then speculative tokens.
    feed: Vec<u32>,
    prompt: usize,
    allowance: usize,
    output: Vec<u32>,
    draft: Draft,
}

impl Continuation {
    /// Starts from a checked request that asks for at least one token. Draft tokens count up to
    /// the first that is not `usable`, such as a stop token, which is never stored.
    pub fn new(request: &GenerateRequest, usable: impl Fn(u32) -> bool) -> Self {
        let allowance = request.max_new_tokens as usize;
        let mut continuation = Continuation {
            feed: request.prompt_ids.clone(),
            prompt: request.prompt_ids.len(),
            allowance,
            output: Vec::new(),
            draft: Draft::new(&request.draft, allowance - 1, usable),
        };
        continuation.speculate();
        continuation
    }

    /// Takes the arm's next token, which may end the sequence. Returns how many stored tokens
    /// stand where those beyond are wrong.
    fn take(&mut self, id: u32, stops: bool) -> Option<usize> {
        let before = self.prompt + self.output.len();
        let fed = self.feed.get(before).copied();
        self.draft.compare(self.output.len(), id, fed.is_some());
        self.output.push(id);
        if stops || self.output.len() == self.allowance {
            self.feed.truncate(before);
            return fed.map(|_| before);
        }
        let is_wrong = fed.is_some_and(|fed| fed != id);
        if is_wrong {
            self.feed.truncate(before);
        }
        if self.feed.len() == before {
            self.feed.push(id);
        }
        // Behind a piece that was right comes a token that nobody foresaw: the next piece follows it.
        if (fed.is_none() || is_wrong) && self.speculative() == 0 {
            self.speculate();
        }
        is_wrong.then_some(before)
    }

    /// Feeds the next piece of the draft.
    fn speculate(&mut self) {
        let piece = self.draft.piece(self.output.len());
        self.feed.extend_from_slice(piece);
    }
}

impl Sequence for Continuation {
    fn feed(&self) -> &[u32] {
        &self.feed
    }

    fn wanted(&self) -> Range<usize> {
        self.prompt - 1..usize::MAX
    }

    fn capacity(&self) -> usize {
        // The last new token is never stored.
        self.prompt + self.allowance - 1
    }

    fn speculative(&self) -> usize {
        let certain = self.prompt + self.output.len();
        self.feed.len().saturating_sub(certain)
    }

    fn abandon(&mut self) {
        self.feed.truncate(self.prompt + self.output.len());
        self.draft.give_up();
    }
}

/// Greedy generation until a stop token or the end of the allowance.
pub(super) struct Generate<'a> {
    /// Decodes the outcome; knows the stop tokens.
    pub text: &'a dyn TokenText,
    /// Hears of progress and outcomes.
    pub observer: &'a mut dyn GenerateObserver,
}

impl Generate<'_> {
    /// The outcome of generated ids.
    pub fn outcome(&self, ids: Vec<u32>, kv: KvTotals) -> Generation {
        let (body, finish) = match ids.split_last() {
            Some((last, body)) if self.text.eos_ids().contains(last) => (body, Finish::Stop),
            _ => (&ids[..], Finish::Length),
        };
        Generation {
            text: self.text.decode(body),
            finish,
            kv: Some(kv),
            output_tokens: u32::try_from(ids.len()).ok(),
            ids,
        }
    }
}

impl Task for Generate<'_> {
    type Sequence = Continuation;
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

    fn accept(&self, sequence: &mut Continuation, id: u32) -> Result<Option<usize>, CaseError> {
        Ok(sequence.take(id, self.text.eos_ids().contains(&id)))
    }

    fn finish<B: Backend>(
        &mut self,
        index: usize,
        outcome: Result<(Continuation, Slot<'_, B>), CaseError>,
    ) -> Result<(), BackendError> {
        let outcome = match outcome {
            Ok((sequence, slot)) => {
                if let Some(draft) = sequence.draft.usage() {
                    self.observer.drafted(draft);
                }
                Ok(self.outcome(sequence.output, sum(&slot.totals()?)))
            }
            Err(error) => Err(error),
        };
        self.observer.generated(index, outcome);
        Ok(())
    }

    fn progress(&mut self, tokens: u64) -> ControlFlow<()> {
        self.observer.tokens(tokens)
    }
}
