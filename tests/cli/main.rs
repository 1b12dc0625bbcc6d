//! The command line through the binary: a module for each command, and for what several share.

#![allow(clippy::print_stdout, clippy::unwrap_used)] // Helpers outside of test functions.

mod bench;
mod checkpoint;
mod command;
mod compare;
mod doctor;
mod exits;
mod import;
mod memory;
mod merge;
mod order;
mod outputs;
mod panel;
mod power;
mod protocol;
mod protocols;
mod qualify;
mod recompute;
mod stats;

#[path = "../verify/synthetic.rs"]
mod synthetic;
#[path = "../tiny/mod.rs"]
mod tiny;
