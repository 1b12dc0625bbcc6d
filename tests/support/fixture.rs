//! Reads the fixtures under `fixtures/parity`.

use std::path::{Path, PathBuf};

use kvassay::backend::TensorData;
use kvassay::model::{Family, ModelConfig, Rope, RopeScaling};
use kvassay::recipe::NativeDtype;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::models::MemoryWeights;

/// Input and logits of one fixture.
pub struct Expected {
    pub ids: Vec<u32>,
    pub rows: Vec<usize>,
    /// `[rows, vocab_size]`, nothing rounded.
    pub logits: Vec<f32>,
    /// The same with the native cache format.
    pub logits_rounded: Vec<f32>,
}

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/parity")
        .join(name)
}

pub fn expected(name: &str) -> Expected {
    let bytes = std::fs::read(folder(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let integers = |name: &str| -> Vec<u32> {
        let data = file.tensor(name).unwrap().data();
        data.chunks(8)
            .map(|b| u32::try_from(i64::from_le_bytes(b.try_into().unwrap())).unwrap())
            .collect()
    };
    let floats = |name: &str| match tensor(&file, name).1 {
        TensorData::F32(data) => data,
        other => panic!("{name}: {} elements are not f32", other.len()),
    };
    Expected {
        ids: integers("ids"),
        rows: integers("rows").into_iter().map(|r| r as usize).collect(),
        logits: floats("logits"),
        logits_rounded: floats("logits_rounded"),
    }
}

fn tensor(file: &SafeTensors<'_>, name: &str) -> (Vec<usize>, TensorData) {
    let view = file.tensor(name).unwrap();
    let pairs = || view.data().chunks(2).map(|b| [b[0], b[1]]);
    let data = match view.dtype() {
        Dtype::F32 => TensorData::F32(
            view.data()
                .chunks(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect(),
        ),
        Dtype::F16 => TensorData::F16(pairs().map(half::f16::from_le_bytes).collect()),
        Dtype::BF16 => TensorData::Bf16(pairs().map(half::bf16::from_le_bytes).collect()),
        other => panic!("{name}: {other:?}"),
    };
    (view.shape().to_vec(), data)
}

pub fn weights(name: &str) -> MemoryWeights {
    let mut weights = MemoryWeights::default();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        let file_name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !file_name.starts_with("model") || !file_name.ends_with(".safetensors") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for tensor_name in file.names() {
            weights
                .tensors
                .insert(tensor_name.to_owned(), tensor(&file, tensor_name));
        }
    }
    weights
}

fn rope(parameters: &Value) -> Rope {
    let number = |name: &str| parameters[name].as_f64();
    let original = || parameters["original_max_position_embeddings"].as_u64();
    let factor = || number("factor").unwrap();
    let scaling = match parameters["rope_type"].as_str().unwrap() {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: factor() },
        "llama3" => RopeScaling::Llama3 {
            factor: factor(),
            low_freq_factor: number("low_freq_factor").unwrap(),
            high_freq_factor: number("high_freq_factor").unwrap(),
            original_context: original().unwrap() as usize,
        },
        "yarn" => RopeScaling::Yarn {
            factor: factor(),
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_context: original().unwrap() as usize,
            attention_factor: 0.1 * factor().ln() + 1.0,
            truncate: true,
        },
        other => panic!("rope_type {other}"),
    };
    Rope {
        theta: number("rope_theta").unwrap(),
        scaling,
    }
}

pub fn config(name: &str) -> ModelConfig {
    let text = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let size = |field: &str| json[field].as_u64().unwrap() as usize;
    let flag = |field: &str| json[field].as_bool().unwrap_or(false);
    let family = match json["model_type"].as_str().unwrap() {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => panic!("model_type {other}"),
    };
    let head_dim = json["head_dim"].as_u64().map(|d| d as usize);
    ModelConfig {
        family,
        layers: size("num_hidden_layers"),
        hidden_size: size("hidden_size"),
        intermediate_size: size("intermediate_size"),
        heads: size("num_attention_heads"),
        kv_heads: size("num_key_value_heads"),
        head_dim: head_dim.unwrap_or(size("hidden_size") / size("num_attention_heads")),
        vocab_size: size("vocab_size"),
        context: size("max_position_embeddings"),
        rms_norm_eps: json["rms_norm_eps"].as_f64().unwrap() as f32,
        rope: rope(&json["rope_parameters"]),
        qkv_bias: flag("attention_bias") || family == Family::Qwen2,
        attention_output_bias: flag("attention_bias"),
        mlp_bias: flag("mlp_bias"),
        qk_norm: family == Family::Qwen3,
        tied_embeddings: flag("tie_word_embeddings"),
        native_dtype: match json["dtype"].as_str().unwrap() {
            "bfloat16" => NativeDtype::Bf16,
            _ => NativeDtype::F16,
        },
    }
}
