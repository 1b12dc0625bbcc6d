//! Gemma 4: recipes on layers of both kinds of heads, suppressed tokens, and what is refused.

use crate::support::decoding::{self, layout, run_beside};
use crate::support::fixture;
use crate::support::oracle::Oracle;
use assert_cmd::Command;
use kvassay::backend::Backend;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::model::ModelConfig;
use serde_json::{Value, json};

const NAMES: [&str; 3] = ["gemma4-experts", "gemma4", "gemma4-whole"];

fn stores_as_recipes_say<B: Backend>(backend: impl Fn() -> B, limits: (f64, f64)) {
    for name in ["gemma4-experts", "gemma4"] {
        decoding::stores_as_recipes_say(name, backend(), limits.1.max(1e-4), limits);
    }
}

#[test]
fn oracle_stores_as_recipes_say() {
    stores_as_recipes_say(Oracle::default, (0.1, 0.0));
}

#[test]
fn cpu_stores_as_recipes_say() {
    stores_as_recipes_say(CpuBackend::new, (0.1, 0.0));
}

/// Activations are rounded to 16 bits, which itself moves numbers over midpoints.
#[test]
fn cuda_stores_as_recipes_say() {
    if let Err(error) = CudaBackend::new(0) {
        println!("skipped: {error}");
        return;
    }
    stores_as_recipes_say(|| CudaBackend::new(0).unwrap(), (0.7, 8e-3));
}

/// Chunks and neighbours change no bit, whatever the recipe.
fn bits_stay<B: Backend>(backend: impl Fn() -> B) {
    for name in NAMES {
        let decoder = fixture::decoder(&fixture::folder(name), backend());
        let expected = fixture::expected(name);
        for recipe in ["native", "SD"] {
            let layout = layout(decoder.config(), recipe, &[]);
            let bits = |chunk: usize, beside: bool| -> Vec<u32> {
                let (found, _) = run_beside(&decoder, &layout, &expected, chunk, beside);
                found.into_iter().map(f32::to_bits).collect()
            };
            let whole = bits(expected.ids.len(), false);
            for (chunk, beside) in [(1, true), (17, false), (64, true), (149, false)] {
                let found = bits(chunk, beside);
                assert!(
                    found == whole,
                    "{name}, {recipe}: chunks of {chunk}, {beside}"
                );
            }
        }
    }
}

#[test]
fn chunks_change_no_bit_on_the_cpu() {
    bits_stay(CpuBackend::new);
}

#[test]
fn chunks_change_no_bit_on_the_gpu() {
    if let Err(error) = CudaBackend::new(0) {
        println!("skipped: {error}");
        return;
    }
    bits_stay(|| CudaBackend::new(0).unwrap());
}

/// The text part of a multimodal checkpoint is read by its own config and defaults.
#[test]
fn layers_of_both_kinds_are_read() {
    let read = |name: &str| {
        let path = fixture::folder(name).join("config.json");
        kvassay::model::read_config(&path).unwrap()
    };
    let [experts, text, whole] = NAMES.map(read);
    let heads = |config: &ModelConfig| -> Vec<(usize, usize, Option<usize>, bool)> {
        let layers = config.layers.iter();
        let of = layers.map(|l| (l.kv_heads, l.head_dim, l.window, l.keys_are_values));
        of.collect()
    };
    let (slides, sees_all) = ((2, 16, Some(16), false), (1, 32, None, true));
    assert_eq!(heads(&text), [slides, sees_all, slides, sees_all]);
    assert_eq!(text.logit_cap, Some(4.0));
    let slides = (2, 16, Some(9), false);
    assert_eq!(heads(&whole), [slides, slides, (2, 24, None, false)]);
    assert_eq!(whole.text_part_of.as_deref(), Some("gemma4_unified"));
    let shape = experts.layers[1].experts.unwrap();
    assert_eq!((shape.experts, shape.chosen), (8, 3));
    assert!(shape.beside_mlp && shape.renormalised);
    assert_eq!(experts.text_part_of.as_deref(), Some("gemma4"));
    assert!(whole.qkv_bias && whole.attention_output_bias && whole.value_norm);
}

fn doctor(model: &std::path::Path, code: i32) -> Value {
    let mut command = Command::cargo_bin("kvassay").unwrap();
    let command = command.args(["doctor", "--format", "json", "--model"]);
    let output = command.arg(model).assert().code(code).get_output().clone();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn doctor_tells_layers_of_both_kinds() {
    for (name, native) in [
        ("gemma4", 2 * (2 * 16 + 32) * 4),
        ("gemma4-whole", (4 * 16 + 48) * 4),
        ("gemma4-experts", (2 * 16 + 2 * 32) * 4),
    ] {
        let report = doctor(&fixture::folder(name).join("config.json"), 0)["model"].clone();
        assert_eq!(report["runs"], true, "{report}");
        assert_eq!(report["family"], "gemma4");
        assert_eq!(report["layers"][0]["kind"], "sliding_attention");
        assert_eq!(report["layers"][1]["kind"], "full_attention");
        // Beyond every window only layers without one take more.
        let tokens = report["sequence_tokens"].as_u64().unwrap();
        let cache = report["recipes"][0]["cache_bytes"].as_u64().unwrap();
        assert!(cache < tokens * native, "{name}: {report}");
    }
}

/// Of what is published: layers without a window have one head or two of 512 elements.
#[test]
fn published_shapes_run() {
    for (file, layers, kv_heads, notes) in [
        ("gemma-4-12b", [40, 8], 1, "40 of 48 layers see"),
        (
            "gemma-4-26b-a4b",
            [25, 5],
            2,
            "goes through 8, beside an MLP",
        ),
    ] {
        let path = std::path::PathBuf::from(format!("fixtures/configs/{file}.json"));
        let report = doctor(&path, 0)["model"].clone();
        assert_eq!(report["runs"], true, "{report}");
        let [sliding, full] = [0, 1].map(|kind| report["layers"][kind].clone());
        assert_eq!([&sliding["layers"], &full["layers"]], layers);
        assert_eq!(
            (&full["kv_heads"], &full["head_dim"]),
            (&json!(kv_heads), &json!(512))
        );
        let all = report["notes"].to_string();
        assert!(
            all.contains(notes) && !all.contains("CPU worker only"),
            "{all}"
        );
    }
}

/// What Gemma 4 checkpoints may ask for beyond what is applied.
#[test]
fn what_is_not_applied_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let read = |model: &str, changes: Value| {
        let text = std::fs::read_to_string(fixture::folder(model).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        let part = match config.get("text_config") {
            Some(_) => &mut config["text_config"],
            None => &mut config,
        };
        for (name, value) in changes.as_object().unwrap() {
            match value.as_str() {
                Some("absent") => _ = part.as_object_mut().unwrap().remove(name),
                _ => part[name] = value.clone(),
            }
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let read = kvassay::model::read_config(&path);
        read.map_err(|error| error.to_string())
    };
    for (model, changes, what) in [
        (
            "gemma4",
            json!({"num_kv_shared_layers": 2}),
            "num_kv_shared_layers = 2",
        ),
        (
            "gemma4",
            json!({"hidden_size_per_layer_input": 256}),
            "hidden_size_per_layer_input = 256",
        ),
        (
            "gemma4",
            json!({"hidden_size_per_layer_input": "absent"}),
            "hidden_size_per_layer_input = 256, its default",
        ),
        (
            "gemma4-whole",
            json!({"use_bidirectional_attention": "all"}),
            "use_bidirectional_attention = \"all\"",
        ),
        (
            "gemma4",
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
            "rope_scaling",
        ),
        (
            "gemma4-experts",
            json!({"shared_expert_intermediate_size": 16}),
            "shared_expert_intermediate_size = 16",
        ),
        (
            "gemma4-experts",
            json!({"scoring_func": "sigmoid"}),
            "scoring_func = \"sigmoid\"",
        ),
        (
            "gemma4",
            json!({"per_layer_config": {"1": {"intermediate_size": 7}}}),
            "intermediate_size = 7",
        ),
        (
            "gemma4",
            json!({"layer_types": vec!["chunked_attention"; 4]}),
            "layer_types",
        ),
    ] {
        let error = read(model, changes).unwrap_err();
        let expected = format!("unsupported: {what}");
        assert!(error.contains(&expected), "{error} for {expected}");
    }
    for (changes, what) in [
        (
            json!({"per_layer_config": {"4": {"head_dim": 8}}}),
            "per_layer_config",
        ),
        (json!({"per_layer_config": {"1": 3}}), "settings of a layer"),
        (
            json!({"per_layer_config": {"1": {"head_dim": 0}}}),
            "head_dim",
        ),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "default",
                "rope_theta": 10.0}}}),
            "no `sliding_attention`",
        ),
        (
            json!({"rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
                    "partial_rotary_factor": 0.01},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
            "0 pairs of a head vector of 32 that turn",
        ),
        (
            json!({"final_logit_softcapping": -1.0}),
            "final_logit_softcapping",
        ),
        (json!({"enable_moe_block": true}), "num_experts"),
        (
            json!({"enable_moe_block": true, "num_experts": 4, "top_k_experts": 5,
                "moe_intermediate_size": 8}),
            "at most the 4 experts of a layer",
        ),
    ] {
        let error = read("gemma4", changes).unwrap_err();
        assert!(
            error.contains(what) && error.contains("expected"),
            "{error} for {what}"
        );
    }
    // The last layer sees all tokens, whatever the list says; heads are those of configs that name
    // them by kind.
    let config = read(
        "gemma4",
        json!({"layer_types": vec!["sliding_attention"; 4], "per_layer_config": "absent",
            "num_global_key_value_heads": 1, "sliding_window": "absent",
            "rope_parameters": "absent"}),
    );
    let config = config.unwrap();
    let last = config.layers[3];
    assert_eq!((last.head_dim, last.kv_heads, last.window), (512, 1, None));
    assert_eq!(config.layers[2].window, Some(512));
    let bases: Vec<f64> = config.ropes.iter().map(|rope| rope.theta).collect();
    assert_eq!(bases, [1e6, 1e4]);
    let shared = read(
        "gemma4",
        json!({"per_layer_config": "absent", "num_global_key_value_heads": 1,
            "attention_k_eq_v": false}),
    );
    // Only layers whose keys are values take heads of their own number.
    assert_eq!(shared.unwrap().layers[3].kv_heads, 2);
}
