//! `kvassay bench`: how fast this machine does a worker's work, and the statistics.

mod stats;
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
    /// Time the statistics of certificates at their sizes.
    Stats(stats::Args),
}

/// Runs the command.
///
/// # Errors
/// Those of the subcommand.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.command {
        Command::Worker(args) => worker::run(args, out),
        Command::Stats(args) => stats::run(args, out),
    }
}

/// A duration in the unit that suits it.
fn time(seconds: f64) -> String {
    if seconds < 1e-3 {
        format!("{:7.1} us", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:7.2} ms", seconds * 1e3)
    } else {
        format!("{seconds:7.2} s ")
    }
}
