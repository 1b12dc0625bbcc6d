//! Model config, weights, tokenizer, chat template and the decoder forward pass.

mod config;
mod decoder;
mod demo;
mod error;
mod fields;
mod file_bytes;
mod files;
mod gguf;
mod hf_config;
mod noise;
mod quantised;
mod regular;
pub mod rotary;
mod safetensors;
mod tensors;
mod tokenizer;
mod weights;

pub use config::*;
pub use decoder::{Decoder, LoadError, Workspace};
pub use demo::{DemoModel, ModelSource};
pub use files::{ModelFiles, ModelText, open};
pub use gguf::GgufWeights;
pub(crate) use hf_config::layer_geometry;
pub use hf_config::{builtin_shape, read_config};
pub use noise::NoiseWeights;
pub(crate) use regular::read_file;
pub use safetensors::SafetensorsWeights;
pub use tokenizer::Tokenizer;
pub use weights::*;
