//! `kvassay audit`: bounds and tests recomputed from a table of counts.

mod findings;
mod table;

use std::io::Write;
use std::path::PathBuf;

use super::output::{Format, write_json, write_table};
use super::values::{parse_limit, parse_margin, parse_score_alpha};
use super::{Exit, Failure};
use findings::Audit;

/// Arguments of `kvassay audit`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// CSV file with columns label, pairs, lost, gained and, if wanted, alpha.
    table: PathBuf,
    /// One-sided alpha of every bound, where the row has none: 0.05 or 0.05/24.
    #[arg(long, default_value = "0.05", value_parser = parse_score_alpha)]
    alpha: f64,
    /// Largest upper bound of lost/pairs that passes.
    #[arg(long, default_value = "2%", allow_hyphen_values = true, value_parser = parse_limit)]
    gross_limit: f64,
    /// Margin: the lower bound of (gained - lost)/pairs must be at least minus this.
    #[arg(long, default_value = "1pp", allow_hyphen_values = true, value_parser = parse_margin)]
    net_margin: f64,
    /// Output.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Audits a table. Nothing is required of it: rows that pass and rows that do not end alike.
///
/// # Errors
/// Exit 2 for a file that cannot be read or holds no valid table.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let file = std::fs::File::open(&args.table).map_err(|error| {
        Failure::input(
            anyhow::Error::new(error).context(format!("{}: cannot open", args.table.display())),
        )
    })?;
    let table = table::read(file, args.alpha).map_err(|error| {
        Failure::input(anyhow::Error::new(error).context(args.table.display().to_string()))
    })?;
    if !table.ignored.is_empty() {
        // A lost note changes no figure.
        let _ = writeln!(
            std::io::stderr(),
            "kvassay: note: {}: ignored columns: {}",
            args.table.display(),
            table.ignored.join(", ")
        );
    }
    let audit = Audit::new(&table.rows, args.alpha, args.gross_limit, args.net_margin)
        .map_err(Failure::input)?;
    match args.format {
        Format::Json => write_json(out, &audit)?,
        Format::Text => write_text(&audit, out)?,
    }
    Ok(Exit::Holds)
}

fn write_text(audit: &Audit, out: &mut dyn Write) -> std::io::Result<()> {
    write_table(out, &audit.table())?;
    writeln!(out)?;
    for line in audit.legend() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
