//! `kvassay merge`: joins the parts of a run that was split.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::store::{self, MergeError, RunDir};

use super::issue::{self, Issued};
use super::output::SummaryArgs;
use super::{Exit, Failure, qualify};

/// Arguments of `kvassay merge`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run directories of all parts, in any order.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Run directory of the whole run.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// How the summary is given.
    #[command(flatten)]
    pub summary: SummaryArgs,
}

/// Joins the parts, issues the certificates of the whole run, and prints the summary: a survey, whose
/// objectives `kvassay certify DIR --require` asks for.
///
/// # Errors
/// Exit 2 for parts that do not belong together, 3 where one is missing or has not ended, 5 where the
/// records contradict themselves: there is no run then.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let outcome = merge(args, out);
    args.summary.annotated(outcome, out)
}

fn merge(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    args.summary.check(&[])?;
    let merged = store::merge(&args.runs, &args.out).map_err(failure)?;
    let dir = RunDir::open(&args.out).map_err(|error| qualify::failure(error.into()))?;
    let certificates = match issue::issue(&dir) {
        Ok(certificates) => certificates,
        Err(failure) => {
            merged.discard();
            return Err(failure);
        }
    };
    let issued = Issued {
        run: &args.out,
        stored: Some(&issue::certificates_folder(&args.out)),
        protocol: &dir.manifest().protocol,
        certificates: &certificates,
        required: &[],
        baselines: &[],
    };
    issue::present(&issued, &args.summary, out)
}

fn failure(error: MergeError) -> Failure {
    match error {
        MergeError::Store(error) => qualify::failure(error.into()),
        error if error.is_incomplete() => Failure {
            exit: Exit::Incomplete,
            error: error.into(),
        },
        error => Failure::input(error),
    }
}
