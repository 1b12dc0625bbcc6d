//! The runner against a fake engine: order, records, A/A, what is refused.

mod fake;
mod resume;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::{BatchLayout, Engine};
use crate::panel::BuiltPanels;
use crate::recipe::Recipe;
use crate::schema::{Finish, Manifest};
use crate::store::RunDir;

use super::*;
use fake::{FakeEngine, panels, protocol};

const LAYOUT: BatchLayout = BatchLayout {
    slots: 4,
    prefill_chunk: 16,
};

struct World {
    root: tempfile::TempDir,
    panels: BuiltPanels,
    limit: Option<u32>,
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
        }
    }

    fn manifest(&self, engine: &dyn Engine) -> Manifest {
        let recipes: Vec<Recipe> = ["AF", "AD"]
            .iter()
            .map(|name| Recipe::parse(name).unwrap())
            .collect();
        manifest(
            &protocol(),
            "f".repeat(64),
            &self.panels,
            &recipes,
            self.limit,
            engine,
        )
        .unwrap()
    }

    /// Runs, or goes on, in the folder `name`; asked to stop after `stop_after` forward passes.
    fn run(&self, name: &str, engine: &mut FakeEngine, stop_after: Option<u64>) -> Outcome {
        let path = self.root.path().join(name);
        let manifest = self.manifest(engine);
        let dir = if path.join("run.json").exists() {
            RunDir::resume(&path, &manifest).unwrap()
        } else {
            RunDir::create(&path, &manifest).unwrap()
        };
        store_panels(&dir, &self.panels).unwrap();
        let stop = AtomicBool::new(false);
        let input = RunInput {
            dir: &dir,
            panels: &self.panels,
            layout: LAYOUT,
            stop: &stop,
        };
        let (mut passes, mut events) = (0, Vec::new());
        let ended = run(&input, engine, &mut |event| {
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

    fn bytes(&self, name: &str) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        let root = self.root.path().join(name);
        collect(&root, &root, &mut files);
        files
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
        _ => {}
    }
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
    assert_eq!(native[0].answer.as_deref(), Some("32"));
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
    // Eight answers of 3 + 2 tokens and three windows of 3 tokens, 8 elements each.
    assert_eq!(totals.v.elements, 8 * (8 * 5 + 3 * 3));
    assert_eq!(totals.v.bytes, totals.v.elements);
    assert_eq!(totals.k.bytes, 2 * totals.k.elements);
    assert_eq!(
        (totals.v.scale_min, totals.v.scale_max),
        (Some(0.25), Some(0.5))
    );
}

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
