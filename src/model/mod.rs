//! Model config, weights, tokenizer, chat template and the decoder forward pass.

mod config;
mod decoder;
pub mod rotary;
mod weights;

pub use config::*;
pub use decoder::*;
pub use weights::*;
