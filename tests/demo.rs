//! The demo panels: frozen, and disjoint from what the demo models were trained on.

// Helpers of tests may panic as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use kvassay::model::{DemoModel, ModelFiles, ModelSource};
use kvassay::panel::demo::{Document, SplitMix, document};
use kvassay::panel::{DataDir, Materialised, Outcome, Panel, materialise};
use kvassay::schema::{CaseTask, builtin_protocol};

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
                    self.users
                        .insert(turns.into_iter().next().unwrap()[0].clone());
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
                assert!(!seen.users.contains(&message.content), "{}", case.case);
                // A haystack is drawn whole: the needles before the question are new as well.
                let haystack = message.content.split('\n').next().unwrap();
                assert!(
                    !seen
                        .users
                        .iter()
                        .any(|user| user.starts_with(haystack) && haystack.len() > 400)
                );
            }
            _ => panic!("{}: one user message", case.case),
        }
    }
    assert_eq!(compared, 1_200 + 2 * 64 + 2 * 200 + 2 * 8);
}
