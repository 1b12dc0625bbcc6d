//! `config.json` of a Hugging Face checkpoint, with that library's defaults where it has any.

mod dtype;
mod experts;
mod family;
mod gemma4;
mod layers;
mod penalties;
mod recurrent;
pub(crate) mod rope;
mod suppressed;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::{Map, Value};

use crate::backend::Activation;

use super::fields::{Fields, parse_object};
use super::quantised;
use super::regular::read_file;
use super::{Family, LayerConfig, ModelConfig, ModelError};
pub(crate) use dtype::dtype;
use dtype::{native, round};
use family::{Decoder, Defaults};
pub(crate) use penalties::penalties;
pub(crate) use suppressed::suppressed;

/// What products of queries and keys are scaled by in Gemma 3 where the config names nothing: the
/// square root of this divides them.
const QUERY_PRE_ATTN_SCALAR: f64 = 256.0;

/// More layers than any model has; a guard against a config that would list tensors for ever.
pub(crate) const MAX_LAYERS: usize = 1024;

/// Wider heads than any model has; a guard against tables without end.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Fields that change the forward pass in ways that are not applied; allowed only when absent,
/// `null`, `false`, 0 or empty.
const REFUSED: [&str; 13] = [
    "use_bidirectional_attention",
    "num_kv_shared_layers",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "no_rope_layers",
    "use_qk_norm",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
];

/// Fields of models whose cache is not keys and values of each layer's own.
const OTHER_CACHES: [&str; 2] = ["kv_lora_rank", "num_kv_shared_layers"];

/// Configs of this binary, by name: what a bench knows without a file.
const SHAPES: [(&str, &str); 1] = [("qwen3-8b", include_str!("shapes/qwen3-8b.json"))];

/// The config of a built-in shape; `None` for a name that is not one.
///
/// # Errors
/// As [`read_config`].
pub fn builtin_shape(name: &str) -> Option<Result<ModelConfig, ModelError>> {
    let (name, text) = SHAPES.iter().find(|(known, _)| *known == name)?;
    Some(parse_config(name, text.as_bytes()))
}

/// Reads `config.json`.
///
/// # Errors
/// [`ModelError::Invalid`] for a missing or wrong field, [`ModelError::Unsupported`] for another
/// architecture or a setting that is not applied; both name file and field.
pub fn read_config(path: &Path) -> Result<ModelConfig, ModelError> {
    let text = read_file(path)?;
    parse_config(&path.display().to_string(), &text)
}

/// Reads the text of a `config.json`; `path` is for messages.
pub(crate) fn parse_config(path: &str, text: &[u8]) -> Result<ModelConfig, ModelError> {
    let map: Map<String, Value> = parse_object(path, text)?;
    let outer = Fields::new(path, &map);
    let Decoder {
        family,
        defaults,
        fields,
        text_part_of,
    } = family::decoder(outer)?;
    let gemma = matches!(family, Family::Gemma3 | Family::Gemma4);
    for part in [outer, fields] {
        refuse_unapplied(part, family)?;
    }
    if family == Family::Gemma4 {
        gemma4::refuse_unapplied(fields, defaults)?;
    }
    // How weights are stored is read beside them; what is not applied is refused here already.
    quantised::of_config(outer)?;
    let activation = activation(fields, family)?;
    let or = |name: &str, default: Option<usize>| match (default, fields.get(name)) {
        (Some(default), None) => Ok(default),
        _ => fields.required_usize(name),
    };
    let hidden_size = fields.required_usize("hidden_size")?;
    let context = or("max_position_embeddings", defaults.context)?;
    let mut layers = layer_configs(fields, family, defaults)?;
    match family {
        Family::Qwen3Moe => experts::add(fields, &mut layers)?,
        Family::Gemma4 => gemma4::add_experts(fields, &mut layers)?,
        _ => {}
    }
    let with_heads = layers.iter().find(|layer| layer.recurrent.is_none());
    let head_dim = with_heads.unwrap_or(&layers[0]).head_dim;
    let attention_bias = fields.bool("attention_bias")?.unwrap_or(false);
    if attention_bias && has_no_bias(family) {
        return Err(fields.unsupported_beside("attention_bias", "false"));
    }
    let dtype = dtype(&[fields, outer])?;
    let config = ModelConfig {
        family,
        layers,
        hidden_size,
        intermediate_size: or("intermediate_size", defaults.intermediate_size)?,
        vocab_size: or("vocab_size", defaults.vocab_size)?,
        context,
        rms_norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(defaults.epsilon) as f32,
        ropes: rope::ropes(fields, family, context, head_dim)?,
        qkv_bias: attention_bias || family == Family::Qwen2,
        attention_output_bias: attention_bias && family != Family::Qwen2,
        mlp_bias: family == Family::Llama && fields.bool("mlp_bias")?.unwrap_or(false),
        qk_norm: gemma || matches!(family, Family::Qwen3 | Family::Qwen3Moe | Family::Qwen35),
        attention_gate: family == Family::Qwen35,
        fused_projections: family == Family::Phi3,
        output_norms: gemma,
        norms_less_one: matches!(family, Family::Gemma3 | Family::Qwen35),
        value_norm: family == Family::Gemma4,
        layer_scalars: family == Family::Gemma4,
        logit_cap: match gemma {
            true => fields
                .positive("final_logit_softcapping")?
                .map(|cap| cap as f32),
            false => None,
        },
        activation,
        embedding_scale: gemma.then(|| round(dtype, (hidden_size as f64).sqrt() as f32)),
        tied_embeddings: tied_embeddings(fields, outer)?.unwrap_or(defaults.tied),
        native_dtype: native(dtype),
        suppressed: Vec::new(),
        penalties: Vec::new(),
        text_part_of,
    };
    check_geometry(path, &config.layers)?;
    let settings = format!("field `{}`", rope::settings_field(fields));
    rope::check_ropes(path, &settings, &config)?;
    Ok(config)
}

/// What the layers of a config of a known family are, with that family's defaults, whatever else
/// it asks for; `None` for another family, and for a cache other than keys and values per layer.
///
/// # Errors
/// As [`read_config`], for the fields on which layers depend.
pub(crate) fn layer_geometry(
    path: &str,
    text: &[u8],
) -> Result<Option<Vec<LayerConfig>>, ModelError> {
    // Text that is no object is named by who reads every family.
    let Ok(map) = parse_object(path, text) else {
        return Ok(None);
    };
    let Ok(decoder) = family::decoder(Fields::new(path, &map)) else {
        return Ok(None);
    };
    let Decoder {
        family,
        defaults,
        fields,
        ..
    } = decoder;
    if OTHER_CACHES.iter().any(|name| asks_for(fields.get(name))) {
        return Ok(None);
    }
    let layers = layer_configs(fields, family, defaults)?;
    check_geometry(path, &layers)?;
    Ok(Some(layers))
}

/// Heads and windows of every layer; there is at least one.
fn layer_configs(
    fields: Fields<'_>,
    family: Family,
    defaults: Defaults,
) -> Result<Vec<LayerConfig>, ModelError> {
    let heads = match (defaults.heads, fields.get("num_attention_heads")) {
        (Some(heads), None) => heads,
        _ => fields.required_usize("num_attention_heads")?,
    };
    let kv_heads = match fields.usize("num_key_value_heads")? {
        Some(kv_heads) => kv_heads,
        // What `null` says.
        None if !fields.is_absent("num_key_value_heads") => heads,
        None => defaults.kv_heads.unwrap_or(heads),
    };
    let head_dim = head_dim(fields, defaults, heads)?;
    let mut layer = LayerConfig::new(heads, kv_heads, head_dim);
    if family == Family::Gemma3 {
        let scalar = fields.positive("query_pre_attn_scalar")?;
        layer.score_divisor = scalar.unwrap_or(QUERY_PRE_ATTN_SCALAR).sqrt() as f32;
    }
    let count = layer_count(fields)?;
    if family == Family::Qwen35 {
        return recurrent::layers(fields, layer, count);
    }
    if family == Family::Gemma4 {
        return gemma4::layers(fields, defaults, layer, count);
    }
    let windows = layers::windows(fields, family, defaults, count)?;
    let layers = windows.into_iter().map(|window| LayerConfig {
        window,
        // Layers with a window have a rotary embedding of their own in Gemma only.
        rope: usize::from(family == Family::Gemma3 && window.is_some()),
        ..layer
    });
    Ok(layers.collect())
}

/// Families without biases in attention, whatever their configs say.
fn has_no_bias(family: Family) -> bool {
    matches!(
        family,
        Family::Phi3 | Family::Mistral | Family::Ministral3 | Family::Qwen35
    )
}

/// One id or a list of ids.
pub(crate) fn token_ids(value: &Value) -> Option<Vec<u32>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().map(id).collect(),
        single => Some(vec![id(single)?]),
    }
}

/// Checks what the forward pass relies on: whole query groups and an even head width.
pub(crate) fn check_geometry(path: &str, layers: &[LayerConfig]) -> Result<(), ModelError> {
    for layer in layers.iter().filter(|layer| layer.recurrent.is_none()) {
        let LayerConfig {
            heads,
            kv_heads,
            head_dim,
            ..
        } = *layer;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::invalid(
                path,
                "key/value heads",
                kv_heads,
                format!("a divisor of the {heads} query heads"),
            ));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
            let expected = format!("an even number from 2 to {MAX_HEAD_DIM}");
            return Err(ModelError::invalid(path, "head_dim", head_dim, expected));
        }
    }
    Ok(())
}

/// Decoder layers, of which no model has as many as would take long to list.
fn layer_count(fields: Fields<'_>) -> Result<usize, ModelError> {
    let layers = fields.required_usize("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        let expected = format!("at most {MAX_LAYERS}");
        return Err(fields.wrong("num_hidden_layers", layers, expected));
    }
    Ok(layers)
}

fn refuse_unapplied(fields: Fields<'_>, family: Family) -> Result<(), ModelError> {
    let applied: &[&str] = match family {
        Family::Gemma3 => &["final_logit_softcapping"],
        Family::Gemma4 => &[
            "final_logit_softcapping",
            "use_bidirectional_attention",
            "num_experts",
        ],
        Family::Qwen3Moe => &experts::COUNTS,
        _ => &[],
    };
    let mut refused = REFUSED.iter().filter(|name| !applied.contains(name));
    match refused.find(|name| asks_for(fields.get(name))) {
        Some(name) => Err(fields.unsupported(name)),
        None => Ok(()),
    }
}

/// Activation of the MLP's gate.
fn activation(fields: Fields<'_>, family: Family) -> Result<Activation, ModelError> {
    // The others' name has no effect in Gemma.
    let (field, default) = match family {
        Family::Gemma3 | Family::Gemma4 => ("hidden_activation", Activation::GeluTanh),
        _ => ("hidden_act", Activation::Silu),
    };
    match fields.str(field)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(_) => Err(fields.unsupported_beside(field, "silu, swish, gelu_pytorch_tanh")),
    }
}

/// Whether a field's value switches something on.
fn asks_for(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Bool(true) | Value::String(_)) => true,
    }
}

/// What the config of a multimodal checkpoint and that of its text part say, who have to agree.
fn tied_embeddings(text: Fields<'_>, outer: Fields<'_>) -> Result<Option<bool>, ModelError> {
    let name = "tie_word_embeddings";
    match (text.bool(name)?, outer.bool(name)?) {
        (Some(text), Some(outer_says)) if text != outer_says => {
            let expected = format!("{text}, as in text_config");
            Err(outer.wrong(name, outer_says, expected))
        }
        (text, outer) => Ok(text.or(outer)),
    }
}

fn head_dim(fields: Fields<'_>, defaults: Defaults, heads: usize) -> Result<usize, ModelError> {
    if let Some(head_dim) = fields.usize("head_dim")? {
        return Ok(head_dim);
    }
    if let Some(head_dim) = defaults.head_dim {
        return Ok(head_dim);
    }
    let hidden_size = fields.required_usize("hidden_size")?;
    if !hidden_size.is_multiple_of(heads) {
        let expected = format!("a multiple of num_attention_heads = {heads}");
        return Err(fields.wrong("hidden_size", hidden_size, expected));
    }
    Ok(hidden_size / heads)
}
