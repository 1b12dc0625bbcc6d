//! Runs sequences through the decoder until each has stored what it has to.

use std::ops::ControlFlow;

use crate::backend::{Backend, BackendError, CacheRow};
use crate::engine::{BatchLayout, CaseError};
use crate::model::{Decoder, Workspace};
use crate::schema::{KvTotals, LayerAbsmax};

use super::admission::Admission;
use super::schedule::{Lane, Pass, Pick, Sequence, plan};

/// What sequences are run for.
pub(super) trait Task {
    /// A sequence's state.
    type Sequence: Sequence;
    /// What is read from a wanted row's logits.
    type Value;

    /// The target of a wanted row. Tasks that score none do not look at it.
    fn target(&self, _sequence: &Self::Sequence, _position: usize) -> u32 {
        0
    }

    /// Reads the wanted rows, in which the logits of `suppressed` ids are -inf.
    fn read<B: Backend>(
        &self,
        backend: &B,
        logits: &B::Tensor,
        targets: &[u32],
        suppressed: &[u32],
    ) -> Result<Vec<Self::Value>, BackendError>;

    /// Takes one value, in ascending order of position within a sequence. Returns how many stored
    /// tokens stand where those beyond are wrong: what was read behind them is not handed over.
    fn accept(
        &self,
        sequence: &mut Self::Sequence,
        value: Self::Value,
    ) -> Result<Option<usize>, CaseError>;

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
    /// Which sequences have room beside each other, each of which has room alone.
    pub admission: Admission,
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
        let mut queue = queue.into_iter().peekable();
        let mut free: Vec<usize> = (0..self.layout.slots).rev().collect();
        let mut lanes: Vec<Lane<T::Sequence>> = Vec::with_capacity(self.layout.slots);
        loop {
            while let Some((_, next)) = queue.peek()
                && !free.is_empty()
                && self.admission.admit(next.capacity())
            {
                let (Some((index, sequence)), Some(slot)) = (queue.next(), free.pop()) else {
                    break;
                };
                lanes.push(Lane::new(index, slot, sequence));
            }
            if lanes.is_empty() {
                return Ok(());
            }
            let mut pass = plan(&mut lanes, self.layout.prefill_chunk);
            let planned = pass.rows.len();
            let failed = self.step(task, &mut pass, &mut lanes)?;
            self.retire(task, &mut lanes, failed, &mut free)?;
            if task.progress(planned as u64).is_break() {
                return Ok(());
            }
        }
    }

    /// One forward pass; returns which lanes failed.
    ///
    /// A number that is not finite concerns its own sequence only. The others run again without
    /// it: what they store twice is the same, and rows do not influence each other's bits. Recurrent
    /// states would take the same tokens in twice: such sequences begin anew, to the same bits.
    fn step<T: Task>(
        &mut self,
        task: &T,
        pass: &mut Pass,
        lanes: &mut [Lane<T::Sequence>],
    ) -> Result<Vec<Option<CaseError>>, BackendError> {
        let mut failed = vec![None; lanes.len()];
        while !pass.rows.is_empty() {
            match self.forward(task, pass, lanes, &mut failed) {
                Ok(values) => {
                    accept(task, lanes, &mut failed, values);
                    break;
                }
                Err(BackendError::NotFinite { row, what }) => {
                    let CacheRow { slot, position } = pass.rows[row];
                    let owner = lanes.iter().position(|lane| lane.slot == slot);
                    let owner = owner.unwrap_or_default();
                    let from = fail_at(&mut lanes[owner], position, &what, &mut failed[owner]);
                    pass.remove(slot, from);
                    if self.decoder.config().is_recurrent() {
                        // Nothing says yet that the tokens before are sound: layers come in turn.
                        if pass.first(slot).is_some() {
                            lanes[owner].fails = failed[owner].take().map(|error| (from, error));
                        }
                        restart(pass, lanes);
                        break;
                    }
                }
                Err(other) => return Err(other),
            }
        }
        // The slots of lanes that failed are about to be reset, and may have given back what a cut needs.
        let lasting = lanes.iter_mut().zip(&failed);
        let lasting = lasting.filter(|(lane, failure)| lane.is_cut && failure.is_none());
        for (lane, _) in lasting {
            let backend = self.decoder.backend();
            backend.truncate_slot(self.cache, lane.slot, lane.stored)?;
            lane.is_cut = false;
        }
        Ok(failed)
    }

    /// Runs a pass and reads its wanted rows. [`BackendError::NotFinite`] names a row of the pass
    /// whose keys or values cannot be stored; lanes with other faults are noted in `failed`.
    fn forward<T: Task>(
        &mut self,
        task: &T,
        pass: &Pass,
        lanes: &mut [Lane<T::Sequence>],
        failed: &mut [Option<CaseError>],
    ) -> Result<Vec<(Pick, T::Value)>, BackendError> {
        let decoder = self.decoder;
        let backend = decoder.backend();
        let Pass {
            rows, ids, wanted, ..
        } = pass;
        let Some(logits) = decoder.forward(self.cache, rows, ids, wanted, self.workspace)? else {
            backend.settle()?;
            return Ok(Vec::new());
        };
        let target = |pick: &Pick| task.target(&lanes[pick.lane].sequence, pick.position);
        let targets: Vec<u32> = pass.picks.iter().map(target).collect();
        // What was read counts once it is known that everything could be stored; to read first
        // means to wait once.
        let suppressed = &decoder.config().suppressed;
        let values = task.read(backend, logits, &targets, suppressed);
        backend.settle()?;
        let reading = Reading {
            decoder,
            pass,
            logits,
            targets,
        };
        reading.sift(task, values, lanes, failed)
    }

    /// Reports lanes that finished or failed and frees their slots.
    fn retire<T: Task>(
        &mut self,
        task: &mut T,
        lanes: &mut Vec<Lane<T::Sequence>>,
        failed: Vec<Option<CaseError>>,
        free: &mut Vec<usize>,
    ) -> Result<(), BackendError> {
        let ends = |(lane, failure): (&Lane<T::Sequence>, &Option<CaseError>)| {
            failure.is_some() || lane.is_finished()
        };
        if !lanes.iter().zip(&failed).any(ends) {
            return Ok(());
        }
        let backend = self.decoder.backend();
        let mut kept = Vec::with_capacity(self.layout.slots);
        for (lane, failure) in lanes.drain(..).zip(failed) {
            let (index, slot, capacity) = (lane.index, lane.slot, lane.sequence.capacity());
            if failure.is_none() && !lane.is_finished() {
                kept.push(lane);
                continue;
            }
            let place = Slot {
                backend,
                cache: &*self.cache,
                slot,
            };
            let failure = failure.or(lane.fails.map(|(_, error)| error));
            let outcome = failure.map_or_else(|| Ok((lane.sequence, place)), Err);
            task.finish(index, outcome)?;
            backend.reset_slot(self.cache, slot)?;
            free.push(slot);
            self.admission.release(capacity);
        }
        *lanes = kept;
        Ok(())
    }
}

/// The wanted rows of a pass.
struct Reading<'a, B: Backend> {
    decoder: &'a Decoder<B>,
    pass: &'a Pass,
    logits: &'a B::Tensor,
    targets: Vec<u32>,
}

impl<B: Backend> Reading<'_, B> {
    /// Picks with their `values`. Lanes with a logit that is not finite fail, and the rest is read
    /// again without them.
    fn sift<T: Task>(
        &self,
        task: &T,
        mut values: Result<Vec<T::Value>, BackendError>,
        lanes: &mut [Lane<T::Sequence>],
        failed: &mut [Option<CaseError>],
    ) -> Result<Vec<(Pick, T::Value)>, BackendError> {
        let (backend, picks) = (self.decoder.backend(), &self.pass.picks);
        let mut rows: Vec<usize> = (0..picks.len()).collect();
        loop {
            match values {
                Ok(values) => {
                    let picks = rows.into_iter().map(|row| picks[row]);
                    return Ok(picks.zip(values).collect());
                }
                Err(BackendError::NotFinite { row, what }) => {
                    let Pick { lane, position } = picks[rows[row]];
                    let from = fail_at(&mut lanes[lane], position, &what, &mut failed[lane]);
                    rows.retain(|&row| picks[row].lane != lane || picks[row].position < from);
                    if rows.is_empty() {
                        return Ok(Vec::new());
                    }
                    let mut kept = backend.tensor(rows.len(), self.decoder.config().vocab_size)?;
                    backend.gather(self.logits, &rows, &mut kept)?;
                    let targets: Vec<u32> = rows.iter().map(|&row| self.targets[row]).collect();
                    let suppressed = &self.decoder.config().suppressed;
                    values = task.read(backend, &kept, &targets, suppressed);
                }
                Err(other) => return Err(other),
            }
        }
    }
}

/// Hands values to their sequences, as far as the tokens before them stand.
fn accept<T: Task>(
    task: &T,
    lanes: &mut [Lane<T::Sequence>],
    failed: &mut [Option<CaseError>],
    values: Vec<(Pick, T::Value)>,
) {
    for (Pick { lane, position }, value) in values {
        let failure = &mut failed[lane];
        let lane = &mut lanes[lane];
        if failure.is_some() || position >= lane.stored {
            continue;
        }
        match task.accept(&mut lane.sequence, value) {
            Ok(None) => {}
            Ok(Some(tokens)) => lane.cut(tokens),
            Err(error) => *failure = Some(error),
        }
    }
}

/// Sequences with rows in a pass that failed begin anew: nobody knows how many of them their states
/// took in.
fn restart<S: Sequence>(pass: &Pass, lanes: &mut [Lane<S>]) {
    for lane in lanes {
        if let Some(before) = pass.first(lane.slot) {
            lane.restart(before);
        }
    }
}

/// A number at `position` is not finite. The sequence fails, unless the position belongs to a
/// draft: plain generation might never come there, and fails by itself if it does. Returns the
/// position from which the lane's rows are no longer wanted. Those before it are run again: a layer that
/// comes later may fail at an earlier token, and the first token that fails is the same however the
/// tokens were split into passes.
fn fail_at<S: Sequence>(
    lane: &mut Lane<S>,
    position: usize,
    what: &str,
    failure: &mut Option<CaseError>,
) -> usize {
    if position >= lane.certain() {
        lane.abandon();
        return lane.stored;
    }
    *failure = Some(CaseError(format!("token {position}: {what}")));
    position
}
