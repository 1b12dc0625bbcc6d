//! A real model with windows: Gemma 3 270M as a GGUF file, named by `KVASSAY_GEMMA3`.

use std::path::PathBuf;

use crate::support::engines::{generate, layout, score, setup};
use kvassay::engine::{Engine, GenerateRequest, LocalEngine, ScoreRequest};
use kvassay::model;

fn model_path() -> Option<PathBuf> {
    let path = std::env::var_os("KVASSAY_GEMMA3").map(PathBuf::from);
    if path.is_none() {
        println!("skipped: KVASSAY_GEMMA3 does not name the Gemma 3 270M GGUF file");
    }
    path
}

/// Greedy continuations and likelihoods are those of transformers, which reads the same file; the
/// scored text is longer than the window. It ends in the midst of a word, at 13 nats: rounding the
/// cache to F16 alone moves them by 0.2.
#[test]
fn tokens_and_text_are_those_of_transformers() {
    let Some(path) = model_path() else {
        return;
    };
    let golden = include_str!("../../fixtures/parity/gemma3_270m.json");
    let golden: serde_json::Value = serde_json::from_str(golden).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        let list = value.as_array().unwrap();
        list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let files = model::open(&path).unwrap();
    for case in golden["tokens"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let found = files.tokenizer.encode_text(text).unwrap();
        let found = found.strip_prefix(&[2]).unwrap_or(&found);
        assert_eq!(found, ids(&case["ids"]), "{text:?}");
    }
    let cases = golden["cases"].as_array().unwrap();
    let request = |case: &serde_json::Value| GenerateRequest {
        prompt_ids: ids(&case["ids"]),
        max_new_tokens: case["new"].as_array().unwrap().len() as u32,
        draft: Vec::new(),
        messages: Vec::new(),
    };
    let requests: Vec<_> = cases.iter().map(request).collect();
    let window = ids(&golden["window"]);
    assert!(window.len() > 600);
    let scored = ScoreRequest {
        ids: window,
        targets: 16,
    };
    let mut engine = LocalEngine::cpu(files).unwrap();
    engine
        .open_arm(&setup("native", &[], layout(3, 256)))
        .unwrap();
    for (case, answer) in cases.iter().zip(generate(&mut engine, &requests)) {
        let answer = answer.unwrap();
        println!("{} -> {}", case["prompt"], answer.text);
        assert_eq!(answer.ids, ids(&case["new"]), "{}", case["prompt"]);
    }
    let found = score(&mut engine, &[scored])[0].clone().unwrap().nll_sum;
    let expected = golden["nll"].as_f64().unwrap();
    println!("{found} nats, {expected} by transformers");
    assert!((found - expected).abs() < 0.03, "{found} for {expected}");
}
