//! Runs on disks that fail at every call in turn.

use crate::store::faulty::{Fault, FaultyDisk, Kind};

use super::*;

/// Runs on a disk with this fault, then goes on where it ended on a good one.
fn run_on(
    world: &mut World,
    fault: Fault,
    expected: &BTreeMap<String, Vec<u8>>,
) -> Option<StoreError> {
    let stop = AtomicBool::new(false);
    world.disk = Arc::new(FaultyDisk::new(fault));
    let ended = world.try_run("run", &mut FakeEngine::new("cpu"), &stop, &mut |_| {});
    assert_prefixes(&world.bytes("run"), expected);
    world.disk = Arc::new(FaultyDisk::new(Fault::never()));
    let resumed = world.try_run("run", &mut FakeEngine::new("cpu"), &stop, &mut |_| {});
    assert_eq!(resumed.unwrap(), Ended::Complete, "{fault:?}");
    assert!(world.bytes("run") == *expected, "{fault:?}: other bytes");
    std::fs::remove_dir_all(world.root.path().join("run")).unwrap();
    match ended {
        Ok(ended) => {
            assert_eq!(ended, Ended::Complete);
            None
        }
        Err(RunError::Store(error)) => Some(error),
        Err(other) => panic!("{fault:?}: {other}"),
    }
}

fn assert_refused(world: &World, fault: Fault, error: Option<StoreError>) {
    let error = error.unwrap_or_else(|| panic!("{fault:?}: nobody noticed"));
    assert!(error.is_system(), "{fault:?}: {error}");
    let text = error.to_string();
    let run = world.root.path().display().to_string();
    assert!(text.starts_with(&run), "{fault:?}: {text} names no file");
    assert!(!text.contains('\n'), "{text}");
    assert!(text.contains("cannot "), "{text}");
}

#[test]
fn a_disk_that_fails_at_any_call_leaves_a_resumable_run() {
    let mut world = World::with_questions(3);
    let good = FaultyDisk::new(Fault::never());
    world.disk = Arc::new(good.clone());
    world
        .run("whole", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let expected = world.bytes("whole");
    let calls = good.calls();
    assert!(calls > 100, "{calls} calls test little");
    for call in 0..calls {
        for kind in Kind::FAILURES {
            let fault = Fault::once(call, kind);
            let error = run_on(&mut world, fault, &expected);
            assert_refused(&world, fault, error);
        }
        let fault = Fault::from(call, Kind::Full);
        let error = run_on(&mut world, fault, &expected);
        assert_refused(&world, fault, error);
        let short = run_on(&mut world, Fault::once(call, Kind::Short), &expected);
        assert!(short.is_none(), "a short write at {call}: {short:?}");
    }
    let short = run_on(&mut world, Fault::from(0, Kind::Short), &expected);
    assert!(short.is_none(), "short writes: {short:?}");
}
