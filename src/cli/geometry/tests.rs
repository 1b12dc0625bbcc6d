use super::*;
use proptest::prelude::*;

fn refusal(json: &str) -> String {
    let problem = parse(json.as_bytes()).unwrap_err();
    let error = problem.at(Path::new("m/config.json"));
    format!("{:#}", anyhow::Error::new(error))
}

#[test]
fn defaults_follow_from_the_other_fields() {
    let shape = |json: &str| parse(json.as_bytes()).unwrap();
    let plain = shape(r#"{"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}"#);
    assert_eq!((plain.layers, plain.kv_heads, plain.head_dim), (2, 4, 16));
    let nested = shape(
        r#"{"text_config":{"num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,
            "head_dim":32,"sliding_window":128,"use_sliding_window":false,
            "layer_types":["full_attention","full_attention","full_attention"]}}"#,
    );
    assert_eq!(
        (nested.layers, nested.kv_heads, nested.head_dim),
        (3, 2, 32)
    );
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
        r#"{"num_hidden_layers":1,"sliding_window":4096}"#,
        r#"{"num_hidden_layers":2,"layer_types":["full_attention","sliding_attention"]}"#,
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
        if let Ok(shape) = parse(json.as_bytes()) {
            prop_assert!(shape.layers > 0 && heads % shape.kv_heads == 0);
            prop_assert_eq!(shape.head_dim * heads, hidden);
        }
    }
}
