//! Models with recurrent layers: recipes on their attention layers, what their states take, and what
//! is refused.

use crate::support::decoding::{self, layout, run};
use crate::support::fixture;
use crate::support::oracle::Oracle;
use assert_cmd::Command;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::backend::{Backend, BackendError, Purpose};
use kvassay::model::{ModelConfig, read_config};
use kvassay::recipe::{LayerState, Recipe, sequence_bytes};
use serde_json::Value;

const NAME: &str = "qwen3_5";

/// Layers of attention alone keep something that recipes change.
fn stores_as_recipes_say<B: Backend>(backend: B, native_limit: f64, limits: (f64, f64)) {
    let absmax = decoding::stores_as_recipes_say(NAME, backend, native_limit, limits);
    let config = read_config(&fixture::folder(NAME).join("config.json")).unwrap();
    for (layer, found) in config.layers.iter().zip(&absmax) {
        assert_eq!(layer.recurrent.is_none(), found.k > 0.0 && found.v > 0.0);
    }
}

#[test]
fn oracle_stores_as_recipes_say() {
    stores_as_recipes_say(Oracle::default(), 5e-4, (0.25, 0.0));
}

#[test]
fn cpu_stores_as_recipes_say() {
    stores_as_recipes_say(CpuBackend::new(), 5e-4, (0.25, 0.0));
}

/// Activations are rounded to 16 bits, which itself moves logits by more than these recipes do.
#[test]
fn cuda_stores_as_recipes_say() {
    match CudaBackend::new(0) {
        Ok(backend) => stores_as_recipes_say(backend, 8e-3, (0.5, 8e-3)),
        Err(error) => println!("skipped: {error}"),
    }
}

/// Chunks and neighbours change no bit.
fn bits_stay<B: Backend>(backend: B) {
    let decoder = fixture::decoder(&fixture::folder(NAME), backend);
    let expected = fixture::expected(NAME);
    let layout = layout(decoder.config(), "SD", &[]);
    let bits = |chunk: usize| -> Vec<u32> {
        let (found, _) = run(&decoder, &layout, &expected, chunk);
        found.into_iter().map(f32::to_bits).collect()
    };
    let whole = bits(400);
    for chunk in [1, 2, 3, 5, 64, 399] {
        assert!(bits(chunk) == whole, "chunks of {chunk}");
    }
}

#[test]
fn chunks_change_no_bit_on_the_cpu() {
    bits_stay(CpuBackend::new());
}

#[test]
fn chunks_change_no_bit_on_the_gpu() {
    match CudaBackend::new(0) {
        Ok(backend) => bits_stay(backend),
        Err(error) => println!("skipped: {error}"),
    }
}

fn states(config: &ModelConfig) -> Vec<LayerState> {
    let layers = config.layers.iter();
    let state = |shape: kvassay::backend::RecurrentLayer| {
        let [matrix_bytes, convolution_bytes] = shape.bytes();
        LayerState::Recurrent {
            matrix_bytes,
            convolution_bytes,
        }
    };
    layers
        .filter_map(|layer| layer.recurrent.map(state))
        .collect()
}

/// What a cache takes for states is what is accounted, whatever the recipe, and goes with it.
fn takes_what_is_accounted<B: Backend>(backend: &B) {
    let config = read_config(&fixture::folder(NAME).join("config.json")).unwrap();
    let per_sequence = sequence_bytes(&Recipe::native(), &states(&config), 7).recurrent;
    let by_hand = 3 * (4 * 16 * 16 * 4 + (2 * 2 * 16 + 4 * 16) * 3 * 2);
    assert_eq!(per_sequence, by_hand);
    let ledger = backend.meter().ledger;
    for recipe in ["native", "SD"] {
        let cache = backend.cache(&layout(&config, recipe, &[])).unwrap();
        assert_eq!(ledger.held(Purpose::States), 2 * per_sequence, "{recipe}");
        drop(cache);
        assert_eq!(ledger.held(Purpose::States), 0);
    }
}

#[test]
fn states_take_what_is_accounted() {
    takes_what_is_accounted(&CpuBackend::new());
    match CudaBackend::new(0) {
        Ok(backend) => takes_what_is_accounted(&backend),
        Err(error) => println!("skipped: {error}"),
    }
}

/// A state cannot be cut back; a slot can be emptied.
fn refuses_cuts<B: Backend>(backend: &B) {
    let config = read_config(&fixture::folder(NAME).join("config.json")).unwrap();
    let mut cache = backend.cache(&layout(&config, "native", &[])).unwrap();
    let error = backend.truncate_slot(&mut cache, 0, 5).unwrap_err();
    assert!(matches!(error, BackendError::Unsupported(_)), "{error}");
    backend.truncate_slot(&mut cache, 0, 0).unwrap();
    backend.reset_slot(&mut cache, 0).unwrap();
}

#[test]
fn states_are_not_cut_back() {
    refuses_cuts(&CpuBackend::new());
    refuses_cuts(&Oracle::default());
    match CudaBackend::new(0) {
        Ok(backend) => refuses_cuts(&backend),
        Err(error) => println!("skipped: {error}"),
    }
}

fn doctor(model: &std::path::Path, code: i32) -> Value {
    let mut command = Command::cargo_bin("kvassay").unwrap();
    let command = command.args(["doctor", "--format", "json", "--model"]);
    let output = command.arg(model).assert().code(code).get_output().clone();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn doctor_tells_states_from_caches() {
    let folder = fixture::folder(NAME).join("config.json");
    let report = doctor(&folder, 0)["model"].clone();
    assert_eq!(report["runs"], true, "{report}");
    assert_eq!(report["layers"][0]["kind"], "recurrent");
    assert_eq!(report["layers"][0]["layers"], 3);
    assert_eq!(report["layers"][1]["kind"], "full_attention");
    let bytes = 3 * (4 * 16 * 16 * 4 + 128 * 3 * 2);
    for row in report["recipes"].as_array().unwrap() {
        assert_eq!(row["recurrent_bytes"], bytes, "{row}");
    }
}

/// Qwen3.5 with experts, states in another format, or attention without gates.
#[test]
fn what_is_not_applied_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture::folder(NAME).join("config.json")).unwrap();
    for (field, value, named) in [
        (
            "model_type",
            Value::from("qwen3_5_moe_text"),
            "qwen3_5_moe_text",
        ),
        (
            "mamba_ssm_dtype",
            Value::from("bfloat16"),
            "mamba_ssm_dtype",
        ),
        ("attn_output_gate", Value::from(false), "attn_output_gate"),
        ("num_experts", Value::from(8), "num_experts"),
        ("hidden_act", Value::from("gelu_pytorch_tanh"), "hidden_act"),
    ] {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[field] = value;
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let report = doctor(&path, 3)["model"].clone();
        let refused = report["refused"].as_str().unwrap().to_owned();
        assert!(refused.contains(named), "{refused}");
    }
}
