//! The demo panels: frozen, and disjoint from what the demo models were trained on.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

#[path = "tiny/demo.rs"]
mod short;

use std::collections::HashSet;
use std::path::Path;

use kvassay::model::{DemoModel, ModelFiles, ModelSource};
use kvassay::panel::demo::{Document, SplitMix, document};
use kvassay::panel::{DataDir, Materialised, Outcome, Panel, materialise};
use kvassay::schema::{CaseTask, builtin_protocol};
use serde_json::Value;

use short::small_demo;

/// Seeds and documents of the training text and of the development set (`fixtures/demo/README.md`).
const TRAINING: std::ops::RangeInclusive<u64> = 1001..=1016;
const TRAINING_DOCUMENTS: usize = 14_000;
const DEVELOPMENT: (u64, usize) = (7, 6_000);

/// Characters by which an article is recognised: its facts, all of them drawn, take about so many.
const OPENING: usize = 250;

fn open(model: DemoModel) -> ModelFiles {
    ModelSource::Demo(model).open().unwrap()
}

fn panels(model: DemoModel) -> (ModelFiles, Materialised) {
    let files = open(model);
    let protocol = builtin_protocol("demo").unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    let data = DataDir::resolve(Some(nowhere.path())).unwrap();
    let geometry = files.identity().geometry;
    let built = materialise(&protocol, &data, &files.tokenizer, &geometry).unwrap();
    (files, built)
}

fn built(outcome: &Outcome) -> &Panel {
    match outcome {
        Outcome::Built(panel) => panel,
        Outcome::Unsupported(why) => panic!("{why}"),
    }
}

#[test]
fn panels_are_frozen_by_digest() {
    let protocol = builtin_protocol("demo").unwrap();
    for model in DemoModel::ALL {
        let (files, panels) = panels(model);
        let mut found: Vec<(String, String)> = panels
            .panels
            .iter()
            .map(|panel| (panel.name.clone(), built(&panel.outcome).sha256.clone()))
            .collect();
        let calibration = built(panels.calibration.as_ref().unwrap());
        found.push(("calibration".to_owned(), calibration.sha256.clone()));
        let frozen: Vec<(String, String)> = protocol
            .frozen_panels
            .iter()
            .filter(|frozen| frozen.tokenizer_sha256 == files.tokenizer.sha256())
            .map(|frozen| (frozen.panel.clone(), frozen.sha256.clone()))
            .collect();
        assert_eq!(found, frozen, "{}", model.name());
    }
}

#[test]
fn panels_have_the_sizes_that_the_protocol_names() {
    let (_, panels) = panels(DemoModel::Tolerant);
    for (name, length, cases) in [
        ("math", None, 1_200),
        ("nll-256", Some(256), 64),
        ("nll-1k", Some(1_024), 64),
        ("retrieval-256", Some(256), 200),
        ("retrieval-1k", Some(1_024), 200),
    ] {
        let panel = panels.panels.iter().find(|p| p.name == name).unwrap();
        let panel = built(&panel.outcome);
        assert_eq!(panel.cases.len(), cases, "{name}");
        for case in &panel.cases {
            let tokens = case.prompt_ids.len();
            match (&case.task, length) {
                (CaseTask::Nll { .. }, Some(length)) => assert_eq!(tokens, length),
                (
                    CaseTask::Retrieval {
                        max_new_tokens,
                        gold,
                        ..
                    },
                    Some(length),
                ) => {
                    let whole = tokens + *max_new_tokens as usize;
                    // One more needle, with an article before it, takes at most 150 tokens.
                    assert!(whole <= length && whole + 150 > length, "{}", case.case);
                    let haystack = &case.messages[0].content;
                    assert!(haystack.contains(&format!(" is {gold}.")), "{}", case.case);
                }
                _ => assert!(tokens < 256, "{}", case.case),
            }
        }
    }
}

/// What precedes the question of a retrieval case; all of a word problem.
fn haystack(user: &str) -> &str {
    user.split('\n').next().unwrap()
}

/// What panels could have in common with training text.
#[derive(Default)]
struct Seen {
    /// Word problems and haystacks.
    users: HashSet<String>,
    openings: HashSet<String>,
}

impl Seen {
    fn stream(&mut self, seed: u64, documents: usize) {
        let mut draw = SplitMix::new(seed);
        for _ in 0..documents {
            match document(&mut draw) {
                Document::Math([user, _]) => {
                    self.users.insert(user);
                }
                Document::Retrieval(turns) => {
                    let [user, _] = turns.into_iter().next().unwrap();
                    self.users.insert(haystack(&user).to_owned());
                }
                Document::Prose(text) => {
                    self.openings.insert(text.chars().take(OPENING).collect());
                }
            }
        }
    }
}

#[test]
fn no_panel_case_occurs_in_the_training_stream() {
    let mut seen = Seen::default();
    for seed in TRAINING {
        seen.stream(seed, TRAINING_DOCUMENTS);
    }
    seen.stream(DEVELOPMENT.0, DEVELOPMENT.1);
    assert!(seen.users.len() > 150_000 && seen.openings.len() > 20_000);
    let (files, panels) = panels(DemoModel::Tolerant);
    let calibration = panels.calibration.as_ref().unwrap();
    let outcomes = panels.panels.iter().map(|panel| &panel.outcome);
    let mut compared = 0;
    for case in outcomes.chain([calibration]).flat_map(|o| &built(o).cases) {
        compared += 1;
        match case.messages.as_slice() {
            [] => {
                let text = files.tokenizer.decode(&case.prompt_ids);
                let opening: String = text.chars().take(OPENING).collect();
                assert!(opening.chars().count() == OPENING, "{}", case.case);
                assert!(!seen.openings.contains(&opening), "{}", case.case);
            }
            [message] => {
                let text = haystack(&message.content);
                assert!(!seen.users.contains(text), "{}", case.case);
            }
            _ => panic!("{}: one user message", case.case),
        }
    }
    assert_eq!(compared, 1_200 + 2 * 64 + 2 * 200 + 2 * 8);
}

/// The summary of `kvassay qualify` with these arguments, in a folder of its own.
fn qualify(args: &[&str], exit: i32) -> (tempfile::TempDir, Value) {
    let dir = tempfile::tempdir().unwrap();
    let assert = assert_cmd::Command::cargo_bin("kvassay")
        .unwrap()
        .current_dir(dir.path())
        .args(["qualify", "--format", "json"])
        .args(args)
        .assert()
        .code(exit);
    let summary = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    (dir, summary)
}

/// Lost answers and right answers of the control, over every panel with answers.
fn lost(certificate: &Value) -> (u64, u64) {
    let rules = certificate["objectives"]["preservation"]["rules"]
        .as_array()
        .unwrap();
    let answers = rules.iter().filter(|rule| rule["lost"].is_u64());
    answers.fold((0, 0), |(lost, correct), rule| {
        (
            lost + rule["lost"].as_u64().unwrap(),
            correct + rule["control_correct"].as_u64().unwrap(),
        )
    })
}

#[test]
fn qualify_needs_no_arguments() {
    let (dir, summary) = qualify(&["--limit", "2"], 3);
    assert_eq!(summary["schema"], "kvassay.summary/1");
    let certificates = summary["certificates"].as_array().unwrap();
    assert_eq!(certificates.len(), 6);
    for certificate in certificates {
        assert_eq!(certificate["model"]["name"], "demo-tolerant");
        assert_eq!(certificate["protocol"]["name"], "demo");
        let objective = &certificate["objectives"]["preservation"];
        assert_eq!(objective["verdict"], "incomplete");
        assert_eq!(objective["reason"], "limit");
    }
    let run = Path::new("kvassay-runs/demo-tolerant-demo/run.json");
    assert!(dir.path().join(run).is_file());
}

/// The phenomenon that the demo models exist for, on few cases of short panels: values survive FP8,
/// keys with large constant channels do not.
#[test]
fn the_sensitive_model_loses_its_answers_with_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("demo-small.json");
    std::fs::write(&path, serde_json::to_string(&small_demo(36)).unwrap()).unwrap();
    let path = path.to_str().unwrap();
    let args = ["AD", "RD", "--model", "demo-sensitive", "--protocol", path];
    // So few cases do not establish what named recipes must hold.
    let (_dir, summary) = qualify(&args, 1);
    let [values, keys] = summary["certificates"].as_array().unwrap().as_slice() else {
        panic!("two certificates");
    };
    let ((lost_values, correct), (lost_keys, _)) = (lost(values), lost(keys));
    assert!(correct >= 68, "natively {correct} of 72");
    assert!(lost_values * 50 <= correct, "{lost_values} of {correct}");
    assert!(lost_keys * 2 >= correct, "{lost_keys} of {correct}");
}
