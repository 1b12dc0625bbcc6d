use std::path::PathBuf;

use std::collections::HashMap;
use std::path::Path;

use ::safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::model::tensors::Shapes;
use crate::schema::{ChatMessage, WorkerKind};

const FOLDER_FILES: [&str; 4] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

fn config() -> Value {
    json!({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 8, "max_position_embeddings": 32,
        "torch_dtype": "bfloat16", "tie_word_embeddings": true, "eos_token_id": 1,
    })
}

fn tokenizer() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [{"id": 1, "content": "<e>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"a": 0, "<e>": 1, "b": 2}, "merges": []},
    })
}

fn tokenizer_config() -> Value {
    json!({"bos_token": null, "eos_token": {"content": "<e>", "lstrip": false},
        "chat_template": [{"name": "tool_use", "template": "tools"},
            {"name": "default", "template": "{{ messages[0].content }}"}]})
}

/// Bytes of a file with these tensors in 32-bit floats, all 0.25.
fn weights(shapes: &Shapes) -> Vec<u8> {
    let data: HashMap<&String, Vec<u8>> = shapes
        .iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            (name, 0.25f32.to_le_bytes().repeat(count))
        })
        .collect();
    let views = shapes.iter().map(|(name, shape)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), &data[name]).unwrap();
        (name.as_str(), view)
    });
    ::safetensors::serialize(views, None).unwrap()
}

fn shapes() -> Shapes {
    let config = parse_config("config.json", config().to_string().as_bytes()).unwrap();
    crate::model::tensors::expected(&config)
}

fn write(folder: &TempDir, name: &str, value: &Value) {
    std::fs::write(folder.path().join(name), value.to_string()).unwrap();
}

/// A folder that opens.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "config.json", &config());
    write(&folder, "tokenizer.json", &tokenizer());
    write(&folder, "tokenizer_config.json", &tokenizer_config());
    std::fs::write(folder.path().join("model.safetensors"), weights(&shapes())).unwrap();
    folder
}

fn refusal(path: &Path) -> String {
    match open(path) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn a_folder_opens_with_its_identity() {
    let folder = folder();
    let files = open(folder.path()).unwrap();
    let identity = files.identity();
    assert_eq!(identity.name, file_name(folder.path()));
    assert_eq!(identity.family, "qwen2");
    let paths: Vec<_> = identity.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(paths, FOLDER_FILES);
    let weight = &identity.files[1].sha256;
    assert_eq!(
        identity.weights_sha256,
        sha256_hex(format!("{weight}\n").as_bytes())
    );
    assert_eq!(identity.geometry.head_dim, 4);
    assert_eq!(identity.geometry.native_dtype, "bf16");
    for (name, shape) in shapes() {
        assert!(files.weights.contains(&name));
        files.weights.load(&name, &shape).unwrap();
    }
    assert_eq!(files.tokenizer.eos_ids(), [1]);
    let message = ChatMessage {
        role: "user".to_owned(),
        content: "ab".to_owned(),
    };
    assert_eq!(files.tokenizer.chat_ids(&[message], true).unwrap(), [0, 2]);
}

#[test]
fn separate_template_and_generation_config_win() {
    let folder = folder();
    std::fs::write(
        folder.path().join("chat_template.jinja"),
        "b{{ eos_token }}",
    )
    .unwrap();
    write(
        &folder,
        "generation_config.json",
        &json!({"eos_token_id": [2, 1]}),
    );
    let files = open(folder.path()).unwrap();
    assert_eq!(files.tokenizer.eos_ids(), [1, 2]);
    assert_eq!(files.tokenizer.chat_ids(&[], false).unwrap(), [2, 1]);
    assert_eq!(files.files().len(), FOLDER_FILES.len() + 2);
    // None of the small files counts as weights.
    assert_eq!(files.identity().fault(WorkerKind::Cpu), None);
}

#[test]
fn a_text_part_may_name_suppressed_tokens() {
    let read = |text: &str| suppressed([("g.json", None), ("c.json", Some(text.as_bytes()))], 10);
    let inner = r#"{"text_config": {"suppress_tokens": [3, 1]}}"#;
    assert_eq!(read(inner).unwrap(), [1, 3]);
    let both = r#"{"suppress_tokens": [2], "text_config": {"suppress_tokens": [3, 1]}}"#;
    assert_eq!(read(both).unwrap(), [2]);
    let mask = read(r#"{"text_config": {"bad_words_ids": [[3]]}}"#).unwrap_err();
    assert!(matches!(mask, ModelError::Unsupported { .. }), "{mask}");
}

/// Qwen2.5 asks for one, which other programs apply to greedy answers too.
#[test]
fn penalties_that_are_left_out_are_said() {
    let folder = folder();
    let neutral = json!({"repetition_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": null});
    write(&folder, "generation_config.json", &neutral);
    assert_eq!(open(folder.path()).unwrap().config.penalties, [""; 0]);
    let asked = json!({"repetition_penalty": 1.05, "min_new_tokens": 2});
    write(&folder, "generation_config.json", &asked);
    let notes = open(folder.path()).unwrap().config.notes().join("\n");
    assert!(
        notes.contains("asks for repetition_penalty = 1.05, min_new_tokens = 2, which answers"),
        "{notes}"
    );
}

#[test]
fn suppressed_tokens_are_those_of_the_generation_config() {
    let folder = folder();
    assert_eq!(open(folder.path()).unwrap().config.suppressed, [0u32; 0]);
    let declare = |name: &str, value: Value| write(&folder, name, &value);
    declare(
        "generation_config.json",
        json!({"suppress_tokens": [2, 0, 2]}),
    );
    assert_eq!(open(folder.path()).unwrap().config.suppressed, [0, 2]);
    for (ids, expected) in [
        (
            json!([1, 4_000_000]),
            "field `suppress_tokens`: found 4000000, expected ids below the vocabulary",
        ),
        (
            json!([-1]),
            "field `suppress_tokens`: found [-1], expected token ids",
        ),
        (json!("none"), "field `suppress_tokens`: found \"none\""),
    ] {
        declare("generation_config.json", json!({"suppress_tokens": ids}));
        let message = refusal(folder.path());
        assert!(message.contains("generation_config.json"), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    declare("generation_config.json", json!({"bad_words_ids": [[1]]}));
    let message = refusal(folder.path());
    assert!(
        message.contains("unsupported: bad_words_ids = [[1]]"),
        "{message}"
    );
}

#[test]
fn each_missing_file_is_named() {
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let folder = folder();
        std::fs::remove_file(folder.path().join(name)).unwrap();
        let message = refusal(folder.path());
        let stem = name.split('.').next_back().unwrap();
        assert!(message.contains(stem), "{name}: {message}");
    }
    let bare = folder();
    std::fs::remove_file(bare.path().join("tokenizer_config.json")).unwrap();
    assert!(!open(bare.path()).unwrap().tokenizer.has_chat_template());
}

#[test]
fn tensors_must_be_those_of_the_config() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let try_with = |change: &dyn Fn(&mut Shapes)| {
        let mut shapes = shapes();
        change(&mut shapes);
        std::fs::write(&path, weights(&shapes)).unwrap();
        open(folder.path()).map(|_| ()).map_err(|e| e.to_string())
    };
    let norm = "model.norm.weight".to_owned();
    let missing = try_with(&|s| drop(s.remove(&norm))).unwrap_err();
    assert!(missing.contains("tensor `model.norm.weight`: found nothing, expected shape [8]"));
    let shape = try_with(&|s| drop(s.insert(norm.clone(), vec![4]))).unwrap_err();
    assert!(shape.contains("shape of tensor `model.norm.weight`: found [4], expected [8]"));
    let scale = "model.layers.0.mlp.up_proj.weight_scale".to_owned();
    let extra = try_with(&|s| drop(s.insert(scale.clone(), vec![1]))).unwrap_err();
    assert!(extra.contains("unsupported: tensor `model.layers.0.mlp.up_proj.weight_scale`"));
    let copy = "lm_head.weight".to_owned();
    try_with(&|s| drop(s.insert(copy.clone(), vec![8, 8]))).unwrap();
}

#[test]
fn token_ids_beyond_the_vocabulary_are_refused() {
    let folder = folder();
    let mut bigger = tokenizer();
    bigger["model"]["vocab"]["c"] = json!(8);
    write(&folder, "tokenizer.json", &bigger);
    let message = refusal(folder.path());
    let expected =
        "/tokenizer.json: id of token `c`: found 8, expected ids below the vocabulary of 8";
    assert!(message.ends_with(expected), "{message}");
    for name in ["generation_config.json", "config.json"] {
        let folder = self::folder();
        let mut value = config();
        value["eos_token_id"] = json!([1, 999_999_999]);
        write(&folder, name, &value);
        let message = refusal(folder.path());
        let expected = format!(
            "/{name}: field `eos_token_id`: found 999999999, expected ids below the vocabulary of 8"
        );
        assert!(message.ends_with(&expected), "{message}");
    }
}

#[test]
fn a_template_that_does_not_compile_is_named_with_its_file() {
    let folder = folder();
    let broken = "ok\n{% if %}";
    write(
        &folder,
        "tokenizer_config.json",
        &json!({"chat_template": broken}),
    );
    // The model opens: what asks for no chat runs.
    let rendered = |folder: &Path| {
        let tokenizer = open(folder).unwrap().tokenizer;
        tokenizer.render_chat(&[], true).unwrap_err().to_string()
    };
    let message = rendered(folder.path());
    let expected = "/tokenizer_config.json: chat template, line 2: found ";
    assert!(message.contains(expected), "{message}");
    std::fs::write(folder.path().join("chat_template.jinja"), broken).unwrap();
    let message = rendered(folder.path());
    let expected = "/chat_template.jinja: chat template, line 2: found ";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn bad_tokenizer_settings_are_named() {
    for (name, value, part) in [
        (
            "tokenizer_config.json",
            json!({"chat_template": 1}),
            "field `chat_template`",
        ),
        (
            "tokenizer_config.json",
            json!({"chat_template": [{"name": "rag"}]}),
            "none of them `default`",
        ),
        (
            "tokenizer_config.json",
            json!({"eos_token": 7}),
            "field `eos_token`: found 7",
        ),
        (
            "tokenizer_config.json",
            json!({"eos_token": "<x>"}),
            "/tokenizer_config.json: field `eos_token`: found `<x>`, expected a token of the \
             vocabulary",
        ),
        (
            "generation_config.json",
            json!({"eos_token_id": "1"}),
            "field `eos_token_id`",
        ),
        ("tokenizer.json", json!([1]), "tokenizer.json: JSON"),
    ] {
        let folder = folder();
        write(&folder, name, &value);
        let message = refusal(folder.path());
        assert!(message.contains(part), "{message} should say {part}");
    }
}

#[test]
fn other_paths_are_refused() {
    let folder = folder();
    let message = refusal(&folder.path().join("config.json"));
    assert!(
        message.contains("found another file, expected a folder"),
        "{message}"
    );
    assert!(matches!(
        open(&folder.path().join("absent")),
        Err(ModelError::Io { .. })
    ));
}

#[test]
fn smollm2_opens() {
    let Some(path) = std::env::var_os("KVASSAY_SMOLLM2").map(PathBuf::from) else {
        println!("skipped: KVASSAY_SMOLLM2 does not name the GGUF file");
        return;
    };
    let files = open(&path).unwrap();
    let geometry = files.identity().geometry;
    assert_eq!(
        (geometry.layers, geometry.heads, geometry.kv_heads),
        (30, 9, 3)
    );
    assert_eq!((geometry.vocab_size, geometry.context), (49_152, 8_192));
    for (name, shape) in crate::model::tensors::expected(&files.config) {
        files.weights.load(&name, &shape).unwrap();
    }
}
