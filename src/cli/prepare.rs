//! Opens what a run needs before anything is written: model, panels, engine.

use crate::backend::cpu::CpuBackend;
use crate::engine::{BatchLayout, Engine, LocalEngine};
use crate::model;
use crate::panel::{self, BuiltPanels};

use super::Failure;
use super::resolve::{ModelSettings, Worker};

/// Batch layout of the CPU worker: enough rows for its matrix products, little memory.
pub(super) const BATCH_LAYOUT: BatchLayout = BatchLayout {
    slots: 16,
    prefill_chunk: 256,
};

/// A model on its worker, with the protocol's panels for its tokenizer.
pub(super) struct Prepared {
    /// Panels, calibration documents, probe.
    pub panels: BuiltPanels,
    /// The worker.
    pub engine: Box<dyn Engine>,
}

impl Prepared {
    /// Reads the model, builds the panels, then loads the weights.
    pub fn open(settings: &ModelSettings) -> Result<Self, Failure> {
        let files = model::open(&settings.model).map_err(Failure::input)?;
        let geometry = files.identity().geometry;
        let panels = panel::build(
            &settings.protocol,
            &settings.data,
            &files.tokenizer,
            &geometry,
        )
        .map_err(Failure::input)?;
        let engine: Box<dyn Engine> = match settings.worker {
            Worker::Cpu => Box::new(LocalEngine::cpu(files).map_err(Failure::worker)?),
        };
        Ok(Prepared { panels, engine })
    }
}
