//! What must not matter, and what must hold for any outcomes.

use proptest::prelude::*;

use crate::schema::*;

use super::super::*;
use super::world::*;

/// Small panels, cheap to certify many times.
fn small() -> Protocol {
    let mut protocol = protocol();
    protocol.rules.nll.resamples = 500;
    for plan in &mut protocol.panels {
        match plan {
            PanelPlan::Math { cases, .. } | PanelPlan::Retrieval { cases, .. } => *cases = 12,
            PanelPlan::Nll { documents, .. } => *documents = 4,
        }
    }
    protocol
}

fn shuffle(records: &mut [Record], mut seed: u64) {
    for at in (1..records.len()).rev() {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        records.swap(at, (seed >> 33) as usize % (at + 1));
    }
}

fn random_evidence(outcomes: &[(bool, bool)]) -> Evidence {
    let mut evidence = world(small(), 0);
    for (arm, pick) in [("native", 0), ("native-aa", 0), ("AD", 1)] {
        for (record, &pair) in records_mut(&mut evidence, arm, "math")
            .iter_mut()
            .zip(outcomes)
        {
            let is_right = if pick == 0 { pair.0 } else { pair.1 };
            let text = if is_right { GOLD } else { WRONG };
            record.output = Some(text.to_owned());
            record.answer = Some(Some(text.to_owned()));
            record.correct = Some(is_right);
        }
    }
    evidence
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Records are written in plan order: any other order was made behind the worker.
    #[test]
    fn records_in_another_order_are_refused(
        outcomes in prop::collection::vec(any::<(bool, bool)>(), 12), seed in any::<u64>()
    ) {
        let mut evidence = random_evidence(&outcomes);
        let records = records_mut(&mut evidence, "AD", "math");
        let before = records.clone();
        shuffle(records, seed);
        let is_same = *records == before;
        match certify_with("AD", &evidence, &ByText) {
            Ok(_) => prop_assert!(is_same),
            Err(error) => {
                prop_assert!(!is_same && error.is_mismatch());
                prop_assert!(error.to_string().contains("plan order"), "{error}");
            }
        }
    }

    #[test]
    fn counts_agree_with_a_direct_count(
        outcomes in prop::collection::vec(any::<(bool, bool)>(), 12),
        dropped in prop::collection::btree_set(0usize..12, 0..4),
    ) {
        let mut evidence = random_evidence(&outcomes);
        let records = records_mut(&mut evidence, "AD", "math");
        for &at in dropped.iter().rev() {
            records.remove(at);
        }
        let kept: Vec<(bool, bool)> = outcomes
            .iter()
            .enumerate()
            .filter(|(at, _)| !dropped.contains(at))
            .map(|(_, &pair)| pair)
            .collect();
        let count = |pair: (bool, bool)| kept.iter().filter(|&&other| other == pair).count() as u64;
        let found = certificate(&evidence, "AD");
        let rule = &found.objectives.preservation.rules[0];
        prop_assert_eq!(rule.pairs, kept.len() as u64);
        prop_assert_eq!(rule.lost, Some(count((true, false))));
        prop_assert_eq!(rule.gained, Some(count((false, true))));
        let is_incomplete = found.objectives.preservation.verdict == Verdict::Incomplete;
        prop_assert_eq!(is_incomplete, !dropped.is_empty());
    }

    #[test]
    fn a_pass_has_every_rule_and_every_rule_passes(
        right in 600usize..1319, lost in 0usize..30, gained in 0usize..30
    ) {
        let mut protocol = protocol();
        protocol.rules.nll.resamples = 500;
        let mut evidence = world(protocol, right);
        let gained = gained.min(1319 - right);
        answer(&mut evidence, "AD", "math", Answers { right, lost, gained });
        let found = certificate(&evidence, "AD");
        for name in [ObjectiveName::Preservation, ObjectiveName::Aggregate] {
            let result = found.objectives.get(name);
            let all = result.rules.len() == 5 && result.rules.iter().all(|rule| rule.pass);
            let strong = right as f64 / 1319.0 >= 0.5;
            prop_assert_eq!(result.verdict == Verdict::Pass, all && strong);
        }
    }
}

#[test]
fn other_candidates_change_nothing() {
    let mut evidence = world(small(), 11);
    let before = certificate(&evidence, "AD");
    answer(&mut evidence, "SD", "math", Answers::right(1));
    assert_eq!(certificate(&evidence, "AD"), before);
    evidence.manifest.arms.retain(|arm| arm.arm != "SD");
    evidence.arms.remove("SD");
    assert_eq!(certificate(&evidence, "AD"), before);
}

#[test]
fn evidence_names_every_file_and_only_those_of_the_trial() {
    let found = certificate(&world(small(), 11), "AD");
    let paths: Vec<&str> = found
        .evidence
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    assert!(paths.is_sorted());
    assert_eq!(paths.len(), 1 + 5 + 3 * 5);
    for expected in [
        "run.json",
        "panels/math.jsonl",
        "arms/native-aa/nll-8k.jsonl",
    ] {
        assert!(paths.contains(&expected), "{expected}");
    }
    assert!(!paths.iter().any(|path| path.contains("SD")));
}
