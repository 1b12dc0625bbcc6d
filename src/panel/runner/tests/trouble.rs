//! What goes wrong: errored cases, differing controls, recipes and inputs that are refused.

use super::*;

#[test]
fn an_errored_case_is_recorded_and_the_run_goes_on() {
    let world = World::new();
    let mut engine = FakeEngine::new("cpu");
    engine.fails = Some(2);
    world.run("run", &mut engine, None).ended.unwrap();
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    let math = dir.records("AF", "math").unwrap();
    assert_eq!(math[1].error.as_deref(), Some("beyond the context"));
    assert_eq!(
        (math[1].finish, math[1].correct),
        (Some(Finish::Error), None)
    );
    assert_eq!(math[1].output, None);
    assert_eq!(math.len(), 5);
    let nll = dir.records("AF", "nll-16").unwrap();
    assert_eq!((nll[1].error.is_some(), nll[1].nll_sum), (true, None));
}

#[test]
fn a_difference_between_native_and_native_ends_the_run_before_the_candidates() {
    let world = World::new();
    let mut engine = FakeEngine::new("cpu");
    engine.noisy = true;
    let outcome = world.run("run", &mut engine, None);
    let error = outcome.ended.unwrap_err();
    assert!(
        matches!(&error, RunError::AaDiffers { panel, case, .. }
        if panel == "math" && case == "gsm8k-0001"),
        "{error}"
    );
    assert!(!engine.opened.contains(&"AF".to_owned()));
    // The difference stands in the records: going on finds it again.
    let again = world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap_err();
    assert!(matches!(again, RunError::AaDiffers { .. }));
}

#[test]
fn a_server_may_differ_from_itself() {
    let world = World::new();
    let mut engine = FakeEngine::new("http");
    engine.noisy = true;
    assert_eq!(
        world.run("run", &mut engine, None).ended.unwrap(),
        Ended::Complete
    );
}

#[test]
fn an_unsupported_recipe_is_named_and_left_out() {
    let world = World::new();
    let mut engine = FakeEngine::new("cpu");
    engine.refuses = Some("AF".to_owned());
    let outcome = world.run("run", &mut engine, None);
    assert_eq!(outcome.ended.unwrap(), Ended::Complete);
    assert_eq!(outcome.events[0], "AF no kernel for AF");
    assert_eq!(engine.opened, ["native", "native", "AD"]);
    assert_eq!(engine.calibrations, 0);
    let manifest = world.manifest(&engine);
    assert_eq!(
        manifest.arms[2].unsupported.as_deref(),
        Some("no kernel for AF")
    );
}

#[test]
fn without_calibration_documents_fixed_scales_are_unsupported() {
    let mut world = World::new();
    world.panels.calibration = None;
    let mut engine = FakeEngine::new("cpu");
    let outcome = world.run("run", &mut engine, None);
    assert_eq!(outcome.ended.unwrap(), Ended::Complete);
    assert_eq!(engine.opened, ["native", "native", "AD"]);
    assert!(outcome.events[0].contains("calibration documents"));
}

#[test]
fn the_limit_cuts_every_panel() {
    let world = World {
        limit: Some(2),
        ..World::new()
    };
    world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    for panel in ["math", "nll-16", "retrieval-16"] {
        assert_eq!(dir.records("AD", panel).unwrap().len(), 2);
    }
}

#[test]
fn a_stored_calibration_of_other_documents_is_refused() {
    let mut world = World::new();
    world
        .run("run", &mut FakeEngine::new("cpu"), Some(30))
        .ended
        .unwrap();
    world
        .run("run", &mut FakeEngine::new("cpu"), Some(25))
        .ended
        .unwrap();
    assert!(world.root.path().join("run/calibration.json").exists());
    if let Some(documents) = &mut world.panels.calibration {
        documents.sha256 = "3".repeat(64);
    }
    let error = world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap_err();
    assert!(error.to_string().contains("documents_sha256"), "{error}");
}

#[test]
fn a_changed_panel_file_is_refused() {
    let world = World::new();
    world
        .run("run", &mut FakeEngine::new("cpu"), Some(3))
        .ended
        .unwrap();
    let path = world.root.path().join("run/panels/math.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("32", "33")).unwrap();
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    assert!(matches!(
        store_panels(&dir, &world.panels),
        Err(RunError::Panel(_))
    ));
}
