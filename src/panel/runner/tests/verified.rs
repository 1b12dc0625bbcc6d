//! Candidates that verify the control's answers: same records, and what is generated twice.

use super::lie::Lie;
use super::*;
use crate::certify::{self, CertifyError};
use crate::schema::AnswerMode;

fn verified() -> World {
    World {
        verify: true,
        ..World::new()
    }
}

fn run_whole(world: &World, name: &str, engine: &mut FakeEngine) -> Outcome {
    let outcome = world.run(name, engine, None);
    assert_eq!(*outcome.ended.as_ref().unwrap(), Ended::Complete);
    outcome
}

/// Files that must not depend on how answers came about.
fn results(files: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    let of_way = |name: &str| name.ends_with("start.json") || name.contains(".regenerated.");
    files
        .into_iter()
        .filter(|(name, _)| !of_way(name))
        .collect()
}

#[test]
fn records_do_not_depend_on_how_answers_come_about() {
    let mut world = verified();
    run_whole(&world, "verified", &mut FakeEngine::new("cpu"));
    world.verify = false;
    run_whole(&world, "plain", &mut FakeEngine::new("cpu"));
    let (verified, plain) = (world.bytes("verified"), world.bytes("plain"));
    assert!(plain.keys().all(|name| !name.contains("regenerated")));
    assert!(results(verified) == results(plain));
}

#[test]
fn candidates_get_the_controls_answers_and_repeat_chosen_cases_without() {
    let world = verified();
    let mut engine = FakeEngine::new("cpu");
    let outcome = run_whole(&world, "run", &mut engine);
    let expected: Vec<String> = ["native", "native-aa", "AF", "AD"]
        .iter()
        .flat_map(|arm| {
            let own = [("math", 5), ("nll-16", 3), ("retrieval-16", 3)];
            let again = [("math.regenerated", 5), ("retrieval-16.regenerated", 3)];
            let panels = if arm.starts_with("native") {
                own.to_vec()
            } else {
                [&own[..], &again[..]].concat()
            };
            panels
                .into_iter()
                .map(move |(panel, total)| format!("{arm} {panel} 0/{total}"))
        })
        .collect();
    assert_eq!(outcome.events, expected);
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    let native: Vec<Vec<u32>> = ["math", "retrieval-16"]
        .iter()
        .flat_map(|panel| dir.records("native", panel).unwrap())
        .filter_map(|record| record.output_ids)
        .collect();
    for (arm, drafts) in ["native", "native-aa", "AF", "AD"]
        .into_iter()
        .zip(
            engine
                .drafts
                .chunk_by(|a, b| a.is_empty() == b.is_empty())
                .flat_map(|drafts| {
                    // Both native arms come without drafts, one after the other.
                    let halves = if drafts.len() > 8 { 8 } else { drafts.len() };
                    drafts.chunks(halves)
                }),
        )
        .take(3)
    {
        let mut drafts: Vec<Vec<u32>> = drafts.to_vec();
        let start = dir.arm_start(arm).unwrap().unwrap();
        if arm.starts_with("native") {
            assert_eq!(start.answers, Some(AnswerMode::Plain));
            assert!(drafts.iter().all(Vec::is_empty));
        } else {
            assert_eq!(start.answers, Some(AnswerMode::Verified));
            drafts.sort();
            let mut native = native.clone();
            native.sort();
            assert_eq!(drafts, native);
        }
    }
    for panel in ["math", "retrieval-16"] {
        let again = dir.records("AD", &format!("{panel}.regenerated")).unwrap();
        assert_eq!(again, dir.records("AD", panel).unwrap());
    }
}

#[test]
fn a_stop_anywhere_and_a_resume_give_the_same_bytes() {
    let world = verified();
    let whole = run_whole(&world, "whole", &mut FakeEngine::new("cpu"));
    let expected = world.bytes("whole");
    for pass in 1..=whole.passes {
        let name = format!("stop-{pass}");
        let stopped = world.run(&name, &mut FakeEngine::new("cpu"), Some(pass));
        assert_eq!(stopped.ended.unwrap(), Ended::Interrupted, "{name}");
        run_whole(&world, &name, &mut FakeEngine::new("cpu"));
        assert!(world.bytes(&name) == expected, "{name}: other bytes");
    }
}

#[test]
fn a_run_goes_on_as_it_began() {
    let mut world = verified();
    world
        .run("run", &mut FakeEngine::new("cpu"), Some(20))
        .ended
        .unwrap();
    world.verify = false;
    let error = world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("found verified, expected plain"),
        "{message}"
    );
    assert!(matches!(
        error,
        RunError::Store(StoreError::OtherAnswers { .. })
    ));
}

#[test]
fn servers_answer_plainly() {
    let world = verified();
    run_whole(&world, "run", &mut FakeEngine::new("http"));
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    let start = dir.arm_start("AD").unwrap().unwrap();
    assert_eq!(start.answers, Some(AnswerMode::Plain));
    assert!(dir.records("AD", "math.regenerated").unwrap().is_empty());
}

#[test]
fn a_draft_taken_over_unseen_ends_the_run_and_yields_no_certificate() {
    let world = verified();
    let mut engine = FakeEngine::new("cpu");
    engine.lie = Lie::BelievesDrafts;
    let error = world.run("run", &mut engine, None).ended.unwrap_err();
    assert_eq!(
        error.to_string(),
        "arm AF, panel math, case gsm8k-0001: output_ids of the verified answer differs from the \
         plainly generated one"
    );
    // The difference stands in the records: going on finds it again, and so does a certificate.
    let again = world.run("run", &mut FakeEngine::new("cpu"), None).ended;
    assert!(matches!(again, Err(RunError::RegenerationDiffers { .. })));
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    let mut evidence = certify::load(&dir).unwrap();
    let manifest = &mut evidence.manifest;
    manifest.protocol_sha256 = manifest.protocol.sha256().unwrap();
    let error = certify::certify("AF", &evidence).unwrap_err();
    assert!(
        matches!(error, CertifyError::RegenerationDiffers(_)),
        "{error}"
    );
    assert!(
        error.is_system() && error.to_string().contains("5 such records"),
        "{error}"
    );
    // Without drafts the same engine is sound.
    let plain = World {
        verify: false,
        ..world
    };
    run_whole(&plain, "plain", &mut engine);
}
