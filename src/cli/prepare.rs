//! Opens what a run needs before anything is written: model, panels, engine.

use crate::backend::cpu::claim_thread;
use crate::engine::{BatchLayout, Engine, LocalEngine};
use crate::model::{LoadError, ModelError};
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
}

impl Prepared {
    /// Reads the model's small files, builds the panels, then loads the weights.
    pub fn open(settings: &ModelSettings) -> Result<Self, Failure> {
        // Before anything runs in parallel: reading a model already does.
        if settings.worker == Worker::Cpu {
            claim_thread().map_err(Failure::worker)?;
        }
        let files = settings.model.open().map_err(model_failure)?;
        let geometry = files.identity().geometry;
        let (protocol, data) = (&settings.protocol, &settings.data);
        let panels =
            panel::build(protocol, data, &files.tokenizer, &geometry).map_err(Failure::input)?;
        let (engine, layout): (Box<dyn Engine>, _) = match settings.worker {
            Worker::Cpu => {
                let engine = LocalEngine::cpu(files).map_err(load_failure)?;
                let layout = engine.layout();
                (Box::new(engine), layout)
            }
            Worker::Cuda { device } => {
                let engine = LocalEngine::cuda(files, device).map_err(load_failure)?;
                let layout = engine.layout();
                (Box::new(engine), layout)
            }
        };
        Ok(Prepared {
            panels,
            engine,
            layout,
        })
    }
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
