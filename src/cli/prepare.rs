//! Opens what a run needs before anything is written: model, panels, engine.

use std::sync::Arc;

use anyhow::anyhow;

use crate::backend::cpu::claim_thread;
use crate::engine::{BatchLayout, Engine, EngineError, LocalEngine};
use crate::model::{LoadError, ModelError, ModelFiles};
use crate::panel::runner::Open;
use crate::panel::{self, BuiltPanels};

use super::Failure;
use super::resolve::{ModelSettings, Worker};

/// A model on its worker, with the protocol's panels for its tokenizer.
pub(super) struct Prepared {
    /// Panels, calibration documents, probe.
    pub panels: BuiltPanels,
    /// The worker.
    pub engine: Box<dyn Engine>,
    /// Batch layout of every arm but the A/A one.
    pub layout: BatchLayout,
    /// Workers that run arms beside it, not opened yet.
    pub others: Vec<Box<Open<'static>>>,
}

impl Prepared {
    /// Reads the model's small files, builds the panels, then loads the weights.
    pub fn open(settings: &ModelSettings) -> Result<Self, Failure> {
        // Before anything runs in parallel: reading a model already does. Beside other engines
        // this thread may wait, and must not be one of those that do everybody's work.
        let Some(worker) = settings.worker else {
            return Err(Failure::input(anyhow!(
                "--worker: found the address of a server, expected auto, cpu or cuda: only qualify \
                 runs on servers"
            )));
        };
        if worker == Worker::Cpu && settings.others.is_empty() {
            claim_thread().map_err(Failure::worker)?;
        }
        let files = Arc::new(settings.model.open().map_err(model_failure)?);
        let geometry = files.config.geometry();
        let (protocol, data) = (&settings.protocol, &settings.data);
        let panels =
            panel::build(protocol, data, &files.tokenizer, &geometry).map_err(Failure::input)?;
        let longest = panels.longest(protocol.calibration.forced_tokens);
        let limits = protocol.resource_limits.as_ref();
        let needs = Needs {
            longest,
            most_bytes: limits.and_then(|limits| limits.peak_device_bytes),
        };
        let (engine, layout) = open_engine(worker, &files, needs).map_err(load_failure)?;
        let others = settings.others.iter();
        Ok(Prepared {
            panels,
            engine,
            layout,
            others: others
                .map(|worker| opener(*worker, &files, needs))
                .collect(),
        })
    }
}

/// What a run asks of its workers.
#[derive(Clone, Copy)]
struct Needs {
    /// Tokens of the longest sequence.
    longest: usize,
    /// Most memory of a GPU that may be in use, where the protocol says.
    most_bytes: Option<u64>,
}

fn open_engine(
    worker: Worker,
    files: &ModelFiles,
    needs: Needs,
) -> Result<(Box<dyn Engine>, BatchLayout), LoadError> {
    match worker {
        Worker::Cpu => {
            let engine = LocalEngine::cpu(files)?;
            let layout = engine.layout();
            Ok((Box::new(engine), layout))
        }
        Worker::Cuda { device } => {
            let engine = LocalEngine::cuda_for(files, device, needs.longest, needs.most_bytes)?;
            let layout = engine.layout();
            Ok((Box::new(engine), layout))
        }
    }
}

/// Opens the worker when it is needed; a failure names it.
fn opener(worker: Worker, files: &Arc<ModelFiles>, needs: Needs) -> Box<Open<'static>> {
    let files = Arc::clone(files);
    Box::new(move || {
        open_engine(worker, &files, needs).map_err(|error| {
            EngineError::Worker(match worker {
                Worker::Cpu => error.to_string(),
                Worker::Cuda { device } => format!("GPU {device}: {error}"),
            })
        })
    })
}

/// What a checkpoint asks and no worker applies is unsupported (3); anything else wrong with its
/// files is the user's (2).
pub(super) fn model_failure(error: ModelError) -> Failure {
    match error {
        ModelError::Unsupported { .. } => Failure::unsupported(error),
        ModelError::Io { .. } | ModelError::Invalid { .. } => Failure::input(error),
    }
}

/// Weights that are wrong are the user's (2); what a device cannot hold is the system's (4).
pub(super) fn load_failure(error: LoadError) -> Failure {
    match error {
        LoadError::Model(error) => model_failure(error),
        LoadError::Backend { .. } | LoadError::Activations(_) | LoadError::Device(_) => {
            Failure::worker(error)
        }
    }
}
