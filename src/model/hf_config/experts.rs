//! Which layers of Qwen3-MoE have experts in place of an MLP, and of what shape.

use serde_json::Value;

use super::asks_for;
use crate::model::fields::{Fields, short};
use crate::model::{ExpertsConfig, LayerConfig, ModelError};

/// The number of experts, in the order in which it is looked for.
pub(super) const COUNTS: [&str; 2] = ["num_experts", "num_local_experts"];

/// Settings of other mixtures, which change what a layer gives; allowed only when absent, `null`,
/// `false`, 0 or empty.
const REFUSED: [&str; 9] = [
    "n_shared_experts",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "first_k_dense_replace",
    "n_routed_experts",
    "moe_router_use_bias",
    "use_routing_bias",
    "zero_expert_num",
];

/// Settings of other mixtures that change nothing at 1.
const REFUSED_UNLESS_ONE: [&str; 5] = [
    "n_group",
    "topk_group",
    "num_expert_group",
    "moe_layer_freq",
    "routed_scaling_factor",
];

/// Most experts of a layer; more than any model has, and a guard against a config that would list
/// tensors for ever.
pub(crate) const MOST_EXPERTS: usize = 1024;

/// Gives the layers of a config their experts.
///
/// # Errors
/// Names the field that is wrong or asks for what is not applied.
pub(super) fn add(fields: Fields<'_>, layers: &mut [LayerConfig]) -> Result<(), ModelError> {
    refuse_unapplied(fields)?;
    let or = |name, default| match fields.get(name) {
        Some(_) => fields.required_usize(name),
        None => Ok(default),
    };
    let experts = count(fields)?;
    let shape = ExpertsConfig {
        experts,
        chosen: or("num_experts_per_tok", 8)?,
        intermediate_size: or("moe_intermediate_size", 768)?,
        renormalised: fields.bool("norm_topk_prob")?.unwrap_or(false),
        beside_mlp: false,
    };
    let step = or("decoder_sparse_step", 1)?;
    let dense = listed(fields, "mlp_only_layers", layers.len())?;
    // A model without experts is written with 0 of them.
    if experts == 0 {
        return Ok(());
    }
    if experts > MOST_EXPERTS {
        return Err(fields.wrong(name(fields), experts, format!("at most {MOST_EXPERTS}")));
    }
    if shape.chosen > experts {
        let expected = format!("at most the {experts} experts of a layer");
        return Err(fields.wrong("num_experts_per_tok", shape.chosen, expected));
    }
    for (number, layer) in layers.iter_mut().enumerate() {
        let is_sparse = !dense.contains(&number) && (number + 1).is_multiple_of(step);
        layer.experts = is_sparse.then_some(shape);
    }
    Ok(())
}

/// Refuses what no mixture of experts here applies.
pub(super) fn refuse_unapplied(fields: Fields<'_>) -> Result<(), ModelError> {
    let mut refused = REFUSED.iter();
    if let Some(name) = refused.find(|name| asks_for(fields.get(name))) {
        return Err(fields.unsupported(name));
    }
    for name in REFUSED_UNLESS_ONE {
        if asks_for(fields.get(name)) && fields.f64(name)? != Some(1.0) {
            return Err(fields.unsupported_beside(name, 1));
        }
    }
    for (name, applied) in [("scoring_func", "softmax"), ("topk_method", "greedy")] {
        if fields.str(name)?.is_some_and(|value| value != applied) {
            return Err(fields.unsupported_beside(name, applied));
        }
    }
    Ok(())
}

/// The field that says how many experts there are.
fn name(fields: Fields<'_>) -> &'static str {
    let named = COUNTS.into_iter().find(|name| fields.get(name).is_some());
    named.unwrap_or(COUNTS[0])
}

/// Experts of a layer, by either of two names.
fn count(fields: Fields<'_>) -> Result<usize, ModelError> {
    let [first, second] = COUNTS;
    match (fields.usize(first)?, fields.usize(second)?) {
        (Some(experts), Some(other)) if experts != other => {
            Err(fields.wrong(second, other, format!("{experts}, as {first} says")))
        }
        (experts, other) => Ok(experts.or(other).unwrap_or(128)),
    }
}

/// Numbers of layers below `count`.
fn listed(fields: Fields<'_>, name: &str, count: usize) -> Result<Vec<usize>, ModelError> {
    let Some(value) = fields.get(name) else {
        return Ok(Vec::new());
    };
    let number = |value: &Value| {
        let number = usize::try_from(value.as_u64()?).ok()?;
        (number < count).then_some(number)
    };
    let numbers = value
        .as_array()
        .and_then(|list| list.iter().map(number).collect());
    numbers.ok_or_else(|| {
        let expected = format!("a list of numbers of layers below {count}");
        fields.wrong(name, short(value), expected)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::{ExpertsConfig, ModelConfig, ModelError, hf_config};

    fn with(changes: Value) -> Result<ModelConfig, ModelError> {
        let mut value = json!({
            "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
            "max_position_embeddings": 512, "dtype": "bfloat16", "num_experts": 16,
            "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": true,
        });
        if let (Some(map), Value::Object(changes)) = (value.as_object_mut(), changes) {
            map.extend(changes);
        }
        hf_config::parse_config("config.json", value.to_string().as_bytes())
    }

    fn sparse(changes: Value) -> Vec<usize> {
        let layers = with(changes).unwrap().layers.into_iter().enumerate();
        let with_experts = layers.filter(|(_, layer)| layer.experts.is_some());
        with_experts.map(|(number, _)| number).collect()
    }

    #[test]
    fn layers_have_the_experts_that_the_config_says() {
        let config = with(json!({})).unwrap();
        let expected = ExpertsConfig {
            experts: 16,
            chosen: 3,
            intermediate_size: 24,
            renormalised: true,
            beside_mlp: false,
        };
        assert!(
            config
                .layers
                .iter()
                .all(|layer| layer.experts == Some(expected))
        );
        assert_eq!(config.layers[0].head_dim, 16);
        assert!(config.qk_norm && config.dense_width() == 0);
        let other = json!({"num_experts": null, "num_local_experts": 5, "norm_topk_prob": null});
        let shape = with(other).unwrap().layers[0].experts.unwrap();
        assert_eq!((shape.experts, shape.renormalised), (5, false));
    }

    #[test]
    fn layers_without_experts_are_those_of_steps_and_lists() {
        assert_eq!(sparse(json!({"decoder_sparse_step": 2})), [1, 3]);
        assert_eq!(sparse(json!({"mlp_only_layers": [0, 2]})), [1, 3]);
        assert_eq!(
            sparse(json!({"mlp_only_layers": [3], "decoder_sparse_step": 2})),
            [1]
        );
        assert_eq!(sparse(json!({"num_experts": 0})), [0; 0]);
        let config = with(json!({"mlp_only_layers": [1]})).unwrap();
        assert_eq!(config.dense_width(), 96);
    }

    #[test]
    fn a_window_is_one_of_all_layers() {
        let config = with(json!({"use_sliding_window": true, "sliding_window": 20}));
        let windows = config.unwrap().layers.into_iter().map(|layer| layer.window);
        assert!(windows.eq([Some(20); 4]));
        let config = with(json!({"sliding_window": 20, "max_window_layers": 2}));
        assert!(
            config
                .unwrap()
                .layers
                .iter()
                .all(|layer| layer.window.is_none())
        );
    }

    #[test]
    fn what_is_not_applied_or_wrong_is_named() {
        for (changes, expected) in [
            (
                json!({"n_shared_experts": 1}),
                "unsupported: n_shared_experts = 1",
            ),
            (
                json!({"shared_expert_intermediate_size": 512}),
                "unsupported: shared_expert_intermediate_size = 512",
            ),
            (
                json!({"scoring_func": "sigmoid"}),
                "unsupported: scoring_func = \"sigmoid\"",
            ),
            (json!({"n_group": 4}), "unsupported: n_group = 4"),
            (
                json!({"routed_scaling_factor": 2.5}),
                "unsupported: routed_scaling_factor = 2.5",
            ),
            (
                json!({"num_experts_per_tok": 17}),
                "field `num_experts_per_tok`: found 17, expected at most the 16 experts of a layer",
            ),
            (
                json!({"num_local_experts": 8}),
                "field `num_local_experts`: found 8, expected 16, as num_experts says",
            ),
            (
                json!({"num_experts": 5000}),
                "field `num_experts`: found 5000, expected at most 1024",
            ),
            (
                json!({"decoder_sparse_step": 0}),
                "field `decoder_sparse_step`: found 0",
            ),
            (
                json!({"mlp_only_layers": [4]}),
                "field `mlp_only_layers`: found [4], expected a list",
            ),
        ] {
            let message = with(changes).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        assert!(with(json!({"n_group": 1, "routed_scaling_factor": 1.0})).is_ok());
    }

    #[test]
    fn other_families_have_no_experts() {
        let message = with(json!({"model_type": "qwen3", "architectures": null}));
        let message = message.unwrap_err().to_string();
        assert!(
            message.contains("unsupported: num_experts = 16"),
            "{message}"
        );
    }
}
