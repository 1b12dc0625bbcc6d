//! Which layers of Qwen3.5 keep a recurrent state, and of what size.

use crate::backend::RecurrentLayer;
use crate::model::fields::Fields;
use crate::model::{LayerConfig, ModelError};

use super::layers::{FULL, listed};

/// What the library calls layers with a recurrent state.
const LINEAR: &str = "linear_attention";

/// Every how many layers one has attention, where the config names no kinds.
const INTERVAL: usize = 4;

/// More elements than any state has; keeps products of sizes small.
const MOST_ELEMENTS: usize = 1 << 28;

/// The `count` layers, those with attention as `attention` says.
///
/// # Errors
/// Names the field that is wrong or asks for what is not applied.
pub(super) fn layers(
    fields: Fields<'_>,
    attention: LayerConfig,
    count: usize,
) -> Result<Vec<LayerConfig>, ModelError> {
    refuse_unapplied(fields)?;
    let recurrent = LayerConfig::recurrent(shape(fields)?);
    let of = |is_attention: bool| if is_attention { attention } else { recurrent };
    let listed = listed(fields, count, |entry| match entry.kind {
        FULL => Ok(of(true)),
        LINEAR => Ok(of(false)),
        _ => Err(entry.unsupported(format!("{FULL}, {LINEAR}"))),
    })?;
    if let Some(layers) = listed {
        if layers.iter().all(|layer| layer.recurrent.is_some()) {
            let found = format!("{LINEAR} in every layer");
            let expected = format!("{FULL} in at least one: without it there is no KV cache");
            return Err(fields.wrong("layer_types", found, expected));
        }
        return Ok(layers);
    }
    let name = "full_attention_interval";
    let interval = fields.usize(name)?.unwrap_or(INTERVAL);
    if interval == 0 {
        return Err(fields.wrong(name, 0, "a number above 0"));
    }
    if interval > count {
        let why = "else no layer has attention and there is no KV cache";
        return Err(match fields.get(name) {
            Some(_) => {
                let expected = format!("at most the {count} layers: {why}");
                fields.wrong(name, interval, expected)
            }
            None => {
                let expected = format!("at least {interval}, the default of {name}: {why}");
                fields.wrong("num_hidden_layers", count, expected)
            }
        });
    }
    let kinds = (0..count).map(|layer| (layer + 1).is_multiple_of(interval));
    Ok(kinds.map(of).collect())
}

/// Settings that other checkpoints of the kind could have.
fn refuse_unapplied(fields: Fields<'_>) -> Result<(), ModelError> {
    // A convolution is followed by the same activation as the MLP's gate.
    if fields.str("hidden_act")?.is_some_and(|name| name != "silu") {
        return Err(fields.unsupported_beside("hidden_act", "silu"));
    }
    if fields.bool("attn_output_gate")? == Some(false) {
        return Err(fields.unsupported_beside("attn_output_gate", "true"));
    }
    match fields.str("mamba_ssm_dtype")? {
        None | Some("float32") => Ok(()),
        Some(_) => Err(fields.unsupported_beside("mamba_ssm_dtype", "float32")),
    }
}

fn shape(fields: Fields<'_>) -> Result<RecurrentLayer, ModelError> {
    let or = |name, default| match fields.get(name) {
        Some(_) => fields.required_usize(name),
        None => Ok(default),
    };
    let shape = RecurrentLayer {
        key_heads: or("linear_num_key_heads", 16)?,
        value_heads: or("linear_num_value_heads", 32)?,
        key_dim: or("linear_key_head_dim", 128)?,
        value_dim: or("linear_value_head_dim", 128)?,
        kernel: or("linear_conv_kernel_dim", 4)?,
    };
    if !shape.value_heads.is_multiple_of(shape.key_heads) {
        let expected = format!("a multiple of linear_num_key_heads = {}", shape.key_heads);
        return Err(fields.wrong("linear_num_value_heads", shape.value_heads, expected));
    }
    let sides = [
        shape.value_heads,
        shape.key_dim,
        shape.value_dim,
        shape.kernel,
    ];
    let elements = sides
        .iter()
        .try_fold(1usize, |all, side| all.checked_mul(*side));
    if elements.is_none_or(|elements| elements > MOST_ELEMENTS) {
        let expected = format!("a state of at most {MOST_ELEMENTS} elements");
        return Err(fields.wrong("linear_num_value_heads", shape.value_heads, expected));
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::parse_config;
    use crate::model::{Family, ModelConfig, ModelError};

    fn with(changes: Value) -> Result<ModelConfig, ModelError> {
        let mut text = json!({
            "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 8, "hidden_act": "silu", "attn_output_gate": true,
            "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
        });
        let map = text.as_object_mut().unwrap();
        map.extend(changes.as_object().unwrap().clone());
        let whole = json!({"model_type": "qwen3_5", "torch_dtype": "bfloat16",
            "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text});
        parse_config("config.json", whole.to_string().as_bytes())
    }

    /// Numbers of the layers with attention.
    fn attention(config: &ModelConfig) -> Vec<usize> {
        let layers = config.layers.iter().enumerate();
        layers
            .filter_map(|(number, layer)| layer.recurrent.is_none().then_some(number))
            .collect()
    }

    #[test]
    fn a_sparse_config_has_the_defaults_of_the_9b() {
        let config = with(json!({})).unwrap();
        assert_eq!(config.family, Family::Qwen35);
        assert_eq!(config.text_part_of.as_deref(), Some("qwen3_5"));
        assert_eq!(attention(&config), [3, 7]);
        let [recurrent, layer] = [config.layers[0], config.layers[3]];
        assert_eq!((layer.heads, layer.kv_heads, layer.head_dim), (16, 4, 256));
        assert_eq!(config.ropes[0].rotated(256), 64);
        assert!(config.qk_norm && config.attention_gate && config.norms_less_one);
        let bytes = recurrent.recurrent.unwrap().bytes();
        assert_eq!(bytes, [32 * 128 * 128 * 4, 8192 * 3 * 2]);
        assert_eq!(recurrent.kv_width(), 0);
        assert_eq!(config.geometry().recurrent_layers, [0, 1, 2, 4, 5, 6]);
    }

    #[test]
    fn layers_are_those_of_the_list_or_the_interval() {
        let every_other = with(json!({"full_attention_interval": 2})).unwrap();
        assert_eq!(attention(&every_other), [1, 3, 5, 7]);
        let listed = with(json!({"num_hidden_layers": 2,
            "layer_types": ["full_attention", "linear_attention"]}));
        assert_eq!(attention(&listed.unwrap()), [0]);
    }

    #[test]
    fn a_model_without_attention_is_refused_for_that_reason() {
        for (changes, expected) in [
            (
                json!({"full_attention_interval": 100}),
                "field `full_attention_interval`: found 100, expected at most the 8 layers: else \
                 no layer has attention and there is no KV cache",
            ),
            (
                json!({"num_hidden_layers": 3}),
                "field `num_hidden_layers`: found 3, expected at least 4, the default of \
                 full_attention_interval: else no layer has attention and there is no KV cache",
            ),
            (
                json!({"num_hidden_layers": 1, "layer_types": ["linear_attention"]}),
                "field `layer_types`: found linear_attention in every layer, expected \
                 full_attention in at least one: without it there is no KV cache",
            ),
        ] {
            let text = with(changes).unwrap_err().to_string();
            assert_eq!(text, format!("config.json: {expected}"));
        }
    }

    #[test]
    fn what_is_not_applied_is_refused_and_what_is_wrong_is_named() {
        for (changes, named) in [
            (
                json!({"attn_output_gate": false}),
                "attn_output_gate = false",
            ),
            (json!({"mamba_ssm_dtype": "bfloat16"}), "mamba_ssm_dtype = "),
            (json!({"hidden_act": "gelu_pytorch_tanh"}), "hidden_act = "),
            (json!({"num_experts": 64}), "num_experts = 64"),
            (json!({"attention_bias": true}), "attention_bias = true"),
            (
                json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}),
                "layer_types[0] = \"sliding_attention\" (supported: full_attention, linear_attention)",
            ),
        ] {
            let text = with(changes).unwrap_err().to_string();
            let start = format!("config.json: unsupported: {named}");
            assert!(text.starts_with(&start), "{text}");
        }
        for changes in [
            json!({"full_attention_interval": 0}),
            json!({"full_attention_interval": 9}),
            json!({"num_hidden_layers": 3}),
            json!({"layer_types": ["full_attention"]}),
            json!({"linear_num_value_heads": 24}),
            json!({"linear_num_key_heads": 0}),
            json!({"linear_value_head_dim": 1u64 << 40}),
            json!({"partial_rotary_factor": 0.005}),
        ] {
            let result = with(changes.clone());
            assert!(
                matches!(result, Err(ModelError::Invalid { .. })),
                "{changes}: {result:?}"
            );
        }
    }
}
