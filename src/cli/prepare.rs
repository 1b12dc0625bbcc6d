//! Opens what a run needs before anything is written: model, panels, engine.

use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::engine::{BatchLayout, Engine, LocalEngine, LocalIdentity, LocalSettings};
use crate::model::{self, Decoder, LoadError, ModelFiles};
use crate::panel::{self, BuiltPanels};
use crate::schema::WorkerIdentity;

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
        let files = model::open(&settings.model).map_err(Failure::input)?;
        let geometry = files.identity().geometry;
        let (protocol, data) = (&settings.protocol, &settings.data);
        let panels =
            panel::build(protocol, data, &files.tokenizer, &geometry).map_err(Failure::input)?;
        let local = LocalSettings::default();
        let engine = match settings.worker {
            Worker::Cpu => local_engine(files, CpuBackend::new(), "cpu", local),
        }
        .map_err(load_failure)?;
        Ok(Prepared {
            panels,
            engine,
            layout: local.layout,
        })
    }
}

fn local_engine<B: Backend + 'static>(
    files: ModelFiles,
    backend: B,
    kind: &str,
    settings: LocalSettings,
) -> Result<Box<dyn Engine>, LoadError> {
    let identity = LocalIdentity {
        model: files.identity(),
        worker: WorkerIdentity {
            kind: kind.to_owned(),
            device: backend.device(),
            arithmetic: backend.arithmetic(),
        },
    };
    let decoder = Decoder::load(files.config, files.weights.as_ref(), backend)?;
    let text = Box::new(files.tokenizer);
    let engine = LocalEngine::from_decoder(decoder, text, identity, settings)?;
    Ok(Box::new(engine))
}

/// Weights that are wrong are the user's (2); what a device cannot hold is the system's (4).
fn load_failure(error: LoadError) -> Failure {
    match error {
        LoadError::Model(_) => Failure::input(error),
        LoadError::Backend { .. } | LoadError::Activations(_) => Failure::worker(error),
    }
}
