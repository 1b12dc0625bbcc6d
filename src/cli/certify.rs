//! `kvassay certify`: recomputes the certificates of a run.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;

use crate::schema::{Certificate, ObjectiveName};
use crate::store::{RunDir, write_json_atomic};

use super::baseline::BaselineArgs;
use super::issue::{self, Issued};
use super::output::{SummaryArgs, make_folder};
use super::qualify::Require;
use super::{Exit, Failure, protocol, qualify};

/// Arguments of `kvassay certify`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run directory.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Judge the records under another protocol than the run's own: descriptive, never a pass. The
    /// run's certificates stay as they are.
    #[arg(long, value_name = "NAME|PATH", conflicts_with = "baseline")]
    pub protocol: Option<String>,
    /// Where certificates under another protocol are written; without it they are printed only.
    #[arg(long, value_name = "DIR", requires = "protocol")]
    pub out: Option<PathBuf>,
    /// Objective that every recipe of the run must hold; with none the exit code says whether the
    /// evidence is complete.
    #[arg(long, value_enum)]
    pub require: Option<Require>,
    /// Earlier certificates.
    #[command(flatten)]
    pub baselines: BaselineArgs,
    /// How the summary is given.
    #[command(flatten)]
    pub summary: SummaryArgs,
}

impl Args {
    fn required(&self) -> Vec<ObjectiveName> {
        self.require.map_or_else(Vec::new, Require::objectives)
    }
}

/// Recomputes every certificate from the run directory, stores it there, and prints the summary.
/// Where nothing is required, it exits 0 if every certificate could be issued on complete
/// evidence.
///
/// # Errors
/// [`Failure`] where the run directory cannot be read or written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let outcome = certify(args, out);
    args.summary.annotated(outcome, out)
}

fn certify(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    args.summary.check(args.baselines.paths())?;
    if let Some(protocol) = &args.protocol {
        return judge(args, protocol, out);
    }
    let baselines = args.baselines.read()?;
    let dir = open(&args.run)?;
    baselines.check(dir.manifest(), &args.run)?;
    let certificates = issue::issue(&dir)?;
    let issued = Issued {
        run: &args.run,
        stored: Some(&issue::certificates_folder(&args.run)),
        protocol: &dir.manifest().protocol,
        certificates: &certificates,
        required: &args.required(),
        baselines: &baselines.compare(dir.manifest(), &certificates)?,
    };
    issue::present(&issued, &args.summary, out)
}

fn open(run: &Path) -> Result<RunDir, Failure> {
    RunDir::open(run).map_err(|error| qualify::failure(error.into()))
}

/// The records under a protocol that came after them.
fn judge(args: &Args, protocol: &str, out: &mut dyn Write) -> Result<Exit, Failure> {
    let protocol = protocol::load(protocol).map_err(Failure::input)?;
    let dir = open(&args.run)?;
    let certificates = issue::judge_under(&dir, &protocol)?;
    if let Some(folder) = &args.out {
        write(folder, &args.run, &certificates)?;
    }
    let stored = args.out.as_ref().map(|folder| folder.display().to_string());
    let issued = Issued {
        run: &args.run,
        stored: stored.as_deref(),
        protocol: &protocol,
        certificates: &certificates,
        required: &args.required(),
        baselines: &[],
    };
    issue::present(&issued, &args.summary, out)
}

/// Writes the certificates into a folder outside of the run, and replaces nothing.
fn write(folder: &Path, run: &Path, certificates: &[Certificate]) -> Result<(), Failure> {
    let shown = folder.display();
    let context = || format!("--out {shown}");
    if lies_in(folder, run)
        .with_context(context)
        .map_err(Failure::input)?
    {
        return Err(Failure::input(anyhow!(
            "--out {shown}: found a folder of the run, expected one outside of it: its own certificates stand under its own protocol"
        )));
    }
    make_folder("--out", folder)?;
    let paths = certificates
        .iter()
        .map(|certificate| folder.join(format!("{}.json", certificate.recipe.name)));
    let paths: Vec<PathBuf> = paths.collect();
    if let Some(taken) = paths.iter().find(|path| path.exists()) {
        return Err(Failure::input(anyhow!(
            "{}: found a file there, expected none: nothing is replaced",
            taken.display()
        )));
    }
    for (path, certificate) in paths.iter().zip(certificates) {
        write_json_atomic(path, certificate).map_err(|error| qualify::failure(error.into()))?;
    }
    Ok(())
}

/// Whether `path` is `folder` or lies in it; neither need exist.
pub(super) fn lies_in(path: &Path, folder: &Path) -> std::io::Result<bool> {
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(real(path)?.starts_with(folder))
}

/// What `path` leads to, or its nearest folder that exists.
pub(super) fn real(path: &Path) -> std::io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    // A descriptor of a pipe, as /dev/stdout may be one, leads to no path: its folder counts.
    let mut real = whole
        .ancestors()
        .filter_map(|path| path.canonicalize().ok());
    real.next()
        .ok_or_else(|| std::io::ErrorKind::NotFound.into())
}
