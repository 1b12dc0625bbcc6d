//! `kvassay certify`: recomputes the certificates of a run.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::store::RunDir;

use super::issue;
use super::output::Format;
use super::{Exit, Failure, qualify};

/// Arguments of `kvassay certify`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Form of the summary on stdout.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Recomputes every certificate from the run directory, stores it there, and prints the summary.
/// Nothing is required: it exits 0 where every certificate could be issued on complete evidence.
///
/// # Errors
/// [`Failure`] where the run directory cannot be read or written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let dir = RunDir::open(&args.run).map_err(|error| qualify::failure(error.into()))?;
    let certificates = issue::issue(&dir)?;
    let protocol = &dir.manifest().protocol;
    issue::summarise(&args.run, protocol, &certificates, &[], args.format, out)
}
