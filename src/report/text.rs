//! The summary for people: a row per recipe, then why.

use std::io::{self, Write};

use crate::schema::{
    Certificate, ControlCounts, ObjectiveName, ObjectiveResult, Objectives, RuleResult, Verdict,
};

use super::attainable::{Unattainable, unattainable};
use super::summary::Summary;
use super::table::Table;

/// Characters per line of the text summary.
pub const TEXT_WIDTH: usize = 120;

/// One line of the table: a certificate against one of its controls.
struct Row<'a> {
    certificate: &'a Certificate,
    control: &'a str,
}

impl Row<'_> {
    fn rule(&self, rule: &str, panel: &str) -> Option<&RuleResult> {
        rules(&self.certificate.objectives).find(|found| {
            found.rule == rule && found.panel == panel && found.control == self.control
        })
    }
}

/// Writes the summary in lines of at most `width` characters (paths and reasons may be longer).
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_text(summary: &Summary<'_>, width: usize, out: &mut dyn Write) -> io::Result<()> {
    write_heading(summary, out)?;
    table(summary).write(width, out)?;
    writeln!(out)?;
    write_controls(summary, out)?;
    write_aa(summary, out)?;
    write_reasons(summary, out)?;
    write_degradation(summary, out)?;
    write_requirement(summary, out)?;
    write_unattainable(summary, out)?;
    write_paths(summary, out)
}

fn write_heading(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    let protocol = summary
        .certificates
        .first()
        .map(|certificate| &certificate.protocol);
    let digest = protocol.map_or("", |protocol| &protocol.sha256);
    write!(out, "protocol {} {}", summary.protocol.name, short(digest))?;
    if let Some(certificate) = summary.certificates.first() {
        let (model, worker) = (&certificate.model, &certificate.worker);
        write!(
            out,
            ", model {} {}",
            model.name,
            short(&model.weights_sha256)
        )?;
        write!(
            out,
            ", worker {} ({}, {})",
            worker.kind, worker.device, worker.arithmetic
        )?;
    }
    writeln!(out, "\n")
}

/// Enough of a digest to recognise it.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

fn rules(objectives: &Objectives) -> impl Iterator<Item = &RuleResult> {
    objectives
        .preservation
        .rules
        .iter()
        .chain(&objectives.aggregate.rules)
}

fn table(summary: &Summary<'_>) -> Table {
    let rows = rows(summary);
    let mut table = Table::default();
    let cells = |cell: &dyn Fn(&Row<'_>) -> String| rows.iter().map(cell).collect::<Vec<_>>();
    table.column(
        "",
        "recipe",
        cells(&|row| row.certificate.recipe.name.clone()),
    );
    if summary.protocol.controls.len() > 1 {
        table.column("", "control", cells(&|row| row.control.to_owned()));
    }
    for panel in &summary.protocol.panels {
        panel_columns(&mut table, &rows, &panel.panel_name());
    }
    table.column(
        "cache",
        "B/token",
        cells(&|row| row.certificate.memory.bytes_per_token.to_string()),
    );
    table.column(
        "",
        "saved",
        cells(&|row| format!("{:.1}%", 100.0 * row.certificate.memory.saved)),
    );
    let verdict = |row: &Row<'_>, name| {
        short_verdict(row.certificate.objectives.get(name).verdict).to_owned()
    };
    table.column(
        "preser-",
        "vation",
        cells(&|row| verdict(row, ObjectiveName::Preservation)),
    );
    table.column(
        "aggre-",
        "gate",
        cells(&|row| verdict(row, ObjectiveName::Aggregate)),
    );
    table
}

fn rows<'a>(summary: &'a Summary<'a>) -> Vec<Row<'a>> {
    summary
        .certificates
        .iter()
        .flat_map(|certificate| {
            summary.protocol.controls.iter().map(move |control| Row {
                certificate,
                control,
            })
        })
        .collect()
}

/// Columns of one panel; a rule without pairs shows as `-`.
fn panel_columns(table: &mut Table, rows: &[Row<'_>], panel: &str) {
    let mut column = |upper: &str, lower: &str, rule: &str, show: fn(&RuleResult) -> String| {
        let cell = |row: &Row<'_>| row.rule(rule, panel).map_or_else(|| "-".to_owned(), show);
        table.column(upper, lower, rows.iter().map(cell).collect());
    };
    if panel == "math" {
        column("math", "correct", "gross_loss", |rule| {
            format!("{}/{}", rule.candidate_correct.unwrap_or(0), rule.pairs)
        });
        column("lost/", "gained", "gross_loss", |rule| {
            format!("{}/{}", rule.lost.unwrap_or(0), rule.gained.unwrap_or(0))
        });
        column("net pp,", "lower bound", "net_change", |rule| {
            format!("{:+.2} {:+.2}", 100.0 * rule.estimate, 100.0 * rule.bound)
        });
        column("gross", "bound", "gross_loss", |rule| {
            format!("{:.2}%", 100.0 * rule.bound)
        });
    } else if panel.starts_with("nll") {
        column(panel, "bound", "nll", |rule| {
            format!("{:+.2}%", 100.0 * rule.bound)
        });
    } else {
        let short = panel.replace("retrieval-", "retr-");
        column(&short, "lost, bound", "retrieval", |rule| {
            format!(
                "{}/{} {:.2}%",
                rule.lost.unwrap_or(0),
                rule.pairs,
                100.0 * rule.bound
            )
        });
    }
}

fn short_verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::NotEstablished => "not est.",
        Verdict::Incomplete => "incompl.",
        Verdict::Unsupported => "unsupp.",
        Verdict::Descriptive => "descr.",
    }
}

fn long_verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::NotEstablished => "not established",
        Verdict::Incomplete => "incomplete",
        Verdict::Unsupported => "unsupported",
        Verdict::Descriptive => "descriptive",
    }
}

/// Controls are the same for every certificate of a run.
fn write_controls(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Some(certificate) = summary.certificates.first() else {
        return Ok(());
    };
    for (control, counts) in &certificate.counts.controls {
        let correct: Vec<String> = control_rules(summary, control)
            .iter()
            .map(|rule| {
                let correct = rule.control_correct.unwrap_or(0);
                format!("{} {correct}/{}", rule.panel, rule.pairs)
            })
            .collect();
        let correct = if correct.is_empty() { "none compared".to_owned() } else { correct.join(", ") };
        let ControlCounts {
            truncated,
            unparsed,
            errors,
        } = counts;
        writeln!(
            out,
            "{truncated} truncated, {unparsed} unparsed, {errors} errors"
        )?;
    }
    Ok(())
}

/// One rule per panel with answers: from the first certificate that has it.
fn control_rules<'a>(summary: &'a Summary<'a>, control: &str) -> Vec<&'a RuleResult> {
    let panels = summary
        .protocol
        .panels
        .iter()
        .map(|panel| panel.panel_name());
    panels
        .filter_map(|panel| {
            summary
                .certificates
                .iter()
                .flat_map(|found| rules(&found.objectives))
                .find(|rule| {
                    rule.panel == panel && rule.control == control && rule.control_correct.is_some()
                })
        })
        .collect()
}

fn write_aa(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    let aa = summary
        .certificates
        .iter()
        .find_map(|certificate| certificate.aa.as_ref());
    match aa {
        None => writeln!(out, "A/A (native against native): not run"),
        Some(aa) => {
            let bits = if aa.identical_bits {
                "identical bits"
            } else {
                "bits differ"
            };
            writeln!(
                out,
                "A/A (native against native): {} lost, {} gained, {bits} in {} records",
                aa.lost, aa.gained, aa.records
            )
        }
    }
}

fn write_reasons(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    for certificate in summary.certificates {
        let objectives = &certificate.objectives;
        let (preservation, aggregate) = (&objectives.preservation, &objectives.aggregate);
        let same = preservation.verdict == aggregate.verdict
            && preservation.reason == aggregate.reason
            && preservation.detail == aggregate.detail;
        let name = &certificate.recipe.name;
        if same {
            write_reason(name, "preservation and aggregate", preservation, out)?;
        } else {
            write_reason(name, "preservation", preservation, out)?;
            write_reason(name, "aggregate", aggregate, out)?;
        }
    }
    Ok(())
}

fn write_reason(
    recipe: &str,
    objective: &str,
    result: &ObjectiveResult,
    out: &mut dyn Write,
) -> io::Result<()> {
    if result.verdict == Verdict::Pass {
        return Ok(());
    }
    write!(
        out,
        "{recipe}: {objective} {}",
        long_verdict(result.verdict)
    )?;
    if let Some(reason) = &result.reason {
        write!(out, " ({reason})")?;
    }
    match &result.detail {
        Some(detail) => writeln!(out, ": {detail}"),
        None => writeln!(out),
    }
}

fn write_degradation(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    for certificate in summary.certificates {
        let established = certificate
            .degradation
            .iter()
            .filter(|found| found.established);
        let endpoints: Vec<&str> = established.map(|found| found.endpoint.as_str()).collect();
        if !endpoints.is_empty() {
            let name = &certificate.recipe.name;
            writeln!(
                out,
                "{name}: degradation established on {}",
                endpoints.join(", ")
            )?;
        }
    }
    Ok(())
}

fn write_requirement(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    if summary.required.is_empty() {
        return writeln!(out, "survey, nothing required");
    }
    let names: Vec<&str> = summary
        .required
        .iter()
        .map(|&name| objective_name(name))
        .collect();
    writeln!(out, "required of each recipe: {}", names.join(" and "))
}

fn objective_name(name: ObjectiveName) -> &'static str {
    match name {
        ObjectiveName::Preservation => "preservation",
        ObjectiveName::Aggregate => "aggregate",
    }
}

fn write_unattainable(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    // Alphas out of range stop the run before there is anything to summarise.
    let Ok(found) = unattainable(summary.protocol) else {
        return Ok(());
    };
    if found.is_empty() {
        return Ok(());
    }
    let rules: Vec<String> = found.iter().map(describe).collect();
    writeln!(
        out,
        "protocol {} cannot pass at its sizes, even with no loss: {}",
        summary.protocol.name,
        rules.join("; ")
    )
}

fn describe(rule: &Unattainable) -> String {
    format!(
        "{} on {} cases of {} is bounded by {:.2}%, limit {:.2}%",
        rule.rule,
        rule.cases,
        rule.panel,
        100.0 * rule.bound,
        100.0 * rule.limit
    )
}

fn write_paths(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "certificates: {}/certificates/",
        summary.run.trim_end_matches('/')
    )
}
