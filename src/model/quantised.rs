//! Weights that a checkpoint stores in few bits, and how they become numbers again.
//!
//! A matrix `[out, in]` is stored as codes with scales: INT4 of AutoAWQ in its two packing orders,
//! INT4 and INT8 of compressed-tensors, E4M3 with one scale per tensor, channel or block. Every code
//! stands for `(code - zero) * scale`, computed in f32 and rounded once to the type that the config
//! names. What is stored decides, tensor by tensor; the config gives what the tensors alone do not
//! say, and where both speak they must agree.

mod attention;
mod config;
mod dequantise;
mod find;
mod form;
mod matrix;
#[cfg(test)]
mod tests;

use super::ModelError;
use super::fields::{Fields, parse_object};

pub(crate) use attention::{CacheScales, find_cache_scales};
pub(crate) use config::{Quantisation, of_config};
pub(crate) use find::{Found, Stored, find};
pub(crate) use form::NumberType;

/// Reads how weights are stored from the text of a `config.json`; `path` is for messages.
///
/// # Errors
/// As [`of_config`], and for text that is no JSON object.
pub(crate) fn of_text(path: &str, text: &[u8]) -> Result<Option<Quantisation>, ModelError> {
    of_config(Fields::new(path, &parse_object(path, text)?))
}
