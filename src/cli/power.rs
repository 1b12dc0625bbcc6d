//! `kvassay power`: how likely rules pass before a run, and what they lacked after one.

mod after;
mod before;

use std::io::Write;
use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs};

use super::output::{Format, write_json, write_table};
use super::values::{parse_change, parse_margin, parse_rate};
use super::{Exit, Failure};

/// Schema of the JSON document.
const SCHEMA: &str = "kvassay.power/1";

/// Arguments of `kvassay power`.
#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("subject").required(true).args(["protocol", "run", "certificate"])))]
pub struct Args {
    /// Before a run: built-in protocol, or a TOML or JSON file.
    #[arg(long, value_name = "NAME|PATH")]
    protocol: Option<String>,
    /// After a run: its directory; what each rule that did not pass would need.
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,
    /// The same from one certificate that follows from its own figures, without its run.
    #[arg(long, value_name = "CERT.json")]
    certificate: Option<PathBuf>,
    /// Output.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    assumed: Assumed,
}

/// What is assumed before a run. Without any of it, a table over loss rates is printed.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Assumptions, with --protocol")]
struct Assumed {
    /// Math questions, instead of the protocol's number.
    #[arg(long, conflicts_with_all = ["run", "certificate"], value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,
    /// Rate of math questions that the candidate loses: 0.5% or 0.005.
    #[arg(long, conflicts_with_all = ["run", "certificate"], value_name = "RATE",
          allow_hyphen_values = true, value_parser = parse_rate)]
    loss: Option<f64>,
    /// Rate of math questions that it gains; 0 if left out.
    #[arg(long, requires = "loss", value_name = "RATE", allow_hyphen_values = true,
          value_parser = parse_rate)]
    gain: Option<f64>,
    /// Rate of retrieval cases that it loses, at each length.
    #[arg(long, conflicts_with_all = ["run", "certificate"], value_name = "RATE",
          allow_hyphen_values = true, value_parser = parse_rate)]
    retrieval_loss: Option<f64>,
    /// Mean increase of NLL relative to the control's, at each length: 0.1% or -0.001.
    #[arg(long, requires = "nll_sd", conflicts_with_all = ["run", "certificate"],
          value_name = "CHANGE", allow_hyphen_values = true, value_parser = parse_change)]
    nll_increase: Option<f64>,
    /// Standard deviation of that increase over documents.
    #[arg(long, requires = "nll_increase", value_name = "SD", allow_hyphen_values = true,
          value_parser = parse_margin)]
    nll_sd: Option<f64>,
    /// The control's accuracy on math, for the rule that it must answer enough.
    #[arg(long, conflicts_with_all = ["run", "certificate"], value_name = "RATE",
          allow_hyphen_values = true, value_parser = parse_rate)]
    control_accuracy: Option<f64>,
    /// The control's accuracy on retrieval.
    #[arg(long, conflicts_with_all = ["run", "certificate"], value_name = "RATE",
          allow_hyphen_values = true, value_parser = parse_rate)]
    retrieval_accuracy: Option<f64>,
}

/// Runs the command. Nothing is required: it exits 0 whatever the probabilities are.
///
/// # Errors
/// Exit 2 for assumptions that no run can have, and for a protocol, a run or a certificate that
/// cannot be read; 5 for a certificate that contradicts itself; as `kvassay certify` for a run that has no certificates.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match (&args.protocol, &args.run, &args.certificate) {
        (Some(protocol), _, _) => before::run(protocol, &args.assumed, args.format, out)?,
        (_, Some(run), _) => after::of_run(run, args.format, out)?,
        (_, _, Some(certificate)) => after::of_certificate(certificate, args.format, out)?,
        // clap requires one of the three.
        (None, None, None) => {}
    }
    Ok(Exit::Holds)
}

/// A limit with its unit: points for differences of proportions, per cent for the others.
fn limit_text(rule: &str, limit: f64) -> String {
    let unit = if rule == "net_change" { " pp" } else { "%" };
    format!("{:+}{unit}", super::protocol::percent(limit))
}
