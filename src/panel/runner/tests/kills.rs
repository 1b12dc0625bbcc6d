//! A run in a process of its own that is killed again and again, at any moment.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// Run directory of the process that is to be killed.
const RUN: &str = "KVASSAY_TEST_KILLED_RUN";

/// Line that it prints when it comes to the run.
const READY: &str = "at work";

/// Kills in all.
const KILLS: usize = 160;

/// Enough text that a write takes long enough to be hit.
const PADDING: usize = 20_000;

const SEED: u64 = 20_251;

fn engine() -> FakeEngine {
    let mut engine = FakeEngine::new("cpu");
    (engine.batch, engine.padding) = (3, PADDING);
    engine
}

fn world() -> World {
    World::with_questions(8)
}

/// The killed process: runs or goes on, and says when it comes to it.
fn work(run: &str) {
    let (world, stop) = (world(), AtomicBool::new(false));
    let mut out = std::io::stdout();
    writeln!(out, "{READY}").unwrap();
    out.flush().unwrap();
    let ended = world.try_run(run, &mut engine(), &stop, &mut |_| {});
    assert_eq!(ended.unwrap(), Ended::Complete);
}

/// This test in another process, already at its run.
fn start(run: &Path, scratch: &Path) -> Child {
    let (_, module) = module_path!().split_once("::").unwrap();
    let name = format!("{module}::killed_at_random_moments_it_ends_with_the_same_bytes");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(RUN, run)
        // What a killed process leaves behind goes with this one's folder.
        .env("TMPDIR", scratch)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().ends_with(READY)),
        "the other process did not come to its run"
    );
    child
}

/// Lengths of whole lines per record file.
fn progress(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, usize> {
    let whole = |bytes: &Vec<u8>| {
        bytes
            .iter()
            .rposition(|&byte| byte == b'\n')
            .map_or(0, |at| at + 1)
    };
    files
        .iter()
        .filter(|(name, _)| name.ends_with(".jsonl"))
        .map(|(name, bytes)| (name.clone(), whole(bytes)))
        .collect()
}

fn assert_nothing_lost(before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) {
    for (name, length) in before {
        assert!(after.get(name) >= Some(length), "{name} lost records");
    }
}

#[test]
fn killed_at_random_moments_it_ends_with_the_same_bytes() {
    if let Ok(run) = env::var(RUN) {
        return work(&run);
    }
    let world = world();
    let root = world.root.path();
    world.run("whole", &mut engine(), None).ended.unwrap();
    let expected = world.bytes("whole");

    let started = Instant::now();
    assert!(start(&root.join("alone"), root).wait().unwrap().success());
    let span = started.elapsed() / 4;
    assert!(world.bytes("alone") == expected);

    let (mut state, mut kills, mut runs, mut torn) = (SEED, 0, 0, 0);
    while kills < KILLS {
        let name = format!("killed-{runs}");
        runs += 1;
        let (mut done, mut tries) = (BTreeMap::new(), 0);
        loop {
            let mut child = start(&root.join(&name), root);
            // Ever longer, so that a busy machine comes to the end of the run as well.
            let patience = span.mul_f64(1.0 + tries as f64 / 8.0);
            tries += 1;
            if kills < KILLS {
                std::thread::sleep(random(&mut state, patience));
                child.kill().unwrap();
            }
            if child.wait().unwrap().success() {
                break;
            }
            kills += 1;
            let found = files_of(&root.join(&name));
            torn += assert_prefixes(&found, &expected);
            let now = progress(&found);
            assert_nothing_lost(&done, &now);
            done = now;
        }
        assert!(world.bytes(&name) == expected, "{name}: other bytes");
    }
    let mut out = std::io::stdout();
    writeln!(out, "{kills} kills in {runs} runs, {torn} torn lines").unwrap();
}

/// Up to `span`.
fn random(state: &mut u64, span: Duration) -> Duration {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    span.mul_f64((*state >> 11) as f64 / (1u64 << 53) as f64)
}
