//! Models of every kind through the public interface, on the CPU and, where there is one, on a GPU.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // Helpers outside of test functions.

mod engagement;
mod engine;
mod experts;
mod gemma3;
mod gemma4;
mod invariance;
mod parity;
mod recurrent;
mod smollm2;
mod verification;
mod windows;

#[path = "../support/mod.rs"]
mod support;
