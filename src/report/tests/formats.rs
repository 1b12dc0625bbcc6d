//! JUnit, Markdown and annotations of made-up certificates.

use std::io::Write;

use proptest::prelude::*;
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::certify::{BaselineComparison, ObjectiveChange, Reason, RuleChange};

use super::*;

/// A pass, one that a bound decides against, and one that is incomplete.
fn certificates() -> Vec<Certificate> {
    let mut failed = certificate("AF", false);
    for result in [
        &mut failed.objectives.preservation,
        &mut failed.objectives.aggregate,
    ] {
        result.reason = Some(Reason::BoundExceedsLimit.name().to_owned());
        result.detail = Some("nll-8k, control native: the bound +1.56% is above +1%".to_owned());
        result.rules[2].pass = false;
        result.rules[2].limit = 0.01;
    }
    failed.objectives.preservation.outlook = vec![RuleOutlook {
        rule: "nll".to_owned(),
        panel: "nll-8k".to_owned(),
        control: "native".to_owned(),
        pairs: 64,
        needed_80: None,
        needed_95: None,
        beyond_limit: true,
        approximate: true,
    }];
    let mut incomplete = certificate("SD", false);
    let result = &mut incomplete.objectives.preservation;
    result.verdict = Verdict::Incomplete;
    result.reason = Some(Reason::ErroredRecords.name().to_owned());
    result.detail =
        Some("panel math, arm SD: case gsm8k-0007: timed out | <after> 30 s".to_owned());
    vec![certificate("AD", true), failed, incomplete]
}

fn against() -> Against {
    Against {
        path: "kept/AF.json".to_owned(),
        differences: vec!["weights: aaaaaaaaaaaa then, bbbbbbbbbbbb now".to_owned()],
        comparison: BaselineComparison {
            recipe: "AF".to_owned(),
            objectives: vec![ObjectiveChange {
                objective: ObjectiveName::Preservation,
                then: Verdict::Pass,
                now: Verdict::NotEstablished,
                is_incomplete: false,
                reason: Some("bound_exceeds_limit".to_owned()),
                rules: vec![RuleChange {
                    rule: "nll".to_owned(),
                    panel: "nll-8k".to_owned(),
                    control: "native".to_owned(),
                    limit: 0.01,
                    then: Some(0.0012),
                    now: Some(0.0156),
                }],
            }],
        },
    }
}

type Sink = fn(&Summary<'_>, &mut dyn Write) -> std::io::Result<()>;

fn written(
    certificates: &[Certificate],
    required: &[ObjectiveName],
    baselines: &[Against],
    sink: Sink,
) -> String {
    let protocol = protocol(1319);
    let summary = Summary {
        run: "runs/a",
        stored: Some("runs/a/certificates/"),
        protocol: &protocol,
        required,
        exit: 3,
        certificates,
        baselines,
    };
    let mut out = Vec::new();
    sink(&summary, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

const REQUIRED: [ObjectiveName; 1] = [ObjectiveName::Preservation];

fn markdown(summary: &Summary<'_>, out: &mut dyn Write) -> std::io::Result<()> {
    write_markdown(summary, usize::MAX, out)
}

#[test]
fn junit_for_parsers() {
    insta::assert_snapshot!(written(
        &certificates(),
        &REQUIRED,
        &[against()],
        write_junit
    ));
}

#[test]
fn markdown_for_a_pull_request() {
    insta::assert_snapshot!(written(&certificates(), &REQUIRED, &[against()], markdown));
}

#[test]
fn annotations_for_github() {
    insta::assert_snapshot!(written(
        &certificates(),
        &REQUIRED,
        &[against()],
        write_annotations
    ));
}

/// Beside verdicts that a worker's own noise may reach, its noise stands in every form.
#[test]
fn noise_of_the_worker_is_told_in_every_form() {
    let mut all = certificates();
    let noise = AaResult {
        lost: 3,
        gained: 2,
        records: 1847,
        identical_bits: false,
    };
    all.iter_mut().for_each(|it| it.aa = Some(noise.clone()));
    for sink in [write_junit as Sink, write_annotations, markdown] {
        let text = written(&all, &REQUIRED, &[], sink);
        let expected = "A/A (native against native): 3 lost, 2 gained, bits differ";
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn text_names_what_a_baseline_lost() {
    let sink: Sink = |summary, out| write_text(summary, 1000, false, out);
    let text = written(&certificates()[1..2], &[], &[against()], sink);
    for expected in [
        "\nAF against baseline kept/AF.json: not the same as then: weights: aaaaaaaaaaaa then, \
         bbbbbbbbbbbb now\n",
        "\nAF against baseline kept/AF.json: preservation was held and no longer is: not \
         established (bound_exceeds_limit); nll on nll-8k against native: bound +0.12% then, \
         +1.56% now, limit +1.00%\n",
        "\nsurvey, required is what baselines held\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn json_gives_bounds_then_and_now() {
    let sink: Sink = |summary, out| summary.write_json(out);
    let text = written(&certificates(), &[], &[against()], sink);
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    let objective = &read["baselines"][0]["objectives"][0];
    assert_eq!(objective["lost"], true);
    assert_eq!(objective["rules"][0]["bound_then"], 0.0012);
    assert_eq!(objective["rules"][0]["bound_now"], 0.0156);
}

/// Attributes that count something, summed over the suites.
fn counted(text: &str, name: &str) -> Vec<u64> {
    let pattern = format!(" {name}=\"");
    let starts = text.match_indices(&pattern);
    starts
        .map(|(at, found)| {
            let rest = &text[at + found.len()..];
            rest[..rest.find('"').unwrap()].parse().unwrap()
        })
        .collect()
}

#[test]
fn junit_counts_what_it_lists() {
    let text = written(&certificates(), &REQUIRED, &[against()], write_junit);
    for (name, element) in [
        ("tests", "<testcase "),
        ("failures", "<failure "),
        ("errors", "<error "),
        ("skipped", "<skipped "),
    ] {
        let counts = counted(&text, name);
        let listed = text.matches(element).count() as u64;
        assert_eq!(counts[0], listed, "{name}: {text}");
        assert_eq!(counts[1..].iter().sum::<u64>(), listed, "{name}: {text}");
    }
}

/// What a rule of partial evidence shows is no green case.
#[test]
fn nothing_of_an_incomplete_certificate_passes() {
    let text = written(&certificates()[2..], &REQUIRED, &[], write_junit);
    let suite = &text[..text.find("tiny aggregate").unwrap()];
    assert_eq!(suite.matches("<error ").count(), 1, "{suite}");
    assert_eq!(suite.matches("<skipped ").count(), 5, "{suite}");
    assert_eq!(suite.matches("<testcase ").count(), 6, "{suite}");
}

#[test]
fn a_survey_fails_nothing() {
    let all = certificates();
    for sink in [write_junit as Sink, write_annotations] {
        let text = written(&all[..2], &[], &[], sink);
        assert!(
            !text.contains("<failure") && !text.contains("::error"),
            "{text}"
        );
    }
    let text = written(&all, &[], &[], write_annotations);
    assert_eq!(text.matches("::error").count(), 1, "{text}");
}

#[test]
fn markdown_keeps_to_its_limit_and_says_what_is_missing() {
    let whole = written(&certificates(), &REQUIRED, &[], markdown);
    let (protocol, certificates) = (protocol(1319), certificates());
    let summary = Summary {
        run: "runs/a",
        stored: None,
        protocol: &protocol,
        required: &REQUIRED,
        exit: 3,
        certificates: &certificates,
        baselines: &[],
    };
    let mut seen = [0; 3];
    for limit in 0..=whole.len() {
        let mut out = Vec::new();
        write_markdown(&summary, limit, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.len() <= limit, "{limit}: {}", text.len());
        assert_eq!(
            text.matches("<details>").count(),
            text.matches("</details>").count(),
            "{text}"
        );
        if text.is_empty() {
            seen[0] += 1;
            assert!(limit < 60, "{limit}");
        } else if text.contains("more lines do not fit here") {
            seen[1] += 1;
        } else if text.contains("Details are left out") {
            seen[2] += 1;
        }
    }
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn annotations_beyond_what_github_shows_are_named_in_the_last() {
    let all: Vec<Certificate> = (0..14)
        .map(|number| {
            let mut one = certificates().remove(1);
            one.recipe.name = format!("R{number}");
            one.degradation.clear();
            one
        })
        .collect();
    let text = written(&all, &REQUIRED, &[], write_annotations);
    assert_eq!(text.matches("::error ").count(), 10, "{text}");
    let last = text
        .lines()
        .rfind(|line| line.starts_with("::error "))
        .unwrap();
    assert!(
        last.starts_with("::error title=kvassay%3A 5 more::"),
        "{last}"
    );
    assert!(last.contains("R9") && last.contains("R13"), "{last}");
}

/// Whether every byte of `text` is XML, with tags that match.
fn assert_well_formed(text: &str) {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    (config.check_end_names, config.check_comments) = (true, true);
    let mut depth = 0i32;
    loop {
        match reader.read_event().unwrap() {
            Event::Start(start) => {
                depth += 1;
                start.attributes().for_each(|found| {
                    found.unwrap();
                });
            }
            Event::End(_) => depth -= 1,
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
}

proptest! {
    #[test]
    fn reports_are_well_formed_whatever_names_and_details_hold(
        name in any::<String>(), detail in any::<String>(), reason in any::<String>()
    ) {
        let mut all = certificates();
        for one in &mut all {
            one.recipe.name.clone_from(&name);
            one.model.name.clone_from(&name);
            let result = &mut one.objectives.preservation;
            result.detail = Some(detail.clone());
            result.reason = Some(reason.clone());
            result.rules[1].control.clone_from(&name);
        }
        let mut against = against();
        against.path.clone_from(&name);
        let xml = written(&all, &REQUIRED, &[against.clone()], write_junit);
        assert_well_formed(&xml);
        let commands = written(&all, &REQUIRED, &[against.clone()], write_annotations);
        for line in commands.lines() {
            prop_assert!(
                ["::error title=", "::warning title=", "::notice title="]
                    .iter().any(|start| line.starts_with(start)),
                "{}", line
            );
        }
        let page = written(&all, &REQUIRED, &[against], markdown);
        // Rows of tables keep their number of cells, and nothing opens another element.
        for line in page.lines().filter(|line| line.starts_with("| ")) {
            prop_assert!([6, 14, 16].contains(&line.matches('|').count()), "{}", line);
        }
        prop_assert_eq!(page.matches("<details>").count(), 3);
    }
}
