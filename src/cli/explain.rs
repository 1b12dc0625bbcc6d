//! `kvassay explain`: certificates in plain words.

use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::report::{self, Explanation};

use super::baseline::read_consistent;
use super::output::Format;
use super::{Exit, Failure};

/// Arguments of `kvassay explain`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Certificates.
    #[arg(value_name = "CERT.json", required = true)]
    certificates: Vec<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Explains certificates that follow from their own figures: exit 0 whatever they hold.
///
/// # Errors
/// Exit 2 for a certificate that cannot be read, 5 for one that contradicts itself: nothing is
/// explained then.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let explain = |path: &PathBuf| {
        let certificate = read_consistent(path)?;
        Ok(Explanation::of(&path.display().to_string(), &certificate))
    };
    let all = args.certificates.iter().map(explain);
    let all: Vec<Explanation> = all.collect::<Result<_, Failure>>()?;
    match args.format {
        Format::Json => report::write_explanations_json(&all, out)?,
        Format::Text => {
            for (number, explanation) in all.iter().enumerate() {
                if number > 0 {
                    writeln!(out, "\n")?;
                }
                explanation.write_text(report::TEXT_WIDTH, out)?;
            }
        }
    }
    Ok(Exit::Holds)
}
