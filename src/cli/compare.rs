//! `kvassay compare`: contrasts between the arms of runs.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};

use crate::certify::{self, ContrastError, Evidence, GivenRun};
use crate::report;
use crate::store::RunDir;

use super::issue::certify_failure;
use super::{Exit, Failure, qualify};

/// Arguments of `kvassay compare`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run directories of one protocol, one per model.
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Show this contrast, e.g. AF-RF; may be repeated [default: every declared one]. Families stay
    /// as declared; a contrast that the protocol does not declare is descriptive.
    #[arg(long = "contrast", value_name = "A-B")]
    pub contrasts: Vec<String>,
    /// Output.
    #[arg(long, value_enum, default_value_t)]
    pub format: CompareFormat,
}

/// Forms of a comparison. Nothing in it passes or fails, so that there is no JUnit report of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CompareFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// Markdown for a pull request.
    Markdown,
}

/// Compares arms within each run and adjusts over the protocol's families. Nothing is required of
/// the result: it exits 0 where every contrast asked for could be computed, else 3.
///
/// # Errors
/// [`Failure`]: runs that do not belong together or no such arm (2), evidence that contradicts
/// itself (5), native that differs from native (4).
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let evidence = args
        .runs
        .iter()
        .map(|path| load(path))
        .collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = args
        .runs
        .iter()
        .map(|path| path.display().to_string().trim_end_matches('/').to_owned())
        .collect();
    let given: Vec<GivenRun<'_>> = names
        .iter()
        .zip(&evidence)
        .map(|(run, evidence)| GivenRun { run, evidence })
        .collect();
    let comparison = certify::contrasts(&given, &args.contrasts).map_err(failure)?;
    let exit = if comparison.missing.is_empty() {
        Exit::Holds
    } else {
        Exit::Incomplete
    };
    match args.format {
        CompareFormat::Text => report::write_comparison_text(&comparison, report::TEXT_WIDTH, out)?,
        CompareFormat::Markdown => report::write_comparison_markdown(&comparison, out)?,
        CompareFormat::Json => report::write_comparison_json(&comparison, exit.code(), out)?,
    }
    Ok(exit)
}

fn load(path: &Path) -> Result<Evidence, Failure> {
    let dir = RunDir::open(path).map_err(|error| qualify::failure(error.into()))?;
    certify::load(&dir).map_err(|error| of_run(&path.display().to_string(), error))
}

fn failure(error: ContrastError) -> Failure {
    match error {
        ContrastError::Certify { run, source } => of_run(&run, *source),
        other => Failure::input(other),
    }
}

fn of_run(run: &str, error: certify::CertifyError) -> Failure {
    let Failure { exit, error } = certify_failure(error);
    Failure {
        exit,
        error: error.context(run.to_owned()),
    }
}
