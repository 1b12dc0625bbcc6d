//! Sinks for results and progress: the summary of a run as text or JSON, and progress lines.

mod contrast;
mod notes;
mod outlook;
mod progress;
mod servers;
mod summary;
mod table;
mod text;

#[cfg(test)]
mod tests;

pub use contrast::{COMPARE_SCHEMA, write_comparison_json, write_comparison_text};
pub use progress::Progress;
pub use summary::{SUMMARY_SCHEMA, Summary};
pub use text::{TEXT_WIDTH, write_text};
