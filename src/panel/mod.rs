//! Panels: build, prompt, and the runner.

pub mod demo;
