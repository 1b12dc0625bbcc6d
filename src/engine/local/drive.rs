//! Runs sequences through the decoder until each has stored what it has to.

use std::ops::ControlFlow;

use crate::backend::{Backend, BackendError};
use crate::engine::{BatchLayout, CaseError};
use crate::model::{Decoder, Workspace};
use crate::schema::{KvTotals, LayerAbsmax};

use super::schedule::{Lane, Pass, Pick, Sequence, plan};

/// What sequences are run for.
pub(super) trait Task {
    /// A sequence's state.
    type Sequence: Sequence;
    /// What is read from a wanted row's logits.
    type Value;

    /// The target of a wanted row, for tasks that score one.
    fn target(&self, sequence: &Self::Sequence, position: usize) -> u32;

    /// Reads the wanted rows, all of whose logits are numbers.
    fn read<B: Backend>(
        &self,
        backend: &B,
        logits: &B::Tensor,
        targets: &[u32],
    ) -> Result<Vec<Self::Value>, BackendError>;

    /// Takes one value, in ascending order of position within a sequence.
    fn accept(&self, sequence: &mut Self::Sequence, value: Self::Value) -> Result<(), CaseError>;

    /// Reports a sequence that finished or failed.
    fn finish<B: Backend>(
        &mut self,
        index: usize,
        outcome: Result<(Self::Sequence, Slot<'_, B>), CaseError>,
    ) -> Result<(), BackendError>;

    /// Tells of processed tokens.
    fn progress(&mut self, tokens: u64) -> ControlFlow<()>;
}

/// A finished sequence's place in the cache.
pub(super) struct Slot<'a, B: Backend> {
    backend: &'a B,
    cache: &'a B::Cache,
    slot: usize,
}

impl<B: Backend> Slot<'_, B> {
    /// What was stored, per layer.
    pub fn totals(&self) -> Result<Vec<KvTotals>, BackendError> {
        self.backend.slot_totals(self.cache, self.slot)
    }

    /// Largest absolute stored values, per layer.
    pub fn absmax(&self) -> Result<Vec<LayerAbsmax>, BackendError> {
        self.backend.slot_absmax(self.cache, self.slot)
    }
}

/// Decoder, cache and layout that sequences run on.
pub(super) struct Driver<'a, B: Backend> {
    /// The model.
    pub decoder: &'a Decoder<B>,
    /// The arm's cache, at least as large as `layout` and the sequences ask for.
    pub cache: &'a mut B::Cache,
    /// Activations.
    pub workspace: &'a mut Workspace<B>,
    /// Slots and chunk.
    pub layout: BatchLayout,
}

impl<B: Backend> Driver<'_, B> {
    /// Runs `queue` (request numbers and sequences) to its end, or until the task breaks.
    pub fn run<T: Task>(
        &mut self,
        task: &mut T,
        queue: Vec<(usize, T::Sequence)>,
    ) -> Result<(), BackendError> {
        for slot in 0..self.layout.slots {
            self.decoder.backend().reset_slot(self.cache, slot)?;
        }
        let mut queue = queue.into_iter();
        let mut free: Vec<usize> = (0..self.layout.slots).rev().collect();
        let mut lanes: Vec<Lane<T::Sequence>> = Vec::with_capacity(self.layout.slots);
        loop {
            while let Some(slot) = free.pop() {
                let Some((index, sequence)) = queue.next() else {
                    break;
                };
                lanes.push(Lane {
                    index,
                    slot,
                    stored: 0,
                    sequence,
                });
            }
            if lanes.is_empty() {
                return Ok(());
            }
            let pass = plan(&mut lanes, self.layout.prefill_chunk);
            let failed = self.step(task, &pass, &mut lanes)?;
            self.retire(task, &mut lanes, failed, &mut free)?;
            if task.progress(pass.rows.len() as u64).is_break() {
                return Ok(());
            }
        }
    }

    /// One forward pass; returns which lanes failed.
    fn step<T: Task>(
        &mut self,
        task: &T,
        pass: &Pass,
        lanes: &mut [Lane<T::Sequence>],
    ) -> Result<Vec<Option<CaseError>>, BackendError> {
        let mut failed = vec![None; lanes.len()];
        let logits = self.decoder.forward(
            self.cache,
            &pass.rows,
            &pass.ids,
            &pass.wanted,
            self.workspace,
        )?;
        let Some(logits) = logits else {
            return Ok(failed);
        };
        let targets: Vec<u32> = pass
            .picks
            .iter()
            .map(|pick| task.target(&lanes[pick.lane].sequence, pick.position))
            .collect();
        let backend = self.decoder.backend();
        let vocab = self.decoder.config().vocab_size;
        let values = match task.read(backend, logits, &targets) {
            Ok(values) => values.into_iter().map(Some).collect(),
            Err(error) => read_sound_rows(task, backend, logits, &targets, vocab, error)?,
        };
        for (&Pick { lane, position }, value) in pass.picks.iter().zip(values) {
            if failed[lane].is_some() {
                continue;
            }
            let accepted = match value {
                Some(value) => task.accept(&mut lanes[lane].sequence, value),
                None => Err(CaseError(format!(
                    "logits at position {position} hold a NaN"
                ))),
            };
            failed[lane] = accepted.err();
        }
        Ok(failed)
    }

    /// Reports lanes that finished or failed and frees their slots.
    fn retire<T: Task>(
        &mut self,
        task: &mut T,
        lanes: &mut Vec<Lane<T::Sequence>>,
        failed: Vec<Option<CaseError>>,
        free: &mut Vec<usize>,
    ) -> Result<(), BackendError> {
        let backend = self.decoder.backend();
        let mut kept = Vec::with_capacity(self.layout.slots);
        for (lane, failure) in lanes.drain(..).zip(failed) {
            let (index, slot) = (lane.index, lane.slot);
            if failure.is_none() && !lane.is_finished() {
                kept.push(lane);
                continue;
            }
            let place = Slot {
                backend,
                cache: &*self.cache,
                slot,
            };
            let outcome = failure.map_or_else(|| Ok((lane.sequence, place)), Err);
            task.finish(index, outcome)?;
            backend.reset_slot(self.cache, slot)?;
            free.push(slot);
        }
        *lanes = kept;
        Ok(())
    }
}

/// Reads the rows without a NaN after the backend refused the whole; a NaN concerns its own
/// sequence only. Rows do not influence each other's bits, so the others lose nothing.
fn read_sound_rows<B: Backend, T: Task>(
    task: &T,
    backend: &B,
    logits: &B::Tensor,
    targets: &[u32],
    vocab: usize,
    error: BackendError,
) -> Result<Vec<Option<T::Value>>, BackendError> {
    let host = backend.to_host(logits)?;
    let sound: Vec<usize> = host
        .chunks(vocab)
        .enumerate()
        .filter(|(_, row)| !row.iter().any(|logit| logit.is_nan()))
        .map(|(index, _)| index)
        .collect();
    if sound.len() == targets.len() {
        // Not a NaN: the backend itself failed.
        return Err(error);
    }
    let mut values: Vec<Option<T::Value>> = targets.iter().map(|_| None).collect();
    if !sound.is_empty() {
        let mut kept = backend.tensor(sound.len(), vocab)?;
        backend.gather(logits, &sound, &mut kept)?;
        let kept_targets: Vec<u32> = sound.iter().map(|&row| targets[row]).collect();
        for (&row, value) in sound.iter().zip(task.read(backend, &kept, &kept_targets)?) {
            values[row] = Some(value);
        }
    }
    Ok(values)
}
