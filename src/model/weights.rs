//! The seam between weight files and backends.

use crate::backend::{Codes, StoredNumbers, TensorData};
use crate::schema::{FileDigest, QuantisedCheckpoint};

use super::ModelConfig;
use super::tensors::expected;

/// Weights by their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`), whatever file
/// they come from; rows of projections are output features (`[out, in]`).
pub trait WeightSource {
    /// Reads one tensor, checks its shape and that every element is finite.
    ///
    /// # Errors
    /// Names the file and tensor, what was found and what was expected.
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError>;

    /// A matrix as the codes that the checkpoint stores for it, unless it stores numbers. Whether the
    /// numbers are finite is open.
    ///
    /// # Errors
    /// As [`WeightSource::load`].
    fn codes(&self, _name: &str, _shape: &[usize]) -> Result<Option<Codes<'_>>, ModelError> {
        Ok(None)
    }

    /// A matrix as the checkpoint stores it, where it stores the very numbers that [`WeightSource::load`]
    /// gives. Whether they are finite is open.
    ///
    /// # Errors
    /// As [`WeightSource::load`].
    fn numbers(
        &self,
        _name: &str,
        _shape: &[usize],
    ) -> Result<Option<StoredNumbers<'_>>, ModelError> {
        Ok(None)
    }

    /// Whether a tensor of that name exists.
    fn contains(&self, name: &str) -> bool;

    /// Bytes of one element of a tensor as it is loaded: at most 4, which f32 takes.
    fn element_bytes(&self, _name: &str) -> u64 {
        4
    }

    /// Bytes of the weight files; 0 for weights that come from no file.
    fn stored_bytes(&self) -> u64 {
        0
    }

    /// What the checkpoint stores otherwise than as plain numbers.
    fn quantised(&self) -> Option<QuantisedCheckpoint> {
        None
    }

    /// Digests of the weight files, sorted by path.
    fn files(&self) -> &[FileDigest];
}

/// Bytes of all weights of a model on a device: projections and embeddings in their own element
/// type, norms and biases in f32.
pub fn weight_bytes(config: &ModelConfig, weights: &dyn WeightSource) -> u64 {
    let bytes = |(name, shape): (String, Vec<usize>)| {
        let element = match shape.len() {
            1 => 4,
            _ => weights.element_bytes(&name),
        };
        elements(&shape).saturating_mul(element)
    };
    let tensors = expected(config).into_iter();
    tensors.map(bytes).fold(0, u64::saturating_add)
}

/// Numbers of all tensors of a model.
pub fn parameters(config: &ModelConfig) -> u64 {
    let tensors = expected(config).into_iter();
    let counts = tensors.map(|(_, shape)| elements(&shape));
    counts.fold(0, u64::saturating_add)
}

fn elements(shape: &[usize]) -> u64 {
    shape.iter().map(|&side| side as u64).product()
}

/// What is wrong with a model's files.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// File.
        path: String,
        /// Cause.
        source: std::io::Error,
    },
    /// A file says something wrong.
    #[error("{path}: {what}: found {found}, expected {expected}")]
    Invalid {
        /// File.
        path: String,
        /// What part of it.
        what: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The files ask for something that is not applied; never ignored silently.
    #[error("{path}: unsupported: {what}")]
    Unsupported {
        /// File.
        path: String,
        /// What is asked, by its name in the file.
        what: String,
    },
}
