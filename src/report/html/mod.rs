//! Runs as one HTML file: certificates, plots, and the cases behind them.
//!
//! The page is a `minijinja` template with SVG written in it. Two things decide against a plotting
//! library: its SVG has fixed sizes and colours, so that a page could neither follow the reader's
//! light or dark scheme nor fit a phone without shrinking its text; here places are per cent of the
//! width and colours are the page's variables. And every text goes through one formatter, which
//! makes what does not show visible and escapes the rest: there is no second way into the page.
//!
//! The page runs no script, asks for nothing, and says so in its content security policy. Its bytes
//! depend on certificates and records alone: no clock, no path of this machine.

mod axis;
mod beside;
mod depth;
mod figures;
mod flips;
mod forest;
mod identity;
mod rest;
mod run;
mod strip;
mod text;
mod verdicts;

use base64::prelude::{BASE64_STANDARD, Engine};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{
    AutoEscape, Environment, Output, State, UndefinedBehavior, Value, escape_formatter,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::certify::verify::Disagreement;
use crate::certify::{Comparison, PairedPanel};
use crate::report::contrast::view::ContrastView;
use crate::schema::{Certificate, FileDigest, ImportReport, Manifest, ToolIdentity};

use run::RunView;

pub(super) use figures::minus;
pub use flips::{Questions, shown_flips};

const PAGE: &str = include_str!("page.html");
const RUN: &str = include_str!("run.html");
const PLOTS: &str = include_str!("plots.html");
const STYLE: &str = include_str!("style.css");

/// What a page is about.
pub struct HtmlReport<'a> {
    /// The runs, as given.
    pub runs: &'a [HtmlRun<'a>],
    /// Contrasts between recipes, or one clause on why there are none to show.
    pub contrasts: Result<&'a Comparison, String>,
}

/// A run and what was found when its certificates were checked.
pub struct HtmlRun<'a> {
    /// The run's manifest.
    pub manifest: &'a Manifest,
    /// What an import found; absent for runs of this tool.
    pub import: Option<&'a ImportReport>,
    /// Certificates, in the order of the arms.
    pub certificates: &'a [HtmlCertificate<'a>],
    /// Candidate arms without a certificate.
    pub missing: &'a [String],
    /// What was asked in the cases that are shown.
    pub questions: &'a Questions,
    /// Most flips that are shown per recipe, panel, control and direction.
    pub flips: usize,
}

/// A certificate as it stands in the run directory.
pub struct HtmlCertificate<'a> {
    /// The certificate.
    pub certificate: &'a Certificate,
    /// Its file, relative to the run directory.
    pub file: FileDigest,
    /// Every field that does not follow from the run's records.
    pub mismatches: &'a [Disagreement],
    /// The cases that it counts, or one clause on why there are none to show.
    pub cases: Result<&'a [PairedPanel<'a>], String>,
}

impl<'a> HtmlCertificate<'a> {
    /// Its panels, per control; none where its cases cannot be shown.
    fn paired(&self) -> impl Iterator<Item = &'a PairedPanel<'a>> {
        let paired: &'a [PairedPanel<'a>] = match &self.cases {
            Ok(paired) => paired,
            Err(_) => &[],
        };
        paired.iter()
    }
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[error("the report cannot be rendered: {0}")]
pub struct HtmlError(#[from] minijinja::Error);

#[derive(Serialize)]
struct Page<'a> {
    style_sha256: String,
    tool: ToolIdentity,
    runs: Vec<RunView<'a>>,
    contrasts: Option<ContrastView>,
    no_contrasts: Option<&'a str>,
}

/// The page of some runs.
///
/// # Errors
/// [`HtmlError`] where the page's own template fails.
pub fn render_html(report: &HtmlReport<'_>) -> Result<String, HtmlError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let mut syntax = SyntaxConfig::builder();
    let syntax = syntax.trim_blocks(true).lstrip_blocks(true);
    environment.set_syntax(syntax.keep_trailing_newline(true).build()?);
    environment.set_formatter(format_visibly);
    environment.add_template("style.css", STYLE)?;
    environment.add_template("plots.html", PLOTS)?;
    environment.add_template("run.html", RUN)?;
    environment.add_template("page.html", PAGE)?;
    let runs = report.runs.iter().enumerate();
    let page = Page {
        // The template keeps the style's last line feed: the digest is of what stands in the page.
        style_sha256: BASE64_STANDARD.encode(Sha256::digest(STYLE)),
        tool: ToolIdentity::current(),
        runs: runs.map(|(at, run)| RunView::new(at, run)).collect(),
        contrasts: report
            .contrasts
            .as_ref()
            .ok()
            .map(|it| ContrastView::new(it)),
        no_contrasts: report.contrasts.as_ref().err().map(String::as_str),
    };
    Ok(environment
        .get_template("page.html")?
        .render(Serde(&page))?)
}

/// Writes a value: what is markup of the page as it is, texts visibly and escaped.
fn format_visibly(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), minijinja::Error> {
    let is_text = *state.auto_escape() == AutoEscape::Html && !value.is_safe();
    match value.as_str().filter(|_| is_text) {
        Some(text) => escape_formatter(out, state, &Value::from(text::visible(text).into_owned())),
        None => escape_formatter(out, state, value),
    }
}
