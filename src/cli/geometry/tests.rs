use super::*;
use proptest::prelude::*;

fn attention(kv_heads: u32, head_dim: u32, window: Option<u32>) -> LayerState {
    LayerState::Attention {
        kv_heads,
        head_dim,
        window,
    }
}

fn refusal(json: &str) -> String {
    let problem = parse(json.as_bytes()).unwrap_err();
    let error = problem.at(Path::new("m/config.json"));
    format!("{:#}", anyhow::Error::new(error))
}

#[test]
fn defaults_follow_from_the_other_fields() {
    let layers = |json: &str| parse(json.as_bytes()).unwrap();
    let plain = layers(r#"{"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}"#);
    assert_eq!(plain, [attention(4, 16, None); 2]);
    let nested = layers(
        r#"{"text_config":{"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,
            "head_dim":32,"sliding_window":128,"use_sliding_window":false,
            "layer_types":["full_attention","full_attention","full_attention"]}}"#,
    );
    assert_eq!(nested, [attention(2, 32, None); 3]);
}

#[test]
fn windows_are_of_the_layers_that_slide() {
    let layers = |fields: &str| {
        let json = format!(r#"{{"num_attention_heads":4,"head_dim":8,{fields}}}"#);
        parse(json.as_bytes()).unwrap()
    };
    let (full, slides) = (attention(4, 8, None), attention(4, 8, Some(16)));
    let window = r#""sliding_window":16"#;
    let all = layers(&format!(r#""num_hidden_layers":2,{window}"#));
    assert_eq!(all, [slides; 2]);
    let off = layers(&format!(
        r#""num_hidden_layers":1,{window},"use_sliding_window":false"#
    ));
    assert_eq!(off, [full]);
    let upper = layers(&format!(
        r#""num_hidden_layers":3,{window},"use_sliding_window":true,"max_window_layers":2"#
    ));
    assert_eq!(upper, [full, full, slides]);
    let listed = layers(&format!(
        r#""num_hidden_layers":2,{window},"layer_types":["full_attention","sliding_attention"]"#
    ));
    assert_eq!(listed, [full, slides]);
    let gemma = layers(&format!(
        r#""num_hidden_layers":7,{window},"model_type":"gemma3_text""#
    ));
    let mut expected = [slides; 7];
    expected[5] = full;
    assert_eq!(gemma, expected);
}

#[test]
fn layers_that_attend_to_all_may_have_heads_of_their_own() {
    let gemma = |model_type: &str, others: &str| {
        let json = format!(
            r#"{{"model_type":"{model_type}","text_config":{{"num_hidden_layers":2,
                "num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,"sliding_window":16,
                "num_global_key_value_heads":1,{others}
                "layer_types":["sliding_attention","full_attention"]}}}}"#
        );
        parse(json.as_bytes()).unwrap()[1]
    };
    let own = r#""global_head_dim":32,"attention_k_eq_v":true,"#;
    assert_eq!(gemma("gemma4", own), attention(1, 32, None));
    assert_eq!(
        gemma("gemma4", r#""attention_k_eq_v":false,"#),
        attention(2, 512, None)
    );
    assert_eq!(gemma("gemma4_unified", ""), attention(1, 512, None));
    assert_eq!(gemma("other", own), attention(2, 8, None));
}

#[test]
fn recurrent_layers_keep_a_matrix_and_a_convolution() {
    let json = r#"{"model_type":"qwen3_5_text","num_hidden_layers":4,"num_attention_heads":4,
        "head_dim":8,"linear_num_value_heads":6,"linear_num_key_heads":2,"linear_key_head_dim":16,
        "linear_value_head_dim":32,"linear_conv_kernel_dim":4}"#;
    let recurrent = LayerState::Recurrent {
        matrix_bytes: 6 * 16 * 32 * 4,
        convolution_bytes: (2 * 2 * 16 + 6 * 32) * 3 * 2,
    };
    let expected = [recurrent, recurrent, recurrent, attention(4, 8, None)];
    assert_eq!(parse(json.as_bytes()).unwrap(), expected);
}

#[test]
fn layers_alternate_by_family_where_no_kinds_are_listed() {
    let layers = |family: &str, count: u32, others: &str| {
        let json = format!(
            r#"{{"model_type":"{family}","num_hidden_layers":{count},"num_attention_heads":4,
                "num_key_value_heads":2,"hidden_size":64,"sliding_window":16{others}}}"#
        );
        parse(json.as_bytes()).unwrap()
    };
    let (full, slides) = (attention(2, 256, None), attention(2, 256, Some(16)));
    assert_eq!(layers("gemma2", 3, ""), [slides, full, slides]);
    let (full, slides) = (attention(2, 16, None), attention(2, 16, Some(16)));
    let cohere = layers("cohere2", 5, "");
    assert_eq!(cohere, [slides, slides, slides, full, slides]);
    let cohere = layers("cohere2", 2, r#","sliding_window_pattern":2"#);
    assert_eq!(cohere, [slides, full]);
    let linear = r#","full_attention_interval":2,"linear_num_value_heads":6,
        "linear_num_key_heads":2,"linear_key_head_dim":16,"linear_value_head_dim":32,
        "linear_conv_kernel_dim":4"#;
    let recurrent = LayerState::Recurrent {
        matrix_bytes: 6 * 16 * 32 * 4,
        convolution_bytes: (2 * 2 * 16 + 6 * 32) * 3 * 2,
    };
    let next = layers("qwen3_next", 2, linear);
    assert_eq!(next, [recurrent, attention(2, 256, None)]);
    let other = |field: &str| {
        refusal(&format!(
            r#"{{"model_type":"other","num_hidden_layers":2,"num_attention_heads":4,
                "hidden_size":64,"sliding_window":16,"{field}":2}}"#
        ))
    };
    for (field, why) in [
        ("sliding_window_pattern", " = 2 without layer_types"),
        ("full_attention_interval", " = 2 without layer_types"),
        ("linear_num_value_heads", " = 2 without layer_types"),
        ("hybrid_override_pattern", ": which layers keep"),
        ("attn_layer_period", ": which layers keep"),
        ("block_types", ": which layers keep"),
    ] {
        let start = format!("m/config.json: unsupported: {field}{why}");
        assert!(other(field).starts_with(&start), "{}", other(field));
    }
    for heads in ["", r#","num_key_value_heads":null"#] {
        let falcon = refusal(&format!(
            r#"{{"model_type":"falcon","num_hidden_layers":2,"num_attention_heads":71,
                "hidden_size":4544,"multi_query":true{heads}}}"#
        ));
        assert!(falcon.contains("multi_query = true"), "{falcon}");
    }
    // Letters instead of a count, beside the list that says it all.
    let listed = r#","sliding_window_pattern":"LLLG","layer_types":["sliding_attention",
        "full_attention"]"#;
    assert_eq!(layers("exaone4", 2, listed), [slides, full]);
    let letters = r#"{"model_type":"exaone4","num_hidden_layers":2,"sliding_window_pattern":"LG"}"#;
    let letters = refusal(letters);
    assert!(letters.contains("found \"LG\""), "{letters}");
}

/// What a config leaves out is what loading takes it for, whatever else the config asks for.
#[test]
fn families_that_load_have_the_defaults_of_loading() {
    let layers = |fields: &str| {
        let json = format!(r#"{{"num_hidden_layers":2,"hidden_size":64,{fields}}}"#);
        let found = layers_of_text(Path::new("m/config.json"), json.as_bytes());
        let (layers, assumption) = found.unwrap();
        assert_eq!(assumption, None);
        layers
    };
    let window = Some(4096);
    assert_eq!(
        layers(r#""model_type":"gemma3_text","final_logit_softcapping":30.0"#),
        [attention(4, 256, window); 2]
    );
    assert_eq!(
        layers(r#""model_type":"mistral","num_attention_heads":16"#),
        [attention(8, 4, window); 2]
    );
    let qwen = r#""model_type":"qwen3","num_attention_heads":4,"sliding_window":16"#;
    assert_eq!(layers(qwen), [attention(4, 128, None); 2]);
    let on = format!(r#"{qwen},"use_sliding_window":true"#);
    // Windows start at layer 28.
    assert_eq!(layers(&on), [attention(4, 128, None); 2]);
    let first = format!(r#"{on},"max_window_layers":1"#);
    let expected = [attention(4, 128, None), attention(4, 128, Some(16))];
    assert_eq!(layers(&first), expected);
    let shared = r#"{"model_type":"gemma3_text","num_hidden_layers":2,"num_kv_shared_layers":1}"#;
    let error = layers_of_text(Path::new("m/config.json"), shared.as_bytes()).unwrap_err();
    assert!(
        error.to_string().contains("num_kv_shared_layers"),
        "{error}"
    );
}

#[test]
fn what_is_assumed_of_unknown_families_is_said() {
    let assumed = |fields: &str| {
        let json = format!(
            r#"{{"num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4{fields}}}"#
        );
        let found = layers_of_text(Path::new("m/config.json"), json.as_bytes());
        let (layers, assumption) = found.unwrap();
        assert_eq!(layers, [attention(4, 16, None); 2]);
        assumption.unwrap()
    };
    let other = assumed(r#","model_type":"nonesuch""#);
    assert_eq!(
        other,
        "model_type \"nonesuch\" is not known here: its layers are taken to keep keys and values as the \
         usual fields say, and nothing else"
    );
    assert!(assumed("").starts_with("the config names no model_type"));
}

#[test]
fn refusals_name_file_and_field() {
    let messages: Vec<String> = [
        "{",
        "[]",
        r#"{"num_hidden_layers":-1}"#,
        "{}",
        r#"{"num_hidden_layers":0}"#,
        r#"{"num_hidden_layers":10001}"#,
        r#"{"num_hidden_layers":1,"num_attention_heads":6,"num_key_value_heads":4,"head_dim":8}"#,
        r#"{"num_hidden_layers":1,"num_attention_heads":6,"hidden_size":64}"#,
        r#"{"num_hidden_layers":1,"num_attention_heads":6,"head_dim":0}"#,
        r#"{"num_hidden_layers":1,"kv_lora_rank":512}"#,
        r#"{"num_hidden_layers":1,"num_kv_shared_layers":2}"#,
        r#"{"num_hidden_layers":1,"head_dim":8,"num_attention_heads":1,"sliding_window":0}"#,
        r#"{"num_hidden_layers":2,"layer_types":["full_attention","chunked_attention"]}"#,
        r#"{"num_hidden_layers":2,"layer_types":["full_attention"]}"#,
        r#"{"num_hidden_layers":1,"layer_types":["linear_attention"]}"#,
    ]
    .map(refusal)
    .to_vec();
    insta::assert_snapshot!(messages.join("\n"));
}

proptest! {
    #[test]
    fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn any_numbers_give_a_sound_shape(
        layers in any::<u32>(), heads in 0u32..200, kv in 0u32..200, hidden in 0u32..10_000
    ) {
        let json = format!(
            r#"{{"num_hidden_layers":{layers},"num_attention_heads":{heads},
                "num_key_value_heads":{kv},"hidden_size":{hidden}}}"#
        );
        if let Ok(found) = parse(json.as_bytes()) {
            prop_assert_eq!(found.len(), layers as usize);
            for layer in found {
                let LayerState::Attention { kv_heads, head_dim, window: None } = layer else {
                    panic!("{layer:?}");
                };
                prop_assert!(heads % kv_heads == 0);
                prop_assert_eq!(head_dim * heads, hidden);
            }
        }
    }
}

/// A cache of nothing is refused for its reason, and so are counts that are none.
#[test]
fn what_makes_a_config_useless_is_named() {
    let other = |fields: &str| {
        refusal(&format!(
            r#"{{"model_type":"qwen3_next","num_hidden_layers":4,"num_attention_heads":4,
                "hidden_size":64,{fields}}}"#
        ))
    };
    let counts = r#""linear_num_value_heads":6,"linear_num_key_heads":2,
        "linear_key_head_dim":16,"linear_value_head_dim":32,"linear_conv_kernel_dim":4"#;
    for (fields, expected) in [
        (
            r#""full_attention_interval":100,"#,
            "full_attention_interval: found 100 with 4 layers, expected no more than there are \
             layers",
        ),
        (
            r#""layer_types":["linear_attention","linear_attention",
                "linear_attention","linear_attention"],"#,
            "layer_types: found linear_attention in every layer, expected attention in at least \
             one, else there is no KV cache",
        ),
        (
            r#""layer_types":["full_attention","mamba"],"#,
            "layer_types: found `mamba` in entry 1, expected full_attention, sliding_attention or \
             linear_attention",
        ),
        (
            r#""head_dim":1099511627776,"#,
            "head_dim: found 1099511627776, expected a whole number up to 4294967295",
        ),
        (
            r#""head_dim":"8","#,
            "head_dim: found \"8\", expected a whole number up to 4294967295",
        ),
    ] {
        let text = other(&format!("{fields}{counts}"));
        assert_eq!(text, format!("m/config.json: {expected}"));
    }
}
