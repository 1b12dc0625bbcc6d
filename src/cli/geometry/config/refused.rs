//! Configs that cannot be counted, by the field that says so.

use serde_json::Value;

use super::Problem;

/// Fields that hold counts.
const COUNTS: [&str; 18] = [
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "kv_lora_rank",
    "num_kv_shared_layers",
    "sliding_window",
    "max_window_layers",
    PATTERN,
    "full_attention_interval",
    "global_head_dim",
    "num_global_key_value_heads",
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
];

/// Which of a model's layers slide, as a count.
pub(super) const PATTERN: &str = "sliding_window_pattern";

/// Fields of models whose layers differ in ways that are not known here.
const OTHER_LAYERS: [&str; 7] = [
    "hybrid_override_pattern",
    "attn_layer_period",
    "attn_layer_offset",
    "attn_layer_indices",
    "hybrid_layer_ids",
    "block_types",
    "attn_type_list",
];

/// The config and its text part.
fn parts(config: &Value) -> impl Iterator<Item = &Value> {
    std::iter::once(config).chain(config.get("text_config"))
}

/// A field, unless absent or `null`.
fn present<'a>(part: &'a Value, field: &str) -> Option<&'a Value> {
    part.get(field).filter(|value| !value.is_null())
}

/// Refuses models of whose layers only some attend, by a field that says which.
pub(super) fn refuse_other_layers(config: &Value) -> Result<(), Problem> {
    for part in parts(config) {
        for field in OTHER_LAYERS {
            if present(part, field).is_some() {
                let what = format!("{field}: which layers keep keys and values is not known");
                return Err(Problem::Unsupported(what));
            }
        }
        let shares_heads = present(part, "multi_query") == Some(&Value::Bool(true));
        if shares_heads && present(part, "num_key_value_heads").is_none() {
            let what = "multi_query = true without num_key_value_heads".to_owned();
            return Err(Problem::Unsupported(what));
        }
    }
    Ok(())
}

/// Refuses what is no object, and counts that are none or too large by the name of their field.
pub(super) fn check_counts(config: &Value) -> Result<(), Problem> {
    if !config.is_object() {
        let error = serde::de::Error::custom("a value of another kind than an object");
        return Err(Problem::Json(error));
    }
    for part in parts(config) {
        for field in COUNTS {
            // Where layers are listed nothing is read from it: EXAONE 4's is `LLLG`.
            if field == PATTERN && present(part, "layer_types").is_some() {
                continue;
            }
            let value = present(part, field);
            let is_count = |value: &Value| value.as_u64().is_some_and(|n| n <= u32::MAX.into());
            if let Some(value) = value.filter(|value| !is_count(value)) {
                let expected = "a whole number up to 4294967295";
                return Err(Problem::Field(field, value.to_string(), expected));
            }
        }
    }
    Ok(())
}
