//! The summary for people: a row per recipe, then why.

use std::io::{self, Write};

use crate::schema::{Certificate, MemoryFigures, ObjectiveName, RuleResult, Verdict};

use super::figure::share_and_limit;
use super::notes::{notes, rules};
use super::summary::Summary;
use super::table::Table;
use super::visible::one_line;

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

/// Writes the summary in lines of at most `width` characters; a word longer than that, such as a
/// path, stands on a line of its own. With `color` verdicts are coloured by ANSI codes.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_text(
    summary: &Summary<'_>,
    width: usize,
    color: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    write_wrapped(&heading(summary), width, out)?;
    writeln!(out)?;
    full_table(summary).write(width, color, out)?;
    writeln!(out)?;
    for note in notes(summary) {
        write_wrapped(&note, width, out)?;
    }
    Ok(())
}

/// Breaks a sentence at blanks and nowhere else: no text in it makes a line of its own. What follows
/// the first line is indented.
pub(super) fn write_wrapped(text: &str, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut line = String::new();
    for word in one_line(text).split(' ') {
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if line.is_empty() {
            line.push_str(word);
        } else if fits {
            line.push(' ');
            line.push_str(word);
        } else {
            writeln!(out, "{line}")?;
            line = format!("  {word}");
        }
    }
    writeln!(out, "{line}")
}

fn heading(summary: &Summary<'_>) -> String {
    let name = &summary.protocol.name;
    let Some(certificate) = summary.certificates.first() else {
        return format!("protocol {name}: no candidates");
    };
    let (model, worker) = (&certificate.model, &certificate.worker);
    format!(
        "protocol {name} {}, model {} {}, worker {}: {}, {}",
        short(&certificate.protocol.sha256),
        model.name,
        short(&model.weights_sha256),
        worker.kind,
        worker.device,
        worker.arithmetic
    )
}

/// Enough of a digest to recognise it.
pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// A row per certificate and control with everything that was measured, verdicts last.
pub(super) fn full_table(summary: &Summary<'_>) -> Table {
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
        cells(&|row| cache_cell(row.certificate, |memory| memory.bytes_per_token.to_string())),
    );
    table.column(
        "",
        "saved",
        cells(&|row| {
            cache_cell(row.certificate, |memory| {
                format!("{:.1}%", 100.0 * memory.saved)
            })
        }),
    );
    let verdict = |row: &Row<'_>, name| {
        short_verdict(row.certificate.objectives.get(name).verdict).to_owned()
    };
    table.painted_column(
        "preser-",
        "vation",
        cells(&|row| verdict(row, ObjectiveName::Preservation)),
        paint,
    );
    table.painted_column(
        "aggre-",
        "gate",
        cells(&|row| verdict(row, ObjectiveName::Aggregate)),
        paint,
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

/// A figure of the cache; `-` where its shape is not known.
fn cache_cell(certificate: &Certificate, show: impl Fn(&MemoryFigures) -> String) -> String {
    if certificate.memory.native_bytes_per_token == 0 {
        return "-".to_owned();
    }
    show(&certificate.memory)
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
            format!("{:+.2} {}", 100.0 * rule.estimate, bound(rule))
        });
        column("gross", "bound", "gross_loss", |rule| {
            format!("{}%", bound(rule))
        });
    } else if panel.starts_with("nll") {
        column(panel, "bound", "nll", |rule| format!("{}%", bound(rule)));
    } else {
        let short = panel.replace("retrieval-", "retr-");
        column(&short, "lost, bound", "retrieval", |rule| {
            format!("{}/{} {}%", rule.lost.unwrap_or(0), rule.pairs, bound(rule))
        });
    }
}

/// A bound without its unit, on the side of the limit that the verdict says.
fn bound(rule: &RuleResult) -> String {
    let [bound, _] = share_and_limit(&rule.rule, rule.bound, rule.limit);
    bound
}

/// Green for a pass, yellow for any other verdict: none of them is proof of harm.
fn paint(verdict: &str) -> Option<u8> {
    Some(if verdict == short_verdict(Verdict::Pass) {
        32
    } else {
        33
    })
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
