//! A tiny world for tests of the binary: a model with random weights, source texts, a protocol.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod demo;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use demo::small_demo;

const HIDDEN: usize = 32;
const INTERMEDIATE: usize = 48;
const LAYERS: usize = 2;
const HEADS: usize = 2;
const KV_HEADS: usize = 1;
const HEAD_DIM: usize = 16;
/// Bytes, and the two special tokens of the chat template.
const VOCAB: usize = 258;
const CONTEXT: usize = 1024;

/// Folders of the tiny world; all of it goes when the value is dropped.
pub struct Tiny {
    root: tempfile::TempDir,
}

impl Tiny {
    /// Writes model, data and protocol.
    pub fn new() -> Self {
        let tiny = Tiny {
            root: tempfile::tempdir().unwrap(),
        };
        write_model(&tiny.model());
        write_data(&tiny.data());
        fs::write(tiny.protocol(), protocol().to_string()).unwrap();
        tiny
    }

    #[allow(dead_code, reason = "not every test file runs a demo model")]
    /// Writes `demo-small.json`.
    pub fn write_small_demo(&self) {
        let text = serde_json::to_string(&small_demo(6)).unwrap();
        fs::write(self.path("demo-small.json"), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn model(&self) -> PathBuf {
        self.path("tiny-llama")
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn protocol(&self) -> PathBuf {
        self.path("tiny.json")
    }

    #[allow(
        dead_code,
        reason = "not every test file that shares this module runs the program"
    )]
    /// The program in the folder of this world.
    pub fn kvassay(&self) -> assert_cmd::Command {
        let mut kvassay = assert_cmd::Command::cargo_bin("kvassay").unwrap();
        kvassay.current_dir(self.root.path());
        kvassay
    }

    #[allow(
        dead_code,
        reason = "not every test file that shares this module runs a model"
    )]
    /// `kvassay COMMAND` with model, protocol and data of this world.
    pub fn command(&self, command: &str) -> assert_cmd::Command {
        let mut kvassay = self.kvassay();
        kvassay
            .arg(command)
            .args([
                "--model",
                "tiny-llama",
                "--protocol",
                "tiny.json",
                "--data",
                "data",
            ])
            .args(["--worker", "cpu"]);
        kvassay
    }
}

#[allow(dead_code, reason = "not every test file works on a finished run")]
/// A finished run of SD takes its time: each check works on a copy of one and the same.
pub fn on_a_finished_run(checks: &[fn(&Tiny)]) {
    let origin = Tiny::new();
    origin
        .command("qualify")
        .args(["SD", "--out", "run"])
        .assert()
        .code(1);
    for check in checks {
        let tiny = Tiny::new();
        // All of it: no two tiny models have the same bytes in every file.
        for (name, bytes) in files(&origin.path(".")) {
            let path = tiny.path(&name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        check(&tiny);
    }
}

#[allow(dead_code, reason = "not every test file compares runs")]
/// Bytes of every file below `root`, by path.
pub fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn collect(root: &Path, dir: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, found);
            } else {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(root, root, &mut found);
    found
}

#[allow(dead_code, reason = "not every test file compares runs")]
/// Bytes of every file below `root` but what runs took of the machine, which no two runs share:
/// `resources.json`, and what certificates say of it.
pub fn outcome(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let is_resources = |name: &str| name.ends_with("/resources.json");
    let mut found = files(root);
    found.retain(|name, _| !is_resources(name));
    for (name, bytes) in &mut found {
        if !name.starts_with("certificates/") || !name.ends_with(".json") {
            continue;
        }
        let mut certificate: Value = serde_json::from_slice(bytes).unwrap();
        let fields = certificate.as_object_mut().unwrap();
        fields.remove("resources").unwrap();
        let evidence = fields["evidence"].as_array_mut().unwrap();
        evidence.retain(|file| !is_resources(file["path"].as_str().unwrap()));
        *bytes = certificate.to_string().into_bytes();
    }
    found
}

/// Four questions, three documents, three needles; two candidates.
pub fn protocol() -> Value {
    let proportion = |limit: f64| json!({"limit": limit, "divisor": 4});
    json!({
        "schema": "kvassay.protocol/1",
        "name": "tiny",
        "description": "Sizes for tests of the program; they cannot pass.",
        "family_alpha": 0.05,
        "models": [{"name": "*"}],
        "controls": ["native"],
        "candidates": [
            {"name": "AF", "spec": "k=native,v=e4m3:fixed"},
            {"name": "SD", "spec": "k=e4m3:dynamic,v=e4m3:dynamic"},
        ],
        "objectives": ["preservation", "aggregate"],
        "required": "preservation",
        "calibration": {"documents": 1, "lengths": [64], "forced_tokens": 4},
        "panels": [
            {"kind": "math", "task": "gsm8k", "cases": 4, "max_new_tokens": 6},
            {"kind": "nll", "task": "wikipedia-nll", "length": 64, "documents": 3, "targets": 16},
            {"kind": "retrieval", "task": "needle", "length": 768, "cases": 3, "max_new_tokens": 6},
        ],
        "rules": {
            "gross_loss": proportion(0.02),
            "net_change": proportion(-0.01),
            "nll": {"limit": 0.01, "divisor": 4, "resamples": 1000, "seed": 7},
            "retrieval": proportion(0.05),
        },
        "assay_sensitivity": {"math": 0.5, "retrieval": 0.9},
        "contrasts": [],
        "seed": 11,
    })
}

/// A Llama folder with seeded random weights and a byte tokenizer.
fn write_model(dir: &Path) {
    fs::create_dir_all(dir).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "torch_dtype": "float16",
        "bos_token_id": 256,
        "eos_token_id": 257,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let template = "{% for message in messages %}<|start|>{{ message['role'] }}\n\
                    {{ message['content'] }}<|end|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|start|>assistant\n{% endif %}";
    let tokenizer_config = json!({"eos_token": "<|end|>", "chat_template": template});
    fs::write(
        dir.join("tokenizer_config.json"),
        tokenizer_config.to_string(),
    )
    .unwrap();
    write_weights(&dir.join("model.safetensors"));
}

fn write_weights(path: &Path) {
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
            ("self_attn.q_proj", vec![q, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, q]),
            ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
        ] {
            tensors.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    let mut state = 1;
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let data = weights(&shape, &mut state);
            (name, shape, data)
        })
        .collect();
    let views: Vec<(&str, TensorView<'_>)> = bytes
        .iter()
        .map(|(name, shape, data)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), data).unwrap();
            (name.as_str(), view)
        })
        .collect();
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// Norm weights near one, projections uniform and scaled by their width.
fn weights(shape: &[usize], state: &mut u64) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let mut bytes = Vec::with_capacity(4 * count);
    for _ in 0..count {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = ((*state >> 40) as f32 / (1u64 << 23) as f32) - 1.0;
        let value = match shape {
            [_] => 1.0 + 0.1 * uniform,
            [_, inner] => uniform * (3.0 / *inner as f32).sqrt(),
            _ => unreachable!("weights have one or two dimensions"),
        };
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

/// One token per byte.
fn tokenizer() -> Value {
    let mut vocab: HashMap<String, usize> = HashMap::new();
    let mut unprintable = 256;
    for byte in 0..=255u32 {
        let printable = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if printable {
            byte
        } else {
            unprintable += 1;
            unprintable - 1
        };
        vocab.insert(char::from_u32(code).unwrap().to_string(), byte as usize);
    }
    let special = |id: usize, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(256, "<|start|>"), special(257, "<|end|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                          "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                    "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
    })
}

/// Sums as questions, and articles of counted sentences.
fn write_data(dir: &Path) {
    let gsm8k = dir.join("gsm8k");
    let wikipedia = dir.join("wikipedia");
    fs::create_dir_all(&gsm8k).unwrap();
    fs::create_dir_all(&wikipedia).unwrap();
    let mut questions = String::new();
    for i in 1..=6 {
        let line = json!({
            "question": format!("Ann has {i} pears and buys {i} more. How many has she?"),
            "answer": format!("She has {i} + {i} = {} pears.\n#### {}", 2 * i, 2 * i),
        });
        writeln!(questions, "{line}").unwrap();
    }
    fs::write(gsm8k.join("questions.jsonl"), questions).unwrap();
    let mut articles = String::new();
    for article in 0..24 {
        let mut text = String::new();
        for sentence in 0..40 {
            let (a, b) = (article * 7 + sentence, article + 3 * sentence);
            write!(
                text,
                "In the year {} the town of {} had {} wells. ",
                1000 + a,
                town(article),
                b
            )
            .unwrap();
        }
        let line = json!({"title": format!("{} wells", town(article)), "text": text});
        writeln!(articles, "{line}").unwrap();
    }
    fs::write(wikipedia.join("articles.jsonl"), articles).unwrap();
}

fn town(article: usize) -> String {
    let letter = char::from(b'A' + (article % 26) as u8);
    format!("{letter}{}", ["ham", "ton", "by"][article % 3])
}
