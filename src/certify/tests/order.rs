//! Protocols that did not stand before the records.

use crate::schema::*;

use super::super::verify::alone;
use super::super::*;
use super::world::*;

const DESCRIPTIVE: Verdict = Verdict::Descriptive;

fn detail(found: &Certificate) -> &str {
    found.objectives.preservation.detail.as_deref().unwrap()
}

#[test]
fn a_protocol_that_was_edited_after_the_records_never_passes() {
    let mut evidence = world(protocol(), 1231);
    let before = evidence.manifest.protocol_sha256.clone();
    edit_protocol(&mut evidence, |protocol| {
        protocol.rules.gross_loss.limit = 0.03
    });
    let found = certificate(&evidence, "AD");
    let reason = Some("protocol_changed");
    assert_eq!(verdicts(&found), [(DESCRIPTIVE, reason); 2]);
    assert!(detail(&found).contains(&before), "{}", detail(&found));
    let after = &evidence.manifest.protocol_sha256;
    assert!(detail(&found).contains(after.as_str()));
    assert!(found.degradation.iter().all(|entry| !entry.established));
    // Nor does a certificate by itself that says otherwise.
    answer(&mut evidence, "AD", "math", Answers::right(900));
    let mut found = certificate(&evidence, "AD");
    let says = |found: &Certificate| {
        let lines = alone(found).into_iter().map(|line| line.to_string());
        lines
            .filter(|line| line.contains("degradation"))
            .collect::<Vec<_>>()
    };
    assert_eq!(says(&found), [""; 0]);
    found.degradation[0].established = true;
    let lines = says(&found);
    assert!(lines[0].contains("the trial was not declared"), "{lines:?}");
    let found = certificate(&evidence, "AD");
    // The rules are evaluated and shown all the same.
    assert_eq!(found.objectives.preservation.rules.len(), 5);
}

#[test]
fn one_arm_that_began_under_another_protocol_is_enough() {
    for arm in ["native", "native-aa", "AD"] {
        let mut evidence = world(protocol(), 1231);
        let start = arm_mut(&mut evidence, arm).start.as_mut().unwrap();
        start.protocol_sha256 = "0".repeat(64);
        let found = certificate(&evidence, "AD");
        let reason = Some("protocol_changed");
        assert_eq!(verdicts(&found), [(DESCRIPTIVE, reason); 2], "{arm}");
        assert!(detail(&found).contains(&format!("arm {arm} began")));
        let other = certificate(&evidence, "SD");
        assert_eq!(verdicts(&other)[0].0 == Verdict::Pass, arm == "AD");
    }
}

#[test]
fn an_arm_that_shows_no_protocol_proves_no_order() {
    for arm in ["native", "native-aa", "AD"] {
        let mut evidence = world(protocol(), 1231);
        arm_mut(&mut evidence, arm).start = None;
        let found = certificate(&evidence, "AD");
        let reason = Some("protocol_unproved");
        assert_eq!(verdicts(&found), [(DESCRIPTIVE, reason); 2], "{arm}");
        assert!(detail(&found).contains(&format!("arm {arm}")));
    }
    // An arm without a record has no first one.
    let mut evidence = world(protocol(), 1231);
    *arm_mut(&mut evidence, "AD") = ArmEvidence::default();
    let found = certificate(&evidence, "AD");
    let reason = Some("missing_records");
    assert_eq!(verdicts(&found), [(Verdict::Incomplete, reason); 2]);
}

#[test]
fn an_edited_manifest_that_contradicts_itself_has_no_certificate() {
    let mut evidence = world(protocol(), 1231);
    evidence.manifest.protocol.rules.gross_loss.limit = 0.03;
    let error = certify_with("AD", &evidence, &ByText).unwrap_err();
    assert!(error.is_mismatch(), "{error}");
}

#[test]
fn another_file_under_a_declared_name_is_named_with_both_digests() {
    let mut evidence = world(protocol(), 1231);
    change_protocol(&mut evidence, |protocol| {
        protocol.models[0].sha256 = Some("d".repeat(64));
    });
    let found = certificate(&evidence, "AD");
    let reason = Some("model_undeclared");
    assert_eq!(verdicts(&found), [(DESCRIPTIVE, reason); 2]);
    assert!(detail(&found).contains(&"d".repeat(64)));
    let weights = evidence.manifest.model.weights_sha256.clone();
    assert!(detail(&found).contains(&weights));
    change_protocol(&mut evidence, |protocol| {
        protocol.models[0].sha256 = Some(weights);
    });
    assert_eq!(verdicts(&certificate(&evidence, "AD"))[0].0, Verdict::Pass);
}

/// `evidence` under `other`.
fn judged(evidence: &Evidence, other: &Protocol) -> Certificate {
    let found = judge_under(evidence.clone(), other.clone()).unwrap();
    certificate(&found, "AD")
}

#[test]
fn records_judged_under_a_later_protocol_are_descriptive_whatever_they_show() {
    let evidence = world(protocol(), 1231);
    let mut other = protocol();
    for change in [false, true] {
        other.rules.gross_loss.limit = if change { 0.5 } else { 0.02 };
        let found = judged(&evidence, &other);
        let reason = Some("protocol_after_records");
        assert_eq!(verdicts(&found), [(DESCRIPTIVE, reason); 2]);
        assert_eq!(found.protocol.sha256, other.sha256().unwrap());
        assert!(detail(&found).contains(&evidence.manifest.protocol_sha256));
        let rules = &found.objectives.preservation.rules;
        assert_eq!(rules[0].limit, other.rules.gross_loss.limit);
        assert_eq!(rules.len(), 5);
        assert!(rules.iter().all(|rule| rule.pass));
    }
    other.family_alpha = 0.0;
    assert!(judge_under(evidence, other).is_err());
}

#[test]
fn only_panels_of_both_protocols_are_judged() {
    let evidence = world(protocol(), 1231);
    let mut other = protocol();
    // Fewer cases than the run has, other allowances, and a length that the run lacks.
    for plan in &mut other.panels {
        match plan {
            PanelPlan::Math { cases, .. } => *cases = 1000,
            PanelPlan::Nll {
                length, targets, ..
            } if *length == 1024 => *targets = 64,
            PanelPlan::Retrieval { length, cases, .. } => {
                *cases = 300;
                if *length == 8192 {
                    *length = 4096;
                }
            }
            PanelPlan::Nll { .. } => {}
        }
    }
    let found = judged(&evidence, &other);
    let panels: Vec<&str> = found
        .objectives
        .preservation
        .rules
        .iter()
        .map(|rule| rule.panel.as_str())
        .collect();
    assert_eq!(panels, ["nll-8k", "retrieval-1k"]);
    for clause in [
        "panel math of the run is not the one that the protocol names",
        "panel nll-1k of the run",
        "panel retrieval-4k is not part of the run",
        "panel retrieval-1k has 200 cases, the protocol names 300",
    ] {
        assert!(detail(&found).contains(clause), "{}", detail(&found));
    }
}
