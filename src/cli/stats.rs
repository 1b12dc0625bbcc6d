//! `kvassay stats`: one statistic from flags, or many from JSON lines.

mod batch;
mod request;

use std::io::Write;

use clap::Subcommand;
use serde_json::Value;

use super::exit::UntilClosed;
use super::output::{Format, write_json};
use super::{Exit, Failure};
use request::Request;

/// Arguments of `kvassay stats`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    method: Method,
    /// Output of a single method; a batch is always JSON lines.
    #[arg(long, value_enum, global = true)]
    format: Option<Format>,
}

#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
enum Method {
    #[command(flatten)]
    One(Request),
    /// Read JSON lines from standard input and answer each with one JSON line.
    ///
    /// A line names a `method` and its inputs as fields, and may carry an `id` of any type, which is
    /// echoed: {"id":1,"method":"clopper_pearson_upper","k":6,"n":1319,"alpha":0.05}. A line that
    /// cannot be computed is answered with an `error`, and the exit code is 2 at the end.
    Batch,
}

/// Computes what was asked for.
///
/// # Errors
/// Exit 2 where a single statistic is outside its domain or a batch is asked for as text, exit 4
/// where streams fail. A batch with unanswerable lines is not an error but ends with exit 2.
pub fn run(args: &Args, out: &mut UntilClosed<impl Write>) -> Result<Exit, Failure> {
    match &args.method {
        Method::Batch if args.format == Some(Format::Text) => Err(Failure::input(anyhow::anyhow!(
            "`kvassay stats batch` writes JSON lines, `--format text` does not apply"
        ))),
        Method::Batch => batch::run(&mut std::io::stdin().lock(), out),
        Method::One(request) => one(request, args.format.unwrap_or_default(), out),
    }
}

fn one(request: &Request, format: Format, out: &mut dyn Write) -> Result<Exit, Failure> {
    let result = request.compute().map_err(Failure::input)?;
    match format {
        Format::Json => write_json(out, &result)?,
        Format::Text => {
            for (name, value) in &result {
                writeln!(out, "{name}: {}", text(value))?;
            }
        }
    }
    Ok(Exit::Holds)
}

/// A JSON number or list for people.
fn text(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(text).collect();
            items.join(", ")
        }
        Value::Null => "NaN".to_owned(),
        other => other.to_string(),
    }
}
