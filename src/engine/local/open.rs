//! Engines over opened model files.

use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::model::{Decoder, LoadError, ModelFiles, Tokenizer};
use crate::schema::WorkerIdentity;

use super::{LocalEngine, LocalIdentity, LocalSettings, TokenText};

impl TokenText for Tokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        Tokenizer::decode(self, ids)
    }

    fn eos_ids(&self) -> &[u32] {
        Tokenizer::eos_ids(self)
    }
}

impl<B: Backend> LocalEngine<B> {
    /// Loads a model's weights onto `backend`.
    ///
    /// # Errors
    /// What is wrong with a tensor, or what the backend reports.
    pub fn new(
        files: ModelFiles,
        backend: B,
        worker: WorkerIdentity,
        settings: LocalSettings,
    ) -> Result<Self, LoadError> {
        let identity = LocalIdentity {
            model: files.identity(),
            worker,
        };
        let decoder = Decoder::load(files.config, files.weights.as_ref(), backend)?;
        LocalEngine::from_decoder(decoder, Box::new(files.tokenizer), identity, settings)
    }
}

impl LocalEngine<CpuBackend> {
    /// The built-in CPU worker.
    ///
    /// # Errors
    /// As [`LocalEngine::new`].
    pub fn cpu(files: ModelFiles) -> Result<Self, LoadError> {
        let backend = CpuBackend::new();
        let worker = WorkerIdentity {
            kind: "cpu".to_owned(),
            device: backend.device(),
            arithmetic: backend.arithmetic(),
        };
        LocalEngine::new(files, backend, worker, LocalSettings::default())
    }
}
