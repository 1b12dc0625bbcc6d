//! Records that another harness has made: what stands against them, and what they cannot show.

use crate::schema::{ImportArm, ImportReport, Pairing};

use super::Reason;
use super::arms::Trial;
use super::findings::Finding;

/// What stands against an imported trial as such.
pub(super) fn findings(trial: &Trial<'_>) -> Vec<Finding> {
    if !trial.evidence.is_imported() {
        return Vec::new();
    }
    let Some(report) = &trial.evidence.import else {
        let detail = "import.json is absent: nothing says where the records come from";
        return vec![Finding::new(Reason::PostHoc, detail.to_owned())];
    };
    let mut findings = Vec::new();
    find_post_hoc(trial, report, &mut findings);
    find_large(trial, &mut findings);
    for arm in arms(report) {
        for log in &arm.unfinished {
            let detail = format!("arm {}: {log}", arm.arm);
            findings.push(Finding::new(Reason::MissingRecords, detail));
        }
    }
    find_other_ids(report, &mut findings);
    findings
}

fn arms(report: &ImportReport) -> [&ImportArm; 2] {
    [&report.native, &report.candidate]
}

/// A protocol stood before the records only where each of them carries its digest.
fn find_post_hoc(trial: &Trial<'_>, report: &ImportReport, findings: &mut Vec<Finding>) {
    let expected = &trial.evidence.manifest.protocol_sha256;
    let without: Vec<&ImportArm> = arms(report)
        .into_iter()
        .filter(|arm| !arm.carries(expected))
        .collect();
    let Some(first) = without.first() else { return };
    let names: Vec<&str> = without.iter().map(|arm| arm.arm.as_str()).collect();
    let found = match first.protocol_sha256.as_slice() {
        [] => "no protocol digest".to_owned(),
        found if first.without_protocol == 0 => found.join(", "),
        found => format!("{}, and none in part", found.join(", ")),
    };
    let detail = format!(
        "the records of {} carry {found}, expected {expected}: nothing shows that the protocol \
         stood before them",
        names.join(" and ")
    );
    findings.push(Finding::new(Reason::PostHoc, detail));
}

fn find_large(trial: &Trial<'_>, findings: &mut Vec<Finding>) {
    for plan in &trial.evidence.manifest.protocol.panels {
        let name = plan.panel_name();
        let cases = trial
            .evidence
            .panels
            .get(&name)
            .map_or(0, |gold| gold.cases.len());
        if cases > plan.case_count() as usize {
            let detail = format!(
                "panel {name} has {cases} cases, the protocol names {}",
                plan.case_count()
            );
            findings.push(Finding::new(Reason::PanelUndeclared, detail));
        }
    }
}

/// Ids alone say which cases are the same only where both arms have the same set of them.
fn find_other_ids(report: &ImportReport, findings: &mut Vec<Finding>) {
    let [native, candidate] = arms(report);
    if report.pairing == Pairing::Ids && native.case_set_sha256 != candidate.case_set_sha256 {
        let detail = format!(
            "the arms are paired by ids alone and have different sets of them (SHA-256 {} and {})",
            native.case_set_sha256, candidate.case_set_sha256
        );
        findings.push(Finding::new(Reason::MissingRecords, detail));
    }
}

/// What imported records cannot show.
pub(super) fn caveats(trial: &Trial<'_>) -> Vec<String> {
    if !trial.evidence.is_imported() {
        return Vec::new();
    }
    let mut list = vec![
        "Nothing proves that the recipe was engaged, that both arms ran the same model, or that \
         they differ in the cache alone: the harness's logs do not say. The cache's shape is not \
         known either, so bytes per token are given as 0."
            .to_owned(),
    ];
    if let Some(report) = &trial.evidence.import {
        list.extend(sources(report));
        list.extend(pairing(report));
        list.extend(other_models(report));
        list.extend(parser(report));
    }
    list
}

fn sources(report: &ImportReport) -> Vec<String> {
    let filter = report
        .filter
        .as_ref()
        .map_or(String::new(), |filter| format!(", filter {filter}"));
    let scored = format!(
        "Imported from {}: that harness asked the questions and scored the answers (metric \
         {}{filter}); its verdicts are taken as they are and cannot be computed again here.",
        report.harness, report.metric
    );
    let files = arms(report).map(|arm| {
        let files: Vec<String> = arm
            .files
            .iter()
            .map(|file| format!("{} (SHA-256 {})", file.path, file.sha256))
            .collect();
        format!("Files of arm {}: {}.", arm.arm, files.join(", "))
    });
    std::iter::once(scored).chain(files).collect()
}

fn pairing(report: &ImportReport) -> Option<String> {
    (report.pairing == Pairing::Ids).then(|| {
        "The files hold no questions: pairing rests on case ids alone, and nothing shows that an \
         id means the same question in both arms."
            .to_owned()
    })
}

fn other_models(report: &ImportReport) -> Option<String> {
    let [native, candidate] = arms(report).map(|arm| arm.model.as_deref());
    let (native, candidate) = (native?, candidate?);
    (native != candidate).then(|| {
        format!("The harness names model {native} in the native arm and {candidate} in the other.")
    })
}

fn parser(report: &ImportReport) -> Option<String> {
    (report.parser_compared > 0).then(|| {
        format!(
            "On {} of the {} records with an output and a gold answer that this tool reads, its \
             own parser disagrees with the harness; the harness's verdict counts.",
            report.parser_disagreements.len(),
            report.parser_compared
        )
    })
}
