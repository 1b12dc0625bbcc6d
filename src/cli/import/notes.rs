//! What an import says on stderr.

use std::io::Write;
use std::path::Path;

use crate::schema::{ImportReport, Pairing};

/// Faults named on stderr; the report has all of them.
const FAULTS_SHOWN: usize = 5;
/// Characters of one fault on stderr.
const TEXT_SHOWN: usize = 300;

/// What was read, what is wrong with it, and what this crate's own parser says.
pub(super) fn write(report: &ImportReport, run: &Path, err: &mut dyn Write) -> std::io::Result<()> {
    let by = match report.pairing {
        Pairing::Content => "content",
        Pairing::Ids => "ids alone",
    };
    writeln!(
        err,
        "import: {}, {}: {} native and {} candidate samples, {} pairs by {by}",
        report.harness,
        report.metric,
        report.native.samples,
        report.candidate.samples,
        report.pairs
    )?;
    for arm in [&report.native, &report.candidate] {
        for log in &arm.unfinished {
            writeln!(err, "import: unfinished: {}", plain(log))?;
        }
    }
    for fault in report.faults.iter().take(FAULTS_SHOWN) {
        let kind = fault.kind.name();
        let text = plain(&format!("case {}: {}", fault.case, fault.detail));
        writeln!(err, "import: {kind}: {text}")?;
    }
    if report.faults.len() > FAULTS_SHOWN {
        let more = report.faults.len() - FAULTS_SHOWN;
        writeln!(err, "import: and {more} more faults")?;
    }
    if report.parser_compared > 0 {
        writeln!(
            err,
            "import: our parser disagrees on {} of {} scored outputs; the harness's verdict counts",
            report.parser_disagreements.len(),
            report.parser_compared
        )?;
    }
    writeln!(err, "import: report: {}", run.join("import.json").display())
}

/// Foreign text on one line of a terminal, cut where it is long.
fn plain(text: &str) -> String {
    let chars = text.chars().take(TEXT_SHOWN);
    let mut out: String = chars
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(TEXT_SHOWN).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(plain("a\n\u{1b}[31mb"), "a  [31mb");
        let long = plain(&"é".repeat(400));
        assert_eq!(long.chars().count(), TEXT_SHOWN + 1);
    }
}
