use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::file_bytes::FileBytes;
use super::dequantize::dequantize;
use super::testing::Builder;
use super::*;
use crate::backend::TensorData;
use crate::model::{ModelConfig, RopeScaling, WeightSource};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/gguf")
        .join(name)
}

fn fixture_floats(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(fixture(name)).unwrap();
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|raw| f32::from_le_bytes(*raw))
        .collect()
}

/// Opens the whole model: config, tokenizer, weights.
fn open(bytes: &[u8]) -> Result<(ModelConfig, GgufWeights), ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    let file = FileBytes::open(&path)?;
    let header = parse("m.gguf", file.bytes())?;
    tokenizer(&header.metadata)?;
    let config = config(&file, &header)?;
    let weights = GgufWeights::new(file, header, &config)?;
    Ok((config, weights))
}

fn refusal(builder: &Builder) -> String {
    match open(&builder.bytes()) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn every_type_dequantises_to_the_last_bit() {
    for (kind, name) in [
        (GgmlType::Q4_0, "q4_0"),
        (GgmlType::Q4_1, "q4_1"),
        (GgmlType::Q5_0, "q5_0"),
        (GgmlType::Q5_1, "q5_1"),
        (GgmlType::Q8_0, "q8_0"),
        (GgmlType::Q4K, "q4_k"),
        (GgmlType::Q5K, "q5_k"),
        (GgmlType::Q6K, "q6_k"),
    ] {
        let blocks = std::fs::read(fixture(&format!("{name}.blocks"))).unwrap();
        assert_eq!(blocks.len() % kind.block_bytes(), 0);
        let expected = fixture_floats(&format!("{name}.f32"));
        assert_eq!(expected.len() / kind.block_elements(), 5);
        let found = dequantize(kind, &blocks);
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{name}");
    }
}

#[test]
fn a_file_of_another_writer_opens() {
    let (config, weights) = GgufWeights::open(&fixture("tiny.gguf")).unwrap();
    let layer = config.layers[0];
    assert_eq!((layer.heads, layer.kv_heads, layer.head_dim), (4, 2, 16));
    assert_eq!((config.vocab_size, config.context), (264, 128));
    assert_eq!(config.ropes[0].theta, 50_000.0);
    assert!(config.tied_embeddings && !config.qkv_bias && !config.mlp_bias);
    let RopeScaling::FrequencyFactors { factors } = &config.ropes[0].scaling else {
        panic!("{:?}", config.ropes[0].scaling);
    };
    assert_eq!((factors.len(), factors[0], factors[7]), (8, 1.0, 8.0));
    for (name, shape) in crate::model::tensors::expected(&config) {
        let data = weights.load(&name, &shape).unwrap();
        assert_eq!(data.len(), shape.iter().product::<usize>(), "{name}");
    }
    let q = weights
        .load("model.layers.0.self_attn.q_proj.weight", &[64, 64])
        .unwrap();
    assert_eq!(q, TensorData::F32(fixture_floats("tiny.q_proj.f32")));
    let k = weights
        .load("model.layers.0.self_attn.k_proj.weight", &[32, 64])
        .unwrap();
    let TensorData::F16(k) = k else {
        panic!("not stored as F16");
    };
    let k: Vec<f32> = k.iter().map(|value| value.to_f32()).collect();
    assert_eq!(k, fixture_floats("tiny.k_proj.f32"));
}

#[test]
fn the_built_model_opens_in_both_versions() {
    for version in [2, 3] {
        let mut builder = Builder::model();
        builder.version = version;
        let (config, _) = open(&builder.bytes()).unwrap();
        assert_eq!(config.ropes[0].scaling, RopeScaling::Default);
        assert_eq!(config.layers[0].head_dim, 4);
    }
}

#[test]
fn malformed_heads_are_named() {
    let model = Builder::model;
    let mut version = model();
    version.version = 1;
    let norm = "output_norm.weight";
    let half = vec![0u8; 64];
    for (builder, part) in [
        (version, "unsupported: GGUF version 1"),
        (
            model().doubled("llama.block_count"),
            "key `llama.block_count`",
        ),
        (
            model().entry("x", 13, vec![0; 8]),
            "found 13, expected a value type",
        ),
        (model().entry("x", 7, vec![2]), "found 2, expected 0 or 1"),
        (
            model().entry("x", 8, vec![0xff; 8]),
            "expected at most what fits",
        ),
        (
            model().array("x", 0, u64::MAX, vec![]),
            "expected at most what fits",
        ),
        (
            model().u32("general.alignment", 48),
            "expected a power of two",
        ),
        (
            model().tensor(norm, &[16], 0, None, half.clone()),
            "tensor `output_norm.weight`: found it twice",
        ),
        (
            model().tensor("x", &[16], 0, Some(4), half.clone()),
            "expected a multiple of 32",
        ),
        (
            model().tensor("x", &[16], 0, Some(0), half.clone()),
            "found an overlap with",
        ),
        (
            model().tensor("x", &[16], 0, Some(1 << 40), half.clone()),
            "offset of tensor `x`",
        ),
        (
            model().tensor("x", &[16], 0, Some(u64::MAX - 31), half.clone()),
            "offset of tensor `x`",
        ),
        (
            model().tensor("x", &[0], 0, None, half.clone()),
            "shape of tensor `x`",
        ),
        (
            model().tensor("x", &[1 << 40, 1 << 40], 0, None, half.clone()),
            "shape of tensor `x`",
        ),
        (
            model().tensor("x", &[16, 2], 2, None, half.clone()),
            "the first a multiple of 32",
        ),
        (
            model().tensor("x", &[1; 5], 0, None, half.clone()),
            "dimensions of tensor `x`",
        ),
        (
            model().tensor("x", &[256], 10, None, half.clone()),
            "unsupported: type 10 (Q2_K) of tensor `x`",
        ),
        (model().floats("x", &[16]), "unsupported: tensor `x`"),
        (
            model().without_tensor(norm),
            "tensor `model.norm.weight`: found nothing",
        ),
        (
            model().floats(norm, &[8]),
            "shape of tensor `model.norm.weight`: found [8]",
        ),
    ] {
        let message = refusal(&builder);
        assert!(message.contains(part), "{message} should say {part}");
    }
}

#[test]
fn settings_that_are_not_applied_are_named() {
    let model = Builder::model;
    for (builder, part) in [
        (model().u32("split.count", 2), "split.count = 2"),
        (
            model().text("general.architecture", "gemma"),
            "general.architecture = \"gemma\"",
        ),
        (
            model().u32("llama.expert_count", 8),
            "llama.expert_count = 8",
        ),
        (
            model().u32("llama.attention.sliding_window", 512),
            "llama.attention.sliding_window = 512",
        ),
        (
            model().text("llama.rope.scaling.type", "longrope"),
            "scaling.type = \"longrope\"",
        ),
        (
            model().f32("llama.rope.scaling.factor", 2.0),
            "llama.rope.scaling.factor = 2",
        ),
        (
            model().u32("llama.rope.dimension_count", 2),
            "llama.rope.dimension_count = 2 where heads",
        ),
        (
            model().text("tokenizer.ggml.pre", "default"),
            "tokenizer.ggml.pre = \"default\"",
        ),
        (
            model().without("tokenizer.ggml.pre"),
            "tokenizer.ggml.pre = nothing",
        ),
        (
            model().text("tokenizer.ggml.model", "bert"),
            "tokenizer.ggml.model = \"bert\"",
        ),
        (
            model().i32s("llama.attention.head_count_kv", &[2, 1]),
            "differs between layers",
        ),
    ] {
        let message = refusal(&builder);
        assert!(message.contains("unsupported: "), "{message}");
        assert!(message.contains(part), "{message} should say {part}");
    }
}

#[test]
fn wrong_settings_are_named() {
    let model = Builder::model;
    for (builder, part) in [
        (
            model().without("llama.block_count"),
            "`llama.block_count`: found nothing",
        ),
        (
            model().u32("llama.block_count", 0),
            "`llama.block_count`: found 0",
        ),
        (
            model().text("llama.block_count", "1"),
            "found \"1\", expected a whole number",
        ),
        (
            model().u32("llama.block_count", 1_000_000),
            "block_count`: found 1000000",
        ),
        (
            model().u32("llama.attention.head_count_kv", 3),
            "key/value heads: found 3",
        ),
        (
            model().f32("llama.attention.layer_norm_rms_epsilon", f32::NAN),
            "epsilon`",
        ),
        (
            model().text("llama.rope.scaling.type", "linear"),
            "scaling.factor`: found nothing",
        ),
        (
            model().u32("tokenizer.ggml.eos_token_id", 900),
            "found 900, expected an id below",
        ),
        (
            model().i32s("tokenizer.ggml.token_type", &[1]),
            "expected one for each of the 99",
        ),
        (
            model().texts("tokenizer.ggml.merges", &["ab"]),
            "found \"ab\", expected two tokens",
        ),
        (
            model().texts("tokenizer.ggml.merges", &["a zz"]),
            "tokenizer: found",
        ),
        (
            model().bool("tokenizer.ggml.add_bos_token", true),
            "beginning-of-sequence token",
        ),
    ] {
        let message = refusal(&builder);
        assert!(message.contains(part), "{message} should say {part}");
    }
}

#[test]
fn rotary_scaling_is_read() {
    let linear = Builder::model()
        .text("llama.rope.scaling.type", "linear")
        .f32("llama.rope.scaling.factor", 4.0);
    let (config, _) = open(&linear.bytes()).unwrap();
    assert_eq!(config.ropes[0].scaling, RopeScaling::Linear { factor: 4.0 });
    let yarn = Builder::model()
        .text("llama.rope.scaling.type", "yarn")
        .f32("llama.rope.scaling.factor", 4.0)
        .u32("llama.rope.scaling.original_context_length", 16);
    let (config, _) = open(&yarn.bytes()).unwrap();
    let expected = RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_context: 16,
        attention_factor: 0.1 * 4f64.ln() + 1.0,
        truncate: true,
    };
    assert_eq!(config.ropes[0].scaling, expected);
    let both = yarn.floats("rope_freqs.weight", &[2]);
    assert!(refusal(&both).contains("rope_freqs.weight together with"));
}

#[test]
fn weights_that_are_not_finite_are_named() {
    let mut data = 0.5f32.to_le_bytes().repeat(16);
    data[20..24].copy_from_slice(&f32::NAN.to_le_bytes());
    let name = "output_norm.weight";
    let builder = Builder::model()
        .without_tensor(name)
        .tensor(name, &[16], 0, None, data);
    let (_, weights) = open(&builder.bytes()).unwrap();
    let message = weights
        .load("model.norm.weight", &[16])
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("element 5 of tensor `model.norm.weight`: found NaN"),
        "{message}"
    );
    let message = weights
        .load("model.norm.weight", &[4, 4])
        .unwrap_err()
        .to_string();
    assert!(
        message.ends_with("found [16], expected [4, 4]"),
        "{message}"
    );
    assert!(weights.load("x", &[1]).is_err());
}

#[test]
fn truncation_is_refused_at_every_byte() {
    let bytes = Builder::model().bytes();
    for length in 0..bytes.len() {
        assert!(parse("m.gguf", &bytes[..length]).is_err(), "{length}");
    }
    assert!(parse("m.gguf", &bytes).is_ok());
}

/// Bytes before the tensor data of the built model: where mutations can change what is parsed.
fn head_length() -> usize {
    let bytes = Builder::model().bytes();
    let header = parse("m.gguf", &bytes).unwrap();
    let starts = header.tensors.values().map(|info| info.range.start);
    starts.min().unwrap()
}

proptest! {
    #[test]
    fn mutated_files_never_panic(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4)) {
        let mut bytes = Builder::model().bytes();
        let head = head_length();
        for (at, byte) in changes {
            bytes[at % head] = byte;
        }
        if let Ok((config, weights)) = open(&bytes) {
            for (name, shape) in crate::model::tensors::expected(&config) {
                let _ = weights.load(&name, &shape);
            }
        }
    }

    #[test]
    fn noise_never_panics(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tail);
        let _ = parse("m.gguf", &bytes);
    }
}
