//! The local engine over the naive backend: what it generates and scores, and what it refuses.

use crate::support::dishonest::{Dishonest, Lie};
use crate::support::engines::{self, Log, generate, layout, score, setup};
use crate::support::models::{self, MemoryWeights, Noise};
use crate::support::oracle::Oracle;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::backend::{Backend, CacheLayout, CacheRow, TensorData};
use kvassay::engine::{
    Engine, EngineError, GenerateRequest, Generation, LocalEngine, Score, ScoreRequest,
};
use kvassay::model::{Decoder, Family, LayerConfig, ModelConfig, Workspace};
use kvassay::recipe::Recipe;
use kvassay::schema::{Finish, KvTotals};

const SEED: u64 = 11;

fn tiny(family: Family, eos: &[u32]) -> LocalEngine<Oracle> {
    let config = models::config(family);
    let weights = models::weights(&config, SEED);
    engines::engine(&config, &weights, Oracle::default(), eos)
}

fn prompt(length: usize, max_new_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt_ids: Noise(length as u64).ids(length, 61),
        max_new_tokens,
        draft: Vec::new(),
        messages: Vec::new(),
    }
}

/// Logits after each of `ids`, one token per pass.
fn stepwise_logits(config: &ModelConfig, ids: &[u32]) -> Vec<Vec<f32>> {
    let weights = models::weights(config, SEED);
    let decoder = Decoder::load(config.clone(), &weights, Oracle::default()).unwrap();
    let layout = CacheLayout {
        layers: config.cache_layers(),
        native: config.native_dtype,
        slots: 1,
        slot_tokens: ids.len(),
        pass_tokens: ids.len(),
        recipe: Recipe::native(),
        absmax: None,
    };
    let mut cache = decoder.backend().cache(&layout).unwrap();
    let mut workspace = Workspace::new(decoder.backend(), config).unwrap();
    let step = |(position, id): (usize, &u32)| {
        let rows = [CacheRow { slot: 0, position }];
        let logits = decoder.forward(&mut cache, &rows, &[*id], &[0], &mut workspace);
        decoder.backend().to_host(logits.unwrap().unwrap()).unwrap()
    };
    ids.iter().enumerate().map(step).collect()
}

fn largest(logits: &[f32]) -> u32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|x| *x == best).unwrap() as u32
}

#[test]
fn generation_takes_the_largest_logit_at_every_step() {
    let families = [
        Family::Llama,
        Family::Qwen2,
        Family::Qwen3,
        Family::Qwen35,
        Family::Qwen3Moe,
    ];
    for family in families {
        let mut engine = tiny(family, &[]);
        engine
            .open_arm(&setup("native", &[], layout(2, 5)))
            .unwrap();
        let request = prompt(9, 12);
        let found = generate(&mut engine, std::slice::from_ref(&request));
        let found = found[0].as_ref().unwrap();
        assert_eq!((found.finish, found.ids.len()), (Finish::Length, 12));
        let mut ids = request.prompt_ids.clone();
        ids.extend(&found.ids);
        let logits = stepwise_logits(&models::config(family), &ids);
        for (step, id) in found.ids.iter().enumerate() {
            assert_eq!(*id, largest(&logits[8 + step]), "{family:?} step {step}");
        }
        let distinct: std::collections::BTreeSet<_> = found.ids.iter().collect();
        assert!(
            distinct.len() > 2,
            "{family:?}: a degenerate model tests little"
        );
    }
}

/// What a model declares as never to be generated is not, whatever its logits, on any worker; a
/// scored target among it concerns its own window only, and every other one is as likely as the
/// other logits make it.
#[test]
fn suppressed_tokens_are_never_chosen_nor_likely() {
    fn check<B: Backend>(backend: impl Fn() -> B) {
        let free = models::config(Family::Llama);
        let weights = models::weights(&free, SEED);
        let run = |config: &ModelConfig| {
            let mut engine = engines::engine(config, &weights, backend(), &[]);
            let native = setup("native", &[], layout(2, 5));
            engine.open_arm(&native).unwrap();
            let found = generate(&mut engine, &[prompt(9, 12)]);
            found[0].as_ref().unwrap().ids.clone()
        };
        let wanted = run(&free);
        let mut suppressed: Vec<u32> = wanted.clone();
        suppressed.sort_unstable();
        suppressed.dedup();
        let masked = ModelConfig {
            suppressed: suppressed.clone(),
            ..free.clone()
        };
        let ids = run(&masked);
        assert_eq!(ids.len(), 12);
        assert!(ids.iter().all(|id| !suppressed.contains(id)), "{ids:?}");
        // One token masked: its own target is impossible, another one gains what it loses.
        let one = ModelConfig {
            suppressed: vec![wanted[0]],
            ..free.clone()
        };
        let scores = |config: &ModelConfig| {
            let mut engine = engines::engine(config, &weights, backend(), &[]);
            engine
                .open_arm(&setup("native", &[], layout(2, 5)))
                .unwrap();
            let window = |last: u32| ScoreRequest {
                ids: [prompt(9, 1).prompt_ids, vec![last]].concat(),
                targets: 1,
            };
            score(&mut engine, &[wanted[0], (wanted[0] + 1) % 61].map(window))
        };
        let (before, after) = (scores(&free), scores(&one));
        let error = after[0].clone().unwrap_err().to_string();
        assert!(error.contains("found inf"), "{error}");
        let nll = |found: &[Result<Score, _>], at: usize| found[at].clone().unwrap().nll_sum;
        let lost = (-nll(&before, 0)).exp();
        let expected = nll(&before, 1) + (1.0 - lost).ln();
        assert!((nll(&after, 1) - expected).abs() < 1e-5, "{expected}");
    }
    check(Oracle::default);
    check(CpuBackend::new);
}

/// Masks that are not what the model declares fail every case that reads such logits, generated or
/// scored, and name the token.
#[test]
fn a_mask_that_is_not_applied_is_noticed_at_every_position() {
    let config = ModelConfig {
        suppressed: vec![3, 17],
        ..models::config(Family::Llama)
    };
    let weights = models::weights(&config, SEED);
    let backend = Dishonest::new(CpuBackend::new(), Lie::Unmasked);
    let mut engine = engines::engine(&config, &weights, backend, &[]);
    engine
        .open_arm(&setup("native", &[], layout(2, 5)))
        .unwrap();
    let generated = generate(&mut engine, &[prompt(9, 12)]);
    let window = ScoreRequest {
        ids: prompt(12, 1).prompt_ids,
        targets: 3,
    };
    let scored = score(&mut engine, &[window]);
    for error in [
        generated[0].clone().unwrap_err().to_string(),
        scored[0].clone().unwrap_err().to_string(),
    ] {
        assert!(error.contains("logit 17 is "), "{error}");
        assert!(
            error.contains("expected -inf for a suppressed token"),
            "{error}"
        );
    }
}

#[test]
fn scores_sum_the_last_targets() {
    let config = models::config(Family::Qwen2);
    let mut engine = tiny(Family::Qwen2, &[]);
    engine
        .open_arm(&setup("native", &[], layout(1, 6)))
        .unwrap();
    let ids = Noise(3).ids(30, config.vocab_size);
    let logits = stepwise_logits(&config, &ids);
    let nll = |position: usize| {
        let row: Vec<f64> = logits[position - 1].iter().map(|x| f64::from(*x)).collect();
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        sum.ln() - row[ids[position] as usize]
    };
    for targets in [1, 7, 29] {
        let expected: f64 = (30 - targets..30).map(nll).sum();
        let request = ScoreRequest {
            ids: ids.clone(),
            targets: targets as u32,
        };
        let found = score(&mut engine, &[request])[0].clone().unwrap();
        assert!((found.nll_sum - expected).abs() < 1e-9, "{targets}");
        assert_eq!(found.kv.unwrap().k.elements, stored(&config, 29));
    }
}

/// Elements of one component that `tokens` tokens take over all layers.
fn stored(config: &ModelConfig, tokens: usize) -> u64 {
    let widths = config.layers.iter().map(LayerConfig::kv_width);
    (tokens * widths.sum::<usize>()) as u64
}

#[test]
fn a_stop_token_ends_the_ids_but_not_the_text() {
    let request = prompt(6, 20);
    let mut free = tiny(Family::Llama, &[]);
    free.open_arm(&setup("native", &[], layout(1, 8))).unwrap();
    let plain = generate(&mut free, std::slice::from_ref(&request))[0]
        .clone()
        .unwrap();
    let stop = plain.ids[7];
    let length = plain.ids.iter().position(|id| *id == stop).unwrap() + 1;
    let mut engine = tiny(Family::Llama, &[60, stop]);
    engine
        .open_arm(&setup("native", &[], layout(1, 8)))
        .unwrap();
    let found = generate(&mut engine, &[request])[0].clone().unwrap();
    assert_eq!(found.finish, Finish::Stop);
    assert_eq!(found.ids, plain.ids[..length]);
    let words: Vec<String> = found.ids[..length - 1].iter().map(u32::to_string).collect();
    assert_eq!(found.text, words.join(" "));
    let config = models::config(Family::Llama);
    assert_eq!(
        found.kv.unwrap().v.elements,
        stored(&config, 6 + length - 1)
    );
}

/// A stop token as the last allowed token still is a stop.
#[test]
fn allowance_edges() {
    let mut engine = tiny(Family::Qwen3, &[]);
    engine
        .open_arm(&setup("native", &[], layout(2, 8)))
        .unwrap();
    let outcomes = generate(&mut engine, &[prompt(5, 0), prompt(5, 1), prompt(90, 6)]);
    let nothing = outcomes[0].clone().unwrap();
    let empty = Generation {
        text: String::new(),
        ids: Vec::new(),
        output_tokens: Some(0),
        finish: Finish::Length,
        kv: Some(KvTotals::default()),
    };
    assert_eq!(nothing, empty);
    let one = outcomes[1].clone().unwrap();
    assert_eq!((one.ids.len(), one.finish), (1, Finish::Length));
    assert_eq!(outcomes[2].clone().unwrap().ids.len(), 6);
    let mut engine = tiny(Family::Qwen3, &one.ids);
    engine
        .open_arm(&setup("native", &[], layout(2, 8)))
        .unwrap();
    let stopped = generate(&mut engine, &[prompt(5, 1)])[0].clone().unwrap();
    assert_eq!((stopped.ids, stopped.finish), (one.ids, Finish::Stop));
}

#[test]
fn bad_cases_fail_alone() {
    let mut engine = tiny(Family::Llama, &[]);
    engine
        .open_arm(&setup("native", &[], layout(2, 8)))
        .unwrap();
    let foreign = GenerateRequest {
        prompt_ids: vec![3, 61],
        max_new_tokens: 4,
        draft: Vec::new(),
        messages: Vec::new(),
    };
    let requests = [
        prompt(0, 4),
        prompt(5, 4),
        foreign,
        prompt(93, 4),
        prompt(7, u32::MAX),
    ];
    let found = generate(&mut engine, &requests);
    let alone = generate(&mut engine, &requests[1..2]);
    assert_eq!(found[1], alone[0]);
    for (at, words) in [
        (0, ["no token", "start"]),
        (2, ["token 1: found id 61", "61"]),
        (3, ["found 97", "context of 96"]),
        (4, ["new ones", "context of 96"]),
    ] {
        let message = found[at].as_ref().unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    let window = |length: usize, targets| ScoreRequest {
        ids: Noise(1).ids(length, 61),
        targets,
    };
    let requests = [
        window(0, 1),
        window(10, 0),
        window(10, 10),
        window(97, 3),
        window(96, 95),
    ];
    let found = score(&mut engine, &requests);
    assert!(found[..4].iter().all(Result::is_err), "{found:?}");
    assert!(found[4].is_ok());
    assert!(
        found[2]
            .as_ref()
            .unwrap_err()
            .to_string()
            .contains("between 1 and 9")
    );
}

/// Requests of which only the second holds token 7, run together and one by one on an engine
/// that cannot compute that token.
fn only_token_7_fails<B: Backend>(mut engine: LocalEngine<B>, word: &str) {
    let without = |seed| Noise(seed).ids(8, 7);
    let requests: Vec<GenerateRequest> = [without(1), vec![1, 2, 7], without(2)]
        .into_iter()
        .map(|prompt_ids| GenerateRequest {
            prompt_ids,
            max_new_tokens: 5,
            draft: Vec::new(),
            messages: Vec::new(),
        })
        .collect();
    let windows: Vec<ScoreRequest> = requests
        .iter()
        .map(|request| ScoreRequest {
            ids: [request.prompt_ids.as_slice(), &[3]].concat(),
            targets: 2,
        })
        .collect();
    let mut arm = setup("native", &[], layout(3, 64));
    arm.probe = vec![1, 2, 3];
    engine.open_arm(&arm).unwrap();
    let (generations, scores) = (
        generate(&mut engine, &requests),
        score(&mut engine, &windows),
    );
    for at in [0, 2] {
        let alone = generate(&mut engine, &requests[at..=at]);
        assert_eq!(generations[at], alone[0]);
        assert!(alone[0].is_ok());
        assert_eq!(scores[at], score(&mut engine, &windows[at..=at])[0]);
        assert!(scores[at].is_ok());
    }
    for message in [
        generations[1].as_ref().unwrap_err().to_string(),
        scores[1].as_ref().unwrap_err().to_string(),
    ] {
        assert!(message.contains("token 2"), "{message}");
        assert!(message.contains(word), "{message}");
    }
}

/// Layers come in turn, so that of a prompt in one pass a later token is found first: its case names the
/// first token all the same, as in passes of few tokens, where native is run a second time otherwise.
#[test]
fn the_first_token_that_fails_is_named_whatever_the_passes() {
    for family in [Family::Qwen3, Family::Qwen35] {
        let config = models::config(family);
        let last = config.layers.len() - 1;
        let weights = models::weights(&config, SEED);
        let mut errors = Vec::new();
        for chunk in [2, 5, 6, 7, 10, 64] {
            let lie = Lie::Unstorable([(0, 9), (last, 5)]);
            let backend = Dishonest::new(CpuBackend::new(), lie);
            let mut engine = engines::engine(&config, &weights, backend, &[7]);
            let mut arm = setup("native", &[], layout(1, chunk));
            arm.probe = vec![1, 2, 3];
            engine.open_arm(&arm).unwrap();
            let error = generate(&mut engine, &[prompt(20, 5)])[0].clone();
            errors.push(error.unwrap_err().to_string());
        }
        let expected = "token 5: a key that is not finite";
        assert!(errors.iter().all(|error| error == expected), "{errors:?}");
    }
}

fn f32s<'a>(weights: &'a mut MemoryWeights, name: &str) -> &'a mut Vec<f32> {
    match &mut weights.tensors.get_mut(name).unwrap().1 {
        TensorData::F32(data) => data,
        other => panic!("{name}: {} elements are not f32", other.len()),
    }
}

#[test]
fn a_key_that_is_not_finite_concerns_its_own_sequence() {
    let config = models::config(Family::Qwen3);
    let mut weights = models::weights(&config, SEED);
    f32s(&mut weights, "model.embed_tokens.weight")[7 * config.hidden_size] = f32::NAN;
    let engine = engines::engine(&config, &weights, Oracle::default(), &[7]);
    only_token_7_fails(engine, "layer 0");
}

/// Token 7 overflows behind the recurrent layers: the states of the others have taken the pass in when
/// its values turn out to be more than halves hold.
#[test]
fn recurrent_states_survive_a_pass_that_fails() {
    fn check<B: Backend>(backend: impl Fn() -> B) {
        let config = models::config(Family::Qwen35);
        let mut weights = models::weights(&config, SEED);
        f32s(&mut weights, "model.embed_tokens.weight")[7 * config.hidden_size] = 1e4;
        f32s(&mut weights, "model.layers.3.input_layernorm.weight")[0] = 1.0;
        f32s(&mut weights, "model.layers.3.self_attn.v_proj.weight")[0] = 15_000.0;
        let engine = engines::engine(&config, &weights, backend(), &[7]);
        only_token_7_fails(engine, "layer 3");
    }
    check(CpuBackend::new);
    if CudaBackend::new(0).is_ok() {
        check(|| CudaBackend::new(0).unwrap());
    }
}

/// An engine of a model with recurrent layers ignores drafts, and says so.
#[test]
fn recurrent_layers_take_no_drafts() {
    let mut engine = tiny(Family::Qwen35, &[]);
    engine
        .open_arm(&setup("native", &[], layout(2, 8)))
        .unwrap();
    assert!(!engine.takes_drafts() && tiny(Family::Qwen3, &[]).takes_drafts());
    let plain = generate(&mut engine, &[prompt(9, 12)]);
    let drafted = GenerateRequest {
        draft: vec![5; 12],
        ..prompt(9, 12)
    };
    assert_eq!(generate(&mut engine, &[drafted]), plain);
}

/// Token 7 overflows in the MLP of the last layer: its keys and values are sound, its logits not.
#[test]
fn a_logit_that_is_not_finite_concerns_its_own_sequence() {
    let config = models::config(Family::Qwen3);
    let mut weights = models::weights(&config, SEED);
    f32s(&mut weights, "model.embed_tokens.weight")[7 * config.hidden_size] = 1e4;
    f32s(&mut weights, "model.layers.1.mlp.up_proj.weight")[0] = 1e38;
    let engine = engines::engine(&config, &weights, Oracle::default(), &[7]);
    only_token_7_fails(engine, "logit");
}

#[test]
fn a_break_stops_at_once_and_leaves_the_engine_usable() {
    let requests: Vec<GenerateRequest> = (3..10).map(|length| prompt(length, 9)).collect();
    let mut engine = tiny(Family::Llama, &[]);
    engine
        .open_arm(&setup("native", &[], layout(2, 4)))
        .unwrap();
    let whole = generate(&mut engine, &requests);
    for break_after in 1..12 {
        let mut log: Log<Generation> = Log::new();
        log.break_after = break_after;
        engine.generate(&requests, &mut log).unwrap();
        assert_eq!(log.passes, break_after);
        for (index, outcome) in log.outcomes {
            assert_eq!(outcome, whole[index]);
        }
    }
    assert_eq!(generate(&mut engine, &requests), whole);
    let mut log: Log<Score> = Log::new();
    log.break_after = 1;
    let window = ScoreRequest {
        ids: vec![1; 30],
        targets: 3,
    };
    engine.score(&[window], &mut log).unwrap();
    assert!(log.outcomes.is_empty());
}

#[test]
fn an_arm_must_be_open() {
    let mut engine = tiny(Family::Llama, &[]);
    let error = engine
        .generate(&[prompt(3, 3)], &mut Log::new())
        .unwrap_err();
    assert!(matches!(error, EngineError::Worker(_)), "{error}");
    assert!(error.to_string().contains("no arm is open"));
}
