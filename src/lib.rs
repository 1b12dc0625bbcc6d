//! kvassay tests a KV-cache recipe of a language model against the native cache, question by
//! question, and issues certificates that anyone can recompute.
//!
//! The modules form layers; each may use only those above it in this list, which
//! `tests/layering.rs` enforces.

pub mod stats;
pub mod recipe;
pub mod score;
pub mod schema;
pub mod store;
pub mod certify;
pub mod backend;
pub mod model;
pub mod engine;
pub mod panel;
pub mod import;
pub mod report;
pub mod cli;
