//! `kvassay protocol`: the frozen protocols, their rules, alphas and digests.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

use crate::schema::{
    ObjectiveName, PanelPlan, Protocol, RuleName, builtin_protocol, builtin_protocols,
};

use super::output::{self, Format};
use super::{Exit, Failure};

/// Schema name of the JSON document of `protocol list`.
const LIST_SCHEMA: &str = "kvassay.protocol-list/1";
/// Schema name of the JSON document of `protocol show`.
const SHOW_SCHEMA: &str = "kvassay.protocol-show/1";

/// Arguments of `kvassay protocol`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the built-in protocols.
    List {
        /// Output format.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show a protocol's family, panels, rules, alphas and digest.
    Show {
        /// Built-in protocol, or a TOML or JSON file.
        #[arg(value_name = "NAME|PATH")]
        protocol: String,
        /// Output format.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
}

/// Runs the command.
///
/// # Errors
/// Exit 2 for a protocol that is absent or refused.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.command {
        Command::List { format } => list(*format, out)?,
        Command::Show { protocol, format } => {
            let protocol = load(protocol).map_err(Failure::input)?;
            show(&protocol, *format, out)?;
        }
    }
    Ok(Exit::Holds)
}

/// A built-in protocol by name, or one read from a TOML or JSON file (by its extension).
///
/// # Errors
/// Names the path, and the built-in protocols where the text is neither.
pub(super) fn load(text: &str) -> anyhow::Result<Protocol> {
    if let Some(protocol) = builtin_protocol(text) {
        return Ok(protocol);
    }
    let path = Path::new(text);
    if !path.is_file() {
        let names: Vec<String> = builtin_protocols().into_iter().map(|p| p.name).collect();
        bail!(
            "protocol `{text}`: found neither a file nor a built-in protocol, expected a path or one of {}",
            names.join(", ")
        );
    }
    let content = std::fs::read_to_string(path).with_context(|| format!("cannot read {text}"))?;
    let protocol = match path.extension().and_then(|extension| extension.to_str()) {
        Some("toml") => Protocol::from_toml(&content),
        Some("json") => Protocol::from_json(&content),
        _ => bail!("{text}: expected a protocol file whose name ends in .toml or .json"),
    };
    protocol.with_context(|| text.to_owned())
}

#[derive(Serialize)]
struct ListDocument {
    schema: &'static str,
    protocols: Vec<ListEntry>,
}

#[derive(Serialize)]
struct ListEntry {
    name: String,
    sha256: String,
    description: String,
}

fn list(format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let protocols = builtin_protocols()
        .into_iter()
        .map(|protocol| {
            Ok(ListEntry {
                sha256: protocol.sha256().map_err(Failure::worker)?,
                name: protocol.name,
                description: protocol.description,
            })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    if format == Format::Json {
        let schema = LIST_SCHEMA;
        return output::write_json(out, &ListDocument { schema, protocols });
    }
    for entry in &protocols {
        writeln!(
            out,
            "{:<20} {}  {}",
            entry.name,
            &entry.sha256[..12],
            entry.description
        )?;
    }
    Ok(())
}

#[derive(Serialize)]
struct ShowDocument<'a> {
    schema: &'static str,
    sha256: String,
    rules: [RuleView; 4],
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

fn show(protocol: &Protocol, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let document = ShowDocument {
        schema: SHOW_SCHEMA,
        sha256: protocol.sha256().map_err(Failure::worker)?,
        rules: RuleName::ALL.map(|rule| rule_view(protocol, rule)),
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
    writeln!(out, "{}: {}", protocol.name, protocol.description)?;
    writeln!(out, "sha256 {}\n", document.sha256)?;
    write_family(out, protocol)?;
    writeln!(out, "\npanels")?;
    for panel in &protocol.panels {
        writeln!(out, "  {}", panel_line(panel))?;
    }
    let plan = &protocol.calibration;
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
    )?;
    writeln!(out, "\nrules, one-sided")?;
    let mut rows = vec![
        ["  rule", "limit", "alpha", "panels"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(document.rules.iter().map(|rule| rule_row(protocol, rule)));
    output::write_table(out, &rows)?;
    write_scope(out, document)
}

fn write_family(out: &mut dyn Write, protocol: &Protocol) -> std::io::Result<()> {
    let join = |names: Vec<&str>| names.join(", ");
    let models = protocol
        .models
        .iter()
        .map(|model| match model.name.as_str() {
            "*" => "any one model",
            name => name,
        });
    writeln!(out, "models      {}", join(models.collect()))?;
    writeln!(out, "controls    {}", protocol.controls.join(", "))?;
    for (i, candidate) in protocol.candidates.iter().enumerate() {
        let lead = if i == 0 { "candidates" } else { "" };
        writeln!(out, "{lead:<11} {}  {}", candidate.name, candidate.spec)?;
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
pub(super) fn percent(proportion: f64) -> f64 {
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
        "  controls must answer at least {}% of math and {}% of each retrieval panel\n",
        percent(assay.math),
        percent(assay.retrieval)
    )?;
    for objective in &protocol.objectives {
        writeln!(out, "{}: {}", objective.name(), scope(protocol, *objective))?;
    }
    Ok(())
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
        text.push_str(&format!("; no panel, hence no claim: {}", names(&silent)));
    }
    text
}
