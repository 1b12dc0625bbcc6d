//! Output formats that several commands share.

mod file;
mod summary;

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::anyhow;
use clap::ValueEnum;
use serde::Serialize;

use crate::report::one_line;

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

/// Makes the folder that `option` names, where it is not there yet.
///
/// # Errors
/// Exit 2 where something else stands there, 4 where the system refuses.
pub(super) fn make_folder(option: &str, folder: &Path) -> Result<(), Failure> {
    let error = match fs::create_dir_all(folder) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let shown = folder.display();
    Err(match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => Failure::input(anyhow!(
            "{option} {shown}: found a file, expected a folder or a path where one can be made"
        )),
        _ => Failure::worker(
            anyhow::Error::new(error).context(format!("{option} {shown}: cannot make the folder")),
        ),
    })
}

/// Writes rows with columns as wide as their widest cell, the first aligned left, the rest right. Each is
/// one line, and what does not print in a cell cannot act on a terminal.
pub(super) fn write_table(out: &mut dyn Write, rows: &[Vec<String>]) -> std::io::Result<()> {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(|cell| one_line(cell)).collect())
        .collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|i| {
            let cells = rows.iter().filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for row in &rows {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stay_in_their_lines_and_columns() {
        let rows = [["a", "b"], ["\u{1b}[2Jred\nx", "1"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let mut out = Vec::new();
        write_table(&mut out, &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains('\u{1b}'), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let width = |line: &str| line.chars().count();
        assert_eq!(width(lines[0]), width(lines[1]), "{text}");
    }
}
