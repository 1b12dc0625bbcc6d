//! Paired outcomes of other harnesses, brought into run directories that `certify` evaluates.
//!
//! A *reader* ([`lm_eval`], [`inspect`], [`lighteval`], [`csv`]) turns the files of one arm into
//! [`Sample`]s; [`pair`](fn@pair) matches the samples of both arms by content, whatever their order, and
//! names everything that does not match; [`write`](fn@write) stores panel, records and report. Nothing is
//! dropped: a case that cannot be counted is in the report with its place in the file.

mod content;
pub mod csv;
mod error;
pub mod inspect;
mod json;
pub mod lighteval;
pub mod lm_eval;
mod pair;
mod parquet;
mod quotes;
mod read;
mod rescore;
mod sample;
mod write;

#[cfg(test)]
mod tests;

pub use content::Content;
pub use error::ImportError;
pub use pair::{Case, Paired, pair};
pub use quotes::{Lines, QuoteFault, quote_fault};
pub use read::refuse_shared;
pub use sample::{ArmLog, Logs, Sample, Score};
pub use write::{ImportPlan, write};
