//! Every way in which evidence can be incomplete, and what is no evidence at all.

use crate::schema::*;

use super::super::*;
use super::world::*;

type Change = fn(&mut Evidence);

fn spoiled(arm: &str, panel: &str, change: impl FnOnce(&mut Vec<Record>)) -> Certificate {
    let mut evidence = world(protocol(), 1231);
    // An A/A arm would notice the spoiled control first.
    evidence.manifest.arms.retain(|arm| arm.role != ArmRole::Aa);
    change(records_mut(&mut evidence, arm, panel));
    certificate(&evidence, "AD")
}

fn assert_incomplete(found: &Certificate, reason: &str, detail: &str) {
    for (verdict, name) in verdicts(found) {
        assert_eq!((verdict, name), (Verdict::Incomplete, Some(reason)));
    }
    let text = found.objectives.preservation.detail.as_deref().unwrap();
    assert!(text.contains(detail), "{text}");
    assert!(!found.objectives.preservation.rules.is_empty());
}

#[test]
fn a_spoiled_record_in_either_arm() {
    for arm in ["native", "AD"] {
        let found = spoiled(arm, "math", |records| {
            records[5] = Record {
                finish: Some(Finish::Error),
                error: Some("timeout".to_owned()),
                output: Some(String::new()),
                correct: None,
                answer: None,
                ..records[5].clone()
            };
        });
        let detail = format!("arm {arm}, panel math: 1 cases errored (math-0005)");
        assert_incomplete(&found, "errored_records", &detail);
        assert_eq!(found.objectives.preservation.rules[0].pairs, 1318);
        let errors = if arm == "AD" {
            found.counts.errors
        } else {
            found.counts.controls[arm].errors
        };
        assert_eq!(errors, 1);

        let found = spoiled(arm, "retrieval-1k", |records| {
            records.pop();
            records.remove(0);
        });
        let detail =
            "panel retrieval-1k: 2 cases have no record (retrieval-1k-0000, retrieval-1k-0199)";
        assert_incomplete(&found, "missing_records", detail);

        let found = spoiled(arm, "math", |records| records.push(records[9].clone()));
        assert_incomplete(
            &found,
            "duplicate_records",
            "have several records (math-0009)",
        );

        for bad in [Some(f64::NAN), Some(f64::INFINITY), None] {
            let found = spoiled(arm, "nll-8k", |records| records[63].nll_sum = bad);
            assert_incomplete(
                &found,
                "non_finite_records",
                "no finite likelihood (nll-8k-0063)",
            );
        }

        let found = spoiled(arm, "math", |records| {
            let mut stranger = records[0].clone();
            stranger.case_sha256 = "0".repeat(64);
            records.push(stranger);
        });
        assert_incomplete(&found, "unknown_records", "not in the panel (math-0000)");

        let found = spoiled(arm, "math", |records| records[3].output = None);
        assert_incomplete(&found, "errored_records", "math-0003");
    }
}

/// What contradicts the objectives of a certificate by itself.
fn claims(certificate: &Certificate) -> usize {
    let all = verify::alone(certificate);
    let of_objectives = all
        .iter()
        .filter(|claim| claim.path.starts_with("objectives"));
    of_objectives.count()
}

#[test]
fn a_descriptive_verdict_does_not_hide_incomplete_evidence() {
    let changes: [(Option<&str>, Change); 7] = [
        (None, |_| {}),
        (Some("errored_records"), |e| {
            records_mut(e, "AD", "math")[5].error = Some("timeout".to_owned());
        }),
        (Some("duplicate_records"), |e| {
            let records = records_mut(e, "AD", "math");
            records.push(records[9].clone());
        }),
        (Some("non_finite_records"), |e| {
            records_mut(e, "AD", "nll-8k")[63].nll_sum = None;
        }),
        (Some("missing_records"), |e| {
            arm_mut(e, "AD").records.clear();
        }),
        (Some("limit"), |e| {
            e.manifest.limit = Some(2);
            for records in e.arms.values_mut().flat_map(|arm| arm.records.values_mut()) {
                records.truncate(2);
            }
        }),
        (Some("missing_files"), |e| {
            arm_mut(e, "AD").engagement = None
        }),
    ];
    for (incomplete, change) in changes {
        let mut evidence = world(protocol(), 1231);
        change_protocol(&mut evidence, |protocol| {
            protocol
                .candidates
                .retain(|candidate| candidate.name != "AD");
        });
        change(&mut evidence);
        let found = certificate(&evidence, "AD");
        let reason = (Verdict::Descriptive, Some("recipe_undeclared"));
        assert_eq!(verdicts(&found), [reason; 2], "{incomplete:?}");
        for result in [&found.objectives.preservation, &found.objectives.aggregate] {
            assert_eq!(result.incomplete.as_deref(), incomplete);
            let judged = incomplete.map_or(Verdict::Descriptive, |_| Verdict::Incomplete);
            assert_eq!(result.judged(), judged);
        }
        let text = serde_json::to_string(&found.objectives).unwrap();
        assert_eq!(text.contains("\"incomplete\""), incomplete.is_some());
        assert_eq!(claims(&found), 0);
        let mut forged = found;
        forged.objectives.aggregate.incomplete = Some("bound_exceeds_limit".to_owned());
        assert_eq!(claims(&forged), 1);
    }
}

#[test]
fn an_arm_without_any_record_of_a_panel_has_no_rules_there_and_no_nan() {
    let found = spoiled("AD", "nll-1k", Vec::clear);
    assert_incomplete(
        &found,
        "missing_records",
        "64 cases have no record (nll-1k-0000, nll-1k-0001, nll-1k-0002, …)",
    );
    let rules = &found.objectives.preservation.rules;
    assert!(!rules.iter().any(|rule| rule.panel == "nll-1k"));
    assert_eq!(rules.len(), 4);
    let nll = found
        .degradation
        .iter()
        .find(|found| found.endpoint == "nll-1k")
        .unwrap();
    assert_eq!((nll.established, nll.bound), (false, None));
    let text = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Certificate>(&text).unwrap(), found);
}

#[test]
fn one_document_has_no_bound() {
    let found = spoiled("native", "nll-1k", |records| records.truncate(1));
    assert_incomplete(&found, "missing_records", "63 cases");
    let mut evidence = world(protocol(), 1231);
    change_protocol(&mut evidence, |protocol| {
        let PanelPlan::Nll { documents, .. } = &mut protocol.panels[1] else {
            unreachable!()
        };
        *documents = 1;
    });
    let mut small = world(evidence.manifest.protocol.clone(), 1231);
    small.manifest.protocol_sha256 = evidence.manifest.protocol_sha256;
    let found = certificate(&small, "AD");
    let undefined = (Verdict::NotEstablished, Some("bound_undefined"));
    assert_eq!(verdicts(&found), [undefined; 2]);
}

#[test]
fn fewer_cases_than_the_protocol_names() {
    let mut evidence = world(protocol(), 1231);
    evidence.manifest.limit = Some(2);
    for arm in evidence.arms.values_mut() {
        for records in arm.records.values_mut() {
            records.truncate(2);
        }
    }
    let found = certificate(&evidence, "AD");
    assert_incomplete(&found, "limit", "--limit cut panel math to 2 of 1319 cases");
    assert_eq!(found.objectives.preservation.rules[0].pairs, 2);

    evidence.manifest.limit = Some(5000);
    let evidence = Evidence {
        manifest: evidence.manifest,
        ..world(protocol(), 1231)
    };
    let pass = (Verdict::Pass, None);
    assert_eq!(verdicts(&certificate(&evidence, "AD")), [pass; 2]);

    let mut evidence = world(protocol(), 1231);
    evidence
        .panels
        .get_mut("math")
        .unwrap()
        .cases
        .truncate(1318);
    for arm in evidence.arms.values_mut() {
        arm.records.get_mut("math").unwrap().truncate(1318);
    }
    let found = certificate(&evidence, "AD");
    assert_incomplete(
        &found,
        "fewer_cases",
        "math has 1318 cases, the protocol names 1319",
    );
}

#[test]
fn a_panel_or_control_that_the_run_lacks() {
    let mut evidence = world(protocol(), 1231);
    evidence.panels.remove("nll-8k");
    evidence
        .manifest
        .panels
        .retain(|panel| panel.panel != "nll-8k");
    let found = certificate(&evidence, "AD");
    assert_incomplete(
        &found,
        "missing_records",
        "panel nll-8k is not part of the run",
    );

    let mut evidence = world(protocol(), 1231);
    change_protocol(&mut evidence, |protocol| {
        protocol.controls.push("second".to_owned())
    });
    let found = certificate(&evidence, "AD");
    assert_incomplete(&found, "missing_records", "no arm for control second");
}

#[test]
fn an_unfinished_second_native_run() {
    let mut evidence = world(protocol(), 1231);
    records_mut(&mut evidence, "native-aa", "nll-8k").pop();
    let found = certificate(&evidence, "AD");
    assert_incomplete(
        &found,
        "missing_records",
        "arm native-aa, panel nll-8k: 1 cases have no record (nll-8k-0063)",
    );
}

#[test]
fn a_protocol_without_a_kind_of_panel() {
    type Keep = fn(&PanelPlan) -> bool;
    let kept: [(&str, Keep); 2] = [
        ("has no panel for retrieval", |plan| {
            !matches!(plan, PanelPlan::Retrieval { .. })
        }),
        ("has no panel for gross_loss", |plan| {
            !matches!(plan, PanelPlan::Math { .. })
        }),
    ];
    for (detail, keep) in kept {
        let mut protocol = protocol();
        protocol.panels.retain(keep);
        let found = certificate(&world(protocol, 1231), "AD");
        assert_incomplete(&found, "no_panel", detail);
    }
}

fn refusal(change: Change) -> CertifyError {
    let mut evidence = world(protocol(), 1231);
    change(&mut evidence);
    certify_with("AD", &evidence, &ByText).unwrap_err()
}

#[test]
fn records_that_contradict_themselves_have_no_certificate() {
    let changes: [(Change, &str); 7] = [
        (
            |e| records_mut(e, "AD", "math")[2].correct = Some(false),
            "arm AD, panel math, case math-0002: correct: found false, expected true; 1 such",
        ),
        (
            |e| records_mut(e, "native", "math")[1300].answer = Some(Some("42".to_owned())),
            "arm native, panel math, case math-1300: answer: found 42, expected 41",
        ),
        (
            |e| {
                for record in &mut records_mut(e, "AD", "retrieval-8k")[4..9] {
                    record.output = Some("lost".to_owned());
                }
            },
            "case retrieval-8k-0004: correct: found true, expected false; 5 such records",
        ),
        (
            |e| records_mut(e, "AD", "math")[0].finish = Some(Finish::Length),
            "case math-0000: correct: found true, expected false",
        ),
        (
            |e| records_mut(e, "AD", "nll-1k")[0].targets = Some(64),
            "case nll-1k-0000: targets: found 64, expected 128",
        ),
        (
            |e| records_mut(e, "AD", "nll-8k")[3].nll_sum = Some(-2.5),
            "case nll-8k-0003: nll_sum: found -2.5, expected 0 or more",
        ),
        (
            |e| records_mut(e, "AD", "math")[7].case = "math-0008".to_owned(),
            "case math-0007: case: found math-0008, expected math-0007",
        ),
    ];
    for (change, message) in changes {
        let error = refusal(change);
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.is_mismatch() && !error.is_system());
    }
}

#[test]
fn evidence_of_something_else_has_no_certificate() {
    let changes: [(Change, &str); 6] = [
        (
            |e| e.manifest.protocol_sha256 = "0".repeat(64),
            "protocol_sha256: found 000",
        ),
        (
            |e| change_protocol(e, |protocol| protocol.rules.gross_loss.divisor = 3),
            "rules.gross_loss.divisor",
        ),
        (
            |e| {
                let gold = e.panels.get_mut("math").unwrap();
                gold.cases.push(gold.cases[0].clone());
            },
            "panel math: found 1320 cases, expected at most the 1319",
        ),
        (
            |e| {
                let task = e.panels["nll-1k"].cases[0].task.clone();
                e.panels.get_mut("math").unwrap().cases[1].task = task;
            },
            "panel math, case math-0001: found {\"kind\":\"nll\"",
        ),
        (
            |e| e.panels.get_mut("math").unwrap().header.parser = "other/9".to_owned(),
            "panels/math.jsonl:1: parser: found `other/9`, expected `gsm8k/1`",
        ),
        (
            |e| e.manifest.arms.retain(|arm| arm.arm != "AD"),
            "found candidate `AD`, expected one of: SD",
        ),
    ];
    for (change, message) in changes {
        let error = refusal(change);
        assert!(error.to_string().contains(message), "{error}");
    }
}
