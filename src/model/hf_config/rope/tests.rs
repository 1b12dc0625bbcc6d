use serde_json::{Value, json};

use super::super::parse_config;
use super::*;

/// A config of `family` whose fields `changes` sets.
fn with(family: &str, changes: &Value) -> Result<ModelConfig, ModelError> {
    let mut value = json!({
        "model_type": family, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 128,
        "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    });
    let map = value.as_object_mut().unwrap();
    map.extend(changes.as_object().unwrap().clone());
    parse_config("config.json", value.to_string().as_bytes())
}

#[test]
fn an_empty_rope_scaling_says_nothing() {
    let linear = json!({"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5});
    for empty in [json!({}), Value::Null] {
        let changes = json!({"rope_scaling": empty, "rope_parameters": linear});
        let ropes = with("llama", &changes).unwrap().ropes;
        let expected = Rope::new(5e5, RopeScaling::Linear { factor: 4.0 });
        assert_eq!(ropes, [expected], "{empty}");
    }
}

#[test]
fn gemmas_rope_scaling_adds_to_the_settings_of_full_attention() {
    let changes = json!({
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    });
    let ropes = with("gemma3_text", &changes).unwrap().ropes;
    let expected = [
        Rope::new(5e5, RopeScaling::Linear { factor: 8.0 }),
        Rope::new(2e4, RopeScaling::Default),
    ];
    assert_eq!(ropes, expected);
}

#[test]
fn ministral_without_settings_has_its_librarys() {
    let named = json!({"rope_parameters": {
        "type": "yarn", "rope_theta": 1e6, "factor": 16.0,
        "original_max_position_embeddings": 16384, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
    }});
    let rope = |changes: &Value| with("ministral3", changes).unwrap().ropes.remove(0);
    // They hold a base, which wins over the one beside them.
    let default = rope(&json!({"rope_theta": 1e4}));
    assert_eq!(default, rope(&named));
    assert_eq!(default.theta, 1e6);
    let expected = QueryGrowth {
        beta: 0.1,
        period: 16_384,
    };
    assert_eq!(default.query_growth, Some(expected));
    // Settings that say nothing of a scaling are settings.
    let plain = rope(&json!({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}));
    assert_eq!(plain, Rope::new(1e5, RopeScaling::Default));
}

#[test]
fn settings_that_give_no_angles_are_refused_by_name() {
    let long = |original: usize| {
        json!({"original_max_position_embeddings": original, "rope_scaling": {
            "type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]}})
    };
    let yarn = |theta: f64, factor: f64| json!({"rope_scaling": {"rope_type": "yarn", "rope_theta": theta, "factor": factor}});
    let llama3 = |low: f64, high: f64| {
        json!({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": 128}})
    };
    for (family, sound) in [
        ("phi3", long(64)),
        ("llama", yarn(1e4, 4.0)),
        ("llama", llama3(1.0, 4.0)),
    ] {
        with(family, &sound).unwrap();
    }
    let scaled = |factor: f64| json!({"rope_scaling": {"type": "linear", "factor": factor}});
    let mut grown = json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 64, "llama_4_scaling_beta": 1e300}});
    for (family, changes, field) in [
        ("phi3", long(1), "rope_scaling"),
        ("llama", yarn(1.0, 4.0), "rope_scaling"),
        ("llama", yarn(1e4, 1e-300), "rope_scaling"),
        ("llama", yarn(1e4, 1e300), "rope_scaling"),
        ("llama", llama3(4.0, 4.0), "rope_parameters"),
        ("llama", scaled(1e-300), "rope_scaling"),
        ("llama", json!({"rope_theta": 1e300}), "rope_theta"),
        ("ministral3", grown.take(), "rope_parameters"),
    ] {
        let error = with(family, &changes).unwrap_err();
        assert!(matches!(error, ModelError::Invalid { .. }), "{error}");
        let start = format!("config.json: field `{field}`: found ");
        assert!(error.to_string().starts_with(&start), "{error}");
    }
    // A table without end is not even tried.
    let wide = with("llama", &json!({"head_dim": u32::MAX - 1})).unwrap_err();
    assert!(
        wide.to_string().contains("head_dim: found 4294967294"),
        "{wide}"
    );
}
