//! Kinds of layers that are refused.

use serde_json::{Value, json};

use super::message;

/// What is wrong with the kinds of layers is said with the place where it stands.
#[test]
fn a_kind_of_layer_is_refused_at_its_place() {
    let kinds = |family: &str, last: &str, changes: Value| {
        let mut kinds = vec!["sliding_attention"; 30];
        kinds[20] = last;
        let mut all = json!({"model_type": family, "architectures": null,
            "num_hidden_layers": 30, "layer_types": kinds, "hidden_size_per_layer_input": 0});
        let map = all.as_object_mut().unwrap();
        map.extend(changes.as_object().unwrap().clone());
        message(all)
    };
    assert_eq!(
        kinds("gemma4_text", "mamba", json!({})),
        "config.json: unsupported: layer_types[20] = \"mamba\" (supported: full_attention, \
         sliding_attention)"
    );
    let expected = "config.json: field `sliding_window`: found nothing, expected the window of the \
                    layers that layer_types calls sliding_attention";
    for family in ["gemma4_text", "gemma3_text", "mistral"] {
        let text = kinds(family, "full_attention", json!({"sliding_window": null}));
        assert_eq!(text, expected, "{family}");
    }
    let switched_off = kinds("qwen3", "full_attention", json!({}));
    let start = "config.json: unsupported: layer_types[0] = \"sliding_attention\" (supported: full";
    assert!(switched_off.starts_with(start), "{switched_off}");
    let short = kinds(
        "gemma4_text",
        "full_attention",
        json!({"num_hidden_layers": 31}),
    );
    let end = "field `layer_types`: found 30 kinds, expected a list of 31 kinds of layers";
    assert!(short.ends_with(end), "{short}");
    let unlisted = kinds(
        "gemma3_text",
        "",
        json!({"layer_types": null, "sliding_window": null}),
    );
    let start = "config.json: field `sliding_window`: found nothing, expected the window";
    assert!(unlisted.starts_with(start), "{unlisted}");
}
