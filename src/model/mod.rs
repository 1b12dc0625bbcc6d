//! Model config, weights, tokenizer, chat template and the decoder forward pass.

mod config;
mod weights;

pub use config::*;
pub use weights::*;
