//! Engines over models of which some layers have a window: answers, likelihoods, counters and
//! calibrations are those of a cache that keeps everything, and less memory is held.

use crate::support::dishonest::{Dishonest, Lie};
use crate::support::engines::{Log, Numbers, generate, identity, layout, score, setup};
use crate::support::models::{self, Noise};
use crate::support::oracle::Oracle;
use kvassay::backend::Backend;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::engine::{
    BatchLayout, Engine, GenerateRequest, Generation, LocalEngine, LocalSettings, Score,
    ScoreRequest,
};
use kvassay::model::{Decoder, Family, LayerConfig, ModelConfig};
use kvassay::recipe::{LayerState, PAGE_TOKENS, Recipe, growth_bytes, most_pages};
use kvassay::schema::{AttentionLayers, LayerAbsmax};

/// Longest sequences: many times every window.
const CONTEXT: usize = 400;

const WINDOWS: [Option<usize>; 4] = [Some(7), None, Some(40), Some(7)];

const RECIPES: [&str; 4] = [
    "native",
    "SD",
    "AF",
    "k=int8,v=e5m2:fixed,sink=9,skip-layers=0",
];

fn config(windows: [Option<usize>; 4]) -> ModelConfig {
    let base = models::config(Family::Qwen3);
    let layer = |window| LayerConfig {
        window,
        ..base.layers[0]
    };
    ModelConfig {
        layers: windows.map(layer).to_vec(),
        context: CONTEXT,
        ..base
    }
}

fn engine<B: Backend>(
    windows: [Option<usize>; 4],
    backend: B,
    layout: BatchLayout,
) -> LocalEngine<B> {
    let config = config(windows);
    let weights = models::weights(&config, 21);
    let decoder = Decoder::load(config.clone(), &weights, backend).unwrap();
    let text = Box::new(Numbers { eos: vec![3] });
    let settings = LocalSettings {
        layout,
        ..LocalSettings::default()
    };
    LocalEngine::from_decoder(decoder, text, identity(&config), settings).unwrap()
}

fn prompts() -> Vec<GenerateRequest> {
    [120, 3, 40]
        .into_iter()
        .map(|length| GenerateRequest {
            prompt_ids: Noise(length as u64 + 70).ids(length, 61),
            max_new_tokens: 110,
            draft: Vec::new(),
            messages: Vec::new(),
        })
        .collect()
}

fn texts() -> Vec<ScoreRequest> {
    [CONTEXT, 20]
        .into_iter()
        .map(|length| ScoreRequest {
            ids: Noise(length as u64).ids(length, 61),
            targets: length as u32 - 1,
        })
        .collect()
}

fn calibrated<B: Backend>(backend: B, layout: BatchLayout) -> Vec<LayerAbsmax> {
    let documents = [Noise(8).ids(CONTEXT - 5, 61), Noise(9).ids(100, 61)];
    let mut log: Log<Score> = Log::new();
    let mut engine = engine(WINDOWS, backend, layout);
    engine.calibrate(&documents, 5, &mut log).unwrap()
}

fn answers(engine: &mut dyn Engine, requests: &[GenerateRequest]) -> Vec<Generation> {
    let answers = generate(engine, requests);
    answers.into_iter().map(Result::unwrap).collect()
}

#[test]
fn manifests_say_what_layers_keep() {
    let shape = config(WINDOWS).layers[0];
    let kind = |layers: &[u32], window| AttentionLayers {
        layers: layers.to_vec(),
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        window,
    };
    let expected = [
        kind(&[0, 3], Some(7)),
        kind(&[1], None),
        kind(&[2], Some(40)),
    ];
    assert_eq!(config(WINDOWS).geometry().attention_layers, expected);
    assert_eq!(config([None; 4]).geometry().attention_layers, []);
}

/// Passes of whole sequences keep everything; chunks, single steps, drafts that are right or go wrong
/// and other slots do not.
fn nothing_changes<B: Backend>(backend: impl Fn() -> B) {
    let scales = calibrated(backend(), layout(1, 1000));
    for calibration in [layout(3, 11), layout(2, 64)] {
        assert_eq!(calibrated(backend(), calibration), scales);
    }
    let mut engine = engine(WINDOWS, backend(), layout(1, 1000));
    for recipe in RECIPES {
        let mut open = |layout| engine.open_arm(&setup(recipe, &scales, layout)).unwrap();
        let engaged = open(layout(1, 1000));
        assert_eq!(open(layout(1, 5)), engaged, "{recipe}");
        open(layout(1, 1000));
        let scored = score(&mut engine, &texts());
        let plain = answers(&mut engine, &prompts());
        for (slots, chunk) in [(2, 3), (3, 17), (8, 64)] {
            let setup = setup(recipe, &scales, layout(slots, chunk));
            engine.open_arm(&setup).unwrap();
            let what = format!("{recipe}, {slots} slots in chunks of {chunk}");
            assert_eq!(score(&mut engine, &texts()), scored, "{what}");
            // Its own answer, with every 50th token another one.
            let drafted: Vec<GenerateRequest> = prompts()
                .into_iter()
                .zip(&plain)
                .map(|(request, answer)| GenerateRequest {
                    draft: (1..)
                        .zip(&answer.ids)
                        .map(|(at, &id)| if at % 50 == 0 { 60 - id } else { id })
                        .collect(),
                    ..request
                })
                .collect();
            for requests in [prompts(), drafted] {
                assert_eq!(answers(&mut engine, &requests), plain, "{what}");
            }
        }
    }
}

#[test]
fn windows_change_no_answer_on_the_cpu() {
    nothing_changes(CpuBackend::new);
}

#[test]
fn windows_change_no_answer_on_the_gpu() {
    match CudaBackend::new(0) {
        Ok(_) => nothing_changes(|| CudaBackend::new(0).unwrap()),
        Err(error) => println!("skipped: {error}"),
    }
}

/// A draft whose second token cannot be stored, and then neither the token before it: the case fails,
/// and though its slot gave back what lies behind the draft, the others go on.
#[test]
fn a_case_that_fails_twice_in_a_pass_fails_alone() {
    let native = setup("native", &[], layout(2, 64));
    let mut honest = engine(WINDOWS, CpuBackend::new(), layout(2, 64));
    honest.open_arm(&native).unwrap();
    let request = |seed| GenerateRequest {
        prompt_ids: Noise(seed).ids(40, 61),
        max_new_tokens: 60,
        draft: Vec::new(),
        messages: Vec::new(),
    };
    let plain = answers(&mut honest, &[request(80), request(81)]);
    let drafted = |(seed, answer): (u64, &Generation)| GenerateRequest {
        draft: answer.ids.clone(),
        ..request(seed)
    };
    let requests: Vec<_> = [80, 81].into_iter().zip(&plain).map(drafted).collect();
    for position in 40..60 {
        let lie = Lie::Unstorable([(0, position + 1), (1, position)]);
        let backend = Dishonest::new(CpuBackend::new(), lie);
        let mut engine = engine(WINDOWS, backend, layout(2, 64));
        engine.open_arm(&native).unwrap();
        let found = generate(&mut engine, &requests);
        let failed = found.iter().filter(|answer| answer.is_err());
        assert_eq!(failed.count(), 1, "position {position}");
        let other = found.iter().flatten().next().unwrap();
        assert!(plain.contains(other), "position {position}");
    }
}

/// The naive backend keeps every token.
#[test]
fn answers_are_those_of_a_backend_that_keeps_everything() {
    let native = setup("native", &[], layout(2, 30));
    let mut naive = engine(WINDOWS, Oracle::default(), layout(1, 30));
    let mut cpu = engine(WINDOWS, CpuBackend::new(), layout(1, 30));
    naive.open_arm(&native).unwrap();
    cpu.open_arm(&native).unwrap();
    let [a, b] = [
        answers(&mut naive, &prompts()),
        answers(&mut cpu, &prompts()),
    ];
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a.ids, b.ids);
        let (a, b) = (a.kv.as_ref().unwrap(), b.kv.as_ref().unwrap());
        assert_eq!((a.k.bytes, a.v.elements), (b.k.bytes, b.v.elements));
    }
    let distinct: std::collections::BTreeSet<_> = a.iter().flat_map(|a| &a.ids).collect();
    assert!(distinct.len() > 10, "a degenerate model tests little");
}

/// What an arm comes to hold, which is no more than its layers need.
fn held<B: Backend>(windows: [Option<usize>; 4], backend: B, recipe: &str) -> u64 {
    let mut engine = engine(windows, backend, layout(1, 8));
    let scales = [LayerAbsmax { k: 4.0, v: 4.0 }; 4];
    let (slots, chunk) = (3, 16);
    engine
        .open_arm(&setup(recipe, &scales, layout(slots, chunk)))
        .unwrap();
    let watch = engine.watch().unwrap();
    let mut requests = texts();
    requests.resize(4, texts()[0].clone());
    score(&mut engine, &requests);
    let held = watch.part().allocations.cache;
    let recipe = Recipe::parse(recipe).unwrap();
    let shape = config(windows).layers[0];
    let mut most = 0;
    for window in windows {
        let layer = LayerState::Attention {
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.head_dim as u32,
            window: None,
        };
        let page = PAGE_TOKENS * growth_bytes(&recipe, &[layer]);
        let window = window.map(|window| window as u64);
        most += page * most_pages(window, slots as u64, CONTEXT as u64, chunk as u64);
    }
    assert!(held <= most, "{recipe:?}: {held} of {most}");
    held
}

#[test]
fn layers_with_a_window_hold_less() {
    for recipe in ["native", "AF"] {
        let bounded = held(WINDOWS, CpuBackend::new(), recipe);
        let everything = held([None; 4], CpuBackend::new(), recipe);
        assert!(bounded < everything * 2 / 5, "{bounded} of {everything}");
        // There pages are allocated together, before they are needed.
        let on_the_gpu = |windows| {
            let gpu = CudaBackend::new(0);
            gpu.map(|gpu| held(windows, gpu, recipe))
        };
        match (on_the_gpu(WINDOWS), on_the_gpu([None; 4])) {
            (Ok(bounded), Ok(everything)) => {
                assert!(bounded < everything * 2 / 5, "{bounded} of {everything}");
            }
            (Err(error), _) | (_, Err(error)) => println!("no GPU: {error}"),
        }
    }
}
