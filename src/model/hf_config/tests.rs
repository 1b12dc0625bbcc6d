mod layer_kinds;
mod text_parts;

use serde_json::{Value, json};

use super::*;
use crate::model::{QueryGrowth, Rope, RopeScaling};
use crate::recipe::NativeDtype;

fn base() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "vocab_size": 128, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    })
}

fn with(changes: Value) -> Result<ModelConfig, ModelError> {
    let mut value = base();
    let map = value.as_object_mut().unwrap();
    for (name, change) in changes.as_object().unwrap() {
        map.insert(name.clone(), change.clone());
    }
    parse_config("config.json", value.to_string().as_bytes())
}

fn message(changes: Value) -> String {
    with(changes).unwrap_err().to_string()
}

#[test]
fn defaults_are_the_librarys() {
    let config = with(json!({})).unwrap();
    assert_eq!(config.layers[0].kv_heads, 4);
    assert_eq!(config.layers[0].head_dim, 16);
    assert_eq!(config.ropes[0].theta, 10_000.0);
    assert_eq!(config.ropes[0].scaling, RopeScaling::Default);
    assert_eq!(config.rms_norm_eps, 1e-6);
    assert_eq!(config.native_dtype, NativeDtype::Bf16);
    assert!(!config.tied_embeddings && !config.qkv_bias && !config.mlp_bias);
}

#[test]
fn families_differ_in_bias_norm_and_head_width() {
    let qwen2 = with(
        json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": false, "sliding_window": 4096, "torch_dtype": "float32"}),
    )
    .unwrap();
    assert!(qwen2.qkv_bias && !qwen2.attention_output_bias && !qwen2.qk_norm);
    assert_eq!(qwen2.native_dtype, NativeDtype::F16);
    let qwen3 = with(
        json!({"model_type": "qwen3", "architectures": null, "dtype": "float16",
        "torch_dtype": null}),
    );
    let qwen3 = qwen3.unwrap();
    assert!(!qwen3.qkv_bias && qwen3.qk_norm);
    assert_eq!(qwen3.layers[0].head_dim, 128);
    assert_eq!(qwen3.native_dtype, NativeDtype::F16);
    let llama = with(json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert!(llama.qkv_bias && llama.attention_output_bias && llama.mlp_bias);
}

#[test]
fn a_missing_field_is_named_with_its_file() {
    for field in [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "torch_dtype",
    ] {
        let text = message(json!({ field: null }));
        let start = format!("config.json: field `{field}`: found nothing, expected");
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn what_is_not_applied_is_refused_by_name_and_value() {
    for (changes, named) in [
        (json!({"model_type": "gpt2"}), "model_type = \"gpt2\""),
        (
            json!({"architectures": ["LlamaForSequenceClassification"]}),
            "architectures = [\"LlamaForSequenceClassification\"] (supported: LlamaForCausalLM)",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq"}}),
            "quantization_config.quant_method = \"gptq\" (supported: awq, fp8, compressed-tensors, \
             modelopt)",
        ),
        (json!({"sliding_window": 4096}), "sliding_window = 4096"),
        (
            json!({"layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types[1] = \"sliding_attention\" (supported: full_attention)",
        ),
        (
            json!({"attn_logit_softcapping": 50.0}),
            "attn_logit_softcapping = 50.0",
        ),
        (json!({"num_local_experts": 8}), "num_local_experts = 8"),
        (
            json!({"hidden_act": "relu2"}),
            "hidden_act = \"relu2\" (supported: silu, swish, gelu_pytorch_tanh)",
        ),
        (json!({"torch_dtype": "float8_e4m3fn"}), "torch_dtype = "),
        (
            json!({"partial_rotary_factor": 0.5}),
            "partial_rotary_factor = 0.5",
        ),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "type = \"dynamic\" (supported: default, linear, llama3, yarn)",
        ),
        (
            json!({"rope_parameters": {"rope_type": "longrope"}}),
            "rope_type = \"longrope\"",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1}}),
            "llama_4_scaling_beta = 0.1",
        ),
        (
            json!({"use_bidirectional_attention": true}),
            "use_bidirectional_attention = true",
        ),
        (
            json!({"model_type": "mistral", "architectures": null, "attention_bias": true}),
            "attention_bias = true",
        ),
        (
            json!({"model_type": "mistral", "architectures": null, "sliding_window": 9,
                "layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types[0] = \"full_attention\" (supported: sliding_attention, as ",
        ),
        (
            json!({"model_type": "phi3", "architectures": null,
                "rope_scaling": {"type": "linear", "factor": 2.0}}),
            "type = \"linear\"",
        ),
    ] {
        let text = message(changes);
        let start = format!("config.json: unsupported: {named}");
        assert!(text.starts_with(&start), "{text}");
    }
}

#[test]
fn wrong_values_are_refused() {
    for changes in [
        json!({"hidden_size": "64"}),
        json!({"hidden_size": 0}),
        json!({"hidden_size": -1}),
        json!({"vocab_size": 1e30}),
        json!({"num_key_value_heads": 3}),
        json!({"num_key_value_heads": 0}),
        json!({"head_dim": 7}),
        json!({"num_attention_heads": 3}),
        json!({"rope_theta": -1}),
        json!({"rope_scaling": "linear"}),
        json!({"rope_scaling": {"type": "linear"}}),
        json!({"rope_scaling": {"type": "llama3", "factor": 8.0}}),
    ] {
        let result = with(changes.clone());
        assert!(
            matches!(result, Err(ModelError::Invalid { .. })),
            "{changes}"
        );
    }
    for size in [json!(1u64 << 40), json!(1e30)] {
        let text = message(json!({"num_attention_heads": size}));
        let end = "expected a whole number up to 4294967295";
        assert!(text.ends_with(end), "{text}");
    }
    let contradicting = message(
        json!({"rope_scaling": {"rope_type": "yarn", "type": "linear",
        "factor": 2.0}}),
    );
    assert!(
        contradicting.ends_with("field `type`: found linear, expected yarn, as `rope_type` says"),
        "{contradicting}"
    );
    assert!(parse_config("config.json", b"[1]").is_err());
    assert!(parse_config("config.json", b"{").is_err());
}

#[test]
fn both_spellings_of_rotary_settings_agree() {
    let new = with(
        json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0,
        "rope_theta": 500000.0}}),
    );
    let old = with(json!({"rope_theta": 500000.0,
        "rope_scaling": {"type": "linear", "factor": 4.0}}));
    let new = new.unwrap().ropes;
    assert_eq!(new, old.unwrap().ropes);
    assert_eq!(new[0].theta, 500_000.0);
    assert_eq!(new[0].scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn llama3_reads_its_band() {
    let rope = with(
        json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128}}),
    )
    .unwrap()
    .ropes
    .remove(0);
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 128,
    };
    assert_eq!(rope.scaling, expected);
}

fn yarn_factors(parameters: Value) -> (f64, f64, usize) {
    match with(json!({"rope_scaling": parameters}))
        .unwrap()
        .ropes
        .remove(0)
        .scaling
    {
        RopeScaling::Yarn {
            factor,
            attention_factor,
            original_context,
            beta_fast,
            beta_slow,
            truncate,
        } => {
            assert_eq!((beta_fast, beta_slow, truncate), (32.0, 1.0, true));
            (factor, attention_factor, original_context)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn yarn_has_the_librarys_attention_factor() {
    let plain = json!({"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 128});
    assert_eq!(yarn_factors(plain), (4.0, 0.1 * 4f64.ln() + 1.0, 128));
    let given = json!({"type": "yarn", "factor": 4.0, "attention_factor": 1.25});
    assert_eq!(yarn_factors(given), (4.0, 1.25, 512));
    let scaled = json!({"type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0,
        "beta_fast": 32, "beta_slow": 1});
    let expected = (0.07 * 40f64.ln() + 1.0) / (0.1 * 40f64.ln() + 1.0);
    let (_, attention_factor, _) = yarn_factors(scaled);
    assert!((attention_factor - expected).abs() < 1e-15);
    let ratio = json!({"rope_type": "yarn", "original_max_position_embeddings": 64});
    assert_eq!(yarn_factors(ratio).0, 8.0);
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.window).collect()
}

#[test]
fn windows_are_those_of_the_family() {
    let qwen = |changes: Value| {
        let mut all = json!({"model_type": "qwen3", "architectures": null, "num_hidden_layers": 3});
        let map = all.as_object_mut().unwrap();
        map.extend(changes.as_object().unwrap().clone());
        windows(&with(all).unwrap())
    };
    assert_eq!(qwen(json!({"sliding_window": 9})), [None; 3]);
    assert_eq!(
        qwen(json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 2})),
        [None, None, Some(9)]
    );
    assert_eq!(qwen(json!({"use_sliding_window": true})), [None; 3]);
    assert_eq!(
        qwen(json!({"use_sliding_window": true, "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"]})),
        [Some(9), None, None]
    );
    for (named, expected) in [
        (json!({}), Some(4096)),
        (json!({"sliding_window": null}), None),
        (json!({"sliding_window": 24}), Some(24)),
    ] {
        let mut all = json!({"model_type": "mistral", "architectures": null,
            "num_key_value_heads": 2});
        let map = all.as_object_mut().unwrap();
        map.extend(named.as_object().unwrap().clone());
        assert_eq!(windows(&with(all).unwrap()), [expected; 2]);
    }
    let phi = json!({"model_type": "phi3", "architectures": null, "sliding_window": 2047});
    assert_eq!(windows(&with(phi).unwrap()), [Some(2047); 2]);
    for wrong in [
        json!({"model_type": "mistral", "architectures": null, "sliding_window": 0}),
        json!({"model_type": "qwen3", "architectures": null, "layer_types": ["full_attention"]}),
        json!({"model_type": "gemma3_text", "architectures": null, "sliding_window_pattern": 0}),
    ] {
        let result = with(wrong.clone());
        assert!(matches!(result, Err(ModelError::Invalid { .. })), "{wrong}");
    }
}

/// A config of the library's older releases, and what it leaves out.

#[test]
fn longrope_is_decided_by_the_models_context() {
    let read = |context: usize, original: usize, lengths: [usize; 2]| {
        let [short, long] = lengths;
        with(json!({"model_type": "phi3", "architectures": null,
            "max_position_embeddings": context, "original_max_position_embeddings": original,
            "rope_scaling": {"type": "su", "short_factor": vec![1.5; short],
                "long_factor": vec![3.0; long]},
            "partial_rotary_factor": 0.75, "num_attention_heads": 2}))
    };
    let rope = |context, original| read(context, original, [12, 12]).unwrap().ropes.remove(0);
    let long = rope(512, 64);
    assert_eq!(long.rotated(32), 24);
    let factor = (1.0 + 8f64.ln() / 64f64.ln()).sqrt();
    let expected = |factors: f32, attention_factor| RopeScaling::LongRope {
        factors: vec![factors; 12],
        attention_factor,
    };
    assert_eq!(long.scaling, expected(3.0, factor));
    assert_eq!(rope(64, 64).scaling, expected(1.5, 1.0));
    let text = read(512, 64, [12, 16]).unwrap_err().to_string();
    let start = "config.json: field `long_factor`: found 16 numbers, expected a list of 12";
    assert!(text.starts_with(start), "{text}");
    for partial in [0.0, -0.5, 1.5, 0.01] {
        let changes = json!({"model_type": "phi3", "architectures": null,
            "partial_rotary_factor": partial});
        let text = message(changes);
        assert!(text.contains("partial_rotary_factor"), "{text}");
    }
}

#[test]
fn ministral_reads_how_queries_grow() {
    let rope = with(
        json!({"model_type": "ministral3", "architectures": null, "head_dim": 32,
        "num_key_value_heads": 4,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
            "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 128,
            "llama_4_scaling_beta": 0.1}}),
    );
    let rope = rope.unwrap().ropes.remove(0);
    let expected = QueryGrowth {
        beta: 0.1,
        period: 128,
    };
    assert_eq!(rope.query_growth, Some(expected));
    let RopeScaling::Yarn {
        attention_factor, ..
    } = rope.scaling
    else {
        panic!("{:?}", rope.scaling);
    };
    assert_eq!(attention_factor, 1.0);
}
