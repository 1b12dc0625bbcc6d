//! Cases side by side: they are the pairs that certificates count.

use crate::schema::*;

use super::super::cases::paired_cases_with;
use super::super::{Evidence, PairedOutcome, PairedPanel, by_depth};
use super::world::*;

fn paired(evidence: &Evidence) -> Vec<PairedPanel<'_>> {
    paired_cases_with("AD", evidence, &ByText).unwrap()
}

/// Pairs, lost and gained of a panel's cases.
fn counts(paired: &PairedPanel<'_>) -> (u64, u64, u64) {
    let flips = |lost: bool| {
        let flip = PairedOutcome::Answers {
            control: lost,
            candidate: !lost,
        };
        let cases = paired.cases.iter();
        cases.filter(|case| case.outcome == flip).count() as u64
    };
    (paired.cases.len() as u64, flips(true), flips(false))
}

fn rules(certificate: &Certificate) -> impl Iterator<Item = &RuleResult> {
    certificate.objectives.preservation.rules.iter()
}

#[test]
fn cases_are_those_that_the_certificate_counts() {
    let mut protocol = protocol();
    protocol.controls = vec!["one".to_owned(), "two".to_owned()];
    let mut evidence = world(protocol, 1231);
    let answers = Answers {
        right: 1231,
        lost: 6,
        gained: 10,
    };
    answer(&mut evidence, "AD", "math", answers);
    // A missing, a doubled and an errored record are pairs of neither.
    records_mut(&mut evidence, "AD", "math").remove(700);
    let again = records_mut(&mut evidence, "AD", "math")[800].clone();
    records_mut(&mut evidence, "AD", "math").push(again);
    records_mut(&mut evidence, "control-two", "math")[900].error = Some("timed out".to_owned());
    let found = certificate(&evidence, "AD");
    let paired = paired(&evidence);
    let mut seen = 0;
    for rule in rules(&found) {
        let of_rule = |it: &&PairedPanel<'_>| it.panel == rule.panel && it.control == rule.control;
        let cases = paired.iter().find(of_rule).unwrap();
        let (pairs, lost, gained) = counts(cases);
        assert_eq!(pairs, rule.pairs, "{} {}", rule.panel, rule.control);
        assert_eq!(
            (lost, gained),
            (rule.lost.unwrap_or(0), rule.gained.unwrap_or(0))
        );
        seen += 1;
    }
    assert_eq!(seen, paired.len());
    assert_eq!((counts(&paired[0]).0, counts(&paired[1]).0), (1317, 1316));
}

#[test]
fn means_and_records_belong_to_their_case() {
    let mut evidence = world(protocol(), 1231);
    scale_nll(&mut evidence, "AD", "nll-1k", 1.01);
    let found = certificate(&evidence, "AD");
    let mut seen = 0;
    for panel in paired(&evidence) {
        for case in &panel.cases {
            assert_eq!(case.control.case, case.gold.case);
            assert_eq!(case.candidate.case, case.gold.case);
        }
        let rule = rules(&found)
            .find(|rule| rule.panel == panel.panel)
            .unwrap();
        let (Some(control), Some(candidate)) = (rule.control_mean, rule.candidate_mean) else {
            continue;
        };
        let mut sums = [0.0, 0.0];
        for case in &panel.cases {
            if let PairedOutcome::MeanNll { control, candidate } = case.outcome {
                sums = [sums[0] + control, sums[1] + candidate];
            }
        }
        let means = sums.map(|sum| sum / panel.cases.len() as f64);
        assert!((means[0] - control).abs() < 1e-12, "{}", panel.panel);
        assert!((means[1] - candidate).abs() < 1e-12, "{}", panel.panel);
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn depths_are_counted_once_each() {
    let evidence = world(protocol(), 1231);
    let mut seen = false;
    for panel in paired(&evidence) {
        let strata = by_depth(&panel.cases, 10);
        if !panel.panel.starts_with("retrieval") {
            assert!(strata.is_empty(), "{}", panel.panel);
            continue;
        }
        seen = true;
        let pairs: u64 = strata.iter().map(|stratum| stratum.pairs).sum();
        assert_eq!((strata.len(), pairs), (10, panel.cases.len() as u64));
        assert!((strata[9].to - 1.0).abs() < 1e-12);
    }
    assert!(seen);
}
