//! Markdown for pull requests and step summaries: the outcome first, then why, details folded.

mod escape;

use std::io::{self, Write};

use crate::schema::{Certificate, ObjectiveName, Verdict};

use super::check::{Check, Status, against_sentences, checks, headline};
use super::figure::{OBJECTIVES, bound_and_limit, figure, verdict_words};
use super::notes::{background, degraded_endpoints, unheld};
use super::summary::Summary;
use super::text::{full_table, short};

use escape::{code, text};

/// A sentence from anywhere as one line of Markdown.
pub(super) fn line(sentence: &str) -> String {
    text(sentence)
}

/// Most bytes of a step summary on GitHub, all steps' writes to one file together.
pub const STEP_SUMMARY_BYTES: usize = 1 << 20;

/// Writes the summary as Markdown in at most `limit` bytes: details are left out where they do not
/// fit, then rows, and the document says so.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_markdown(summary: &Summary<'_>, limit: usize, out: &mut dyn Write) -> io::Result<()> {
    let mut document = head(summary);
    let details = [
        ("Figures", full_table(summary).markdown(&text)),
        ("Rules", rules(summary)),
        ("Controls and noise", items(background(summary))),
        (
            "What the certificates do not establish",
            items(caveats(summary)),
        ),
    ];
    let note = "\nDetails are left out: they do not fit here. `--format json` has all of them.\n";
    let mut complete = true;
    for (title, content) in details
        .into_iter()
        .filter(|(_, content)| !content.is_empty())
    {
        let section = format!("\n<details><summary>{title}</summary>\n\n{content}\n</details>\n");
        if document.len() + section.len() + note.len() <= limit {
            document.push_str(&section);
        } else {
            complete = false;
        }
    }
    if !complete {
        document.push_str(note);
    }
    out.write_all(cut(&document, limit).as_bytes())
}

/// The first lines that fit, and a line that says how many do not.
fn cut(document: &str, limit: usize) -> String {
    if document.len() <= limit {
        return document.to_owned();
    }
    let all = document.lines().count();
    let note = |kept: usize| format!("\n{} more lines do not fit here.\n", all - kept);
    let mut kept = String::new();
    for (count, line) in document.lines().enumerate() {
        if kept.len() + line.len() + 1 + note(count + 1).len() > limit {
            let note = note(count);
            // No room even for that: nothing at all.
            return if kept.len() + note.len() <= limit {
                kept + &note
            } else {
                String::new()
            };
        }
        kept.push_str(line);
        kept.push('\n');
    }
    kept
}

/// Outcome, verdicts and reasons.
fn head(summary: &Summary<'_>) -> String {
    let (mark, outcome) = match summary.exit {
        0 if summary.required.is_empty() && summary.baselines.is_empty() => ("ℹ️", "survey"),
        0 => ("✅", "what was required holds"),
        1 => ("❌", "a required objective does not hold"),
        _ => ("⚠️", "incomplete or unsupported"),
    };
    let mut document = format!(
        "## kvassay: {mark} {outcome}\n\n{}\n\n",
        text(&headline(summary))
    );
    if let Some(certificate) = summary.certificates.first() {
        document.push_str(&identity(certificate));
        document.push_str(&verdicts(summary));
    }
    let against = summary.baselines.iter().flat_map(against_sentences);
    let against: Vec<String> = against.collect();
    if !against.is_empty() {
        document.push_str(&format!("\n**Baseline**\n\n{}", items(against)));
    }
    let reasons = unheld(summary);
    if !reasons.is_empty() {
        document.push_str(&format!("\n**Why**\n\n{}", items(reasons)));
    }
    document
}

fn identity(certificate: &Certificate) -> String {
    let worker = &certificate.worker;
    format!(
        "model {} {}, protocol {} {}, worker {}\n\n",
        code(&certificate.model.name),
        code(short(&certificate.model.weights_sha256)),
        code(&certificate.protocol.name),
        code(short(&certificate.protocol.sha256)),
        code(&format!(
            "{}: {}, {}",
            worker.kind, worker.device, worker.arithmetic
        ))
    )
}

fn verdicts(summary: &Summary<'_>) -> String {
    let checks = checks(summary);
    let mut table = String::from(
        "| recipe | preservation | aggregate | cache saved | degradation established on |\n\
         |---|---|---|--:|---|\n",
    );
    for certificate in summary.certificates {
        let verdict = |objective: ObjectiveName| {
            let found = checks.iter().find(|check| {
                std::ptr::eq(check.certificate, certificate) && check.objective == objective
            });
            found.map_or_else(String::new, verdict_cell)
        };
        let [preservation, aggregate] = OBJECTIVES.map(verdict);
        let saved = match certificate.memory.native_bytes_per_token {
            0 => "-".to_owned(),
            _ => format!("{:.1}%", 100.0 * certificate.memory.saved),
        };
        let degraded = degraded_endpoints(certificate).map_or_else(String::new, |all| text(&all));
        table.push_str(&format!(
            "| {} | {preservation} | {aggregate} | {saved} | {degraded} |\n",
            code(&certificate.recipe.name)
        ));
    }
    table
}

/// Green for a pass and nothing else.
fn verdict_cell(check: &Check<'_>) -> String {
    let mark = match (check.result().verdict, check.status) {
        (Verdict::Pass, _) => "✅ ",
        (_, Status::Failed) => "❌ ",
        (_, Status::Error) => "⚠️ ",
        _ => "",
    };
    format!("{mark}{}", verdict_words(check.result().verdict))
}

fn rules(summary: &Summary<'_>) -> String {
    let mut table = String::from(
        "| recipe | objective | rule | panel | control | pairs | lost | gained | estimate | bound \
         | limit | alpha | holds |\n\
         |---|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|---|\n",
    );
    for check in checks(summary) {
        for rule in &check.result().rules {
            let count = |count: Option<u64>| count.map_or_else(String::new, |n| n.to_string());
            let [bound, limit] = bound_and_limit(&rule.rule, rule.bound, rule.limit);
            table.push_str(&format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {bound} | {limit} | {:.6} | {} |\n",
                code(&check.certificate.recipe.name),
                check.objective.name(),
                code(&rule.rule),
                code(&rule.panel),
                code(&rule.control),
                rule.pairs,
                count(rule.lost),
                count(rule.gained),
                figure(&rule.rule, rule.estimate),
                rule.alpha,
                if rule.pass { "yes" } else { "no" }
            ));
        }
    }
    table
}

fn items(sentences: Vec<String>) -> String {
    let line = |sentence: String| format!("- {}\n", text(&sentence));
    sentences.into_iter().map(line).collect()
}

/// Caveats of all certificates, each once.
fn caveats(summary: &Summary<'_>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for caveat in summary.certificates.iter().flat_map(|found| &found.caveats) {
        if !all.contains(caveat) {
            all.push(caveat.clone());
        }
    }
    all
}
