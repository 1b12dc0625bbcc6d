//! Results do not depend on layout, order or chunking, whatever the recipe; arms, engagement and
//! calibration. Everything runs on the naive backend, on the CPU backend
//! and, where there is one, on a GPU.

use crate::support::engines::{self, Log, generate, layout, score, setup};
use crate::support::models::{self, Noise};
use crate::support::oracle::Oracle;
use kvassay::backend::Backend;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::engine::{
    BatchLayout, CaseError, Engine, EngineError, GenerateRequest, Generation, LocalEngine, Score,
    ScoreRequest,
};
use kvassay::model::Family;
use kvassay::recipe::Recipe;
use kvassay::schema::LayerAbsmax;

const FAMILIES: [Family; 5] = [
    Family::Llama,
    Family::Qwen2,
    Family::Qwen3,
    Family::Qwen35,
    Family::Qwen3Moe,
];

const RECIPES: [&str; 14] = [
    "native",
    "AF",
    "RF",
    "SF",
    "AD",
    "RD",
    "SD",
    "k=e5m2,v=e4m3:fixed",
    "k=native,v=e5m2:dynamic",
    "k=e4m3:dynamic,v=e5m2:fixed",
    "k=e4m3,v=e4m3,skip-layers=0",
    "k=e4m3:dynamic,v=native,skip-layers=-1",
    "k=e4m3,v=e4m3,q=e4m3",
    "k=int8,v=e5m2:fixed,q=e4m3,sink=5,skip-layers=0",
];

fn cpu() -> CpuBackend {
    CpuBackend::new()
}

fn tiny<B: Backend>(family: Family, backend: B) -> LocalEngine<B> {
    let config = models::config(family);
    let weights = models::weights(&config, 5);
    engines::engine(&config, &weights, backend, &[3, 4])
}

fn absmax(engine: &mut dyn Engine) -> Vec<LayerAbsmax> {
    let documents = vec![Noise(8).ids(40, 61), Noise(9).ids(25, 61)];
    engine
        .calibrate(&documents, 5, &mut Log::<Score>::new())
        .unwrap()
}

fn prompts() -> Vec<GenerateRequest> {
    [1, 2, 17, 33, 40, 8, 5, 64, 3]
        .into_iter()
        .map(|length| GenerateRequest {
            prompt_ids: Noise(length as u64 + 70).ids(length, 61),
            max_new_tokens: 3 + length as u32 % 20,
            draft: Vec::new(),
            messages: Vec::new(),
        })
        .collect()
}

fn windows() -> Vec<ScoreRequest> {
    [2, 20, 96, 47]
        .into_iter()
        .map(|length| ScoreRequest {
            ids: Noise(length as u64).ids(length, 61),
            targets: 1 + length as u32 / 3,
        })
        .collect()
}

type Outcomes = (
    Vec<Result<Generation, CaseError>>,
    Vec<Result<Score, CaseError>>,
);

/// Everything that an arm yields; reversed requests are put back in order.
fn outcomes(engine: &mut dyn Engine, reversed: bool) -> Outcomes {
    let (mut prompts, mut windows) = (prompts(), windows());
    if reversed {
        prompts.reverse();
        windows.reverse();
    }
    let mut generations = generate(engine, &prompts);
    let mut scores = score(engine, &windows);
    if reversed {
        generations.reverse();
        scores.reverse();
    }
    assert!(generations.iter().all(Result::is_ok));
    assert!(scores.iter().all(Result::is_ok));
    (generations, scores)
}

fn layouts_agree<B: Backend>(backend: impl Fn() -> B) {
    layouts_of_engines_agree(|family| tiny(family, backend()));
}

fn layouts_of_engines_agree<B: Backend>(engine: impl Fn(Family) -> LocalEngine<B>) {
    let layouts: [BatchLayout; 5] = [
        layout(1, 1),
        layout(2, 3),
        layout(3, 17),
        layout(5, 64),
        layout(16, 7),
    ];
    for family in FAMILIES {
        let mut engine = engine(family);
        let scales = absmax(&mut engine);
        for recipe in RECIPES {
            engine
                .open_arm(&setup(recipe, &scales, layout(1, 1000)))
                .unwrap();
            let expected = outcomes(&mut engine, false);
            for (index, layout) in layouts.into_iter().enumerate() {
                engine.open_arm(&setup(recipe, &scales, layout)).unwrap();
                let found = outcomes(&mut engine, index % 2 == 1);
                assert_eq!(found, expected, "{family:?} {recipe} {layout:?}");
            }
        }
    }
}

#[test]
fn layouts_agree_on_the_oracle() {
    layouts_agree(Oracle::default);
}

#[test]
fn layouts_agree_on_the_cpu() {
    layouts_agree(cpu);
}

/// Whether there is a GPU; says so where there is none.
fn has_gpu() -> bool {
    match CudaBackend::new(0) {
        Ok(_) => true,
        Err(error) => {
            println!("skipped: {error}");
            false
        }
    }
}

#[test]
fn layouts_agree_on_the_gpu() {
    if has_gpu() {
        layouts_agree(|| CudaBackend::new(0).unwrap());
    }
}

/// Weights in the native format: activations take the 16-bit paths.
#[test]
fn layouts_agree_on_the_gpu_with_16_bit_weights() {
    if !has_gpu() {
        return;
    }
    layouts_of_engines_agree(|family| {
        let config = models::config(family);
        let weights = models::in_native_format(models::weights(&config, 5), config.native_dtype);
        let backend = CudaBackend::new(0).unwrap();
        engines::engine(&config, &weights, backend, &[3, 4])
    });
}

#[test]
fn cuda_agrees_with_the_oracle() {
    if has_gpu() {
        agrees_with_the_oracle(|| CudaBackend::new(0).unwrap());
    }
}

#[test]
fn cpu_agrees_with_the_oracle() {
    agrees_with_the_oracle(cpu);
}

/// Both backends compute the same model: likelihoods are close under every recipe.
fn agrees_with_the_oracle<B: Backend>(backend: impl Fn() -> B) {
    for family in FAMILIES {
        let (mut oracle, mut cpu) = (tiny(family, Oracle::default()), tiny(family, backend()));
        let (a, b) = (absmax(&mut oracle), absmax(&mut cpu));
        for (a, b) in a.iter().zip(&b) {
            assert!((a.k - b.k).abs() <= a.k * 1e-2 && (a.v - b.v).abs() <= a.v * 1e-2);
        }
        for recipe in RECIPES {
            oracle.open_arm(&setup(recipe, &a, layout(2, 16))).unwrap();
            cpu.open_arm(&setup(recipe, &a, layout(2, 16))).unwrap();
            let (a, b) = (score(&mut oracle, &windows()), score(&mut cpu, &windows()));
            for (a, b) in a.into_iter().zip(b) {
                let (a, b) = (a.unwrap(), b.unwrap());
                let difference = (a.nll_sum - b.nll_sum).abs() / a.nll_sum;
                assert!(difference < 1e-2, "{family:?} {recipe}: {difference}");
                let (a, b) = (a.kv.unwrap(), b.kv.unwrap());
                assert_eq!((a.k.bytes, a.v.bytes), (b.k.bytes, b.v.bytes), "{recipe}");
                assert_eq!(a.k.elements, b.k.elements, "{recipe}");
            }
        }
    }
}

/// A recipe changes what is answered, and by way of its own component.
#[test]
fn recipes_differ_from_native_and_from_each_other() {
    let mut engine = tiny(Family::Llama, cpu());
    let scales = absmax(&mut engine);
    let mut seen = Vec::new();
    for recipe in RECIPES {
        let engagement = engine
            .open_arm(&setup(recipe, &scales, layout(2, 16)))
            .unwrap();
        let parsed = Recipe::parse(recipe).unwrap();
        assert_eq!(engagement.differs_from_native, !parsed.is_native());
        assert_eq!(engagement.recipe, parsed.spec());
        assert_eq!(engagement.probe_tokens, 12);
        assert!(!engagement.unit_scales);
        for (layer, found) in engagement.layers.iter().enumerate() {
            let (k, v) = parsed.components_at(layer, 2);
            assert_eq!(found.k.changed > 0, k.is_quantised(), "{recipe} {layer}");
            assert_eq!(found.v.changed > 0, v.is_quantised(), "{recipe} {layer}");
            assert_eq!(found.k.scale_min.is_some(), k.is_quantised());
        }
        let scores = score(&mut engine, &windows());
        let bits: Vec<u64> = scores
            .into_iter()
            .map(|score| score.unwrap().nll_sum.to_bits())
            .collect();
        assert!(!seen.contains(&bits), "{recipe} repeats an earlier recipe");
        seen.push(bits);
    }
}

/// All keys are zero, which every format stores exactly.
#[test]
fn a_component_that_changes_nothing_is_an_error() {
    let config = models::config(Family::Llama);
    let mut weights = models::weights(&config, 5);
    for layer in 0..2 {
        let name = format!("model.layers.{layer}.self_attn.k_proj.weight");
        let shape = vec![8, 24];
        let zeros = kvassay::backend::TensorData::F32(vec![0.0; 8 * 24]);
        weights.tensors.insert(name, (shape, zeros));
    }
    let mut engine = engines::engine(&config, &weights, cpu(), &[]);
    engine.open_arm(&setup("AD", &[], layout(1, 8))).unwrap();
    for recipe in ["RD", "SD"] {
        let error = engine
            .open_arm(&setup(recipe, &[], layout(1, 8)))
            .unwrap_err();
        assert!(matches!(error, EngineError::Worker(_)));
        assert!(error.to_string().contains("component k"), "{error}");
        // The arm before is closed and the failed one is not open.
        assert!(engine.generate(&prompts(), &mut Log::new()).is_err());
    }
}

#[test]
fn what_cannot_be_applied_is_unsupported_by_name() {
    let mut engine = tiny(Family::Llama, Oracle::default());
    for (recipe, word) in [
        ("k=int4,v=native", "groups of 32 elements, and head_dim 8"),
        ("k=e4m3,v=e4m3,skip-layers=2", "layer 2"),
    ] {
        let parsed = Recipe::parse(recipe).unwrap();
        let asked = engine.supports(&parsed).unwrap_err();
        let opened = engine
            .open_arm(&setup(recipe, &[], layout(1, 8)))
            .unwrap_err();
        for error in [asked, opened] {
            assert!(matches!(error, EngineError::Unsupported(_)), "{error}");
            assert!(error.to_string().contains(word), "{error}");
            let named = format!("recipe {}: ", parsed.name);
            assert!(error.to_string().contains(&named), "{error}");
        }
    }
    for recipe in RECIPES {
        engine.supports(&Recipe::parse(recipe).unwrap()).unwrap();
    }
    for slots in [layout(0, 8), layout(8, 0)] {
        let error = engine.open_arm(&setup("native", &[], slots)).unwrap_err();
        assert!(matches!(error, EngineError::Unsupported(_)), "{error}");
    }
}

#[test]
fn arms_need_their_scales_and_a_sound_probe() {
    let mut engine = tiny(Family::Llama, Oracle::default());
    let one = [LayerAbsmax { k: 1.0, v: 1.0 }];
    let error = engine
        .open_arm(&setup("SF", &one, layout(1, 8)))
        .unwrap_err();
    assert!(
        error.to_string().contains("found 1 layers, expected 2"),
        "{error}"
    );
    for (probe, word) in [(vec![], "no token"), (vec![61], "61"), (vec![1; 97], "97")] {
        let mut arm = setup("native", &[], layout(1, 8));
        arm.probe = probe;
        let error = engine.open_arm(&arm).unwrap_err().to_string();
        assert!(error.contains("probe") && error.contains(word), "{error}");
    }
}

/// Scales that calibration did not see show as saturation and as unit scales.
#[test]
fn engagement_shows_unit_scales_and_saturation() {
    let mut engine = tiny(Family::Qwen2, cpu());
    let unit = [LayerAbsmax { k: 448.0, v: 448.0 }; 2];
    let engagement = engine.open_arm(&setup("SF", &unit, layout(2, 5))).unwrap();
    assert!(engagement.unit_scales && engagement.differs_from_native);
    let small = [LayerAbsmax { k: 0.01, v: 0.01 }; 2];
    let engagement = engine.open_arm(&setup("SF", &small, layout(2, 5))).unwrap();
    assert!(!engagement.unit_scales);
    assert!(
        engagement
            .layers
            .iter()
            .all(|layer| layer.k.saturated > 0 && layer.v.saturated > 0)
    );
}

/// The extremes over documents are those of each document alone; forced tokens pass stop tokens
/// and are all stored.
#[test]
fn calibration_takes_the_largest_over_documents() {
    let mut engine = tiny(Family::Llama, cpu());
    let documents = [Noise(8).ids(40, 61), Noise(9).ids(25, 61), vec![5]];
    let mut log: Log<Score> = Log::new();
    let together = engine.calibrate(&documents, 9, &mut log).unwrap();
    assert_eq!(log.tokens, 40 + 25 + 1 + 3 * 9);
    let mut merged = vec![LayerAbsmax { k: 0.0, v: 0.0 }; 2];
    for document in &documents {
        let alone = engine
            .calibrate(std::slice::from_ref(document), 9, &mut Log::<Score>::new())
            .unwrap();
        for (sum, layer) in merged.iter_mut().zip(alone) {
            sum.k = sum.k.max(layer.k);
            sum.v = sum.v.max(layer.v);
        }
    }
    assert_eq!(together, merged);
    assert!(together.iter().all(|layer| layer.k > 0.0 && layer.v > 0.0));
    let error = engine
        .calibrate(&[vec![1; 90]], 9, &mut Log::<Score>::new())
        .unwrap_err();
    assert!(error.to_string().contains("document 0"), "{error}");
    assert!(
        engine.generate(&prompts(), &mut Log::new()).is_err(),
        "calibration closes the arm"
    );
}
