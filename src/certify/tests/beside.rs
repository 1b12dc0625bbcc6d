//! What stands beside the verdicts: degradation, caveats, counts.

use crate::schema::*;

use super::super::Evidence;
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
    evidence.manifest.arms.retain(|arm| arm.role != ArmRole::Aa);
    let found = certificate(&evidence, "AD");
    for expected in [
        "At 32 cases gross_loss on math cannot pass, even with nothing lost",
        "At 32 cases net_change on math cannot pass",
        "nll-8k rests on 8 documents",
        "nll on nll-1k against native has no sampling variation",
        "Native was not run a second time",
        "docs/statistics.md",
        "earlier looks",
        "consistent rewrite",
    ] {
        assert!(
            found.caveats.iter().any(|text| text.contains(expected)),
            "{expected}"
        );
    }
    assert_eq!(found.aa, None);
    assert_eq!(
        verdicts(&found),
        [(Verdict::NotEstablished, Some("bound_exceeds_limit")); 2]
    );
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
        record.correct = Some(false);
    }
    let found = certificate(&evidence, "AD");
    assert_eq!((found.counts.truncated, found.counts.unparsed), (2, 2));
    assert_eq!(found.objectives.preservation.rules[0].lost, Some(3));
    assert_eq!(found.counts.controls["native"], ControlCounts::default());
}
