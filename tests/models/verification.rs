//! Generation by way of a draft yields what plain generation yields, whatever the draft: on the
//! naive backend, on the CPU backend and, where there is one, on a GPU.

use std::ops::ControlFlow;

use crate::support::engines::{self, generate, layout, setup};
use crate::support::models::{self, MemoryWeights, Noise};
use crate::support::oracle::Oracle;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::backend::{Backend, TensorData};
use kvassay::engine::{
    BatchLayout, CaseError, DraftUse, Engine, GenerateObserver, GenerateRequest, Generation,
    LocalEngine, Observer,
};
use kvassay::model::Family;
use kvassay::schema::{Finish, LayerAbsmax};
use proptest::prelude::*;

const VOCAB: usize = 61;
const EOS: [u32; 2] = [3, 4];
const ABSMAX: [LayerAbsmax; 2] = [LayerAbsmax { k: 3.0, v: 2.0 }; 2];

/// How a draft comes about from an answer.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Equal,
    OneReplaced,
    SeveralReplaced,
    Truncated,
    Extended,
    Shifted,
    Random,
    Foreign,
    Empty,
}

const KINDS: [Kind; 9] = [
    Kind::Equal,
    Kind::OneReplaced,
    Kind::SeveralReplaced,
    Kind::Truncated,
    Kind::Extended,
    Kind::Shifted,
    Kind::Random,
    Kind::Foreign,
    Kind::Empty,
];

fn draft(kind: Kind, answer: &[u32], noise: &mut Noise) -> Vec<u32> {
    let mut ids = answer.to_vec();
    let place = |noise: &mut Noise| noise.bits() as usize % answer.len().max(1);
    let replace = |ids: &mut Vec<u32>, noise: &mut Noise| {
        let at = place(noise);
        ids[at] = (ids[at] + 1 + (noise.bits() % 60) as u32) % VOCAB as u32;
    };
    match kind {
        Kind::Equal => {}
        Kind::OneReplaced => replace(&mut ids, noise),
        Kind::SeveralReplaced => (0..5).for_each(|_| replace(&mut ids, noise)),
        Kind::Truncated => ids.truncate(noise.bits() as usize % answer.len().max(1)),
        Kind::Extended => ids.extend(noise.ids(70, VOCAB)),
        Kind::Shifted => ids.insert(noise.bits() as usize % answer.len().max(1), 9),
        Kind::Random => ids = noise.ids(80, VOCAB),
        Kind::Foreign => ids.insert(noise.bits() as usize % answer.len().max(1), u32::MAX),
        Kind::Empty => ids.clear(),
    }
    ids
}

fn requests(noise: &mut Noise) -> Vec<GenerateRequest> {
    (0..9)
        .map(|_| {
            let length = 1 + noise.bits() as usize % 30;
            GenerateRequest {
                prompt_ids: noise.ids(length, VOCAB),
                max_new_tokens: 1 + (noise.bits() % 64) as u32,
                draft: Vec::new(),
                messages: Vec::new(),
            }
        })
        .collect()
}

/// Passes, and what became of the drafts.
#[derive(Default)]
struct Heard {
    outcomes: Vec<Option<Result<Generation, CaseError>>>,
    passes: usize,
    drafts: Vec<DraftUse>,
}

impl Observer for Heard {
    fn tokens(&mut self, _: u64) -> ControlFlow<()> {
        self.passes += 1;
        ControlFlow::Continue(())
    }
}

impl GenerateObserver for Heard {
    fn generated(&mut self, index: usize, outcome: Result<Generation, CaseError>) {
        assert!(self.outcomes[index].replace(outcome).is_none());
    }

    fn drafted(&mut self, draft: DraftUse) {
        assert!(draft.taken <= draft.fed);
        self.drafts.push(draft);
    }
}

fn hear(engine: &mut dyn Engine, requests: &[GenerateRequest]) -> Heard {
    let mut heard = Heard {
        outcomes: vec![None; requests.len()],
        ..Heard::default()
    };
    engine.generate(requests, &mut heard).unwrap();
    heard
}

fn layouts() -> [BatchLayout; 4] {
    [layout(1, 5), layout(2, 300), layout(4, 33), layout(9, 2000)]
}

/// Drafts of every kind, made from the native answers and from the arm's own.
fn verified_is_plain<B: Backend>(backend: B, family: Family, recipe: &str, seed: u64) {
    let config = models::config(family);
    let weights = models::weights(&config, seed);
    let mut engine = engines::engine(&config, &weights, backend, &EOS);
    let mut noise = Noise(seed ^ 77);
    let mut requests = requests(&mut noise);
    let plain_layout = layout(3, 16);
    engine
        .open_arm(&setup("native", &ABSMAX, plain_layout))
        .unwrap();
    let native = generate(&mut engine, &requests);
    engine
        .open_arm(&setup(recipe, &ABSMAX, plain_layout))
        .unwrap();
    let plain = generate(&mut engine, &requests);
    for (turn, layout) in layouts().into_iter().enumerate() {
        engine.open_arm(&setup(recipe, &ABSMAX, layout)).unwrap();
        for (at, kind) in KINDS.into_iter().enumerate() {
            let answers = if (at + turn) % 2 == 0 {
                &native
            } else {
                &plain
            };
            for (request, answer) in requests.iter_mut().zip(answers) {
                request.draft = draft(kind, &answer.as_ref().unwrap().ids, &mut noise);
            }
            let found = generate(&mut engine, &requests);
            assert_eq!(found, plain, "{family:?} {recipe} {kind:?} {layout:?}");
        }
    }
}

fn family(seed: u64) -> Family {
    [Family::Llama, Family::Qwen2, Family::Qwen3][seed as usize % 3]
}

fn recipe(seed: u64) -> &'static str {
    [
        "SD",
        "SF",
        "AD",
        "RF",
        "native",
        "k=e4m3:dynamic,v=e5m2:fixed",
    ][seed as usize / 3 % 6]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 18, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn verified_is_plain_on_the_cpu(seed in 0u64..1_000_000) {
        verified_is_plain(CpuBackend::new(), family(seed), recipe(seed), seed);
    }

    #[test]
    fn verified_is_plain_on_the_oracle(seed in 0u64..1_000_000) {
        verified_is_plain(Oracle::default(), family(seed), recipe(seed), seed);
    }
}

#[test]
fn verified_is_plain_on_the_gpu() {
    if let Err(error) = CudaBackend::new(0) {
        println!("skipped: {error}");
        return;
    }
    for seed in 0..12 {
        let backend = CudaBackend::new(0).unwrap();
        verified_is_plain(backend, family(seed), recipe(seed), seed);
    }
}

fn tiny(weights: impl Fn(&mut MemoryWeights), eos: &[u32]) -> LocalEngine<CpuBackend> {
    let config = models::config(Family::Qwen3);
    let mut made = models::weights(&config, 11);
    weights(&mut made);
    engines::engine(&config, &made, CpuBackend::new(), eos)
}

fn request(max_new_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt_ids: Noise(2).ids(9, VOCAB),
        max_new_tokens,
        draft: Vec::new(),
        messages: Vec::new(),
    }
}

/// An answer of 60 tokens in as many passes, or in pieces of 31 where all of it was foreseen.
#[test]
fn a_draft_saves_the_passes_of_the_tokens_that_are_taken() {
    let mut engine = tiny(|_| {}, &[]);
    engine.open_arm(&setup("SD", &[], layout(1, 64))).unwrap();
    let mut asked = request(60);
    let plain = hear(&mut engine, std::slice::from_ref(&asked));
    assert_eq!((plain.passes, plain.drafts.len()), (60, 0));
    let answer = plain.outcomes[0].clone().unwrap().unwrap();
    asked.draft.clone_from(&answer.ids);
    let verified = hear(&mut engine, std::slice::from_ref(&asked));
    assert_eq!(verified.outcomes[0], Some(Ok(answer.clone())));
    assert_eq!(verified.passes, 2);
    // The token behind the first piece came by itself, and the last one is never fed.
    let all = DraftUse { fed: 58, taken: 58 };
    assert_eq!(verified.drafts, [all]);

    // One token replaced: two plain steps, then the rest of the draft fits again.
    asked.draft[20] = (answer.ids[20] + 1) % VOCAB as u32;
    let changed = hear(&mut engine, std::slice::from_ref(&asked));
    assert_eq!(changed.outcomes[0], Some(Ok(answer)));
    assert_eq!(changed.passes, 5);
    assert_eq!(changed.drafts[0].taken, 20 + 31 + 4);
}

/// Whatever a draft does, no token beyond the end of the answer is kept.
#[test]
fn a_stop_token_ends_a_verified_answer() {
    let mut free = tiny(|_| {}, &[]);
    free.open_arm(&setup("SD", &[], layout(1, 64))).unwrap();
    let whole = generate(&mut free, &[request(40)])[0].clone().unwrap();
    let stop = whole.ids[25];
    let length = whole.ids.iter().position(|id| *id == stop).unwrap() + 1;
    let mut engine = tiny(|_| {}, &[stop]);
    engine.open_arm(&setup("SD", &[], layout(1, 64))).unwrap();
    let plain = generate(&mut engine, &[request(40)]);
    assert_eq!(plain[0].as_ref().unwrap().ids, whole.ids[..length]);
    let mut asked = request(40);
    asked.draft.clone_from(&whole.ids);
    assert_eq!(generate(&mut engine, &[asked.clone()]), plain);
    // The draft goes on where the arm stops.
    asked.draft[length - 1] = (stop + 1) % VOCAB as u32;
    assert_eq!(generate(&mut engine, &[asked]), plain);
    assert_eq!(plain[0].as_ref().unwrap().finish, Finish::Stop);
}

fn f32s<'a>(weights: &'a mut MemoryWeights, name: &str) -> &'a mut Vec<f32> {
    match &mut weights.tensors.get_mut(name).unwrap().1 {
        TensorData::F32(data) => data,
        other => panic!("{name}: {} elements are not f32", other.len()),
    }
}

/// A token whose keys, or whose logits, are not finite.
fn poisoned(token: usize, logits_only: bool) -> LocalEngine<CpuBackend> {
    tiny(
        |weights| {
            let hidden = 24;
            let (name, value) = (
                "model.embed_tokens.weight",
                if logits_only { 1e4 } else { f32::NAN },
            );
            f32s(weights, name)[token * hidden] = value;
            if logits_only {
                f32s(weights, "model.layers.1.mlp.up_proj.weight")[0] = 1e38;
            }
        },
        &[],
    )
}

/// A draft that holds a poisonous token which the arm does not generate harms nothing; other
/// sequences of the pass are as they are without it.
#[test]
fn what_only_the_draft_computes_fails_no_case() {
    for logits_only in [false, true] {
        let mut engine = poisoned(60, logits_only);
        engine.open_arm(&setup("AD", &[], layout(4, 64))).unwrap();
        let mut asked: Vec<GenerateRequest> = (0..6)
            .map(|seed| GenerateRequest {
                prompt_ids: Noise(seed).ids(5 + seed as usize, 60),
                max_new_tokens: 30,
                draft: Vec::new(),
                messages: Vec::new(),
            })
            .collect();
        let plain = generate(&mut engine, &asked);
        let mut spared = 0;
        for at in [0, 1, 13, 28] {
            for (asked, answer) in asked.iter_mut().zip(&plain) {
                let Ok(answer) = answer else { continue };
                asked.draft.clone_from(&answer.ids);
                spared += usize::from(answer.ids[at] != 60);
                asked.draft[at] = 60;
            }
            assert_eq!(generate(&mut engine, &asked), plain, "token {at}");
        }
        assert!(spared > 0, "every answer holds the token itself");
    }
}

/// An arm that generates the poisonous token itself fails as it does without a draft.
#[test]
fn what_the_arm_computes_itself_fails_its_case_alike() {
    let mut sound = tiny(|_| {}, &[]);
    sound.open_arm(&setup("AD", &[], layout(1, 64))).unwrap();
    let answer = generate(&mut sound, &[request(30)])[0].clone().unwrap().ids;
    let prompt = request(30).prompt_ids;
    let at = (3..29).find(|&at| {
        let token = answer[at];
        !prompt.contains(&token) && !answer[..at].contains(&token)
    });
    let token = answer[at.unwrap()] as usize;
    for logits_only in [false, true] {
        let mut engine = poisoned(token, logits_only);
        engine.open_arm(&setup("AD", &[], layout(1, 64))).unwrap();
        let mut asked = request(30);
        let plain = generate(&mut engine, &[asked.clone()]);
        let error = plain[0].clone().unwrap_err().to_string();
        assert!(error.starts_with("token "), "{error}");
        asked.draft.clone_from(&answer);
        assert_eq!(generate(&mut engine, &[asked]), plain);
    }
}
