//! Evidence of recipes that were not applied as they say: each is named, none passes.

use crate::recipe::NAMED;
use crate::schema::*;

use super::super::*;
use super::served::serve;
use super::world::*;

type Change = fn(&mut Evidence);

/// Clean evidence with the six named recipes, large enough to pass.
fn named() -> Evidence {
    world(with_named_recipes(protocol()), 1231)
}

/// The same with few cases: the bounds cross their limits too, which comes after any doubt about
/// the recipe.
fn few() -> Evidence {
    let mut protocol = with_named_recipes(protocol());
    for plan in &mut protocol.panels {
        match plan {
            PanelPlan::Math { cases, .. } | PanelPlan::Retrieval { cases, .. } => *cases = 10,
            PanelPlan::Nll { documents, .. } => *documents = 3,
        }
    }
    world(protocol, 10)
}

fn with_named_recipes(mut protocol: Protocol) -> Protocol {
    protocol.rules.nll.resamples = 500;
    protocol.candidates = NAMED
        .iter()
        .map(|(name, spec)| ProtocolCandidate {
            name: (*name).to_owned(),
            spec: (*spec).to_owned(),
        })
        .collect();
    protocol
}

fn probe<'a>(evidence: &'a mut Evidence, arm: &str) -> &'a mut Engagement {
    arm_mut(evidence, arm).engagement.as_mut().unwrap()
}

fn set_scale(totals: &mut ComponentTotals, scale: f32) {
    (totals.scale_min, totals.scale_max) = (Some(scale), Some(scale));
}

/// Changes what every record of an arm stored, and its totals with them.
fn change_records(evidence: &mut Evidence, arm: &str, change: impl Fn(&mut KvTotals)) {
    for record in arm_mut(evidence, arm).records.values_mut().flatten() {
        change(record.kv.as_mut().unwrap());
    }
    add_totals(evidence, arm);
}

fn make_native(totals: &mut ComponentTotals) {
    *totals = ComponentTotals {
        bytes: 2 * totals.elements,
        elements: totals.elements,
        ..ComponentTotals::default()
    };
}

fn assert_unproved(candidate: &str, change: Change, detail: &str) {
    let mut evidence = few();
    change(&mut evidence);
    let found = certificate(&evidence, candidate);
    let reason = (Verdict::NotEstablished, Some("engagement_unproved"));
    assert_eq!(verdicts(&found), [reason; 2], "{detail}");
    let text = found.objectives.preservation.detail.unwrap();
    assert!(text.contains(detail), "{detail}: {text}");
}

#[test]
fn every_named_recipe_passes_where_it_is_applied() {
    let evidence = named();
    for (name, _) in NAMED {
        let found = certificate(&evidence, name);
        assert_eq!(verdicts(&found), [(Verdict::Pass, None); 2], "{name}");
    }
}

#[test]
fn a_recipe_that_was_silently_not_applied() {
    let native: Change = |e| {
        let proof = arm_mut(e, "native").engagement.clone().unwrap();
        let probe = probe(e, "SD");
        probe.layers = proof.layers;
    };
    assert_unproved("SD", native, "arm SD layer 0, keys: found 1024 bytes");
    // The probe shows the recipe, and the cases were run without it.
    let only_the_probe: Change = |e| {
        change_records(e, "SD", |kv| {
            make_native(&mut kv.k);
            make_native(&mut kv.v);
        });
    };
    assert_unproved(
        "SD",
        only_the_probe,
        "arm SD panel math, case math-0000: keys: found",
    );
    // One case alone.
    let one: Change = |e| {
        let kv = records_mut(e, "RF", "retrieval-8k")[7].kv.as_mut().unwrap();
        make_native(&mut kv.k);
        add_totals(e, "RF");
    };
    assert_unproved(
        "RF",
        one,
        "panel retrieval-8k, case retrieval-8k-0007: keys: found",
    );
    let silent: Change = |e| records_mut(e, "AD", "nll-1k")[2].kv = None;
    assert_unproved(
        "AD",
        silent,
        "case nll-1k-0002: does not say what it stored",
    );
    let nothing_changed: Change = |e| change_records(e, "AD", |kv| kv.v.changed = 0);
    assert_unproved(
        "AD",
        nothing_changed,
        "in all its cases stored no value that differs",
    );
}

#[test]
fn a_component_that_was_stored_natively_or_swapped() {
    let keys_native: Change = |e| {
        for layer in &mut probe(e, "SF").layers {
            make_native(&mut layer.k);
        }
    };
    assert_unproved(
        "SF",
        keys_native,
        "layer 0, keys: found 1024 bytes for 512 elements, expected 512",
    );
    let last_layer: Change = |e| make_native(&mut probe(e, "AD").layers[1].v);
    assert_unproved(
        "AD",
        last_layer,
        "layer 1, values: found 1024 bytes for 512 elements, expected 640",
    );
    for (candidate, detail) in [
        (
            "AD",
            "arm AD layer 0, keys: found 640 bytes for 512 elements, expected 1024",
        ),
        (
            "RF",
            "arm RF layer 0, keys: found 1024 bytes for 512 elements, expected 512",
        ),
        // Both quantised: only the scales tell keys from values.
        ("SF", "arm SF layer 0, keys: found scale 0.00446"),
    ] {
        let mut evidence = few();
        for layer in &mut probe(&mut evidence, candidate).layers {
            std::mem::swap(&mut layer.k, &mut layer.v);
        }
        let text = certificate(&evidence, candidate)
            .objectives
            .preservation
            .detail
            .unwrap();
        assert!(text.contains(detail), "{text}");
    }
    let scaled: Change = |e| set_scale(&mut probe(e, "AF").layers[1].k, 0.5);
    assert_unproved(
        "AF",
        scaled,
        "layer 1, keys: found scale 0.5, native storage has none",
    );
}

#[test]
fn scales_that_are_not_those_of_the_calibration() {
    let unit: Change = |e| {
        for layer in &mut probe(e, "AF").layers {
            set_scale(&mut layer.v, 1.0);
        }
        probe(e, "AF").unit_scales = true;
    };
    assert_unproved(
        "AF",
        unit,
        "arm AF layer 0, values: found scale 1 (unit scale), expected 0.004464",
    );
    let first_layers: Change = |e| {
        let layers = &mut probe(e, "RF").layers;
        layers[1].k = layers[0].k.clone();
    };
    assert_unproved("RF", first_layers, "layer 1, keys: found scale 0.0223");
    let one_bit: Change = |e| {
        let scale = &mut probe(e, "SF").layers[1].v.scale_max;
        *scale = scale.map(f32::next_up);
    };
    assert_unproved("SF", one_bit, "layer 1, values: found scales from");
    // Right in the probe, reset for the cases.
    let reset: Change = |e| change_records(e, "AF", |kv| set_scale(&mut kv.v, 1.0));
    assert_unproved(
        "AF",
        reset,
        "case math-0000: values: found scale 1 (unit scale), expected 0.004464",
    );
    let recalibrated: Change = |e| e.calibration.as_mut().unwrap().layers[1].v = 2.25;
    assert_unproved("AF", recalibrated, "layer 1, values: found scale 0.0055");
    let mut without = few();
    without.calibration = None;
    let found = certificate(&without, "AF");
    let reason = (Verdict::Incomplete, Some("missing_files"));
    assert_eq!(verdicts(&found), [reason; 2]);
    let text = found.objectives.preservation.detail.unwrap();
    assert_eq!(text, "arm AF has records, and calibration.json is absent");
    let other_model: Change =
        |e| e.calibration.as_mut().unwrap().weights_sha256 = "other".to_owned();
    assert_unproved("SF", other_model, "calibration.json is of weights other");
    let short: Change = |e| e.calibration.as_mut().unwrap().layers.truncate(1);
    assert_unproved("SF", short, "calibration.json has 1 layers, expected 2");
    let dynamic_unit: Change = |e| {
        let probe = probe(e, "RD");
        for layer in &mut probe.layers {
            set_scale(&mut layer.k, 1.0);
        }
        probe.unit_scales = true;
    };
    assert_unproved(
        "RD",
        dynamic_unit,
        "keys: found scale 1 (unit scale) alone, expected absmax / 448",
    );
    let bad: Change = |e| probe(e, "RD").layers[0].k.scale_min = Some(-0.25);
    assert_unproved("RD", bad, "expected positive numbers");
    let none: Change = |e| probe(e, "RD").layers[0].k.scale_max = None;
    assert_unproved("RD", none, "no scale was read back");
}

/// Calibrated to exactly the largest finite value, scales are 1.0: right, and named.
#[test]
fn honest_unit_scales_are_named_and_no_obstacle() {
    let mut evidence = named();
    let calibration = evidence.calibration.as_mut().unwrap();
    calibration
        .layers
        .iter_mut()
        .for_each(|layer| layer.v = 448.0);
    let proof = probe(&mut evidence, "AF");
    proof
        .layers
        .iter_mut()
        .for_each(|layer| set_scale(&mut layer.v, 1.0));
    proof.unit_scales = true;
    change_records(&mut evidence, "AF", |kv| set_scale(&mut kv.v, 1.0));
    let found = certificate(&evidence, "AF");
    assert_eq!(verdicts(&found), [(Verdict::Pass, None); 2]);
    assert!(
        found
            .caveats
            .iter()
            .any(|text| text.starts_with("Unit scales"))
    );
    probe(&mut evidence, "AF").unit_scales = false;
    let text = certificate(&evidence, "AF").objectives.preservation.detail;
    let detail = "unit_scales: found false, expected true from its layers";
    assert!(text.unwrap().contains(detail));
}

#[test]
fn layers_and_tokens_that_do_not_add_up() {
    let twice: Change = |e| probe(e, "AD").layers[1].layer = 0;
    assert_unproved("AD", twice, "read back layer 0 as layer 1");
    let missing: Change = |e| probe(e, "AD").layers.truncate(1);
    assert_unproved("AD", missing, "read back 1 layers, the model has 2");
    let fewer: Change = |e| probe(e, "AD").probe_tokens = 15;
    assert_unproved(
        "AD",
        fewer,
        "layer 0, keys: found 512 elements, expected 480",
    );
    let short: Change = |e| {
        let record = &mut records_mut(e, "AD", "math")[3];
        record.output_tokens = Some(2);
        record.output_ids = Some(vec![2, 1]);
    };
    assert_unproved("AD", short, "case math-0003: keys: found");
    let many: Change = |e| probe(e, "AD").layers[0].v.changed = 513;
    assert_unproved(
        "AD",
        many,
        "found 513 changed and 0 saturated of 512 elements",
    );
}

/// A control that quantises loses nothing against a candidate that does the same.
#[test]
fn native_arms_must_be_native() {
    for arm in ["native", "native-aa"] {
        for (change, detail) in [
            (
                (|e, arm| {
                    let proof = arm_mut(e, "AD").engagement.clone().unwrap();
                    probe(e, arm).layers = proof.layers;
                }) as fn(&mut Evidence, &str),
                "layer 0, values: found 640 bytes for 512 elements, expected 1024",
            ),
            (
                |e, arm| change_records(e, arm, |kv| kv.v.changed = 1),
                "panel math, case math-0000: values: 1 native elements differ from native",
            ),
            (
                |e, arm| probe(e, arm).differs_from_native = true,
                "differs_from_native: found true, expected false",
            ),
            (
                |e, name| {
                    let arms = &mut e.manifest.arms;
                    let arm = arms.iter_mut().find(|arm| arm.arm == name).unwrap();
                    arm.recipe = "k=native,v=e4m3:dynamic".to_owned();
                },
                "ran k=native,v=e4m3:dynamic, expected native storage",
            ),
        ] {
            let mut evidence = few();
            change(&mut evidence, arm);
            let found = certificate(&evidence, "AD");
            let text = found.objectives.preservation.detail.clone().unwrap();
            assert!(text.contains(&format!("arm {arm} {detail}")), "{text}");
            let reason = (Verdict::NotEstablished, Some("engagement_unproved"));
            assert_eq!(verdicts(&found), [reason; 2]);
        }
    }
}

/// Servers read nothing back of single cases; what they report is looked at all the same.
#[test]
fn a_server_need_not_say_what_a_case_stored() {
    let served = |cache| {
        let mut evidence = named();
        serve(&mut evidence, "AD", cache);
        for name in ["native", "native-aa", "AD"] {
            let arm = arm_mut(&mut evidence, name);
            for record in arm.records.values_mut().flatten() {
                record.kv = None;
            }
            arm.engagement.as_mut().unwrap().totals = None;
        }
        evidence
    };
    let judged = |evidence| {
        verdicts(&certificate(evidence, "AD"))
            .map(|(verdict, reason)| (verdict, reason.map(str::to_owned)))
    };
    let evidence = served(["f16", "fp8_e4m3"]);
    assert_eq!(judged(&evidence), [const { (Verdict::Pass, None) }; 2]);
    let reason = Some("engagement_unproved".to_owned());
    let expected = (Verdict::NotEstablished, reason);
    let unproved = served(["f16", "f16"]);
    assert_eq!(judged(&unproved), [expected.clone(), expected]);
    // Every arm leaves its file behind, whatever it can say in it.
    for arm in ["native", "native-aa", "AD"] {
        let mut evidence = evidence.clone();
        arm_mut(&mut evidence, arm).engagement = None;
        let found = certificate(&evidence, "AD");
        let reason = (Verdict::Incomplete, Some("missing_files"));
        assert_eq!(verdicts(&found), [reason; 2], "{arm}");
        let text = found.objectives.preservation.detail.unwrap();
        let expected = format!("arm {arm} has records, and arms/{arm}/engagement.json is absent");
        assert_eq!(text, expected);
    }
}
