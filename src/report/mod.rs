//! Sinks for results and progress: the summary of a run as text, JSON, JUnit, Markdown and GitHub
//! annotations, its page in HTML; badges, explanations, and progress lines.

mod check;
mod contrast;
mod badge;
mod explain;
mod figure;
mod github;
mod html;
mod junit;
mod markdown;
mod notes;
mod outlook;
mod progress;
mod repeat;
mod servers;
mod summary;
mod table;
mod text;
mod verification;
mod visible;
mod xml;

#[cfg(test)]
mod tests;

pub use badge::write_badge;
pub use check::{Status, change_status, status};
pub use contrast::{
    COMPARE_SCHEMA, write_comparison_json, write_comparison_markdown, write_comparison_text,
};
pub use explain::{EXPLAIN_SCHEMA, Explanation, Section, write_explanations_json};
pub use figure::verdict_and_reason;
pub use github::{write_annotations, write_failure_annotation};
pub use html::{
    HtmlCertificate, HtmlError, HtmlReport, HtmlRun, Questions, render_html, shown_flips,
};
pub use junit::write_junit;
pub use markdown::{STEP_SUMMARY_BYTES, write_markdown};
pub use progress::Progress;
pub use summary::{Against, SUMMARY_SCHEMA, Summary};
pub use text::{TEXT_WIDTH, write_text};
pub use verification::Verification;
pub use visible::{one_line, visible};
