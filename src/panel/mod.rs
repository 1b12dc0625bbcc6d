//! Panels: source data, prompts, materialised panel files; the runner.
//!
//! A panel is built once per tokenizer from a task definition (`tasks/`), the protocol's sizes and
//! seed, and source data whose digests are recorded. The same inputs give the same bytes.

mod article_plan;
mod build;
mod data;
pub mod demo;
mod error;
mod file;
mod gsm8k;
mod haystack;
mod math;
mod model_tokenizer;
mod nll;
mod parquet_rows;
mod retrieval;
pub mod runner;
mod streams;
mod task;
mod text;
mod tokenizer;
mod wikipedia;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use build::{
    BuiltPanel, BuiltPanels, CalibrationDocs, Materialised, Outcome, build, materialise,
};
pub use data::{DataDir, Located, SourceFile};
pub use error::PanelError;
pub(crate) use error::thousands;
pub use file::{Panel, read_panel, write_panel};
pub use task::{Source, SourceFormat, Task, TaskKind, builtin_task, builtin_tasks};
pub use tokenizer::PanelTokenizer;
