//! What stands beside the verdicts: degradation, caveats, counts.

use crate::schema::*;

use super::super::Evidence;
use super::served::serve;
use super::world::*;

#[test]
fn degradation_needs_every_control() {
    let ruined = |evidence: &mut Evidence| {
        answer(evidence, "AD", "math", Answers::right(1000));
        scale_nll(evidence, "AD", "nll-1k", 0.99);
    };
    let mut one = world(protocol(), 1231);
    ruined(&mut one);
    let found = certificate(&one, "AD");
    let established = |found: &Certificate| -> Vec<String> {
        let of = found
            .degradation
            .iter()
            .filter(|endpoint| endpoint.established);
        of.map(|endpoint| endpoint.endpoint.clone()).collect()
    };
    assert_eq!(established(&found), ["math", "nll-8k"]);
    assert_eq!(found.degradation[0].alpha, 0.05 / 10.0);
    assert!(found.degradation[0].bound.unwrap() < -0.14);
    assert!(found.degradation[1].bound.unwrap() < 0.0);
    assert!(found.degradation[2].bound.unwrap() > 0.0);

    let mut protocol = protocol();
    protocol.controls = vec!["one".to_owned(), "two".to_owned()];
    let mut two = world(protocol, 1231);
    ruined(&mut two);
    answer(&mut two, "control-two", "math", Answers::right(990));
    let found = certificate(&two, "AD");
    assert_eq!(established(&found), ["nll-8k"]);
    assert!(found.degradation[0].bound.unwrap() > 0.0);
    let controls: Vec<&str> = found
        .objectives
        .preservation
        .rules
        .iter()
        .map(|rule| rule.control.as_str())
        .collect();
    assert_eq!(
        controls,
        [
            "one", "two", "one", "two", "one", "two", "one", "two", "one", "two"
        ]
    );
    assert_eq!(
        found.objectives.preservation.verdict,
        Verdict::NotEstablished
    );
}

#[test]
fn identical_likelihoods_and_small_sizes_have_caveats() {
    let mut protocol = protocol();
    protocol.panels[0] = PanelPlan::Math {
        task: "gsm8k".to_owned(),
        cases: 32,
        max_new_tokens: 512,
    };
    protocol.panels[2] = PanelPlan::Nll {
        task: "wikipedia-nll".to_owned(),
        length: 8192,
        documents: 8,
        targets: 128,
    };
    let mut evidence = world(protocol, 30);
    let native = evidence.arms["native"].records["nll-1k"].clone();
    for (record, native) in records_mut(&mut evidence, "AD", "nll-1k")
        .iter_mut()
        .zip(native)
    {
        record.nll_sum = native.nll_sum;
    }
    let found = certificate(&evidence, "AD");
    for expected in [
        "At 32 cases gross_loss on math cannot pass, even with nothing lost",
        "At 32 cases net_change on math does not pass with nothing lost and nothing gained",
        "nll-8k rests on 8 documents",
        "nll on nll-1k against native has no sampling variation",
        "docs/statistics.md",
        "earlier looks",
        "consistent rewrite",
    ] {
        assert!(
            found.caveats.iter().any(|text| text.contains(expected)),
            "{expected}"
        );
    }
    assert_eq!(
        verdicts(&found),
        [(Verdict::NotEstablished, Some("bound_exceeds_limit")); 2]
    );
}

/// A built-in worker promises the same bits twice; on servers the noise is not known then.
#[test]
fn native_is_run_a_second_time() {
    type Change = fn(&mut Evidence);
    let changes: [Change; 2] = [
        |e| e.manifest.arms.retain(|arm| arm.role != ArmRole::Aa),
        |e| {
            let mut arms = e.manifest.arms.iter_mut();
            let second = arms.find(|arm| arm.role == ArmRole::Aa).unwrap();
            second.unsupported = Some("not today".to_owned());
        },
    ];
    for change in changes {
        let mut evidence = world(protocol(), 1231);
        change(&mut evidence);
        let found = certificate(&evidence, "AD");
        let incomplete = (Verdict::Incomplete, Some("missing_records"));
        assert_eq!(verdicts(&found), [incomplete; 2]);
        assert_eq!(found.aa, None);
        let detail = found.objectives.preservation.detail.unwrap();
        let expected = "the run has no arm native-aa: native was not run a second time, which \
                        worker cpu needs";
        assert_eq!(detail, expected);
        serve(&mut evidence, "AD", ["f16", "fp8_e4m3"]);
        let found = certificate(&evidence, "AD");
        let says = |text: &String| text.starts_with("Native was not run a second time");
        assert!(found.caveats.iter().any(says), "{:?}", found.caveats);
    }
}

/// As with `--limit`: what is said of documents is said of those that were compared.
#[test]
fn caveats_count_the_documents_that_were_compared() {
    let mut evidence = world(protocol(), 1231);
    records_mut(&mut evidence, "AD", "nll-1k").truncate(10);
    records_mut(&mut evidence, "AD", "nll-8k").clear();
    let caveats = certificate(&evidence, "AD").caveats.join("\n");
    assert!(
        caveats.contains("nll-1k rests on 10 documents"),
        "{caveats}"
    );
    assert!(
        !caveats.contains("nll-8k") && !caveats.contains("at 64 documents"),
        "{caveats}"
    );
}

/// Records that failed, or of which nothing says which one counts, are no sign of little noise.
#[test]
fn a_second_native_run_that_failed_shows_no_noise() {
    type Change = fn(&mut Vec<Record>);
    let fail: Change = |records| {
        for record in records {
            record.error = Some("429".to_owned());
            record.correct = None;
        }
    };
    let double: Change = |records| records.insert(1, records[0].clone());
    let changes = [(fail, "errored_records"), (double, "duplicate_records")];
    for panel in ["math", "nll-8k", "retrieval-1k"] {
        for (change, reason) in changes {
            let mut evidence = world(protocol(), 1231);
            change(records_mut(&mut evidence, "native-aa", panel));
            serve(&mut evidence, "AD", ["f16", "fp8_e4m3"]);
            let found = certificate(&evidence, "AD");
            assert_eq!(verdicts(&found), [(Verdict::Incomplete, Some(reason)); 2]);
            let detail = found.objectives.preservation.detail.unwrap();
            let place = format!("arm native-aa, panel {panel}");
            assert!(detail.contains(&place), "{detail}");
        }
    }
}

/// A candidate that says nothing of how its answers came about may have verified them.
#[test]
fn a_candidate_says_how_its_answers_came_about() {
    let mut evidence = world(protocol(), 1231);
    let start = arm_mut(&mut evidence, "AD").start.as_mut().unwrap();
    start.answers = None;
    let found = certificate(&evidence, "AD");
    let incomplete = (Verdict::Incomplete, Some("missing_records"));
    assert_eq!(verdicts(&found), [incomplete; 2]);
    let detail = found.objectives.aggregate.detail.unwrap();
    let expected = "arm AD: nothing says how its answers came about, verified or plain";
    assert_eq!(detail, expected);
    // Likelihoods are scored in one way only, and servers generate.
    change_protocol(&mut evidence, |protocol| {
        protocol.panels.retain(|plan| plan.kind() == TaskKind::Nll);
    });
    arm_mut(&mut evidence, "AD").start.as_mut().unwrap().answers = None;
    let found = certificate(&evidence, "AD");
    let detail = found.objectives.aggregate.detail.unwrap();
    assert!(!detail.contains("answers came about"), "{detail}");
}

#[test]
fn truncated_and_unparsed_answers_are_counted_apart() {
    let mut evidence = world(protocol(), 1231);
    for (at, text, finish) in [
        (1, "none", Finish::Stop),
        (2, "42", Finish::Length),
        (3, "4 and 2", Finish::Length),
    ] {
        let record = &mut records_mut(&mut evidence, "AD", "math")[at];
        record.answer = Some((text == "42").then(|| text.to_owned()));
        record.output = Some(text.to_owned());
        record.finish = Some(finish);
        if finish == Finish::Length {
            record.output_ids = Some(vec![7; 512]);
            record.output_tokens = Some(512);
        }
        record.correct = Some(false);
    }
    let found = certificate(&evidence, "AD");
    assert_eq!((found.counts.truncated, found.counts.unparsed), (2, 2));
    assert_eq!(found.objectives.preservation.rules[0].lost, Some(3));
    assert_eq!(found.counts.controls["native"], ControlCounts::default());
}
