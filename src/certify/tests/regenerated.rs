//! Verified answers and the cases that were generated plainly beside them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::certify::verify::alone;
use crate::schema::*;

use super::super::*;
use super::world::*;

/// What is found, and the change that makes it.
type Spoil<T> = (&'static str, fn(&mut T));

/// A world in which AD verified its answers and generated the chosen cases plainly as well.
fn verified() -> Evidence {
    let mut protocol = protocol();
    protocol.contrasts = vec!["AD-SD".to_owned()];
    let mut evidence = world(protocol, 1231);
    let chosen = regenerated_cases(&evidence.manifest);
    let arm = arm_mut(&mut evidence, "AD");
    if let Some(start) = &mut arm.start {
        start.answers = Some(AnswerMode::Verified);
    }
    for (panel, cases) in chosen {
        let records = cases.iter().map(|&at| arm.records[&panel][at].clone());
        arm.regenerated.insert(panel.clone(), records.collect());
        arm.files.push(FileDigest {
            path: format!("arms/AD/{}.jsonl", regenerated_name(&panel)),
            sha256: sha256_hex(panel.as_bytes()),
        });
    }
    evidence
}

fn reason(evidence: &Evidence) -> (Verdict, Option<String>) {
    let found = certificate(evidence, "AD").objectives.preservation;
    (found.verdict, found.reason)
}

#[test]
fn a_certificate_says_how_answers_came_about() {
    let evidence = verified();
    let found = certificate(&evidence, "AD");
    let expected = AnswerResult {
        mode: AnswerMode::Verified,
        regenerated: 32,
        mismatches: 0,
    };
    assert_eq!(found.answers, Some(expected));
    assert_eq!(found.objectives.preservation.verdict, Verdict::Pass);
    let said = alone(&found);
    assert!(
        said.iter().all(|found| !found.path.starts_with("answers")),
        "{said:?}"
    );
    let files: Vec<&str> = found
        .evidence
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    assert!(
        files.contains(&"arms/AD/math.regenerated.jsonl"),
        "{files:?}"
    );
    let plain = certificate(&evidence, "SD").answers.unwrap();
    assert_eq!((plain.mode, plain.regenerated), (AnswerMode::Plain, 0));
    let mut unsaid = evidence;
    arm_mut(&mut unsaid, "SD").start.as_mut().unwrap().answers = None;
    assert_eq!(certificate(&unsaid, "SD").answers, None);
}

#[test]
fn a_chosen_case_without_a_plain_record_leaves_the_evidence_incomplete() {
    let mut evidence = verified();
    let panel = arm_mut(&mut evidence, "AD").regenerated.get_mut("math");
    panel.unwrap().pop();
    let (verdict, reason_) = reason(&evidence);
    assert_eq!(
        (verdict, reason_.as_deref()),
        (Verdict::Incomplete, Some("missing_records"))
    );
    let detail = certificate(&evidence, "AD")
        .objectives
        .preservation
        .detail
        .unwrap();
    assert!(detail.contains("31 of the 32 chosen cases"), "{detail}");
    arm_mut(&mut evidence, "AD").regenerated.clear();
    assert_eq!(reason(&evidence).0, Verdict::Incomplete);
}

#[test]
fn a_verified_answer_that_differs_from_the_plain_one_yields_no_certificate() {
    let spoil: [Spoil<Record>; 6] = [
        ("prompt_tokens", |record| record.prompt_tokens += 1),
        ("output_tokens", |record| record.output_tokens = Some(99)),
        ("output_ids", |record| record.output_ids = Some(vec![7])),
        ("output", |record| record.output = Some("7".to_owned())),
        ("finish", |record| record.finish = Some(Finish::Length)),
        ("kv", |record| {
            if let Some(kv) = &mut record.kv {
                kv.v.saturated += 1;
            }
        }),
    ];
    for (what, spoil) in spoil {
        let mut evidence = verified();
        let panel = arm_mut(&mut evidence, "AD").regenerated.get_mut("math");
        spoil(&mut panel.unwrap()[1]);
        let error = certify_with("AD", &evidence, &ByText).unwrap_err();
        let CertifyError::RegenerationDiffers(found) = &error else {
            panic!("{error}");
        };
        assert_eq!(
            (found.what, found.count, found.panel.as_str()),
            (what, 1, "math")
        );
        assert!(error.is_system() && !error.is_mismatch());
        certify_with("SD", &evidence, &ByText).unwrap();
        let runs = [GivenRun {
            run: "run",
            evidence: &evidence,
        }];
        let refused = contrasts_with(&runs, &[], &ByText).unwrap_err().to_string();
        assert!(refused.contains("plainly generated"), "{what}: {refused}");
    }
}

/// It was changed behind the worker, and no other machine would help.
#[test]
fn a_verified_record_that_contradicts_itself_is_no_failure_of_the_worker() {
    let mut evidence = verified();
    let plain = &arm_mut(&mut evidence, "AD").regenerated["math"][1];
    let case = plain.case_sha256.clone();
    let mut records = records_mut(&mut evidence, "AD", "math").iter_mut();
    let record = records.find(|record| record.case_sha256 == case).unwrap();
    record.correct = record.correct.map(|correct| !correct);
    let error = certify_with("AD", &evidence, &ByText).unwrap_err();
    assert!(error.is_mismatch() && !error.is_system(), "{error}");
    assert!(error.to_string().contains("correct: found"), "{error}");
}

/// Plain records are compared whatever the start file says, and without it they prove nothing.
#[test]
fn plain_records_of_an_arm_that_does_not_say_how_it_answered_still_count() {
    let silent = |arm: &mut ArmEvidence| {
        if let Some(start) = &mut arm.start {
            start.answers = None;
        }
    };
    let mut evidence = verified();
    silent(arm_mut(&mut evidence, "AD"));
    let (verdict, reason_) = reason(&evidence);
    assert_eq!(
        (verdict, reason_.as_deref()),
        (Verdict::Incomplete, Some("missing_records"))
    );
    let runs = [GivenRun {
        run: "run",
        evidence: &evidence,
    }];
    let found = contrasts_with(&runs, &[], &ByText).unwrap();
    let doubts = &found.runs[0].doubts;
    assert!(
        doubts
            .iter()
            .any(|doubt| doubt.contains("generated plainly")),
        "{doubts:?}"
    );
    let panel = arm_mut(&mut evidence, "AD").regenerated.get_mut("math");
    panel.unwrap()[1].output_ids = Some(vec![7]);
    let error = certify_with("AD", &evidence, &ByText).unwrap_err();
    assert!(
        matches!(error, CertifyError::RegenerationDiffers(_)),
        "{error}"
    );
}

#[test]
fn a_certificate_alone_cannot_claim_what_no_run_has() {
    let sound = certificate(&verified(), "AD");
    // Hand-made evidence has no start files.
    let before = alone(&sound);
    let spoil: [Spoil<Certificate>; 5] = [
        ("answers.regenerated", |c| answers(c).regenerated = 33),
        ("answers.regenerated", |c| answers(c).regenerated = 31),
        ("answers.regenerated", |c| answers(c).regenerated = 0),
        ("answers.mismatches", |c| answers(c).mismatches = 1),
        ("evidence", |c| {
            c.evidence.retain(|file| !file.path.contains("regenerated"))
        }),
    ];
    for (path, spoil) in spoil {
        let mut found = sound.clone();
        spoil(&mut found);
        let paths: Vec<String> = alone(&found)
            .into_iter()
            .filter(|found| !before.contains(found))
            .map(|found| found.path)
            .collect();
        assert_eq!(paths, [path]);
    }
    let mut plain = sound;
    answers(&mut plain).mode = AnswerMode::Plain;
    let found = alone(&plain);
    assert!(
        found
            .iter()
            .any(|found| found.path == "answers.regenerated")
    );
}

fn answers(certificate: &mut Certificate) -> &mut AnswerResult {
    certificate.answers.as_mut().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// As many different cases as there are, up to 32, of panels with answers alone, whatever the
    /// seed; another seed chooses others.
    #[test]
    fn chosen_cases_are_distinct_and_within_their_panels(seed in 0u64..u64::MAX, limit in 1u32..300) {
        let mut manifest = world(protocol(), 1231).manifest;
        manifest.protocol.seed = seed;
        manifest.limit = Some(limit);
        let chosen = regenerated_cases(&manifest);
        let available: u32 = manifest
            .panels
            .iter()
            .filter(|panel| !panel.panel.starts_with("nll"))
            .map(|panel| panel.cases.min(limit))
            .sum();
        let count: usize = chosen.values().map(Vec::len).sum();
        prop_assert_eq!(count, REGENERATED_CASES.min(available as usize));
        for (panel, cases) in &chosen {
            prop_assert!(!panel.starts_with("nll"));
            let distinct: BTreeSet<&usize> = cases.iter().collect();
            prop_assert_eq!(distinct.len(), cases.len());
            prop_assert!(cases.is_sorted() && cases.iter().all(|&at| at < limit as usize));
        }
        prop_assert_eq!(&chosen, &regenerated_cases(&manifest));
        manifest.limit = None;
        let unlimited = regenerated_cases(&manifest);
        manifest.protocol.seed = seed.wrapping_add(1);
        prop_assert_ne!(unlimited, regenerated_cases(&manifest));
    }
}
