//! `kvassay badge`: the verdict of a certificate as SVG.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, ValueEnum};

use crate::report;
use crate::schema::{Certificate, ObjectiveName};
use crate::store;

use super::baseline::read_consistent;
use super::output::{Kind, Output};
use super::{Exit, Failure, qualify};

/// Arguments of `kvassay badge`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Certificate.
    #[arg(value_name = "CERT.json")]
    certificate: PathBuf,
    /// Objective whose verdict it shows.
    #[arg(long, value_enum, default_value_t)]
    objective: Objective,
    /// Where the SVG is written, a new file or an earlier badge; without it, it goes to stdout.
    #[arg(long, value_name = "FILE.svg")]
    out: Option<PathBuf>,
}

/// Values of `--objective`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Objective {
    /// gross_loss, nll and retrieval.
    #[default]
    Preservation,
    /// net_change, nll and retrieval.
    Aggregate,
}

impl Objective {
    fn name(self) -> ObjectiveName {
        match self {
            Objective::Preservation => ObjectiveName::Preservation,
            Objective::Aggregate => ObjectiveName::Aggregate,
        }
    }
}

/// Draws the badge of a certificate that follows from its own figures: exit 0 whatever it holds.
///
/// # Errors
/// Exit 2 for a certificate that cannot be read and for a file in the badge's place that is none, 5 for
/// a certificate that contradicts itself, 4 where the file cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    if let Some(path) = &args.out {
        let output = Output {
            option: "--out",
            path,
            kind: Kind::Badge,
        };
        output.check(std::slice::from_ref(&args.certificate))?;
    }
    let certificate = read_consistent(&args.certificate)?;
    match &args.out {
        Some(path) => draw(&certificate, args.objective.name(), path)?,
        None => report::write_badge(&certificate, args.objective.name(), out)?,
    }
    Ok(Exit::Holds)
}

/// Draws the badge of a certificate into a file.
///
/// # Errors
/// Exit 4 where it cannot be written.
fn draw(certificate: &Certificate, objective: ObjectiveName, path: &Path) -> Result<(), Failure> {
    let mut svg = Vec::new();
    report::write_badge(certificate, objective, &mut svg)?;
    store::write_atomic(path, &svg).map_err(|error| qualify::failure(error.into()))
}
