//! Engines over opened model files.

use std::borrow::Borrow;

use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::backend::cuda::CudaBackend;
use crate::model::{Decoder, LoadError, ModelFiles, Tokenizer};
use crate::recipe::{CacheShape, Recipe, bytes_per_token};
use crate::schema::WorkerIdentity;

use super::{BatchLayout, LocalEngine, LocalIdentity, LocalSettings, TokenText};

/// Most sequences side by side on a GPU, and prompt tokens per pass.
const CUDA_LAYOUT: BatchLayout = BatchLayout {
    slots: 256,
    prefill_chunk: 2048,
};
/// Longest sequences of built-in panels, in tokens.
const LONGEST: usize = 8192;
/// Share of the memory beside the weights that caches may take.
const CACHE_SHARE: f64 = 0.8;

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
        files: impl Borrow<ModelFiles>,
        backend: B,
        worker: WorkerIdentity,
        settings: LocalSettings,
    ) -> Result<Self, LoadError> {
        let files = files.borrow();
        let identity = LocalIdentity {
            model: files.identity(),
            worker,
        };
        let decoder = Decoder::load(files.config.clone(), files.weights.as_ref(), backend)?;
        let text = Box::new(files.tokenizer.clone());
        LocalEngine::from_decoder(decoder, text, identity, settings)
    }
}

impl LocalEngine<CpuBackend> {
    /// The built-in CPU worker.
    ///
    /// # Errors
    /// As [`LocalEngine::new`].
    pub fn cpu(files: impl Borrow<ModelFiles>) -> Result<Self, LoadError> {
        let backend = CpuBackend::new();
        let worker = WorkerIdentity {
            kind: "cpu".to_owned(),
            device: backend.device(),
            arithmetic: backend.arithmetic(),
        };
        LocalEngine::new(files, backend, worker, LocalSettings::default())
    }
}

impl LocalEngine<CudaBackend> {
    /// The built-in worker on GPU number `device`. As many sequences run side by side as have room
    /// at 8,192 tokens (or the model's context) each, up to 256.
    ///
    /// # Errors
    /// As [`LocalEngine::new`], and what is missing for a GPU.
    pub fn cuda(files: impl Borrow<ModelFiles>, device: usize) -> Result<Self, LoadError> {
        let backend = CudaBackend::new(device).map_err(LoadError::Device)?;
        let worker = WorkerIdentity {
            kind: "cuda".to_owned(),
            device: backend.device(),
            arithmetic: backend.arithmetic(),
        };
        let settings = LocalSettings {
            layout: CUDA_LAYOUT,
            ..LocalSettings::default()
        };
        let mut engine = LocalEngine::new(files, backend, worker, settings)?;
        let backend = engine.decoder.backend();
        let (free, _) = backend.memory().map_err(LoadError::Device)?;
        let config = engine.decoder.config();
        let shape = CacheShape {
            layers: config.layers as u32,
            kv_heads: config.kv_heads as u32,
            head_dim: config.head_dim as u32,
        };
        let token = bytes_per_token(&Recipe::native(), &shape) as usize;
        let tokens = (free as f64 * CACHE_SHARE) as usize / token.max(1);
        let slots = tokens / config.context.clamp(1, LONGEST);
        engine.settings.layout.slots = slots.clamp(1, CUDA_LAYOUT.slots);
        Ok(engine)
    }
}
