//! Output formats that several commands share.

mod file;
mod summary;

use std::io::Write;

use clap::ValueEnum;
use serde::Serialize;

use super::Failure;

pub(super) use file::{Kind, Output};
pub use summary::{SummaryArgs, SummaryFormat};

/// Text for people or one JSON document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// One JSON document.
    Json,
}

/// Writes one JSON document and a line feed.
pub(super) fn write_json(out: &mut dyn Write, document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document).map_err(Failure::worker)?;
    writeln!(out, "{text}")?;
    Ok(())
}

/// Writes rows with columns as wide as their widest cell, the first aligned left, the rest right.
pub(super) fn write_table(out: &mut dyn Write, rows: &[Vec<String>]) -> std::io::Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|i| {
            let cells = rows.iter().filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if i == 0 {
                line.push_str(&format!("{cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
