//! The verdict table, and why verdicts are what they are.

use serde::Serialize;

use crate::report::notes::rules;
use crate::report::outlook::{influences, outlooks};
use crate::schema::{Certificate, ObjectiveName, ObjectiveResult, Protocol, RuleResult};

use super::figures::{self, bound, count, limit, of_rule, small};
use super::forest::{counted, title};

/// A verdict as it is shown.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Badge {
    /// Name of its style.
    pub class: &'static str,
    /// Words.
    pub words: &'static str,
    /// Sign that stands for it without colour.
    pub sign: &'static str,
}

impl Badge {
    /// The verdict of an objective.
    pub fn of(result: &ObjectiveResult) -> Self {
        let (class, words, sign) = figures::verdict(result.verdict);
        Badge { class, words, sign }
    }
}

/// The verdict table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VerdictTable {
    /// Headings of the figures.
    pub headings: Vec<String>,
    /// Whether rows name their control.
    pub controls: bool,
    /// One row per recipe and control.
    pub rows: Vec<VerdictRow>,
}

/// A certificate against one of its controls.
#[derive(Clone, Debug, Serialize)]
pub(super) struct VerdictRow {
    /// Recipe.
    pub recipe: String,
    /// Canonical spec.
    pub spec: String,
    /// Control.
    pub control: String,
    /// Preservation.
    pub preservation: Badge,
    /// Aggregate.
    pub aggregate: Badge,
    /// Figures, as many as there are headings.
    pub cells: Vec<Cell>,
}

/// A figure of the table.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Cell {
    /// Heading, for pages too narrow for a table.
    pub heading: String,
    /// Text.
    pub text: String,
    /// Whether its rule does not hold.
    pub crosses: bool,
}

/// One column: heading, rule, panel, and how its figure is written.
struct Column {
    heading: String,
    rule: &'static str,
    panel: String,
    show: fn(&RuleResult) -> String,
    /// Whether the figure is what the rule is judged by.
    decides: bool,
}

/// The verdict table of a run.
pub(super) fn table(protocol: &Protocol, certificates: &[&Certificate]) -> VerdictTable {
    let panels = protocol.panels.iter().map(|panel| panel.panel_name());
    let columns: Vec<Column> = panels.flat_map(|panel| columns(&panel)).collect();
    let mut headings: Vec<String> = columns.iter().map(|it| it.heading.clone()).collect();
    headings.push("cache saved".to_owned());
    let mut rows = Vec::new();
    for certificate in certificates {
        for control in &protocol.controls {
            rows.push(row(certificate, control, &columns));
        }
    }
    VerdictTable {
        headings,
        controls: protocol.controls.len() > 1,
        rows,
    }
}

fn columns(panel: &str) -> Vec<Column> {
    let column = |heading: String, rule, decides, show| Column {
        heading,
        rule,
        panel: panel.to_owned(),
        show,
        decides,
    };
    if panel == "math" {
        return vec![
            column(format!("{panel} right"), "gross_loss", false, |rule| {
                let right = count(rule.candidate_correct.unwrap_or(0));
                format!("{right}/{}", count(rule.pairs))
            }),
            column("lost, gained".to_owned(), "gross_loss", false, |rule| {
                let of = |it: Option<u64>| count(it.unwrap_or(0));
                format!("{}, {}", of(rule.lost), of(rule.gained))
            }),
            column("gross loss, bound".to_owned(), "gross_loss", true, bound),
            column("net change, bound".to_owned(), "net_change", true, bound),
        ];
    }
    if panel.starts_with("nll") {
        let heading = format!("{panel}, bound");
        return vec![column(heading, "nll", true, bound)];
    }
    let heading = format!("{panel} lost, bound");
    vec![column(heading, "retrieval", true, |rule| {
        let lost = count(rule.lost.unwrap_or(0));
        format!("{lost}/{}, {}", count(rule.pairs), bound(rule))
    })]
}

fn row(certificate: &Certificate, control: &str, columns: &[Column]) -> VerdictRow {
    let cell = |column: &Column| {
        let found = rules(&certificate.objectives).find(|rule| {
            rule.rule == column.rule && rule.panel == column.panel && rule.control == control
        });
        Cell {
            heading: column.heading.clone(),
            text: found.map_or_else(|| "\u{2013}".to_owned(), column.show),
            crosses: column.decides && found.is_some_and(|rule| !rule.pass),
        }
    };
    let mut cells: Vec<Cell> = columns.iter().map(cell).collect();
    let memory = &certificate.memory;
    cells.push(Cell {
        heading: "cache saved".to_owned(),
        text: match memory.native_bytes_per_token {
            0 => "unknown".to_owned(),
            _ => figures::minus(&format!("{:.1}%", 100.0 * memory.saved)),
        },
        crosses: false,
    });
    VerdictRow {
        recipe: certificate.recipe.name.clone(),
        spec: certificate.recipe.spec.clone(),
        control: control.to_owned(),
        preservation: Badge::of(&certificate.objectives.preservation),
        aggregate: Badge::of(&certificate.objectives.aggregate),
        cells,
    }
}

/// A sentence with the recipes that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Said {
    /// Names, in the order of the certificates; absent where it is about all of several.
    pub recipes: Option<String>,
    /// The sentence.
    pub text: String,
}

/// Sentences about certificates, each once, with the recipes that it is about.
pub(super) fn said(
    certificates: &[&Certificate],
    sentences: impl Fn(&Certificate) -> Vec<String>,
) -> Vec<Said> {
    let mut said: Vec<(String, Vec<&str>)> = Vec::new();
    for certificate in certificates {
        for sentence in sentences(certificate) {
            let name = certificate.recipe.name.as_str();
            match said.iter_mut().find(|(text, _)| *text == sentence) {
                Some((_, names)) => names.push(name),
                None => said.push((sentence, vec![name])),
            }
        }
    }
    let is_all = |names: &[&str]| names.len() == certificates.len() && names.len() > 1;
    said.into_iter()
        .map(|(text, names)| Said {
            recipes: (!is_all(&names)).then(|| names.join(", ")),
            text,
        })
        .collect()
}

/// Why objectives are not passed, what it would take, and single documents that verdicts hang on.
pub(super) fn reasons(certificates: &[&Certificate]) -> Vec<Said> {
    let mut all = said(certificates, |it| {
        let objectives = &it.objectives;
        let (one, other) = (&objectives.preservation, &objectives.aggregate);
        match (figures::why(one), figures::why(other)) {
            (Some(why), Some(same)) if why == same => {
                vec![format!("preservation and aggregate {why}")]
            }
            (one, other) => {
                let one = one.map(|why| format!("{} {why}", ObjectiveName::Preservation.name()));
                let other = other.map(|why| format!("{} {why}", ObjectiveName::Aggregate.name()));
                one.into_iter().chain(other).collect()
            }
        }
    });
    all.extend(said(certificates, |it| outlooks(&it.objectives)));
    all.extend(said(certificates, |it| influences(&it.objectives)));
    all
}

/// One rule with everything that its certificate says of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RuleRow {
    /// Recipe.
    pub recipe: String,
    /// Rule and panel in words.
    pub title: String,
    /// Control.
    pub control: String,
    /// What was counted.
    pub counted: String,
    /// Control and candidate: right answers, or mean NLL per target.
    pub control_value: String,
    /// The same of the candidate.
    pub candidate_value: String,
    /// Estimate.
    pub estimate: String,
    /// Bound.
    pub bound: String,
    /// Limit.
    pub limit: String,
    /// Alpha.
    pub alpha: String,
    /// Method, with the Monte-Carlo error of the bound where it has one.
    pub method: String,
    /// Whether it holds.
    pub holds: bool,
}

/// Every rule of every certificate, once.
pub(super) fn rule_rows(certificates: &[&Certificate]) -> Vec<RuleRow> {
    let mut rows = Vec::new();
    for certificate in certificates {
        let mut seen: Vec<&RuleResult> = Vec::new();
        for rule in rules(&certificate.objectives) {
            if !seen.contains(&rule) {
                seen.push(rule);
                rows.push(rule_row(certificate, rule));
            }
        }
    }
    rows
}

fn rule_row(certificate: &Certificate, rule: &RuleResult) -> RuleRow {
    let value = |right: Option<u64>, mean: Option<f64>| match (right, mean) {
        (Some(right), _) => format!("{} right", count(right)),
        (None, Some(mean)) => format!("{} nats", small(mean)),
        (None, None) => "\u{2013}".to_owned(),
    };
    RuleRow {
        recipe: certificate.recipe.name.clone(),
        title: title(&rule.rule, &rule.panel),
        control: rule.control.clone(),
        counted: counted(rule),
        control_value: value(rule.control_correct, rule.control_mean),
        candidate_value: value(rule.candidate_correct, rule.candidate_mean),
        estimate: of_rule(rule, rule.estimate),
        bound: bound(rule),
        limit: limit(rule.limit),
        alpha: small(rule.alpha),
        method: match rule.monte_carlo_se {
            Some(error) => format!(
                "{}, Monte-Carlo error {}",
                rule.method,
                percent_error(error)
            ),
            None => rule.method.clone(),
        },
        holds: rule.pass,
    }
}

fn percent_error(proportion: f64) -> String {
    format!("{}%", small(100.0 * proportion))
}
