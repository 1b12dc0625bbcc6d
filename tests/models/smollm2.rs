//! A real model: SmolLM2-135M-Instruct as a GGUF file, named by `KVASSAY_SMOLLM2`.

use std::path::PathBuf;

use crate::support::engines::{Log, generate, layout, score, setup};
use kvassay::backend::cpu::CpuBackend;
use kvassay::engine::{Engine, GenerateRequest, Generation, LocalEngine, Score, ScoreRequest};
use kvassay::model::{self, ModelFiles};
use kvassay::schema::ChatMessage;

/// Prompts, and a word that a sensible answer holds.
const QUESTIONS: [(&str, &str); 3] = [
    ("What is the capital of France?", "Paris"),
    ("What is 2 + 2? Answer with the number only.", "4"),
    ("Name the four seasons of the year.", "ummer"),
];

fn model_path() -> Option<PathBuf> {
    let path = std::env::var_os("KVASSAY_SMOLLM2").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: KVASSAY_SMOLLM2 does not name the SmolLM2-135M-Instruct GGUF file");
    }
    path
}

fn requests(files: &ModelFiles) -> Vec<GenerateRequest> {
    let ids = |question: &str| {
        let message = ChatMessage {
            role: "user".to_owned(),
            content: question.to_owned(),
        };
        files.tokenizer.chat_ids(&[message], true).unwrap()
    };
    QUESTIONS
        .iter()
        .map(|(question, _)| GenerateRequest {
            prompt_ids: ids(question),
            max_new_tokens: 24,
            draft: Vec::new(),
            messages: Vec::new(),
        })
        .collect()
}

fn answers(engine: &mut LocalEngine<CpuBackend>, requests: &[GenerateRequest]) -> Vec<Generation> {
    generate(engine, requests)
        .into_iter()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn answers_are_sensible_and_do_not_depend_on_the_layout() {
    let Some(path) = model_path() else {
        return;
    };
    let files = model::open(&path).unwrap();
    let requests = requests(&files);
    let text = "The Seine is a river in northern France. It rises near Dijon and flows through \
                Paris into the English Channel at Le Havre.";
    let window = ScoreRequest {
        ids: files.tokenizer.encode_text(text).unwrap(),
        targets: 16,
    };
    let mut engine = LocalEngine::cpu(files).unwrap();
    engine
        .open_arm(&setup("native", &[], layout(3, 64)))
        .unwrap();
    let native = answers(&mut engine, &requests);
    let native_score = score(&mut engine, std::slice::from_ref(&window))[0].clone();
    for ((question, word), answer) in QUESTIONS.iter().zip(&native) {
        println!("{question} -> {} ({:?})", answer.text, answer.finish);
        assert!(answer.text.contains(word), "{question}: {}", answer.text);
    }
    let nats = native_score.as_ref().unwrap().nll_sum / 16.0;
    println!("{nats} nats per target");
    assert!((0.5..4.0).contains(&nats), "{nats} nats per target");
    engine
        .open_arm(&setup("native", &[], layout(1, 5)))
        .unwrap();
    assert_eq!(answers(&mut engine, &requests), native);
    assert_eq!(
        score(&mut engine, std::slice::from_ref(&window))[0],
        native_score
    );
}

/// The text that llama.cpp continues with, greedily, from the same weights. Ours may go on: at the
/// end of the first case llama.cpp, which rounds queries to F16 too, prefers to stop.
#[test]
fn greedy_text_is_that_of_llama_cpp() {
    let Some(path) = model_path() else {
        return;
    };
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../../fixtures/parity/smollm2_greedy.json")).unwrap();
    let files = model::open(&path).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    let requests: Vec<GenerateRequest> = cases
        .iter()
        .map(|case| GenerateRequest {
            prompt_ids: files
                .tokenizer
                .encode_text(case["prompt"].as_str().unwrap())
                .unwrap(),
            max_new_tokens: golden["max_new_tokens"].as_u64().unwrap() as u32,
            draft: Vec::new(),
            messages: Vec::new(),
        })
        .collect();
    let mut engine = LocalEngine::cpu(files).unwrap();
    engine
        .open_arm(&setup("native", &[], layout(3, 64)))
        .unwrap();
    for (case, answer) in cases.iter().zip(answers(&mut engine, &requests)) {
        let text = case["text"].as_str().unwrap();
        assert!(answer.text.starts_with(text), "{text} / {}", answer.text);
    }
}

/// Every named recipe is engaged on a real model.
#[test]
fn named_recipes_are_engaged() {
    let Some(path) = model_path() else {
        return;
    };
    let files = model::open(&path).unwrap();
    let document = requests(&files)[0].prompt_ids.clone();
    let mut engine = LocalEngine::cpu(files).unwrap();
    let scales = engine
        .calibrate(&[document], 4, &mut Log::<Score>::new())
        .unwrap();
    for recipe in ["AF", "RF", "SF", "AD", "RD", "SD"] {
        let engagement = engine
            .open_arm(&setup(recipe, &scales, layout(1, 64)))
            .unwrap();
        assert!(
            engagement.differs_from_native && !engagement.unit_scales,
            "{recipe}"
        );
    }
}
