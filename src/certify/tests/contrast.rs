//! Contrasts of hand-made runs.

mod doubts;
mod frozen;

use proptest::prelude::*;

use crate::schema::*;

use super::super::*;
use super::world::*;

/// Four candidates, three contrasts, small panels.
fn four(models: &[&str]) -> Protocol {
    let mut protocol = protocol();
    protocol.models = models
        .iter()
        .map(|name| crate::store::samples::model(name, None))
        .collect();
    for (name, spec) in [
        ("AF", "k=native,v=e4m3:fixed"),
        ("RF", "k=e4m3:fixed,v=native"),
    ] {
        protocol.candidates.push(ProtocolCandidate {
            name: name.to_owned(),
            spec: spec.to_owned(),
        });
    }
    protocol.contrasts = ["AF-RF", "AD-SD", "AF-AD"].map(str::to_owned).to_vec();
    protocol.rules.nll.resamples = 800;
    for plan in &mut protocol.panels {
        match plan {
            PanelPlan::Math { cases, .. } | PanelPlan::Retrieval { cases, .. } => *cases = 40,
            PanelPlan::Nll { documents, .. } => *documents = 6,
        }
    }
    protocol
}

fn run_of(protocol: &Protocol, model: &str) -> Evidence {
    let mut evidence = world(protocol.clone(), 30);
    evidence.manifest.model.name = model.to_owned();
    crate::store::samples::give_weights(&mut evidence.manifest.model, model.as_bytes());
    let weights = evidence.manifest.model.weights_sha256.clone();
    if let Some(calibration) = &mut evidence.calibration {
        calibration.weights_sha256.clone_from(&weights);
    }
    evidence
}

/// A run of `model` in which AF answers everything and RF 30 fewer.
fn ruined(protocol: &Protocol, model: &str) -> Evidence {
    let mut evidence = run_of(protocol, model);
    answer(&mut evidence, "AF", "math", Answers::right(40));
    answer(&mut evidence, "RF", "math", Answers::right(10));
    evidence
}

fn compared(runs: &[&Evidence], asked: &[&str]) -> Result<Comparison, ContrastError> {
    let names: Vec<String> = (0..runs.len()).map(|at| format!("run-{at}")).collect();
    let given: Vec<GivenRun<'_>> = runs
        .iter()
        .zip(&names)
        .map(|(&evidence, run)| GivenRun { run, evidence })
        .collect();
    let asked: Vec<String> = asked.iter().map(|&text| text.to_owned()).collect();
    contrasts_with(&given, &asked, &ByText)
}

fn endpoint<'a>(found: &'a Comparison, name: &str) -> &'a EndpointFamily {
    found.endpoints.iter().find(|e| e.endpoint == name).unwrap()
}

fn row<'a>(family: &'a EndpointFamily, model: &str, contrast: &str) -> &'a Contrast {
    family
        .contrasts
        .iter()
        .find(|row| row.model == model && row.contrast == contrast)
        .unwrap()
}

#[test]
fn a_family_spans_contrasts_and_models() {
    let protocol = four(&["a", "b"]);
    let (a, b) = (ruined(&protocol, "a"), run_of(&protocol, "b"));
    let found = compared(&[&b, &a], &[]).unwrap();
    assert!(found.missing.is_empty());
    let names: Vec<&str> = found
        .endpoints
        .iter()
        .map(|e| e.endpoint.as_str())
        .collect();
    let panels = ["math", "nll-1k", "nll-8k", "retrieval-1k", "retrieval-8k"];
    assert_eq!(names, panels);
    let math = endpoint(&found, "math");
    assert_eq!((math.size, math.missing, math.contrasts.len()), (6, 0, 6));
    assert_eq!(math.models, ["a", "b"]);
    let ruin = row(math, "a", "AF-RF");
    assert_eq!(
        ruin.counts,
        ContrastCounts::Answers {
            pairs: 40,
            first_correct: 40,
            second_correct: 10,
            first_only: 30,
            second_only: 0
        }
    );
    // The smallest of the family of six.
    assert_eq!(ruin.p.p, 2.0_f64.powi(-29));
    assert_eq!(ruin.adjusted.unwrap().p, 6.0 * ruin.p.p);
    assert!(ruin.established && ruin.direction == Direction::First);
    assert_eq!(ruin.effect, 0.75);
    let calm = row(math, "b", "AF-RF");
    assert!(!calm.established && calm.direction == Direction::None);
    // Candidates are alike in this world: every likelihood is a tie.
    let nll = endpoint(&found, "nll-8k");
    assert_eq!(nll.method, ContrastMethod::PairedBootstrap);
    let tie = nll
        .contrasts
        .iter()
        .all(|row| row.p.p == 1.0 && row.effect == 0.0);
    assert!(tie);
}

#[test]
fn likelihoods_are_compared_per_document_in_nats() {
    let protocol = four(&["a"]);
    let mut a = run_of(&protocol, "a");
    scale_nll(&mut a, "RF", "nll-1k", 1.05);
    let found = compared(&[&a], &[]).unwrap();
    let nll = row(endpoint(&found, "nll-1k"), "a", "AF-RF");
    let ContrastCounts::Nll {
        documents,
        first_mean,
        second_mean,
        exceeding,
    } = nll.counts
    else {
        panic!("{nll:?}");
    };
    assert_eq!((documents, nll.direction), (6, Direction::First));
    assert!((second_mean / first_mean - 1.05).abs() < 1e-12);
    assert!((nll.effect - (first_mean - second_mean)).abs() < 1e-12);
    assert!(nll.interval[0] <= nll.effect && nll.interval[1] < 0.0);
    assert_eq!(nll.p.p, (f64::from(exceeding) + 1.0) / 801.0);
    assert!((nll.adjusted.unwrap().p - 3.0 * nll.p.p).abs() < 1e-15);
}

/// What is missing keeps its place: the ruin is adjusted as if everything were there.
#[test]
fn missing_evidence_stays_in_the_family() {
    type Spoil = fn(&mut Evidence);
    let drop_arm: Spoil = |evidence| {
        evidence.manifest.arms.retain(|arm| arm.arm != "AD");
        evidence.arms.remove("AD");
    };
    let refuse_arm: Spoil = |evidence| {
        let arms = &mut evidence.manifest.arms;
        let arm = arms.iter_mut().find(|arm| arm.arm == "AD").unwrap();
        arm.unsupported = Some("too odd".to_owned());
        evidence.arms.remove("AD");
    };
    let lose_record: Spoil = |evidence| {
        records_mut(evidence, "AD", "math").pop();
    };
    let fail_record: Spoil = |evidence| {
        records_mut(evidence, "AD", "math")[3].error = Some("timeout".to_owned());
    };
    let cases: [(Spoil, &str, usize); 4] = [
        (drop_arm, "arm_absent", 10),
        (refuse_arm, "arm_unsupported", 10),
        (lose_record, "missing_records", 2),
        (fail_record, "errored_records", 2),
    ];
    let protocol = four(&["a"]);
    let whole = compared(&[&ruined(&protocol, "a")], &[]).unwrap();
    let expected = row(endpoint(&whole, "math"), "a", "AF-RF").adjusted;
    for (spoil, reason, entries) in cases {
        let mut evidence = ruined(&protocol, "a");
        spoil(&mut evidence);
        let found = compared(&[&evidence], &[]).unwrap();
        let math = endpoint(&found, "math");
        assert_eq!((math.size, math.missing), (3, 2), "{reason}");
        assert_eq!(row(math, "a", "AF-RF").adjusted, expected, "{reason}");
        assert_eq!(math.contrasts.len(), 1, "{reason}");
        assert_eq!(found.missing.len(), entries, "{reason}");
        for gap in &found.missing {
            assert_eq!(gap.lack.name(), reason);
            assert!(gap.declared && gap.detail.contains("AD"), "{gap:?}");
        }
        // What is missing elsewhere does not concern those who ask for what is there.
        let asked = compared(&[&evidence], &["AF-RF"]).unwrap();
        assert!(asked.missing.is_empty());
        assert_eq!(endpoint(&asked, "math").missing, 2);
    }
}

#[test]
fn a_model_without_a_run_is_missing() {
    let protocol = four(&["a", "b"]);
    let found = compared(&[&ruined(&protocol, "a")], &[]).unwrap();
    let math = endpoint(&found, "math");
    assert_eq!((math.size, math.missing), (6, 3));
    let ruin = row(math, "a", "AF-RF");
    assert_eq!(ruin.adjusted.unwrap().p, 6.0 * ruin.p.p);
    assert_eq!(found.missing.len(), 15);
    let gap = &found.missing[0];
    assert_eq!((gap.model.as_str(), gap.lack), ("b", Lack::RunNotGiven));
    assert_eq!(gap.run, None);
}

#[test]
fn a_limit_and_an_unsupported_panel_leave_nothing_to_test() {
    let protocol = four(&["a"]);
    let mut evidence = ruined(&protocol, "a");
    evidence.manifest.limit = Some(10);
    let found = compared(&[&evidence], &["AF-RF"]).unwrap();
    let reasons: Vec<&str> = found.missing.iter().map(|gap| gap.lack.name()).collect();
    assert_eq!(reasons[0], "unknown_records", "records beyond the limit");
    let mut evidence = ruined(&protocol, "a");
    let panel = &mut evidence.manifest.panels[4];
    panel.unsupported = Some("longer than the context".to_owned());
    panel.file = None;
    evidence.panels.remove("retrieval-8k");
    let found = compared(&[&evidence], &["AF-RF"]).unwrap();
    assert_eq!(found.missing.len(), 1);
    assert_eq!(found.missing[0].lack.name(), "panel_unsupported");
    assert!(found.missing[0].detail.contains("longer than the context"));
}

#[test]
fn one_document_has_no_bootstrap() {
    let mut protocol = four(&["a"]);
    let PanelPlan::Nll { documents, .. } = &mut protocol.panels[1] else {
        panic!("{:?}", protocol.panels);
    };
    *documents = 1;
    let found = compared(&[&run_of(&protocol, "a")], &["AF-RF"]).unwrap();
    assert_eq!(found.missing.len(), 1);
    assert_eq!(found.missing[0].lack.name(), "bound_undefined");
}

#[test]
fn undeclared_contrasts_and_models_are_descriptive() {
    let protocol = four(&["a"]);
    let a = ruined(&protocol, "a");
    let found = compared(&[&a], &["native-RF", "AF-RF"]).unwrap();
    let math = endpoint(&found, "math");
    assert_eq!(math.size, 3);
    let beside = row(math, "a", "native-RF");
    assert!(!beside.declared && !beside.established && beside.adjusted.is_none());
    assert!(beside.p.p < 1e-5);
    let ruin = row(math, "a", "AF-RF");
    assert_eq!(ruin.adjusted.unwrap().p, 3.0 * ruin.p.p);

    let x = ruined(&protocol, "x");
    let found = compared(&[&a, &x], &[]).unwrap();
    let declared: Vec<bool> = found.runs.iter().map(|run| run.declared).collect();
    assert_eq!(declared, [true, false]);
    let math: Vec<&EndpointFamily> = found
        .endpoints
        .iter()
        .filter(|family| family.endpoint == "math")
        .collect();
    assert_eq!((math.len(), math[1].size), (2, 0));
    assert!(math[1].models.is_empty());
    assert!(math[1].contrasts.iter().all(|row| !row.declared));
    assert_eq!(math[1].contrasts.len(), 3);
    assert_eq!(
        row(math[0], "a", "AF-RF").adjusted.unwrap().p,
        3.0 * ruin.p.p
    );
}

#[test]
fn runs_under_a_star_are_a_family_each() {
    let protocol = four(&["*"]);
    let (a, b) = (ruined(&protocol, "a"), ruined(&protocol, "b"));
    let both = compared(&[&a, &b], &[]).unwrap();
    assert_eq!(both.endpoints.len(), 10);
    assert!(both.missing.is_empty());
    let alone = compared(&[&b], &[]).unwrap();
    for (together, single) in both.endpoints[5..].iter().zip(&alone.endpoints) {
        assert_eq!((together.size, &together.models), (3, &single.models));
        for (x, y) in together.contrasts.iter().zip(&single.contrasts) {
            assert_eq!((x.p, x.adjusted), (y.p, y.adjusted));
        }
    }
}

#[test]
fn runs_that_do_not_belong_together_are_refused() {
    let protocol = four(&["*"]);
    let (a, b) = (run_of(&protocol, "a"), run_of(&protocol, "b"));
    let mut other = b.clone();
    change_protocol(&mut other, |protocol| protocol.seed += 1);
    let error = compared(&[&a, &other], &[]).unwrap_err().to_string();
    for part in [
        "run-0/run.json",
        "run-1/run.json",
        &a.manifest.protocol_sha256,
        &other.manifest.protocol_sha256,
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = compared(&[&a, &b, &a], &[]).unwrap_err().to_string();
    assert!(error.contains("given twice (same name)"), "{error}");
    let mut renamed = a.clone();
    renamed.manifest.model.name = "c".to_owned();
    let error = compared(&[&a, &renamed], &[]).unwrap_err().to_string();
    assert!(error.contains("given twice (same weights)"), "{error}");
    assert!(matches!(compared(&[], &[]), Err(ContrastError::NoRun)));
}

#[test]
fn what_no_certificate_is_issued_from_is_not_compared() {
    let protocol = four(&["a"]);
    let source = |evidence: &Evidence| match compared(&[evidence], &["AF-RF"]) {
        Err(ContrastError::Certify { run, source }) => {
            assert_eq!(run, "run-0");
            source
        }
        other => panic!("{other:?}"),
    };
    // A contradiction in an arm that no contrast asked for names.
    let mut evidence = run_of(&protocol, "a");
    records_mut(&mut evidence, "SD", "math")[0].correct = Some(false);
    assert!(source(&evidence).is_mismatch());
    let mut evidence = run_of(&protocol, "a");
    evidence.manifest.protocol_sha256 = "0".repeat(64);
    assert!(source(&evidence).is_mismatch());
    let mut evidence = run_of(&protocol, "a");
    records_mut(&mut evidence, "native-aa", "nll-1k")[0].nll_sum = Some(1.0);
    assert!(source(&evidence).is_system());
}

fn randomised(protocol: &Protocol, rights: &[usize]) -> Evidence {
    let mut evidence = run_of(protocol, "a");
    for (arm, &right) in ["AF", "RF", "AD", "SD"].iter().zip(rights) {
        answer(&mut evidence, arm, "math", Answers::right(right));
        scale_nll(&mut evidence, arm, "nll-1k", 1.0 + right as f64 / 400.0);
    }
    evidence
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_filter_never_changes_a_figure(
        rights in prop::collection::vec(0usize..41, 4),
        shown in prop::collection::vec(any::<bool>(), 3),
        undeclared in any::<bool>(),
        dropped in any::<bool>(),
    ) {
        let protocol = four(&["a", "b"]);
        let mut evidence = randomised(&protocol, &rights);
        if dropped {
            records_mut(&mut evidence, "AD", "math").pop();
        }
        let mut asked: Vec<&str> = protocol.contrasts.iter().map(String::as_str).collect();
        let mut keep = shown.iter();
        asked.retain(|_| *keep.next().unwrap());
        if undeclared {
            asked.push("RF-SD");
        }
        prop_assume!(!asked.is_empty());
        let whole = compared(&[&evidence], &[]).unwrap();
        let some = compared(&[&evidence], &asked).unwrap();
        for (all, few) in whole.endpoints.iter().zip(&some.endpoints) {
            prop_assert_eq!((all.size, all.missing), (few.size, few.missing));
            let declared = few.contrasts.iter().filter(|found| found.declared);
            for found in declared {
                let same = row(all, &found.model, &found.contrast);
                prop_assert_eq!((same.p, same.adjusted), (found.p, found.adjusted));
                prop_assert_eq!(same.established, found.established);
            }
        }
        let of_asked = |gap: &&MissingContrast| asked.contains(&gap.contrast.as_str());
        let expected: Vec<&MissingContrast> = whole.missing.iter().filter(of_asked).collect();
        let found: Vec<&MissingContrast> = some.missing.iter().collect();
        prop_assert_eq!(found, expected);
    }
}
