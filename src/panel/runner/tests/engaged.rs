//! Engines that do not apply their recipes, or differ from themselves: each is named before
//! anything of the arm is stored, and an honest engine goes on from there.

use super::lie::Lie;
use super::*;

/// Runs with a lying engine, then with an honest one.
fn refused(lie: Lie) -> String {
    let world = World::new();
    world
        .run("whole", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let mut engine = FakeEngine::new("cpu");
    engine.lie = lie;
    let error = world.run("run", &mut engine, None).ended.unwrap_err();
    let honest = world.run("run", &mut FakeEngine::new("cpu"), None);
    if !matches!(error, RunError::AaDiffers { .. }) {
        assert_eq!(honest.ended.unwrap(), Ended::Complete, "{lie:?}");
        assert!(world.bytes("run") == world.bytes("whole"), "{lie:?}");
    }
    error.to_string()
}

#[test]
fn a_recipe_that_is_not_applied_is_named() {
    let table = [
        (
            Lie::NotApplied,
            "arm AF: recipe k=native,v=e4m3:fixed is not engaged: layer 0, values: found 256 bytes \
             for 128 elements, expected 128",
        ),
        (
            Lie::NotAppliedToCases,
            "panel math, case gsm8k-0002: values: found 160 bytes for 80 elements, expected 80",
        ),
        (Lie::NativeValues, "layer 0, values: found 256 bytes"),
        (
            Lie::Swapped,
            "layer 0, keys: found 128 bytes for 128 elements, expected 256",
        ),
        (
            Lie::UnitScales,
            "layer 0, values: found scale 1 (unit scale), expected 0.008928",
        ),
        (
            Lie::UnitScalesInCases,
            "panel math, case gsm8k-0002: values: found scale 1 (unit scale), expected 0.00111",
        ),
        (
            Lie::FirstScales,
            "layer 1, values: found scale 0.008928572, expected 0.00111",
        ),
        (Lie::MissingLayer, "read back 1 layers, the model has 2"),
        (Lie::Silent, "does not say what it stored"),
        (
            Lie::NothingChanges,
            "stored no value that differs from native",
        ),
        (
            Lie::NativeChanges,
            "arm native: recipe k=native,v=native is not engaged: layer 0, keys: 1 native elements \
             differ from native",
        ),
    ];
    for (lie, expected) in table {
        let error = refused(lie);
        assert!(error.contains(expected), "{lie:?}: {error}");
    }
}

#[test]
fn keys_that_stay_native_are_named() {
    let mut world = World::new();
    world.recipes = &["SD", "RF"];
    let mut engine = FakeEngine::new("cpu");
    engine.lie = Lie::NativeKeys;
    let error = world.run("run", &mut engine, None).ended.unwrap_err();
    let expected = "arm SD: recipe k=e4m3:dynamic,v=e4m3:dynamic is not engaged: layer 0, keys: \
                    found 256 bytes for 128 elements, expected 192";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn one_token_or_one_bit_of_the_second_native_arm_is_named() {
    for (lie, expected) in [
        (
            Lie::OneToken,
            "A/A difference: panel math, case gsm8k-0003: the output's tokens differs",
        ),
        (
            Lie::OneBit,
            "A/A difference: panel nll-16, case nll-0002: the NLL's bits differs",
        ),
    ] {
        let error = refused(lie);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_missing_second_record_is_run_again() {
    let world = World::new();
    world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let expected = world.bytes("run");
    let path = world.root.path().join("run/arms/native-aa/nll-16.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let last = text.trim_end().rfind('\n').unwrap() + 1;
    std::fs::write(&path, &text[..last]).unwrap();
    let again = world.run("run", &mut FakeEngine::new("cpu"), None);
    assert_eq!(again.ended.unwrap(), Ended::Complete);
    assert_eq!(again.events, ["native-aa nll-16 2/3"]);
    assert!(world.bytes("run") == expected);
}

#[test]
fn a_changed_record_of_the_second_arm_is_found_in_a_finished_run() {
    let world = World::new();
    world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let path = world.root.path().join("run/arms/native-aa/nll-16.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replacen("\"nll_sum\":3.2", "\"nll_sum\":3.25", 1),
    )
    .unwrap();
    let error = world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("panel nll-16, case nll-0001: the NLL's bits"),
        "{error}"
    );
}

/// Stops within the last arm, changes what it left behind, and goes on.
fn changed_meanwhile(file: &str, from: &str, to: &str) -> String {
    let world = World::new();
    let whole = world.run("whole", &mut FakeEngine::new("cpu"), None);
    world
        .run("run", &mut FakeEngine::new("cpu"), Some(whole.passes - 4))
        .ended
        .unwrap();
    let path = world.root.path().join("run").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    let resumed = world.run("run", &mut FakeEngine::new("cpu"), None);
    resumed.ended.unwrap_err().to_string()
}

#[test]
fn what_an_interrupted_arm_left_behind_must_still_hold() {
    let error = changed_meanwhile(
        "arms/AD/engagement.json",
        "\"scale_min\": 0.25",
        "\"scale_min\": 0.3",
    );
    assert!(
        error.contains("arm AD") && error.contains("engagement.json says"),
        "{error}"
    );
    let error = changed_meanwhile(
        "arms/AD/math.jsonl",
        "\"scale_min\":0.25",
        "\"scale_min\":-1.0",
    );
    assert!(
        error.contains("panel math, case gsm8k-0001: values: found scales from -1 to 0.5"),
        "{error}"
    );
}
