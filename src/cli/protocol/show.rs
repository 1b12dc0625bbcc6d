//! What a protocol says and what follows from it.

use std::io::Write;

use serde::Serialize;

use crate::certify::{Attainable, attainable};
use crate::schema::{
    CalibrationSource, ObjectiveName, PanelPlan, Protocol, ResourceLimits, RuleName,
};

use super::super::Failure;
use super::super::output::{self, Format};
use super::super::size::Size;

/// Schema name of the JSON document.
const SHOW_SCHEMA: &str = "kvassay.protocol-show/1";

#[derive(Serialize)]
struct ShowDocument<'a> {
    schema: &'static str,
    /// File that the protocol was written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    sha256: String,
    rules: [RuleView; 4],
    attainable: Vec<AttainableView>,
    degradation_alpha: f64,
    protocol: &'a Protocol,
}

/// One rule with everything that follows from the protocol.
#[derive(Serialize)]
struct RuleView {
    rule: &'static str,
    panels: Vec<String>,
    limit: f64,
    divisor: u32,
    least_divisor: u64,
    alpha: f64,
}

/// What a rule on counts can pass on one panel.
#[derive(Serialize)]
struct AttainableView {
    rule: &'static str,
    panel: String,
    cases: u32,
    limit: f64,
    bound_of_none_lost: f64,
    most_lost: Option<u32>,
}

impl From<Attainable> for AttainableView {
    fn from(found: Attainable) -> Self {
        AttainableView {
            rule: found.rule.name(),
            panel: found.panel,
            cases: found.cases,
            limit: found.limit,
            bound_of_none_lost: found.bound,
            most_lost: found.most_lost,
        }
    }
}

fn rule_view(protocol: &Protocol, rule: RuleName) -> RuleView {
    RuleView {
        rule: rule.name(),
        panels: protocol
            .panels_of(rule)
            .map(PanelPlan::panel_name)
            .collect(),
        limit: protocol.limit(rule),
        divisor: protocol.divisor(rule),
        least_divisor: protocol.least_divisor(rule),
        alpha: protocol.alpha(rule),
    }
}

/// Prints the protocol; `file` is where it was written just now.
pub(super) fn show(
    protocol: &Protocol,
    file: Option<String>,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let attainable = attainable(protocol).map_err(Failure::input)?;
    let document = ShowDocument {
        schema: SHOW_SCHEMA,
        file,
        sha256: protocol.sha256().map_err(Failure::worker)?,
        rules: RuleName::ALL.map(|rule| rule_view(protocol, rule)),
        attainable: attainable.into_iter().map(AttainableView::from).collect(),
        degradation_alpha: protocol.degradation_alpha(),
        protocol,
    };
    match format {
        Format::Json => output::write_json(out, &document)?,
        Format::Text => write_show(out, &document)?,
    }
    Ok(())
}

fn write_show(out: &mut dyn Write, document: &ShowDocument<'_>) -> std::io::Result<()> {
    let protocol = document.protocol;
    if let Some(file) = &document.file {
        writeln!(out, "written to {file}")?;
    }
    writeln!(out, "{}: {}", protocol.name, protocol.description)?;
    writeln!(out, "sha256 {}\n", document.sha256)?;
    write_family(out, protocol)?;
    write_panels(out, protocol)?;
    writeln!(out, "\nrules, one-sided")?;
    let mut rows = vec![
        ["  rule", "limit", "alpha", "panels"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(document.rules.iter().map(|rule| rule_row(protocol, rule)));
    output::write_table(out, &rows)?;
    write_scope(out, document)?;
    write_attainable(out, &document.attainable)
}

fn write_panels(out: &mut dyn Write, protocol: &Protocol) -> std::io::Result<()> {
    writeln!(out, "\npanels")?;
    for panel in &protocol.panels {
        writeln!(out, "  {}", panel_line(panel))?;
    }
    let plan = &protocol.calibration;
    if plan.source == CalibrationSource::Checkpoint {
        return writeln!(out, "  calibration: the checkpoint's own scales");
    }
    let lengths: Vec<String> = plan.lengths.iter().map(u32::to_string).collect();
    writeln!(
        out,
        "  calibration: {} documents each of {} tokens, {} forced tokens",
        plan.documents,
        if lengths.is_empty() {
            "no".to_owned()
        } else {
            lengths.join(" and ")
        },
        plan.forced_tokens
    )
}

fn write_family(out: &mut dyn Write, protocol: &Protocol) -> std::io::Result<()> {
    let join = |names: Vec<&str>| names.join(", ");
    for (i, model) in protocol.models.iter().enumerate() {
        let lead = if i == 0 { "models" } else { "" };
        let name = match model.name.as_str() {
            "*" => "any one model",
            name => name,
        };
        match &model.sha256 {
            Some(sha256) => writeln!(out, "{lead:<11} {name}  weights {sha256}")?,
            None => writeln!(out, "{lead:<11} {name}")?,
        }
    }
    writeln!(out, "controls    {}", protocol.controls.join(", "))?;
    let names = protocol.candidates.iter().map(|c| c.name.len());
    let width = names.max().unwrap_or(0);
    for (i, candidate) in protocol.candidates.iter().enumerate() {
        let lead = if i == 0 { "candidates" } else { "" };
        writeln!(
            out,
            "{lead:<11} {:<width$}  {}",
            candidate.name, candidate.spec
        )?;
    }
    let objectives = protocol.objectives.iter().map(|objective| objective.name());
    writeln!(
        out,
        "objectives  {} (required: {})",
        join(objectives.collect()),
        protocol.required.name()
    )?;
    let contrasts = match protocol.contrasts.as_slice() {
        [] => "none".to_owned(),
        declared => declared.join(", "),
    };
    writeln!(out, "contrasts   {contrasts}")?;
    writeln!(out, "seed        {}", protocol.seed)
}

fn panel_line(panel: &PanelPlan) -> String {
    let name = panel.panel_name();
    match panel {
        PanelPlan::Math {
            task,
            cases,
            max_new_tokens,
        } => format!("{name}: {cases} questions of {task}, {max_new_tokens} new tokens"),
        PanelPlan::Nll {
            task,
            length,
            documents,
            targets,
        } => format!(
            "{name}: {documents} documents of {task}, {length} tokens, last {targets} scored"
        ),
        PanelPlan::Retrieval {
            task,
            length,
            cases,
            max_new_tokens,
        } => format!(
            "{name}: {cases} cases of {task}, {length} tokens, {max_new_tokens} of them new"
        ),
    }
}

fn rule_row(protocol: &Protocol, rule: &RuleView) -> Vec<String> {
    // A difference of two proportions is in percentage points.
    let unit = if rule.rule == RuleName::NetChange.name() {
        " pp"
    } else {
        "%"
    };
    vec![
        format!("  {}", rule.rule),
        format!("{:+}{unit}", percent(rule.limit)),
        format!(
            "{}/{} = {:.6}",
            protocol.family_alpha, rule.divisor, rule.alpha
        ),
        if rule.panels.is_empty() {
            "none".to_owned()
        } else {
            rule.panels.join(" ")
        },
    ]
}

/// A proportion in percent, free of the noise of the multiplication.
pub(in crate::cli) fn percent(proportion: f64) -> f64 {
    (proportion * 1e10).round() / 1e8
}

/// What the objectives rest on, and what they say nothing about.
fn write_scope(out: &mut dyn Write, document: &ShowDocument<'_>) -> std::io::Result<()> {
    let protocol = document.protocol;
    writeln!(
        out,
        "  nll: percentile bootstrap, {} resamples, seed {}",
        protocol.rules.nll.resamples, protocol.rules.nll.seed
    )?;
    writeln!(
        out,
        "  degradation, apart from the rules: alpha {:.6} per endpoint",
        document.degradation_alpha
    )?;
    let assay = &protocol.assay_sensitivity;
    writeln!(
        out,
        "  controls must answer at least {}% of math and {}% of each retrieval panel",
        percent(assay.math),
        percent(assay.retrieval)
    )?;
    if let Some(limits) = &protocol.resource_limits {
        writeln!(out, "  every arm: {}", resources_line(*limits))?;
    }
    writeln!(out)?;
    for objective in &protocol.objectives {
        writeln!(out, "{}: {}", objective.name(), scope(protocol, *objective))?;
    }
    Ok(())
}

fn resources_line(limits: ResourceLimits) -> String {
    let peak = limits.peak_device_bytes.map(|bytes| {
        let size = Size(bytes);
        format!("at most {size} of device memory in use")
    });
    let gap = limits
        .largest_sample_gap_ms
        .map(|gap| format!("at most {gap} ms between two samples of it"));
    let parts: Vec<String> = peak.into_iter().chain(gap).collect();
    parts.join(", ")
}

fn scope(protocol: &Protocol, objective: ObjectiveName) -> String {
    let (tested, silent): (Vec<RuleName>, Vec<RuleName>) = RuleName::ALL
        .into_iter()
        .filter(|rule| rule.serves(objective))
        .partition(|rule| protocol.panels_of(*rule).next().is_some());
    let names = |rules: &[RuleName]| {
        let names: Vec<&str> = rules.iter().map(|rule| rule.name()).collect();
        names.join(", ")
    };
    let mut text = format!("all of {}", names(&tested));
    if !silent.is_empty() {
        text.push_str(&format!(
            "; cannot pass: the protocol has no panel for {}",
            names(&silent)
        ));
    }
    text
}

/// What the sizes leave room for.
fn write_attainable(out: &mut dyn Write, found: &[AttainableView]) -> std::io::Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\nmost lost cases that still pass, with nothing gained"
    )?;
    let mut rows = vec![
        ["  rule", "panel", "cases", "most lost"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(found.iter().map(|row| {
        vec![
            format!("  {}", row.rule),
            row.panel.clone(),
            row.cases.to_string(),
            match row.most_lost {
                Some(most) => most.to_string(),
                None => "cannot pass".to_owned(),
            },
        ]
    }));
    output::write_table(out, &rows)
}
