//! Engines over opened model files.

use std::borrow::Borrow;

use crate::backend::cpu::CpuBackend;
use crate::backend::cuda::{CudaBackend, Expected, STEP_ROWS};
use crate::backend::{Backend, BackendError, Process};
use crate::model::{
    Decoder, LoadError, ModelConfig, ModelFiles, Tokenizer, parameters, weight_bytes,
};
use crate::schema::WorkerIdentity;

use super::footprint::{self, Least};
use super::{LocalEngine, LocalIdentity, LocalSettings, TokenText};

/// Sequences side by side on a GPU, the preferred first: the most that have room. Weights are read once
/// per step whatever its rows, and beyond these a step is bound by arithmetic. Fewer run where their pages
/// would not fit.
const CUDA_SLOTS: [usize; 3] = [STEP_ROWS, 1024, LEAST_SLOTS];
/// Sequences side by side on the smallest GPU.
const LEAST_SLOTS: usize = 512;
/// Cases that are handed over at once, at least: see [`LocalSettings::cases_per_slot`].
const CUDA_CASES: usize = 2048;
/// Longest sequences of built-in panels, in tokens.
const LONGEST: usize = 8192;

/// One over this part of the free memory may go to recurrent states.
const STATE_PART: usize = 4;

/// A weight of attention that every family has, and whose element type its queries have too.
fn attention_weight(config: &ModelConfig) -> String {
    let first = config.first_attention();
    format!("model.layers.{first}.self_attn.o_proj.weight")
}

/// Numbers of sequences side by side that have room for their recurrent states in a part of `free` bytes,
/// the preferred first.
fn slots(config: &ModelConfig, free: usize) -> Vec<usize> {
    let shapes = config.layers.iter().filter_map(|layer| layer.recurrent);
    let bytes: u64 = shapes.flat_map(|shape| shape.bytes()).sum();
    let fitting = (free / STATE_PART).checked_div(bytes as usize);
    let within = |slots: usize| fitting.map_or(slots, |fitting| slots.min(fitting.max(1)));
    let mut numbers = CUDA_SLOTS.map(within).to_vec();
    numbers.dedup();
    numbers
}

/// How messages name a device of which `total` bytes may be used, and what helps where they do not do.
fn bounded(device: &str, total: u64, most_bytes: Option<u64>) -> (String, &'static str) {
    match most_bytes.filter(|most| *most == total) {
        None => (device.to_owned(), "name another GPU by --device"),
        Some(most) => {
            let name = format!("{device} within the protocol's peak_device_bytes of {most}");
            (name, "take a protocol that allows more")
        }
    }
}

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
        let decoder = Decoder::load(files.config.clone(), files.weights.as_ref(), backend)?;
        // Files are being hashed until here.
        let identity = LocalIdentity {
            model: files.identity(),
            worker,
        };
        let text = Box::new(files.tokenizer.clone());
        LocalEngine::from_decoder(decoder, text, identity, settings)
    }
}

/// Whether the machine has the memory that the CPU worker needs for a model at least, as far as the
/// system says: a process that takes more is ended without a word.
///
/// # Errors
/// Says what is free, what is needed and for what.
pub(in crate::engine) fn check_cpu_memory(config: &ModelConfig) -> Result<(), LoadError> {
    let Some(memory) = Process::free_bytes().zip(Process::total_bytes()) else {
        return Ok(());
    };
    let weights = parameters(config).saturating_mul(size_of::<f32>() as u64);
    let tokens = config.context.clamp(1, LONGEST);
    let least = Least::new(config, weights, 1, tokens);
    least
        .check("cpu", memory, "take a machine with more or a GPU")
        .map_err(|what| LoadError::Device(BackendError::Device(what)))
}

impl LocalEngine<CpuBackend> {
    /// The built-in CPU worker.
    ///
    /// # Errors
    /// As [`LocalEngine::new`].
    pub fn cpu(files: impl Borrow<ModelFiles>) -> Result<Self, LoadError> {
        check_cpu_memory(&files.borrow().config)?;
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
    /// As [`LocalEngine::cuda_for`] with sequences of up to 8,192 tokens, the longest of built-in
    /// panels, in all of the GPU's memory.
    ///
    /// # Errors
    /// As [`LocalEngine::cuda_for`].
    pub fn cuda(files: impl Borrow<ModelFiles>, device: usize) -> Result<Self, LoadError> {
        Self::cuda_for(files, device, LONGEST, None)
    }

    /// The built-in worker on GPU number `device`, for sequences of up to `longest`
    /// tokens, with at most `most_bytes` of the GPU's memory in use. Up to 1,536 sequences run side by
    /// side, as many as have room for the pages and states that each may need; prompts run in passes of
    /// up to 8,192 tokens, as memory allows.
    ///
    /// # Errors
    /// As [`LocalEngine::new`], and what is missing for a GPU: also the memory, before anything is
    /// loaded.
    pub fn cuda_for(
        files: impl Borrow<ModelFiles>,
        device: usize,
        longest: usize,
        most_bytes: Option<u64>,
    ) -> Result<Self, LoadError> {
        let files = files.borrow();
        let tokens = files.config.context.min(longest).max(1);
        let (config, weights) = (&files.config, files.weights.as_ref());
        let expected = Expected {
            head_dim: config.widest(|layer| layer.head_dim),
            native: config.native_dtype,
            exact: weights.element_bytes(&attention_weight(config)) == size_of::<f32>() as u64,
        };
        let mut backend = CudaBackend::expecting(device, expected).map_err(LoadError::Device)?;
        backend.keep_within(most_bytes);
        let worker = WorkerIdentity {
            kind: "cuda".to_owned(),
            device: backend.device(),
            arithmetic: backend.arithmetic(),
        };
        let weights = weight_bytes(config, weights);
        let (free, total) = backend.memory().map_err(LoadError::Device)?;
        let (name, remedy) = bounded(&worker.device, total as u64, most_bytes);
        Least::new(config, weights, LEAST_SLOTS, tokens)
            .check(&name, (free as u64, total as u64), remedy)
            .map_err(|what| LoadError::Device(BackendError::Device(what)))?;
        let mut engine = LocalEngine::new(files, backend, worker, LocalSettings::default())?;
        let (free, _) = engine
            .decoder
            .backend()
            .memory()
            .map_err(LoadError::Device)?;
        let config = engine.decoder.config();
        let layout = footprint::fitting(config, &slots(config, free), tokens, free);
        engine.settings = LocalSettings {
            layout,
            cases_per_slot: CUDA_CASES.div_ceil(layout.slots),
        };
        Ok(engine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{builtin_shape, read_config};

    #[test]
    fn states_bound_the_sequences_side_by_side() {
        let attending = builtin_shape("qwen3-8b").unwrap().unwrap();
        assert_eq!(slots(&attending, 0), [1536, 1024, 512]);
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/fixtures/parity/qwen3_5/config.json"
        );
        let recurrent = read_config(path.as_ref()).unwrap();
        let shapes = recurrent.layers.iter().filter_map(|layer| layer.recurrent);
        let bytes: u64 = shapes.flat_map(|shape| shape.bytes()).sum();
        let with_room = |sequences: u64| slots(&recurrent, (4 * sequences * bytes) as usize);
        assert_eq!(with_room(2000), [1536, 1024, 512]);
        assert_eq!(with_room(1100), [1100, 1024, 512]);
        assert_eq!(with_room(600), [600, 512]);
        assert_eq!(with_room(7), [7]);
        assert_eq!(with_room(0), [1]);
    }

    #[test]
    fn a_limit_of_the_protocol_is_named_where_it_binds() {
        let (name, remedy) = bounded("a GPU", 80, None);
        assert_eq!(
            (name.as_str(), remedy),
            ("a GPU", "name another GPU by --device")
        );
        assert_eq!(bounded("a GPU", 80, Some(100)), (name, remedy));
        let (name, remedy) = bounded("a GPU", 20, Some(20));
        assert_eq!(name, "a GPU within the protocol's peak_device_bytes of 20");
        assert_eq!(remedy, "take a protocol that allows more");
    }
}
