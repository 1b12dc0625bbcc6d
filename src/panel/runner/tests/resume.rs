//! Interruption at every point, and what a resumed run ends with.

use super::*;

#[test]
fn a_stop_at_any_forward_pass_and_a_resume_give_the_same_bytes() {
    let world = World::new();
    let whole = world.run("whole", &mut FakeEngine::new("cpu"), None);
    let expected = world.bytes("whole");
    for pass in 1..=whole.passes {
        let name = format!("stop-{pass}");
        let stopped = world.run(&name, &mut FakeEngine::new("cpu"), Some(pass));
        assert_eq!(stopped.ended.unwrap(), Ended::Interrupted, "{name}");
        assert_eq!(stopped.passes, pass, "{name}: goes on after the stop");
        let resumed = world.run(&name, &mut FakeEngine::new("cpu"), None);
        assert_eq!(resumed.ended.unwrap(), Ended::Complete);
        assert!(world.bytes(&name) == expected, "{name}: other bytes");
    }
}

#[test]
fn a_worker_that_dies_at_any_forward_pass_leaves_a_resumable_run() {
    let world = World::new();
    let whole = world.run("whole", &mut FakeEngine::new("cpu"), None);
    let expected = world.bytes("whole");
    for pass in 0..whole.passes {
        let name = format!("death-{pass}");
        let mut mortal = FakeEngine::new("cpu");
        mortal.lifetime = Some(pass);
        let error = world.run(&name, &mut mortal, None).ended.unwrap_err();
        assert!(error.to_string().contains("out of life"), "{error}");
        world
            .run(&name, &mut FakeEngine::new("cpu"), None)
            .ended
            .unwrap();
        assert!(world.bytes(&name) == expected, "{name}: other bytes");
    }
}

#[test]
fn a_long_batch_stores_what_it_finished_as_it_goes() {
    let world = World::with_questions(20);
    let mut mortal = FakeEngine::new("cpu");
    (mortal.batch, mortal.lifetime) = (20, Some(30));
    // Two passes per case and the first case last: no prefix of the plan is finished.
    assert!(world.run("run", &mut mortal, None).ended.is_err());
    let stored = |name: &str, arm: &str| {
        let dir = RunDir::open(&world.root.path().join(name)).unwrap();
        dir.records(arm, "math").unwrap().len()
    };
    assert_eq!(stored("run", "native"), 0);

    mortal.lifetime = None;
    world.run("run", &mut mortal, None).ended.unwrap();
    let path = world.root.path().join("run/arms/AD/math.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(&path, lines[..1].join("\n") + "\n").unwrap();
    std::fs::remove_file(path.with_file_name("engagement.json")).unwrap();
    mortal.lifetime = Some(30);
    mortal.finishes_in_order = true;
    assert!(world.run("run", &mut mortal, None).ended.is_err());
    // Fifteen of the nineteen cases left were finished.
    assert_eq!(stored("run", "AD"), 1 + 15);
    mortal.lifetime = None;
    world.run("run", &mut mortal, None).ended.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_run_that_is_stopped_again_and_again_makes_progress() {
    let world = World::new();
    world
        .run("whole", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let mut rounds = 0;
    while world
        .run("slow", &mut FakeEngine::new("cpu"), Some(5))
        .ended
        .unwrap()
        == Ended::Interrupted
    {
        rounds += 1;
        assert!(rounds < 50);
    }
    assert!(rounds > 5);
    assert!(world.bytes("slow") == world.bytes("whole"));
}
