//! A comparison for people: per endpoint a table and a sentence for each row, then notes.

use std::io::{self, Write};

use crate::certify::{Comparison, Contrast, ContrastCounts, ContrastMethod, EndpointFamily};
use crate::report::markdown::line;
use crate::report::table::Table;
use crate::report::text::{short, write_wrapped};
use crate::report::visible::one_line;

use super::notes::{missing_lines, notes};
use super::number::{p_text, points, signed, significant};
use super::sentence::{confidence, sentence};

/// Writes the comparison in lines of at most `width` characters, but for longer words.
pub(super) fn write(comparison: &Comparison, width: usize, out: &mut dyn Write) -> io::Result<()> {
    let (name, digest) = (&comparison.protocol, short(&comparison.protocol_sha256));
    let alpha = significant(comparison.family_alpha, 4);
    let head = format!("protocol {name} {digest}, family alpha {alpha}");
    writeln!(out, "{}", one_line(&head))?;
    for run in &comparison.runs {
        let (path, model, weights) = (&run.run, &run.model, short(&run.weights_sha256));
        write_wrapped(&format!("run {path}: model {model} {weights}"), width, out)?;
    }
    for family in &comparison.endpoints {
        write_family(family, width, out)?;
    }
    writeln!(out)?;
    let missing = missing_lines(&comparison.missing);
    for line in missing.iter().chain(&notes(comparison)) {
        write_wrapped(line, width, out)?;
    }
    Ok(())
}

/// Writes the comparison as Markdown for a pull request.
pub(super) fn write_markdown(comparison: &Comparison, out: &mut dyn Write) -> io::Result<()> {
    let (name, digest) = (&comparison.protocol, short(&comparison.protocol_sha256));
    let alpha = significant(comparison.family_alpha, 4);
    let head = format!("protocol {name} {digest}, family alpha {alpha}");
    writeln!(out, "## kvassay compare\n\n{}\n", line(&head))?;
    for run in &comparison.runs {
        let (path, model, weights) = (&run.run, &run.model, short(&run.weights_sha256));
        let text = format!("run {path}: model {model} {weights}");
        writeln!(out, "- {}", line(&text))?;
    }
    let shown = comparison.endpoints.iter();
    for family in shown.filter(|family| !family.contrasts.is_empty()) {
        writeln!(out, "\n**{}**\n", line(&heading(family)))?;
        writeln!(out, "{}", table(&family.contrasts).markdown(&line))?;
        for found in &family.contrasts {
            writeln!(out, "- {}", line(&sentence(&family.endpoint, found)))?;
        }
    }
    writeln!(out, "\n<details><summary>Notes</summary>\n")?;
    let missing = missing_lines(&comparison.missing);
    for note in missing.iter().chain(&notes(comparison)) {
        writeln!(out, "- {}", line(note))?;
    }
    writeln!(out, "\n</details>")
}

fn write_family(family: &EndpointFamily, width: usize, out: &mut dyn Write) -> io::Result<()> {
    // A family that shows nothing has its say among what is missing, or was filtered out.
    if family.contrasts.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    write_wrapped(&heading(family), width, out)?;
    table(&family.contrasts).write(width, false, out)?;
    for found in &family.contrasts {
        let text = format!("- {}", sentence(&family.endpoint, found));
        write_wrapped(&text, width, out)?;
    }
    Ok(())
}

/// What a family tests, and over how many contrasts.
pub(super) fn heading(family: &EndpointFamily) -> String {
    let method = match family.method {
        ContrastMethod::McnemarExact => "exact McNemar",
        ContrastMethod::PairedBootstrap => "paired bootstrap",
    };
    let endpoint = &family.endpoint;
    if family.models.is_empty() {
        return format!("{endpoint}: {method}, in no family: see the notes");
    }
    let missing = match family.missing {
        0 => String::new(),
        missing => format!(", {missing} of them missing"),
    };
    format!(
        "{endpoint}: {method}, Holm over {} {}{missing} (models: {})",
        family.size,
        if family.size == 1 {
            "contrast"
        } else {
            "contrasts"
        },
        family.models.join(", ")
    )
}

/// The rows of one endpoint; they have counts of one kind.
fn table(rows: &[Contrast]) -> Table {
    let mut table = Table::default();
    let several = rows.iter().any(|row| row.model != rows[0].model);
    let mut column = |upper: &str, lower: &str, cell: &dyn Fn(&Contrast) -> String| {
        table.column(upper, lower, rows.iter().map(cell).collect());
    };
    column("", "contrast", &|row| {
        if several {
            format!("{} {}", row.model, row.contrast)
        } else {
            row.contrast.clone()
        }
    });
    if let Some(ContrastCounts::Nll { .. }) = rows.first().map(|row| row.counts) {
        column("docu-", "ments", &|row| count(row, 0));
        column("first", "mean", &|row| count(row, 1));
        column("second", "mean", &|row| count(row, 2));
    } else {
        column("", "pairs", &|row| count(row, 0));
        column("first", "right", &|row| count(row, 1));
        column("second", "right", &|row| count(row, 2));
        column("first", "alone", &|row| count(row, 3));
        column("second", "alone", &|row| count(row, 4));
    }
    column("first -", "second", &effect);
    column(&confidence(), "interval", &interval);
    column("", "p", &|row| p_text(row.p));
    column("adjusted", "p", &|row| {
        row.adjusted.map_or("-".to_owned(), p_text)
    });
    column("differ-", "ence", &|row| result(row).to_owned());
    table
}

/// The counts of a row in the order of their columns.
fn count(row: &Contrast, at: usize) -> String {
    match row.counts {
        ContrastCounts::Answers {
            pairs,
            first_correct,
            second_correct,
            first_only,
            second_only,
        } => [
            pairs,
            first_correct,
            second_correct,
            first_only,
            second_only,
        ][at]
            .to_string(),
        ContrastCounts::Nll {
            documents,
            first_mean,
            second_mean,
            ..
        } => match at {
            0 => documents.to_string(),
            1 => format!("{first_mean:.4}"),
            _ => format!("{second_mean:.4}"),
        },
    }
}

/// The difference first - second with its unit.
pub(super) fn effect(row: &Contrast) -> String {
    match row.counts {
        ContrastCounts::Answers { .. } => {
            let sign = if row.effect > 0.0 { "+" } else { "" };
            format!("{sign}{} pp", points(row.effect))
        }
        ContrastCounts::Nll { .. } => format!("{} nats", signed(row.effect, 3)),
    }
}

/// Its interval, without a unit.
pub(super) fn interval(row: &Contrast) -> String {
    let [lower, upper] = match row.counts {
        ContrastCounts::Answers { .. } => row.interval.map(points),
        ContrastCounts::Nll { .. } => row.interval.map(|end| significant(end, 3)),
    };
    format!("{lower} to {upper}")
}

fn result(row: &Contrast) -> &'static str {
    if !row.declared {
        "descriptive"
    } else if row.established {
        "established"
    } else {
        "not est."
    }
}
