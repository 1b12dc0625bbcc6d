//! Command line: arguments, settings, exit codes.
//!
//! Parse, resolve, run: argument structs do no I/O, each command turns them into settings and
//! hands those down. Data goes to the `out` writer (stdout), diagnostics to stderr.

mod exit;
mod geometry;
mod memory;
mod output;
mod protocol;
mod size;

use std::io::Write;

use clap::{Parser, Subcommand};

pub use exit::{Exit, Failure};

/// Tests a KV-cache recipe of a language model against the native cache and issues certificates.
#[derive(Debug, Parser)]
#[command(name = "kvassay", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What a cache budget holds under each recipe.
    Memory(memory::Args),
    /// List and show protocols.
    Protocol(protocol::Args),
}

/// Runs the command line of this process and returns its exit code.
pub fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::clap_exit(&error),
    };
    let mut out = std::io::stdout().lock();
    let outcome = run(&cli, &mut out);
    exit::finish(outcome, &mut out, &mut std::io::stderr())
}

fn run(cli: &Cli, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &cli.command {
        Command::Memory(args) => memory::run(args, out),
        Command::Protocol(args) => protocol::run(args, out),
    }
}
