//! Certificates against earlier ones.

use super::super::*;
use super::world::*;
use crate::schema::*;

/// The certificate of `AD` after `lost` answers were lost.
fn certified(lost: usize) -> (Manifest, Certificate) {
    let mut evidence = world(protocol(), 1200);
    let answers = Answers {
        right: 1200,
        lost,
        gained: 0,
    };
    answer(&mut evidence, "AD", "math", answers);
    let certificate = certificate(&evidence, "AD");
    (evidence.manifest, certificate)
}

#[test]
fn an_objective_that_was_held_is_lost_with_its_bounds() {
    let (manifest, then) = certified(0);
    let (_, now) = certified(100);
    assert_eq!(then.objectives.preservation.verdict, Verdict::Pass);
    assert_eq!(now.objectives.preservation.verdict, Verdict::NotEstablished);
    assert_eq!(comparable(&then, &manifest), Ok(Vec::new()));
    let comparison = against_baseline(&then, &now);
    let lost: Vec<ObjectiveName> = comparison.lost().map(|change| change.objective).collect();
    assert_eq!(
        lost,
        [ObjectiveName::Preservation, ObjectiveName::Aggregate]
    );
    let change = &comparison.objectives[0];
    assert_eq!(change.reason.as_deref(), Some("bound_exceeds_limit"));
    assert_eq!(change.rules.len(), then.objectives.preservation.rules.len());
    let (old, new) = (
        &then.objectives.preservation.rules[0],
        &now.objectives.preservation.rules[0],
    );
    let rule = &change.rules[0];
    assert_eq!((rule.then, rule.now), (Some(old.bound), Some(new.bound)));
    assert_eq!(rule.limit, new.limit);
    // The other way round nothing is lost, and the same certificate keeps everything.
    for (one, other) in [(&now, &then), (&then, &then)] {
        assert_eq!(against_baseline(one, other).lost().count(), 0);
    }
}

#[test]
fn rules_that_one_side_lacks_are_shown_as_such() {
    let (_, then) = certified(0);
    let mut now = then.clone();
    now.objectives.preservation.rules.remove(1);
    let one = against_baseline(&then, &now);
    assert_eq!(one.objectives[0].rules[1].now, None);
    let other = against_baseline(&now, &then);
    let last = other.objectives[0].rules.last().unwrap();
    assert_eq!((last.then, last.rule.as_str()), (None, "nll"));
}

#[test]
fn what_makes_a_baseline_incomparable_and_what_is_only_said() {
    let (manifest, then) = certified(0);
    let with = |change: fn(&mut Certificate)| {
        let mut then = then.clone();
        change(&mut then);
        comparable(&then, &manifest)
    };
    let recipe = with(|then| then.recipe.spec = "k=native,v=e5m2:dynamic".to_owned());
    assert!(
        matches!(recipe, Err(Incomparable::Recipe { .. })),
        "{recipe:?}"
    );
    let protocol = with(|then| then.protocol.sha256 = "0".repeat(64));
    assert!(
        matches!(protocol, Err(Incomparable::Protocol { .. })),
        "{protocol:?}"
    );
    for change in [
        (|then| then.model.family = "other".to_owned()) as fn(&mut Certificate),
        |then| then.model.geometry.layers += 1,
        |then| {
            then.model.geometry = Geometry::unknown();
            then.model.name = "other".to_owned();
        },
    ] {
        let model = with(change);
        assert!(
            matches!(model, Err(Incomparable::Model { .. })),
            "{model:?}"
        );
    }
    for (change, what) in [
        (
            (|then| then.model.name = "other".to_owned()) as fn(&mut Certificate),
            "model: other",
        ),
        (
            |then| then.model.weights_sha256 = "0".repeat(64),
            "weights: 000000000000 then",
        ),
        (
            |then| then.model.tokenizer_sha256 = "0".repeat(64),
            "tokenizer: 000000000000 then",
        ),
        (|then| then.worker.device = "other".to_owned(), "worker: "),
        (
            |then| then.tool.version = "0.0.1".to_owned(),
            "tool: 0.0.1 ",
        ),
        (|then| then.model.geometry = Geometry::unknown(), ""),
    ] {
        let differences = with(change).unwrap();
        assert_eq!(
            differences.len(),
            usize::from(!what.is_empty()),
            "{differences:?}"
        );
        assert!(
            differences.iter().all(|found| found.starts_with(what)),
            "{differences:?}"
        );
    }
}

#[test]
fn the_fewest_pairs_are_where_the_bound_of_nothing_first_respects_the_limit() {
    let (_, certificate) = certified(0);
    let rules = certificate.objectives.preservation.rules.iter();
    for rule in rules.chain(&certificate.objectives.aggregate.rules) {
        let name = RuleName::ALL
            .into_iter()
            .find(|name| name.name() == rule.rule)
            .unwrap();
        let Some(least) = least_pairs(rule) else {
            assert_eq!(name, RuleName::Nll);
            continue;
        };
        let passes = |pairs: u64| match name {
            RuleName::NetChange => {
                let side = crate::stats::Side::Lower;
                crate::stats::tango_bound(0, 0, pairs, rule.alpha, side).unwrap() >= rule.limit
            }
            _ => {
                let bound = crate::stats::clopper_pearson_upper(0, pairs, rule.alpha);
                bound.unwrap() <= rule.limit
            }
        };
        assert!(
            passes(least) && !passes(least - 1),
            "{}: {least}",
            rule.rule
        );
    }
}
