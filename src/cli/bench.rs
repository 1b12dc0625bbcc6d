//! `kvassay bench`: how fast this machine does a worker's work.

mod worker;

use std::io::Write;

use clap::{Args as ClapArgs, Subcommand};

use super::{Exit, Failure};

/// Arguments of `kvassay bench`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Time a built-in worker on seeded random weights of a model's shape.
    Worker(worker::Args),
}

/// Runs the command.
///
/// # Errors
/// Those of the subcommand.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.command {
        Command::Worker(args) => worker::run(args, out),
    }
}
