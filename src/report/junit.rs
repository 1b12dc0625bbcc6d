//! JUnit XML, as Jenkins, GitLab and GitHub actions read it: a suite per model and objective, a
//! case per recipe and one per rule below it, and a suite of baselines where there are any.

use std::io::{self, Write};

use crate::schema::{Certificate, ObjectiveName};

use super::check::{Check, Status, against_sentences, change_status, change_words, checks};
use super::figure::{OBJECTIVES, place};
use super::notes::{aa, degraded_endpoints};
use super::outlook::outlooks;
use super::summary::Summary;
use super::xml::Document;

/// Certificates carry no clock time; some readers want the attribute all the same.
const TIME: (&str, &str) = ("time", "0");

struct Suite {
    name: String,
    properties: Vec<(&'static str, String)>,
    cases: Vec<Case>,
}

struct Case {
    class: String,
    name: String,
    status: Status,
    /// One line.
    message: String,
    /// Kind of failure or error.
    kind: String,
    /// More lines; nothing where empty.
    output: String,
}

/// Writes a JUnit XML document. Errors and failures are in it exactly where the exit code is not 0.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_junit(summary: &Summary<'_>, out: &mut dyn Write) -> io::Result<()> {
    let suites = suites(summary);
    let mut document = Document::new(out)?;
    let name = format!("kvassay {}", summary.protocol.name);
    let all: Vec<&Case> = suites.iter().flat_map(|suite| &suite.cases).collect();
    let counts = Counts::of(&all);
    document.open("testsuites", &counts.attributes(&name))?;
    for suite in &suites {
        write_suite(suite, &mut document)?;
    }
    document.close("testsuites")?;
    document.finish()
}

/// Numbers of cases as text, for attributes.
struct Counts {
    tests: String,
    failures: String,
    errors: String,
    skipped: String,
}

impl Counts {
    fn of(cases: &[&Case]) -> Self {
        let of = |status| {
            cases
                .iter()
                .filter(|case| case.status == status)
                .count()
                .to_string()
        };
        Counts {
            tests: cases.len().to_string(),
            failures: of(Status::Failed),
            errors: of(Status::Error),
            skipped: of(Status::Skipped),
        }
    }

    fn attributes<'a>(&'a self, name: &'a str) -> [(&'a str, &'a str); 6] {
        [
            ("name", name),
            ("tests", &self.tests),
            ("failures", &self.failures),
            ("errors", &self.errors),
            ("skipped", &self.skipped),
            TIME,
        ]
    }
}

fn write_suite(suite: &Suite, document: &mut Document<'_>) -> io::Result<()> {
    let cases: Vec<&Case> = suite.cases.iter().collect();
    document.open("testsuite", &Counts::of(&cases).attributes(&suite.name))?;
    if !suite.properties.is_empty() {
        document.open("properties", &[])?;
        for (name, value) in &suite.properties {
            document.empty("property", &[("name", name), ("value", value)])?;
        }
        document.close("properties")?;
    }
    for case in &suite.cases {
        write_case(case, document)?;
    }
    document.close("testsuite")
}

fn write_case(case: &Case, document: &mut Document<'_>) -> io::Result<()> {
    let attributes = [("classname", &*case.class), ("name", &*case.name), TIME];
    let (message, kind) = (("message", &*case.message), ("type", &*case.kind));
    if case.status == Status::Passed && case.output.is_empty() {
        return document.empty("testcase", &attributes);
    }
    document.open("testcase", &attributes)?;
    match case.status {
        Status::Passed => {}
        Status::Skipped => document.empty("skipped", &[message])?,
        Status::Failed => document.text("failure", &[message, kind], &case.message)?,
        Status::Error => document.text("error", &[message, kind], &case.message)?,
    }
    if !case.output.is_empty() {
        document.text("system-out", &[], &case.output)?;
    }
    document.close("testcase")
}

fn suites(summary: &Summary<'_>) -> Vec<Suite> {
    let checks = checks(summary);
    let mut suites: Vec<Suite> = Vec::new();
    for objective in OBJECTIVES {
        for check in checks.iter().filter(|check| check.objective == objective) {
            let name = suite_name(check.certificate, objective);
            let at = suites.iter().position(|suite| suite.name == name);
            let at = at.unwrap_or_else(|| {
                suites.push(Suite {
                    name,
                    properties: properties(check.certificate),
                    cases: Vec::new(),
                });
                suites.len() - 1
            });
            suites[at].cases.extend(cases(summary, check));
        }
    }
    suites.extend(baselines(summary));
    suites
}

fn suite_name(certificate: &Certificate, objective: ObjectiveName) -> String {
    format!("{} {}", certificate.model.name, objective.name())
}

fn properties(certificate: &Certificate) -> Vec<(&'static str, String)> {
    let worker = &certificate.worker;
    vec![
        ("protocol", certificate.protocol.name.clone()),
        ("protocol.sha256", certificate.protocol.sha256.clone()),
        (
            "model.weights_sha256",
            certificate.model.weights_sha256.clone(),
        ),
        (
            "worker",
            format!("{}: {}, {}", worker.kind, worker.device, worker.arithmetic),
        ),
        ("aa", aa(std::slice::from_ref(certificate))),
        ("tool.version", certificate.tool.version.clone()),
        ("tool.source_sha256", certificate.tool.source_sha256.clone()),
    ]
}

/// The objective, then its rules.
fn cases(summary: &Summary<'_>, check: &Check<'_>) -> Vec<Case> {
    let (certificate, objective) = (check.certificate, check.objective.name());
    let class = format!(
        "{}.{objective}.{}",
        certificate.model.name, certificate.recipe.name
    );
    let result = check.result();
    let not_required = match summary.required.contains(&check.objective) {
        false if check.status == Status::Skipped => "not required: ",
        _ => "",
    };
    let mut cases = vec![Case {
        class: class.clone(),
        name: objective.to_owned(),
        status: check.status,
        message: format!("{not_required}{}", check.sentence()),
        kind: match (&result.incomplete, &result.reason) {
            (Some(why), _) if check.status == Status::Error => why.clone(),
            (_, reason) => reason.clone().unwrap_or_default(),
        },
        output: output(check),
    }];
    cases.extend(result.rules.iter().map(|rule| {
        let (status, message) = check.rule(rule);
        let not_required = if status == Status::Skipped {
            not_required
        } else {
            ""
        };
        Case {
            class: class.clone(),
            name: place(&rule.rule, &rule.panel, &rule.control),
            status,
            message: format!("{not_required}{message}"),
            kind: result.reason.clone().unwrap_or_default(),
            output: String::new(),
        }
    }));
    cases
}

/// What else a certificate says of an objective.
fn output(check: &Check<'_>) -> String {
    let mut lines = Vec::new();
    if check.status != Status::Passed {
        lines.extend(outlooks(&check.certificate.objectives));
    }
    lines.extend(
        degraded_endpoints(check.certificate)
            .map(|endpoints| format!("degradation established on {endpoints}")),
    );
    lines.join("\n")
}

fn baselines(summary: &Summary<'_>) -> Option<Suite> {
    let model = &summary.certificates.first()?.model.name;
    let mut cases = Vec::new();
    for against in summary.baselines {
        let comparison = &against.comparison;
        for change in &comparison.objectives {
            cases.push(Case {
                class: format!("{model}.baseline.{}", comparison.recipe),
                name: format!("{} as in {}", change.objective.name(), against.path),
                status: change_status(change),
                message: change_words(change),
                kind: change.reason.clone().unwrap_or_default(),
                output: match change.is_lost() {
                    true => against_sentences(against).join("\n"),
                    false => String::new(),
                },
            });
        }
    }
    (!cases.is_empty()).then(|| Suite {
        name: format!("{model} baseline"),
        properties: Vec::new(),
        cases,
    })
}
