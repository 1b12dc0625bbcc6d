//! Arms side by side on several workers: the same records, one failure ends all, any stop resumes.

use std::sync::Mutex;

use super::*;

/// How the workers beside the first one come about.
type Others = Vec<Box<Open<'static>>>;

fn sound() -> Box<Open<'static>> {
    opener(|| FakeEngine::new("cpu"))
}

fn opener(engine: impl Fn() -> FakeEngine + Send + Sync + 'static) -> Box<Open<'static>> {
    Box::new(move || Ok((Box::new(engine()) as Box<dyn Engine>, LAYOUT)))
}

fn others(count: usize) -> Others {
    (0..count).map(|_| sound()).collect()
}

impl World {
    /// As [`World::run`], on `first` and `others`.
    fn run_beside(
        &self,
        name: &str,
        mut first: FakeEngine,
        others: &Others,
        stop_after: Option<u64>,
    ) -> Outcome {
        let stop = AtomicBool::new(false);
        let dir = self.open(name, &first).unwrap();
        store_panels(&dir, &self.panels).unwrap();
        let input = RunInput {
            dir: &dir,
            panels: &self.panels,
            layout: LAYOUT,
            verify: self.verify,
            stop: &stop,
        };
        let seen = Mutex::new((0, Vec::new()));
        let ended = run_side_by_side(
            &input,
            &mut first,
            others,
            self.others_are_needed,
            &mut |_, event| {
                let (passes, events) = &mut *seen.lock().unwrap();
                if matches!(event, Event::TokensProcessed(_)) {
                    *passes += 1;
                    if Some(*passes) == stop_after {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                note(event, events);
            },
        );
        let (passes, events) = seen.into_inner().unwrap();
        Outcome {
            ended,
            passes,
            events,
        }
    }
}

fn world(verify: bool) -> World {
    World {
        recipes: &["AD", "AF", "SD", "SF"],
        verify,
        ..World::with_questions(6)
    }
}

fn whole(world: &World) -> BTreeMap<String, Vec<u8>> {
    let outcome = world.run("serial", &mut FakeEngine::new("cpu"), None);
    assert_eq!(outcome.ended.unwrap(), Ended::Complete);
    world.bytes("serial")
}

#[test]
fn any_number_of_workers_stores_the_same_bytes() {
    for verify in [false, true] {
        let world = world(verify);
        let expected = whole(&world);
        for workers in 0..7 {
            let name = format!("{workers}");
            let outcome = world.run_beside(&name, FakeEngine::new("cpu"), &others(workers), None);
            assert_eq!(outcome.ended.unwrap(), Ended::Complete);
            assert!(world.bytes(&name) == expected, "{name}: other bytes");
            // Controls and the A/A arm end before any candidate begins.
            let arm_of = |event: &String| event.split(' ').next().unwrap_or_default().to_owned();
            let arms: Vec<String> = outcome.events.iter().map(arm_of).collect();
            let first = arms.iter().position(|arm| !arm.starts_with("native"));
            assert!(
                arms[first.unwrap()..]
                    .iter()
                    .all(|arm| !arm.starts_with("native"))
            );
        }
    }
}

#[test]
fn workers_without_work_are_not_opened() {
    let world = world(false);
    whole(&world);
    let none: Others = vec![Box::new(|| panic!("there is nothing left to do"))];
    let again = world.run_beside("serial", FakeEngine::new("cpu"), &none, None);
    assert_eq!((again.ended.unwrap(), again.passes), (Ended::Complete, 0));
}

#[test]
fn a_stop_at_any_pass_and_a_resume_give_the_same_bytes() {
    let world = world(true);
    let expected = whole(&world);
    let passes = world
        .run_beside("counted", FakeEngine::new("cpu"), &others(2), None)
        .passes;
    for pass in (1..=passes).step_by(3) {
        let name = format!("stop-{pass}");
        let stopped = world.run_beside(&name, FakeEngine::new("cpu"), &others(2), Some(pass));
        assert!(
            stopped.passes <= pass + 2,
            "{name}: a worker goes on after the stop"
        );
        assert_prefixes(&world.bytes(&name), &expected);
        let resumed = world.run_beside(&name, FakeEngine::new("cpu"), &others(1), None);
        assert_eq!(resumed.ended.unwrap(), Ended::Complete);
        assert!(world.bytes(&name) == expected, "{name}: other bytes");
    }
}

#[test]
fn the_first_failure_stops_the_others_and_leaves_a_resumable_run() {
    let world = world(false);
    let expected = whole(&world);
    for lifetime in [0, 1, 7, 20, 40] {
        let name = format!("death-{lifetime}");
        let mortal = opener(move || {
            let mut engine = FakeEngine::new("cpu");
            engine.lifetime = Some(lifetime);
            engine
        });
        let outcome = world.run_beside(&name, FakeEngine::new("cpu"), &vec![mortal, sound()], None);
        // The mortal worker may find nothing to do that is long enough.
        if let Err(error) = outcome.ended {
            assert!(error.to_string().contains("out of life"), "{error}");
        }
        assert_prefixes(&world.bytes(&name), &expected);
        world
            .run_beside(&name, FakeEngine::new("cpu"), &others(2), None)
            .ended
            .unwrap();
        assert!(world.bytes(&name) == expected, "{name}: other bytes");
    }
}

#[test]
fn workers_that_cannot_be_opened_or_compute_otherwise_end_the_run() {
    let world = world(false);
    let expected = whole(&world);
    let broken: Box<Open<'static>> =
        Box::new(|| Err(EngineError::Worker("GPU 1: out of memory".to_owned())));
    let other = opener(|| FakeEngine::new("cuda"));
    for (name, worker, message) in [
        ("broken", broken, "GPU 1: out of memory"),
        ("other", other, "--device names the GPUs of one kind"),
    ] {
        let outcome = world.run_beside(name, FakeEngine::new("cpu"), &vec![worker], None);
        let error = outcome.ended.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
        assert_prefixes(&world.bytes(name), &expected);
    }
}

#[test]
fn without_a_worker_that_nobody_asked_for_the_others_go_on() {
    let world = World {
        others_are_needed: false,
        ..world(false)
    };
    let expected = whole(&world);
    let broken: Box<Open<'static>> =
        Box::new(|| Err(EngineError::Worker("GPU 1: out of memory".to_owned())));
    let outcome = world.run_beside("alone", FakeEngine::new("cpu"), &vec![broken], None);
    assert_eq!(outcome.ended.unwrap(), Ended::Complete);
    let missing = "without worker failure: GPU 1: out of memory";
    assert!(
        outcome.events.iter().any(|event| event.contains(missing)),
        "{:?}",
        outcome.events
    );
    assert_eq!(world.bytes("alone"), expected);
}

#[test]
fn native_that_differs_from_native_ends_the_run_before_any_candidate() {
    let world = world(false);
    let noisy = || {
        let mut engine = FakeEngine::new("cpu");
        engine.noisy = true;
        engine
    };
    let outcome = world.run_beside("noisy", noisy(), &vec![opener(noisy)], None);
    assert!(matches!(outcome.ended, Err(RunError::AaDiffers { .. })));
    assert!(
        outcome
            .events
            .iter()
            .all(|event| event.starts_with("native"))
    );
}

#[test]
fn a_worker_that_panics_leaves_nobody_waiting() {
    let world = world(false);
    let panics: Others = vec![Box::new(|| panic!("no engine at all"))];
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run_beside("panic", FakeEngine::new("cpu"), &panics, None)
    }));
    assert!(caught.is_err());
}
