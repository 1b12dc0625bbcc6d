//! The runner against a fake engine: order, records, interruption at every point, A/A.

mod beside;
mod cuts;
mod disk;
mod engaged;
mod fake;
mod kills;
mod lie;
mod material;
mod trouble;
mod verified;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{BatchLayout, Engine};
use crate::panel::BuiltPanels;
use crate::recipe::Recipe;
use crate::schema::{Engagement, Extent, Finish, Manifest, Shard};
use crate::store::{Disk, RunDir, StoreError, SystemDisk};

use super::*;
use fake::FakeEngine;
use material::{panels, protocol};

const LAYOUT: BatchLayout = BatchLayout {
    slots: 4,
    prefill_chunk: 16,
};

struct World {
    root: tempfile::TempDir,
    panels: BuiltPanels,
    limit: Option<u32>,
    shard: Option<Shard>,
    recipes: &'static [&'static str],
    verify: bool,
    /// A worker beside the first one that cannot be opened ends the run.
    others_are_needed: bool,
    disk: Arc<dyn Disk>,
}

/// What a run did besides what it stored.
struct Outcome {
    ended: Result<Ended, RunError>,
    passes: u64,
    events: Vec<String>,
}

impl World {
    fn new() -> Self {
        World::with_questions(5)
    }

    fn with_questions(questions: u32) -> Self {
        let root = tempfile::tempdir().unwrap();
        let panels = panels(root.path(), questions);
        World {
            root,
            panels,
            limit: None,
            shard: None,
            recipes: &["AF", "AD"],
            verify: false,
            others_are_needed: true,
            disk: Arc::new(SystemDisk),
        }
    }

    fn manifest(&self, engine: &dyn Engine) -> Manifest {
        let recipes: Vec<Recipe> = self
            .recipes
            .iter()
            .map(|name| Recipe::parse(name).unwrap())
            .collect();
        manifest(
            &protocol(),
            "f".repeat(64),
            &self.panels,
            &recipes,
            Extent {
                limit: self.limit,
                shard: self.shard,
            },
            engine,
        )
        .unwrap()
    }

    /// Runs, or goes on, in the folder `name`; asked to stop after `stop_after` forward passes.
    fn run(&self, name: &str, engine: &mut FakeEngine, stop_after: Option<u64>) -> Outcome {
        let stop = AtomicBool::new(false);
        let (mut passes, mut events) = (0, Vec::new());
        let ended = self.try_run(name, engine, &stop, &mut |event| {
            if matches!(event, Event::TokensProcessed(_)) {
                passes += 1;
                stop.store(Some(passes) == stop_after, Ordering::Relaxed);
            }
            note(event, &mut events);
        });
        Outcome {
            ended,
            passes,
            events,
        }
    }

    fn try_run(
        &self,
        name: &str,
        engine: &mut FakeEngine,
        stop: &AtomicBool,
        sink: &mut Sink<'_>,
    ) -> Result<Ended, RunError> {
        let dir = self.open(name, engine)?;
        store_panels(&dir, &self.panels)?;
        let input = RunInput {
            dir: &dir,
            panels: &self.panels,
            layout: LAYOUT,
            verify: self.verify,
            stop,
        };
        run(&input, engine, sink)
    }

    fn open(&self, name: &str, engine: &FakeEngine) -> Result<RunDir, StoreError> {
        let path = self.root.path().join(name);
        let manifest = self.manifest(engine);
        if path.join("run.json").exists() {
            RunDir::resume_on(self.disk.clone(), &path, &manifest)
        } else {
            RunDir::create_on(self.disk.clone(), &path, &manifest)
        }
    }

    fn bytes(&self, name: &str) -> BTreeMap<String, Vec<u8>> {
        files_of(&self.root.path().join(name))
    }
}

fn note(event: &Event<'_>, events: &mut Vec<String>) {
    match event {
        Event::PanelStarted {
            arm,
            panel,
            done,
            total,
        } => {
            events.push(format!("{arm} {panel} {done}/{total}"));
        }
        Event::ArmUnsupported { arm, reason } => events.push(format!("{arm} {reason}")),
        Event::WorkerMissing { reason } => events.push(format!("without {reason}")),
        _ => {}
    }
}

/// Bytes of every file below `root`; none where it is not there.
fn files_of(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    if root.exists() {
        collect(root, root, &mut files);
    }
    files
}

/// What an interrupted run left behind is a beginning of the whole one: record files are prefixes
/// of its record files, other files are whole. Returns the number of torn lines.
fn assert_prefixes(
    found: &BTreeMap<String, Vec<u8>>,
    expected: &BTreeMap<String, Vec<u8>>,
) -> usize {
    let mut torn = 0;
    for (name, bytes) in found {
        // Documents that are not in their place yet.
        if name.ends_with(".tmp") {
            continue;
        }
        let whole = &expected[name];
        if name.starts_with("arms") && name.ends_with(".jsonl") {
            assert!(whole.starts_with(bytes), "{name} is no prefix");
            torn += usize::from(!bytes.is_empty() && !bytes.ends_with(b"\n"));
        } else if name.ends_with("engagement.json") {
            let read = |bytes: &[u8]| Engagement {
                totals: None,
                ..serde_json::from_slice(bytes).unwrap()
            };
            assert_eq!(read(bytes), read(whole), "{name}");
        } else {
            assert!(bytes == whole, "{name} has other bytes");
        }
    }
    torn
}

fn collect(root: &Path, dir: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            files.insert(name, std::fs::read(&path).unwrap());
        }
    }
}

#[test]
fn arms_and_panels_run_in_order_and_a_finished_run_has_nothing_left() {
    let world = World::new();
    let mut engine = FakeEngine::new("cpu");
    let first = world.run("run", &mut engine, None);
    assert_eq!(first.ended.unwrap(), Ended::Complete);
    let expected: Vec<String> = ["native", "native-aa", "AF", "AD"]
        .iter()
        .flat_map(|arm| {
            [("math", 5), ("nll-16", 3), ("retrieval-16", 3)]
                .map(|(panel, total)| format!("{arm} {panel} 0/{total}"))
        })
        .collect();
    assert_eq!(first.events, expected);
    assert_eq!(engine.opened, ["native", "native", "AF", "AD"]);
    assert_eq!(engine.calibrations, 1);

    let before = world.bytes("run");
    let mut engine = FakeEngine::new("cpu");
    let second = world.run("run", &mut engine, None);
    assert_eq!(second.ended.unwrap(), Ended::Complete);
    assert_eq!((second.passes, engine.opened.len()), (0, 0));
    assert_eq!(world.bytes("run"), before);
}

#[test]
fn records_hold_what_the_engine_said_and_its_score() {
    let world = World::new();
    world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    let native = dir.records("native", "math").unwrap();
    assert_eq!(native.len(), 5);
    assert_eq!(native[0].case, "gsm8k-0001");
    assert_eq!(native[0].parsed(), Some("32"));
    assert_eq!(native[0].prompt_tokens, 3);
    assert!(native.iter().all(|record| record.correct == Some(true)));
    let candidate = dir.records("AD", "math").unwrap();
    let correct: Vec<bool> = candidate
        .iter()
        .filter_map(|record| record.correct)
        .collect();
    assert_eq!(correct, [true, true, false, true, true]);
    let nll = dir.records("AD", "nll-16").unwrap();
    assert_eq!((nll[0].targets, nll[0].nll_sum), (Some(4), Some(4.2)));
    let retrieval = dir.records("AD", "retrieval-16").unwrap();
    assert_eq!(
        (retrieval[1].depth, retrieval[1].finish),
        (Some(0.5), Some(Finish::Stop))
    );
    let correct: Vec<bool> = retrieval
        .iter()
        .filter_map(|record| record.correct)
        .collect();
    assert_eq!(correct, [true, true, false]);
    assert_eq!(
        native[0].secondary,
        BTreeMap::from([("gsm8k-last-number/1".to_owned(), true)])
    );
}

#[test]
fn engagement_totals_are_the_sum_of_the_records() {
    let world = World::new();
    world
        .run("run", &mut FakeEngine::new("cpu"), None)
        .ended
        .unwrap();
    let dir = RunDir::open(&world.root.path().join("run")).unwrap();
    let engagement = dir.engagement("AD").unwrap().unwrap();
    let totals = engagement.totals.unwrap();
    // Eight answers of 3 + 2 tokens and three windows of 3 tokens, the last of which is not
    // stored; two layers of 8 elements and one scale.
    let vectors = 2 * (8 * 5 + 3 * 2);
    assert_eq!(totals.v.elements, 8 * vectors);
    assert_eq!(totals.v.bytes, totals.v.elements + 4 * vectors);
    assert_eq!(totals.k.bytes, 2 * totals.k.elements);
    assert_eq!(
        (totals.v.scale_min, totals.v.scale_max),
        (Some(0.25), Some(0.5))
    );
}

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
