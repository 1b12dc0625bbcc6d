//! What rules lacked, which document they hang on, and what a few documents cannot show.

use crate::schema::*;
use crate::stats::{
    BootstrapPlan, Criterion, Rates, Side, bootstrap_ratio_bound, loss_pass_probability,
    net_pass_probability,
};

use super::super::{Evidence, outlook};
use super::world::*;

fn on_math(lost: usize, gained: usize) -> Certificate {
    let mut evidence = world(protocol(), 1231);
    let answers = Answers {
        right: 1231,
        lost,
        gained,
    };
    answer(&mut evidence, "AD", "math", answers);
    certificate(&evidence, "AD")
}

/// Power of `gross_loss` at a number of pairs.
fn gross_power(pairs: u64, rule: &RuleResult) -> f64 {
    let criterion = Criterion {
        alpha: rule.alpha,
        limit: rule.limit,
    };
    loss_pass_probability(pairs, rule.estimate, criterion).unwrap()
}

#[test]
fn a_bound_beyond_its_limit_comes_with_the_pairs_that_it_needed() {
    let found = on_math(14, 60);
    let preservation = &found.objectives.preservation;
    assert_eq!(preservation.reason.as_deref(), Some("bound_exceeds_limit"));
    let [gross] = &preservation.outlook[..] else {
        panic!("{:?}", preservation.outlook);
    };
    assert_eq!(
        (gross.rule.as_str(), gross.panel.as_str()),
        ("gross_loss", "math")
    );
    assert_eq!(
        (gross.pairs, gross.beyond_limit, gross.approximate),
        (1319, false, false)
    );
    let rule = &preservation.rules[0];
    for (power, needed) in [(0.8, gross.needed_80), (0.95, gross.needed_95)] {
        let needed = needed.unwrap();
        assert!(needed > 1319);
        assert!(gross_power(needed, rule) >= power, "{needed}");
        assert!(
            (1..needed).all(|pairs| gross_power(pairs, rule) < power),
            "{needed}"
        );
    }
    // The aggregate holds: it lacks nothing.
    assert_eq!(found.objectives.aggregate.verdict, Verdict::Pass);
    assert!(found.objectives.aggregate.outlook.is_empty());
}

#[test]
fn net_change_needs_what_the_trinomial_says() {
    let found = on_math(12, 9);
    let aggregate = &found.objectives.aggregate;
    let [net] = &aggregate.outlook[..] else {
        panic!("{:?}", aggregate.outlook);
    };
    let rule = &aggregate.rules[0];
    let (loss, gain) = (12.0 / 1319.0, 9.0 / 1319.0);
    let power = |pairs| {
        let criterion = Criterion {
            alpha: rule.alpha,
            limit: rule.limit,
        };
        net_pass_probability(pairs, Rates { loss, gain }, criterion)
            .unwrap()
            .probability
    };
    let needed = net.needed_80.unwrap();
    assert!(power(needed) >= 0.8 && power(needed - 1) < 0.8);
    assert!(net.needed_95.unwrap() > needed && needed > 1319);
}

#[test]
fn an_estimate_beyond_the_limit_needs_no_more_pairs() {
    let found = on_math(40, 0);
    let outlooks = [&found.objectives.preservation, &found.objectives.aggregate].map(|result| {
        let [outlook] = &result.outlook[..] else {
            panic!("{:?}", result.outlook);
        };
        (
            outlook.rule.clone(),
            outlook.beyond_limit,
            outlook.needed_80,
            outlook.needed_95,
        )
    });
    let expected = ["gross_loss", "net_change"].map(|rule| (rule.to_owned(), true, None, None));
    assert_eq!(outlooks, expected);
}

#[test]
fn likelihoods_need_documents_by_normal_approximation() {
    let mut evidence = world(protocol(), 1231);
    let spread = records_mut(&mut evidence, "AD", "nll-1k").iter_mut();
    for (at, record) in spread.enumerate() {
        let factor = if at % 2 == 0 { 1.04 } else { 0.97 };
        record.nll_sum = record.nll_sum.map(|sum| factor * sum);
    }
    let found = certificate(&evidence, "AD");
    let rule = &found.objectives.preservation.rules[1];
    assert!(!rule.pass && rule.estimate < rule.limit, "{rule:?}");
    let [nll] = &found.objectives.preservation.outlook[..] else {
        panic!("{:?}", found.objectives.preservation.outlook);
    };
    assert!(nll.approximate && nll.rule == "nll" && nll.pairs == 64);
    // z at 0.05/24 and at 0.8.
    let z = 2.865_161_4 + 0.841_621_2;
    let expected = (z * rule.document_sd.unwrap() / (rule.limit - rule.estimate)).powi(2);
    assert_eq!(nll.needed_80, Some(expected.ceil() as u64));
    // The standard error behind it is that of the bootstrap: the bound lies z of them away.
    let se = rule.document_sd.unwrap() / 8.0;
    let distance = (rule.bound - rule.estimate) / se;
    assert!((distance / 2.865 - 1.0).abs() < 0.1, "{distance}");
}

#[test]
fn no_outlook_where_something_else_decides() {
    let weak = certificate(&world(protocol(), 600), "AD");
    assert_eq!(
        weak.objectives.preservation.reason.as_deref(),
        Some("control_too_weak")
    );
    assert!(weak.objectives.preservation.outlook.is_empty());
    let passed = certificate(&world(protocol(), 1231), "AD");
    assert!(
        passed
            .objectives
            .preservation
            .rules
            .iter()
            .all(|rule| outlook(rule).is_none())
    );
    let stored = serde_json::to_string(&passed).unwrap();
    assert!(!stored.contains("outlook"));
}

/// Paired mean NLL of native and AD.
fn likelihoods(evidence: &Evidence, panel: &str) -> (Vec<f64>, Vec<f64>) {
    let of = |arm: &str| -> Vec<f64> {
        let records = &evidence.arms[arm].records[panel];
        let mean = |record: &Record| record.nll_sum.unwrap() / f64::from(record.targets.unwrap());
        records.iter().map(mean).collect()
    };
    (of("native"), of("AD"))
}

#[test]
fn the_document_with_the_largest_difference_is_named() {
    for factor in [1.6, 0.4] {
        let mut evidence = world(protocol(), 1231);
        let record = &mut records_mut(&mut evidence, "AD", "nll-8k")[5];
        record.nll_sum = record.nll_sum.map(|sum| factor * sum);
        let found = certificate(&evidence, "AD");
        let rule = &found.objectives.preservation.rules[2];
        let influence = rule.influence.as_ref().unwrap();
        assert_eq!(influence.case, "nll-8k-0005");

        let (mut native, mut candidate) = likelihoods(&evidence, "nll-8k");
        let differences: Vec<f64> = native.iter().zip(&candidate).map(|(a, b)| b - a).collect();
        let total: f64 = differences.iter().map(|difference| difference.abs()).sum();
        assert_eq!(influence.share, differences[5] / total);
        assert_eq!(influence.share > 0.5, factor > 1.0);
        native.remove(5);
        candidate.remove(5);
        let plan = BootstrapPlan {
            resamples: 4000,
            seed: evidence.manifest.protocol.rules.nll.seed,
        };
        let without =
            bootstrap_ratio_bound(&native, &candidate, rule.alpha, Side::Upper, plan).unwrap();
        assert_eq!(influence.bound_without, without.value);
        assert_ne!(rule.bound, without.value);
    }
}

#[test]
fn equal_likelihoods_have_no_influence() {
    let mut evidence = world(protocol(), 1231);
    let records = evidence.arms["native"].records["nll-1k"].clone();
    *records_mut(&mut evidence, "AD", "nll-1k") = records;
    let rules = certificate(&evidence, "AD").objectives.preservation.rules;
    assert_eq!(
        (rules[1].influence.as_ref(), rules[1].document_sd),
        (None, Some(0.0))
    );
    assert!(rules[2].influence.is_some());
    // The same ratio everywhere: no document stands out.
    scale_nll(&mut evidence, "AD", "nll-1k", 1.25);
    let rules = certificate(&evidence, "AD").objectives.preservation.rules;
    assert_eq!((rules[1].influence.as_ref(), rules[1].bound), (None, 0.25));
}

#[test]
fn a_handful_of_documents_establishes_no_degradation() {
    for (documents, established) in [(31, false), (32, true)] {
        let mut protocol = protocol();
        protocol.panels[1] = PanelPlan::Nll {
            task: "wikipedia-nll".to_owned(),
            length: 1024,
            documents,
            targets: 128,
        };
        let mut evidence = world(protocol, 1231);
        scale_nll(&mut evidence, "AD", "nll-1k", 1.5);
        let found = certificate(&evidence, "AD");
        let endpoint = &found.degradation[1];
        assert!(endpoint.bound.unwrap() > 0.4);
        assert_eq!(endpoint.established, established, "{documents}");
        let said = found
            .caveats
            .iter()
            .any(|text| text.contains("no degradation is claimed"));
        assert_eq!(said, !established, "{:?}", found.caveats);
    }
}
