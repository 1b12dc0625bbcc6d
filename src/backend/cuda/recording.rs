//! The layers of a pass as a graph: recorded once, then started again with one call.
//!
//! A decode step of a small model takes less time than starting its kernels one by one. Passes
//! that follow each other with as many rows, and plans of the same sizes, start the same kernels
//! with the same arguments: what differs between them (slots, positions, pages, tokens) is read
//! from memory whose addresses stay.
//!
//! While a recording is made, nothing may be allocated, copied or waited for. Every buffer whose
//! address is asked for meanwhile is marked; when a marked one is freed, all recordings are
//! outdated, so none is ever started with the address of memory that is gone.
//!
//! The driver breaks a recording off when another thread of the process waits for the whole device
//! meanwhile, as closing cuBLASLt there does; that of CUDA 13.0 at times crashes by it. So this crate does
//! not close the library while anything is recorded, and a pass whose recording is broken off by others
//! runs as if nothing had been recorded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{PoisonError, RwLock};

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, DriverError};

use super::CudaBackend;
use super::cache::CudaCache;
use super::device::{Device, Purpose, failed};
use super::plan::{Blocks, PlanSizes};
use super::rows::DeviceRows;
use super::tensor::{CudaTensor, Format};
use crate::backend::{BackendError, Held, LayerPass};

/// Equal passes in a row after which the next is recorded: what comes a few times only costs more
/// to record than to start.
const REPEATS: u32 = 3;

/// Recordings that are kept.
const KEPT: usize = 16;

/// Shared by all that record; what waits for a whole device has it alone.
static RECORDING: RwLock<()> = RwLock::new(());

/// Runs `wait`, which waits for the whole device, while no thread of the process records.
pub fn beside_no_recording<T>(wait: impl FnOnce() -> T) -> T {
    let _alone = RECORDING.write().unwrap_or_else(PoisonError::into_inner);
    wait()
}

/// What a device knows of recordings.
#[derive(Default)]
pub struct State {
    /// What is started is recorded, and does not run.
    active: Cell<bool>,
    /// Something that cannot be recorded was asked for since the recording began.
    refused: Cell<bool>,
    /// How often memory was freed whose address stands in a recording.
    generation: Cell<u64>,
    /// Recordings are broken off, as another library of the process may do.
    #[cfg(test)]
    pub interrupted: Cell<bool>,
}

impl State {
    /// Whether what is started is recorded.
    pub fn is_active(&self) -> bool {
        self.active.get()
    }

    /// Memory is freed whose address stands in a recording.
    pub fn outdate(&self) {
        self.generation.set(self.generation.get() + 1);
    }

    /// Notes that `what` was asked for, and refuses it while a recording is made.
    ///
    /// # Errors
    /// [`BackendError::Device`].
    pub fn refuse(&self, what: &str) -> Result<(), BackendError> {
        if !self.active.get() {
            return Ok(());
        }
        self.refused.set(true);
        Err(BackendError::Device(format!(
            "cuda: {what} while kernels are recorded"
        )))
    }
}

impl Device {
    /// Records what `start` starts; `None` where it asks for something that cannot be recorded, or
    /// the driver broke the recording off.
    fn record(
        &self,
        start: impl FnOnce() -> Result<(), BackendError>,
    ) -> Result<Option<CudaGraph>, BackendError> {
        let state = &self.recordings;
        let _shared = RECORDING.read().unwrap_or_else(PoisonError::into_inner);
        // Other threads read the free memory meanwhile, and the product library may load kernels.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        self.stream
            .begin_capture(mode)
            .map_err(failed("recording kernels"))?;
        state.refused.set(false);
        state.active.set(true);
        let started = start();
        #[cfg(test)]
        if state.interrupted.get() {
            // It fails, as this thread records, and ends the recording all the same.
            let _ = self.context.synchronize();
        }
        state.active.set(false);
        let graph = self.stream.end_capture(CUgraphInstantiate_flags(0));
        // Whatever broke it off, `started` says no more than that; what fails by itself fails again
        // when nothing is recorded.
        if state.refused.get() || graph.as_ref().is_err_and(is_broken_off) {
            return Ok(None);
        }
        started?;
        let graph = graph.map_err(failed("recording kernels"))?;
        let Some(graph) = graph else { return Ok(None) };
        graph.upload().map_err(failed("recorded kernels"))?;
        Ok(Some(graph))
    }
}

fn is_broken_off(error: &DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
}

/// Addresses that outlive a pass, and its rows: what tells one recording from another.
#[derive(Clone, PartialEq, Eq)]
struct Key {
    addresses: Vec<u64>,
    rows: usize,
}

/// Passes that followed each other.
struct Run {
    key: Key,
    plans: Vec<(Blocks, PlanSizes)>,
    passes: u32,
    /// They cannot be recorded.
    refused: bool,
}

struct Recording {
    key: Key,
    generation: u64,
    graph: CudaGraph,
    /// Rows that the kernels read.
    rows: Rc<DeviceRows>,
    /// What the residual stream was computed from.
    operand: Option<Format>,
    _held: Held,
}

/// Recordings of one backend.
#[derive(Default)]
pub struct Recordings {
    kept: RefCell<Vec<Recording>>,
    latest: RefCell<Option<Run>>,
    started: Cell<u64>,
}

impl Recordings {
    /// How many passes were started from a recording.
    pub fn started(&self) -> u64 {
        self.started.get()
    }
}

/// What the layers of a pass work on, and how they are started.
pub struct Layers<'a, S, X, R> {
    /// Rows and tables.
    pub pass: &'a LayerPass<'a>,
    /// Where keys and values are stored.
    pub cache: &'a mut CudaCache,
    /// Whatever `run` needs.
    pub state: &'a mut S,
    /// Finds the residual stream.
    pub stream: X,
    /// Starts the layers.
    pub run: R,
}

impl<S, X, R> Layers<'_, S, X, R>
where
    X: Fn(&mut S) -> &mut CudaTensor,
    R: Fn(&mut CudaCache, &mut S) -> Result<(), BackendError>,
{
    /// Starts the layers, from a recording where there is one that fits.
    ///
    /// # Errors
    /// What `run` reports; [`BackendError::Device`].
    pub fn start(mut self, backend: &CudaBackend) -> Result<(), BackendError> {
        let recordings = &backend.recordings;
        let rows = self.pass.rows;
        let key = self.key(backend)?;
        self.cache
            .reserve(&backend.kernels, 0..self.cache.layers(), rows)?;
        let device = &backend.kernels.device;
        let generation = device.recordings.generation.get();
        let mut kept = recordings.kept.borrow_mut();
        kept.retain(|recording| recording.generation == generation);
        let known = kept.iter().position(|recording| recording.key == key);
        if let Some(at) = known
            && kept[at].rows.replace(rows)?
        {
            let recording = &kept[at];
            recording
                .graph
                .launch()
                .map_err(failed("recorded kernels"))?;
            let stream = (self.stream)(self.state);
            stream.changed(&backend.kernels)?;
            stream.operand = recording.operand;
            recordings.started.set(recordings.started.get() + 1);
            return Ok(());
        }
        let mut latest = recordings.latest.take().filter(|run| run.key == key);
        let due = |run: &&mut Run| run.passes >= REPEATS && !run.refused;
        if let Some(run) = latest.as_mut().filter(due) {
            if let Some(recording) = self.record(backend, key.clone(), run)? {
                if let Some(at) = known {
                    kept.remove(at);
                }
                if kept.len() == KEPT {
                    kept.remove(0);
                }
                kept.push(recording);
                return Ok(());
            }
            run.refused = true;
        }
        (self.run)(self.cache, self.state)?;
        let plans = backend.kept.rows(device, rows)?.sizes();
        let (passes, refused) = match latest {
            Some(run) if run.plans == plans => (run.passes + 1, run.refused),
            _ => (1, false),
        };
        let run = Run {
            key,
            plans,
            passes,
            refused,
        };
        recordings.latest.replace(Some(run));
        Ok(())
    }

    fn key(&mut self, backend: &CudaBackend) -> Result<Key, BackendError> {
        let stream = (self.stream)(self.state).float(&backend.kernels)?;
        let mut addresses = vec![stream, self.cache.tables()];
        for rotary in self.pass.rotary {
            let table = backend.kept.table(&backend.kernels.device, rotary)?;
            addresses.extend(table.addresses());
        }
        let rows = self.pass.rows.len();
        Ok(Key { addresses, rows })
    }

    /// Records the layers and starts them; `None`, with nothing started, where the pass cannot be
    /// recorded.
    fn record(
        &mut self,
        backend: &CudaBackend,
        key: Key,
        run: &Run,
    ) -> Result<Option<Recording>, BackendError> {
        let device = &backend.kernels.device;
        let blocks = run.plans.iter().map(|(blocks, _)| *blocks);
        let rows = backend.kept.planned(device, self.pass.rows, blocks)?;
        let before = (self.stream)(self.state).operand;
        let (free, _) = device.memory()?;
        let graph = device.record(|| (self.run)(self.cache, self.state))?;
        let stream = (self.stream)(self.state);
        let Some(graph) = graph else {
            stream.operand = before;
            return Ok(None);
        };
        let operand = stream.operand;
        // The recording itself keeps them: when both go, others stay.
        rows.unmark();
        let (left, _) = device.memory()?;
        let bytes = free.saturating_sub(left) as u64;
        graph.launch().map_err(failed("recorded kernels"))?;
        Ok(Some(Recording {
            key,
            generation: device.recordings.generation.get(),
            graph,
            rows,
            operand,
            _held: Held::new(&device.ledger(), Purpose::Graphs, bytes),
        }))
    }
}
