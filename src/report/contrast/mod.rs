//! Sinks for contrasts: text, Markdown and JSON.

mod document;
mod notes;
pub(super) mod number;
mod sentence;
mod text;
pub(super) mod view;

#[cfg(test)]
mod tests;

use std::io::{self, Write};

use crate::certify::Comparison;

pub use document::COMPARE_SCHEMA;

/// Writes a comparison as text in lines of at most `width` characters, but for longer words.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_comparison_text(
    comparison: &Comparison,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    text::write(comparison, width, out)
}

/// Writes a comparison as Markdown for a pull request.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_comparison_markdown(comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    text::write_markdown(comparison, out)
}

/// Writes a comparison as one JSON document, with the exit code of the command.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_comparison_json(
    comparison: &Comparison,
    exit: u8,
    out: &mut dyn Write,
) -> io::Result<()> {
    document::write(comparison, exit, out)
}
