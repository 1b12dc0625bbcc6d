//! Which layers of Qwen3.5 keep a recurrent state, and of what size.

use crate::backend::RecurrentLayer;
use crate::model::fields::{Fields, short};
use crate::model::{LayerConfig, ModelError};

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
    let Some(types) = fields.get("layer_types") else {
        let interval = fields.usize("full_attention_interval")?.unwrap_or(INTERVAL);
        if interval == 0 {
            return Err(fields.wrong("full_attention_interval", 0, "a number above 0"));
        }
        let kinds = (0..count).map(|layer| (layer + 1).is_multiple_of(interval));
        return Ok(kinds.map(of).collect());
    };
    let wrong = || {
        let expected = format!("a list of {count} kinds of layers");
        fields.wrong("layer_types", short(types), expected)
    };
    let list = types
        .as_array()
        .filter(|list| list.len() == count)
        .ok_or_else(wrong)?;
    list.iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention") => Ok(of(true)),
            Some("linear_attention") => Ok(of(false)),
            Some(_) => Err(fields.unsupported("layer_types")),
            None => Err(wrong()),
        })
        .collect()
}

/// Settings that other checkpoints of the kind could have.
fn refuse_unapplied(fields: Fields<'_>) -> Result<(), ModelError> {
    // A convolution is followed by the same activation as the MLP's gate.
    if fields.str("hidden_act")?.is_some_and(|name| name != "silu") {
        return Err(fields.unsupported("hidden_act"));
    }
    if fields.bool("attn_output_gate")? == Some(false) {
        return Err(fields.unsupported("attn_output_gate"));
    }
    match fields.str("mamba_ssm_dtype")? {
        None | Some("float32") => Ok(()),
        Some(_) => Err(fields.unsupported("mamba_ssm_dtype")),
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
