//! `kvassay completions`: completion scripts of shells.

use std::io::Write;

use clap::{Args as ClapArgs, CommandFactory};
use clap_complete::{Shell, generate};

use super::{Cli, Exit, Failure};

/// Arguments of `kvassay completions`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// Exit 4 where it cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut command = Cli::command();
    // Into memory first: the generator cannot say that a pipe was closed.
    let mut script = Vec::new();
    generate(args.shell, &mut command, "kvassay", &mut script);
    out.write_all(&script)?;
    Ok(Exit::Holds)
}
