//! Files of a run cut at every byte: a resume repairs them or refuses them by name.

use std::fs;

use crate::store::faulty::{Fault, FaultyDisk};

use super::*;

/// A finished run on a disk that does not sync, and its bytes.
fn finished() -> (World, BTreeMap<String, Vec<u8>>) {
    let mut world = World::with_questions(3);
    world.disk = Arc::new(FaultyDisk::new(Fault::never()));
    world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let bytes = world.bytes("run");
    (world, bytes)
}

fn resume(world: &World) -> Result<Ended, RunError> {
    let stop = AtomicBool::new(false);
    world.try_run("run", &mut FakeEngine::new("cpu"), &stop, &mut |_| {})
}

#[test]
fn a_record_file_cut_at_any_byte_is_completed() {
    let (world, expected) = finished();
    let records = expected
        .iter()
        .filter(|(name, _)| name.starts_with("arms") && name.ends_with(".jsonl"));
    let mut files = 0;
    for (name, whole) in records {
        files += 1;
        // Every byte of one file; lines of the others are alike.
        let step = if name == "arms/AF/math.jsonl" { 1 } else { 61 };
        for cut in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
            fs::write(world.root.path().join("run").join(name), &whole[..cut]).unwrap();
            assert_eq!(resume(&world).unwrap(), Ended::Complete, "{name} at {cut}");
            assert!(world.bytes("run") == expected, "{name} cut at {cut}");
        }
    }
    assert_eq!(files, 12);
}

#[test]
fn a_document_cut_at_any_byte_is_repaired_or_refused_by_name() {
    let (world, expected) = finished();
    for (name, least_repaired) in [
        ("run.json", 1),
        ("calibration.json", 1),
        ("arms/native/engagement.json", 1),
        ("arms/AF/engagement.json", 1),
        ("panels/math.jsonl", 0),
        ("panels/nll-16.jsonl", 0),
    ] {
        let whole = &expected[name];
        let path = world.root.path().join("run").join(name);
        let mut repaired = 0;
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            match resume(&world) {
                Ok(ended) => {
                    assert_eq!(ended, Ended::Complete);
                    assert!(world.bytes("run") == expected, "{name} cut at {cut}");
                    repaired += 1;
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(name), "{name} cut at {cut}: {text}");
                    assert!(!text.contains('\n'), "{text}");
                    let system = matches!(&error, RunError::Store(error) if error.is_system());
                    assert!(!system, "{text}");
                    assert!(
                        fs::read(&path).unwrap() == whole[..cut],
                        "{name}: overwritten"
                    );
                }
            }
            fs::write(&path, whole).unwrap();
        }
        // The line feed at the end is all that a document can lose.
        assert_eq!(repaired, least_repaired, "{name}");
    }
    assert_eq!(resume(&world).unwrap(), Ended::Complete);
    assert!(world.bytes("run") == expected);
}

#[test]
fn documents_that_are_gone_are_made_again() {
    let (world, expected) = finished();
    // What proves the order of protocol and records cannot be made up for afterwards.
    let lasting = |name: &&String| *name != "run.json" && !name.ends_with("start.json");
    for name in expected.keys().filter(lasting) {
        fs::remove_file(world.root.path().join("run").join(name)).unwrap();
        if name == "calibration.json" {
            // Finished arms do not need it any more; what rests on it does.
            fs::remove_file(world.root.path().join("run/arms/AF/engagement.json")).unwrap();
        }
        assert_eq!(resume(&world).unwrap(), Ended::Complete, "{name}");
        assert!(world.bytes("run") == expected, "{name}");
    }
}
