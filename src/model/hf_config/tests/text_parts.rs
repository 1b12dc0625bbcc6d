//! Text parts of multimodal checkpoints.

use super::*;

#[test]
fn a_sparse_text_part_has_its_familys_defaults() {
    let text = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"],
        "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 8},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 12, "sliding_window": 1024,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    });
    let config = parse_config("config.json", text.to_string().as_bytes()).unwrap();
    assert_eq!(config.text_part_of.as_deref(), Some("gemma3"));
    assert_eq!(config.family, Family::Gemma3);
    let layer = config.layers[0];
    assert_eq!((layer.heads, layer.kv_heads, layer.head_dim), (8, 4, 256));
    assert_eq!((config.vocab_size, config.context), (262_208, 131_072));
    assert_eq!(layer.score_divisor, 16.0);
    assert!(config.tied_embeddings && config.qk_norm && config.output_norms);
    assert_eq!(config.activation, Activation::GeluTanh);
    let global: Vec<usize> = (0..12)
        .filter(|&i| config.layers[i].window.is_none())
        .collect();
    assert_eq!(global, [5, 11]);
    for (i, layer) in config.layers.iter().enumerate() {
        let rope = &config.ropes[layer.rope];
        let expected = if global.contains(&i) {
            Rope::new(1e6, RopeScaling::Linear { factor: 8.0 })
        } else {
            Rope::new(1e4, RopeScaling::Default)
        };
        assert_eq!(*rope, expected, "layer {i}");
    }
    // The square root of 2560 is 50.596; numbers of 8 bits near it lie 0.25 apart.
    assert_eq!(config.embedding_scale, Some(50.5));
}

#[test]
fn a_text_part_of_another_kind_is_refused_by_name() {
    let text = |inner: Value| {
        let outer = json!({"model_type": "mistral3", "torch_dtype": "bfloat16",
            "text_config": inner});
        let error = parse_config("config.json", outer.to_string().as_bytes());
        error.unwrap_err().to_string()
    };
    let other = text(json!({"model_type": "gpt2"}));
    let start = "config.json: unsupported: model_type = \"gpt2\" (supported: `llama`, `qwen2`, ";
    assert!(other.starts_with(start), "{other}");
    let experts = text(json!({"model_type": "mistral", "num_local_experts": 8}));
    assert_eq!(experts, "config.json: unsupported: num_local_experts = 8");
}

#[test]
fn a_text_part_and_its_whole_agree_on_a_tied_head() {
    let read = |text: Option<bool>, whole: Option<bool>| {
        let mut inner = json!({"model_type": "mistral", "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "head_dim": 16, "vocab_size": 8, "max_position_embeddings": 64});
        let mut outer = json!({"model_type": "mistral3", "torch_dtype": "bfloat16"});
        if let Some(tied) = text {
            inner["tie_word_embeddings"] = json!(tied);
        }
        if let Some(tied) = whole {
            outer["tie_word_embeddings"] = json!(tied);
        }
        outer["text_config"] = inner;
        let read = parse_config("config.json", outer.to_string().as_bytes());
        read.map(|config| config.tied_embeddings)
            .map_err(|error| error.to_string())
    };
    assert_eq!(read(None, None), Ok(false));
    assert_eq!(read(Some(true), None), Ok(true));
    assert_eq!(read(None, Some(true)), Ok(true));
    assert_eq!(read(Some(true), Some(true)), Ok(true));
    let text = read(Some(true), Some(false)).unwrap_err();
    let expected = "config.json: field `tie_word_embeddings`: found false, expected true, as in \
                    text_config";
    assert_eq!(text, expected);
}
