//! Whole runs on the CPU worker behind a backend that applies recipes wrongly or differs from
//! itself: the run ends, and says which arm, layer and component it was.

use std::sync::atomic::AtomicBool;

use crate::support::dishonest::{Dishonest, Lie};
use crate::support::engines::{self, layout};
use crate::support::models::{self, Noise};
use kvassay::backend::cpu::CpuBackend;
use kvassay::engine::Engine;
use kvassay::model::{Family, LayerConfig, ModelConfig};
use kvassay::panel::runner::{self, Ended, RunError, RunInput};
use kvassay::panel::{BuiltPanel, BuiltPanels, CalibrationDocs, Outcome, Panel};
use kvassay::recipe::{NAMED, Recipe};
use kvassay::schema::{
    CaseTask, Extent, PANEL_SCHEMA, PanelCase, PanelHeader, Protocol, builtin_protocol,
};
use kvassay::store::RunDir;

const SLOTS: usize = 3;
const VOCAB: usize = 61;

fn panel(name: &str, parser: &str, tasks: Vec<(CaseTask, usize)>) -> BuiltPanel {
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: name.to_owned(),
        task: "test/1".to_owned(),
        tokenizer_sha256: String::new(),
        sources: Vec::new(),
        parser: parser.to_owned(),
        cases: u32::try_from(tasks.len()).unwrap(),
    };
    let cases = tasks
        .into_iter()
        .enumerate()
        .map(|(i, (task, length))| PanelCase {
            case: format!("{name}-{i:04}"),
            messages: Vec::new(),
            prompt_ids: Noise(i as u64).ids(length, VOCAB),
            task,
        });
    BuiltPanel {
        name: name.to_owned(),
        outcome: Outcome::Built(Panel::new(header, cases.collect()).unwrap()),
    }
}

fn panels() -> BuiltPanels {
    let math = |i: usize| {
        let task = CaseTask::Math {
            gold: "7".to_owned(),
            max_new_tokens: 5,
        };
        (task, 6 + i)
    };
    let nll = |i: usize| {
        let task = CaseTask::Nll {
            targets: 4,
            article: format!("Article {i}"),
        };
        (task, 20)
    };
    BuiltPanels {
        panels: vec![
            panel("math", "gsm8k/1", (0..4).map(math).collect()),
            panel("nll-20", "", (0..3).map(nll).collect()),
        ],
        calibration: Some(CalibrationDocs {
            documents: vec![Noise(90).ids(30, VOCAB), Noise(91).ids(30, VOCAB)],
            sha256: "2".repeat(64),
        }),
        probe: Noise(92).ids(12, VOCAB),
    }
}

fn protocol() -> Protocol {
    let mut protocol = builtin_protocol("smoke").unwrap();
    protocol.calibration.forced_tokens = 2;
    protocol
}

/// A whole run of these recipes.
fn run(family: Family, recipes: &[&str], lie: Lie) -> Result<Ended, RunError> {
    run_of(&models::config(family), recipes, lie)
}

/// The same of any model.
fn run_of(config: &ModelConfig, recipes: &[&str], lie: Lie) -> Result<Ended, RunError> {
    let weights = models::weights(config, 5);
    let backend = Dishonest::new(CpuBackend::new(), lie);
    let mut engine = engines::engine(config, &weights, backend, &[]);
    let recipes: Vec<Recipe> = recipes
        .iter()
        .map(|name| Recipe::parse(name).unwrap())
        .collect();
    let (panels, protocol) = (panels(), protocol());
    let digest = protocol.sha256().unwrap();
    let manifest = runner::manifest(
        &protocol,
        digest,
        &panels,
        &recipes,
        Extent::default(),
        &engine,
    )
    .unwrap();
    let root = tempfile::tempdir().unwrap();
    let dir = RunDir::create(&root.path().join("run"), &manifest).unwrap();
    runner::store_panels(&dir, &panels).unwrap();
    let input = RunInput {
        dir: &dir,
        panels: &panels,
        layout: layout(SLOTS, 10),
        verify: true,
        stop: &AtomicBool::new(false),
    };
    let engine: &mut dyn Engine = &mut engine;
    runner::run(&input, engine, &mut |_| {})
}

/// Layers of different heads, of which one keeps a few tokens only: what is stored is counted layer by
/// layer, and every token.
#[test]
fn layers_that_differ_are_told_apart() {
    let base = models::config(Family::Qwen3);
    let config = ModelConfig {
        layers: vec![
            LayerConfig {
                window: Some(5),
                ..base.layers[0]
            },
            LayerConfig::new(4, 1, 24),
        ],
        ..base
    };
    let found = run_of(&config, &["AD", "SF"], Lie::None);
    assert!(matches!(found, Ok(Ended::Complete)), "{:?}", found.err());
    let lie = Lie::Recipe("k=e4m3,v=e4m3,skip-layers=1");
    let error = run_of(&config, &["SD"], lie).unwrap_err().to_string();
    assert!(
        error.contains("arm SD") && error.contains("layer 1"),
        "{error}"
    );
}

#[test]
fn an_honest_worker_applies_every_recipe() {
    for family in [Family::Llama, Family::Qwen2, Family::Qwen3] {
        let mut recipes: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
        recipes.extend([
            "k=int8:fixed,v=e5m2:dynamic",
            "k=e4m3:fixed,v=e4m3:dynamic,skip-layers=0",
            "k=e4m3,v=e4m3,q=e4m3",
            "k=native,v=int8:fixed,sink=4",
        ]);
        assert_eq!(run(family, &recipes, Lie::None).unwrap(), Ended::Complete);
    }
}

#[test]
fn a_recipe_that_is_not_applied_is_named() {
    let unit = Lie::Absmax(448.0);
    let table: [(&str, Lie, &[&str]); 13] = [
        (
            "AD",
            Lie::Recipe("k=native,v=native"),
            &["recipe AD", "component v, layer 0"],
        ),
        (
            "SF",
            Lie::Recipe("k=native,v=native"),
            &["recipe SF", "component k, layer 0"],
        ),
        (
            "SD",
            Lie::Recipe("AD"),
            &["recipe SD", "component k, layer 0"],
        ),
        (
            "SD",
            Lie::Recipe("RD"),
            &["recipe SD", "component v, layer 0"],
        ),
        (
            "AD",
            Lie::Recipe("RD"),
            &["recipe AD", "component k, layer 0"],
        ),
        (
            "RF",
            Lie::Recipe("AF"),
            &["recipe RF", "component k, layer 0"],
        ),
        // Quantised as asked, but for the scales.
        (
            "AF",
            Lie::Recipe("AD"),
            &["arm AF", "layer 0, values: found", "bytes"],
        ),
        // One layer is left native.
        (
            "SD",
            Lie::Recipe("k=e4m3:dynamic,v=e4m3:dynamic,skip-layers=1"),
            &["recipe SD", "component k, layer 1"],
        ),
        // Another format of the same size under other scales.
        (
            "SF",
            Lie::Recipe("k=e5m2:fixed,v=e5m2:fixed"),
            &[
                "arm SF",
                "layer 0, keys: found scale",
                "from the calibration",
            ],
        ),
        (
            "AF",
            unit,
            &[
                "arm AF",
                "layer 0, values: found scale 1 (unit scale), expected",
            ],
        ),
        (
            "SF",
            unit,
            &[
                "arm SF",
                "layer 0, keys: found scale 1 (unit scale), expected",
            ],
        ),
        (
            "RF",
            Lie::FirstAbsmax,
            &["arm RF", "layer 1, keys: found scale", "expected"],
        ),
        (
            "AF",
            Lie::FirstAbsmax,
            &["arm AF", "layer 1, values: found scale", "expected"],
        ),
    ];
    for (recipe, lie, expected) in table {
        let error = run(Family::Qwen2, &[recipe], lie).unwrap_err();
        let worker = matches!(error, RunError::NotEngaged { .. } | RunError::Engine { .. });
        assert!(worker, "{recipe}, {lie:?}: {error}");
        let text = error.to_string();
        for part in expected {
            assert!(text.contains(part), "{recipe}, {lie:?}: {text}");
        }
    }
}

#[test]
fn native_that_differs_from_native_is_named() {
    for (lie, expected) in [
        (
            Lie::Bit(SLOTS),
            "panel nll-20, case nll-20-0000: the NLL's bits differs",
        ),
        (
            Lie::Token(SLOTS),
            "panel math, case math-0000: the output's tokens differs",
        ),
    ] {
        let error = run(Family::Llama, &["AD"], lie).unwrap_err();
        assert!(matches!(error, RunError::AaDiffers { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
