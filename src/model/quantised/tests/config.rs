//! What configs say, and what of it is refused.

use serde_json::{Value, json};

use super::super::form::{AwqOrder, Form};
use super::*;

#[test]
fn settings_that_are_not_applied_are_named() {
    let compressed = |changes: Value| {
        let mut config = packed_config(4, true);
        let weights = &mut config["config_groups"]["group_0"]["weights"];
        for (name, value) in changes.as_object().unwrap() {
            weights[name] = value.clone();
        }
        config
    };
    for (config, named) in [
        (
            json!({"quant_method": "gptq", "bits": 4}),
            "quant_method = \"gptq\"",
        ),
        (json!({"quant_method": "awq", "bits": 3}), "bits = 3"),
        (
            json!({"quant_method": "awq", "bits": 4, "version": "gemv_fast"}),
            "version = \"gemv_fast\"",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "zero_point": false}),
            "zero_point = false",
        ),
        (
            json!({"quant_method": "fp8", "fmt": "e5m2"}),
            "fmt = \"e5m2\"",
        ),
        (
            json!({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}),
            "kv_cache_scheme = {",
        ),
        (
            json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}),
            "quant_algo = \"NVFP4\"",
        ),
        (
            compressed(json!({"actorder": "group"})),
            "group_0.weights.actorder = \"group\"",
        ),
        (compressed(json!({"num_bits": 3})), "weights of 3 bits"),
        (
            compressed(json!({"strategy": "tensor_group"})),
            "strategy = \"tensor_group\"",
        ),
        (
            compressed(json!({"dynamic": true})),
            "weights.dynamic = true",
        ),
        (
            compressed(json!({"dynamic": "local"})),
            "weights.dynamic = \"local\"",
        ),
        (
            compressed(json!({"actorder": true})),
            "weights.actorder = true",
        ),
    ] {
        match parse(config) {
            Err(ModelError::Unsupported { path, what }) => {
                assert_eq!(path, "config.json");
                let start = what.starts_with("quantization_config.");
                assert!(start && what.contains(named), "{what}");
            }
            other => panic!("{named}: {other:?}"),
        }
    }
}

#[test]
fn orders_that_leave_columns_in_place_are_read() {
    let plain = parsed(packed_config(4, true));
    for order in [json!(false), json!(null), json!("static"), json!("weight")] {
        let mut config = packed_config(4, true);
        config["config_groups"]["group_0"]["weights"]["actorder"] = order.clone();
        assert_eq!(parsed(config), plain, "{order}");
    }
}

#[test]
fn wrong_settings_name_the_field() {
    for (config, field) in [
        (
            json!({"quant_method": "fp8", "ignored_layers": ["lm_head", "re:("]}),
            "quantization_config.ignored_layers",
        ),
        (json!({"bits": 4}), "quantization_config.quant_method"),
        (
            json!({"quant_method": "awq", "bits": "four"}),
            "quantization_config.bits",
        ),
        (
            json!({"quant_method": "fp8", "weight_block_size": [128]}),
            "quantization_config.weight_block_size",
        ),
        (
            json!({"quant_method": "compressed-tensors"}),
            "quantization_config.config_groups",
        ),
        (
            json!({"quant_method": "awq", "bits": 4, "modules_to_not_convert": [1]}),
            "quantization_config.modules_to_not_convert",
        ),
    ] {
        let message = parse(config).unwrap_err().to_string();
        let start = format!("config.json: field `{field}`: found ");
        assert!(message.starts_with(&start), "{message}");
    }
}

/// Checkpoints that store their cache's scales alone, or those of attention beside them.
#[test]
fn a_scheme_of_the_cache_may_stand_without_weights() {
    let attention = json!({"targets": ["LlamaAttention"], "weights": null,
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": false}});
    let groups = [
        json!(null),
        json!({}),
        json!({"group_0": {"targets": [], "weights": null}}),
        json!({"group_0": attention}),
    ];
    let scheme = json!({"num_bits": 8, "type": "float", "dynamic": false});
    for groups in groups {
        let mut config = json!({"quant_method": "compressed-tensors", "config_groups": groups,
            "kv_cache_scheme": scheme});
        let found = parsed(config.clone());
        assert_eq!((found.forms.len(), found.kv_cache), (0, true), "{groups}");
        config["kv_cache_scheme"] = Value::Null;
        let message = parse(config).unwrap_err().to_string();
        assert!(message.contains("config_groups"), "{message}");
    }
}

#[test]
fn other_places_and_empty_objects() {
    let parse = |config: Value| of_text("config.json", config.to_string().as_bytes()).unwrap();
    assert_eq!(parse(json!({})), None);
    assert_eq!(parse(json!({"quantization_config": {}})), None);
    let fp8 = json!({"quant_method": "fp8", "activation_scheme": "static"});
    let top = parse(json!({"quantization_config": fp8, "text_config": {"dtype": "float16"}}));
    let inner = parse(json!({"text_config": {"dtype": "float16", "quantization_config": fp8}}));
    assert_eq!(top, inner);
    let top = top.unwrap();
    assert_eq!(top.numbers, NumberType::F16);
    // The decoder's own type counts, in either spelling.
    for name in ["dtype", "torch_dtype"] {
        let both = json!({"quantization_config": fp8, "dtype": "float32",
            "text_config": {name: "bfloat16"}});
        assert_eq!(parse(both).unwrap().numbers, NumberType::Bf16, "{name}");
    }
    assert_eq!(top.activations.as_deref(), Some("e4m3, static scales"));
    let forms: Vec<String> = top.forms.iter().map(Form::to_string).collect();
    assert_eq!(
        forms,
        ["E4M3, one scale per tensor", "E4M3, one scale per row"]
    );
    let order = AwqOrder::Gemm;
    assert_eq!(
        awq("gemm", 64).forms,
        [Form::Awq {
            order,
            group: Some(64)
        }]
    );
}

#[test]
fn modules_left_out_are_known_by_their_names() {
    let ignoring = |names: &[&str]| Quantisation {
        ignored: names
            .iter()
            .map(|name| Ignored::new(name).unwrap())
            .collect(),
        ..awq("gemm", 128)
    };
    let module = "model.layers.1.self_attn.q_proj";
    for name in [
        "model.layers.1",
        "q_proj",
        module,
        "re:.*q_proj",
        "re:model[.]layers",
        "model*",
        "language_model.model.layers.1",
        "model.language_model.layers.1.self_attn",
        "re:language_model[.]model.*",
        "re:model[.]language_model[.]layers[.]1[.]",
    ] {
        assert!(ignoring(&[name]).ignores(module), "{name}");
    }
    for name in ["model.layers.11", "proj", "re:q_proj", "lm_head"] {
        assert!(!ignoring(&[name]).ignores(module), "{name}");
    }
}
