//! `config.json` of a Hugging Face checkpoint, with that library's defaults where it has any.

pub(crate) mod rope;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde_json::{Map, Value};

use crate::backend::Activation;
use crate::recipe::NativeDtype;

use super::fields::{Fields, parse_object, short};
use super::{Family, LayerConfig, ModelConfig, ModelError, quantised};

/// Head width of Qwen3 where its config names none.
const QWEN3_HEAD_DIM: usize = 128;

/// Epsilon of every RMSNorm where the config names none.
const RMS_NORM_EPS: f64 = 1e-6;

/// More layers than any model has; a guard against a config that would list tensors for ever.
pub(crate) const MAX_LAYERS: usize = 1024;

/// Fields that change the forward pass in ways that are not applied; allowed only when absent,
/// `null`, `false`, 0 or empty.
const REFUSED: [&str; 12] = [
    "use_sliding_window",
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

/// Masks of some positions only, which are not applied.
const CONDITIONAL_MASKS: [&str; 2] = ["begin_suppress_tokens", "bad_words_ids"];

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
    let text = std::fs::read(path).map_err(|e| ModelError::io(path.display(), e))?;
    parse_config(&path.display().to_string(), &text)
}

/// Reads the text of a `config.json`; `path` is for messages.
pub(crate) fn parse_config(path: &str, text: &[u8]) -> Result<ModelConfig, ModelError> {
    let map: Map<String, Value> = parse_object(path, text)?;
    let fields = Fields::new(path, &map);
    let family = family(fields)?;
    refuse_unapplied(fields, family)?;
    // How weights are stored is read beside them; what is not applied is refused here already.
    quantised::of_config(fields)?;
    let heads = fields.required_usize("num_attention_heads")?;
    let hidden_size = fields.required_usize("hidden_size")?;
    let context = fields.required_usize("max_position_embeddings")?;
    let attention_bias = fields.bool("attention_bias")?.unwrap_or(false);
    let layer = LayerConfig::new(
        heads,
        fields.usize("num_key_value_heads")?.unwrap_or(heads),
        head_dim(fields, family, hidden_size, heads)?,
    );
    let config = ModelConfig {
        family,
        layers: vec![layer; layer_count(fields)?],
        hidden_size,
        intermediate_size: fields.required_usize("intermediate_size")?,
        vocab_size: fields.required_usize("vocab_size")?,
        context,
        rms_norm_eps: fields.positive("rms_norm_eps")?.unwrap_or(RMS_NORM_EPS) as f32,
        ropes: vec![rope::rope(fields, context)?],
        qkv_bias: attention_bias || family == Family::Qwen2,
        attention_output_bias: attention_bias && family != Family::Qwen2,
        mlp_bias: family == Family::Llama && fields.bool("mlp_bias")?.unwrap_or(false),
        qk_norm: family == Family::Qwen3,
        fused_projections: false,
        output_norms: false,
        norms_less_one: false,
        activation: Activation::Silu,
        embedding_scale: None,
        text_part_of: None,
        tied_embeddings: fields.bool("tie_word_embeddings")?.unwrap_or(false),
        native_dtype: native_dtype(fields)?,
        suppressed: Vec::new(),
    };
    check_geometry(path, &config)?;
    Ok(config)
}

/// Tokens that a checkpoint declares as never to be generated: `suppress_tokens` of
/// `generation_config.json`, else of `config.json` (path and text of each, where there is one).
///
/// # Errors
/// Names an id that is none or lies outside the vocabulary; [`ModelError::Unsupported`] for masks
/// that depend on what was generated before.
pub(crate) fn suppressed(
    files: [(&str, Option<&[u8]>); 2],
    vocab_size: usize,
) -> Result<Vec<u32>, ModelError> {
    let mut suppressed = None;
    for (path, text) in files {
        let Some(text) = text else { continue };
        let map = parse_object(path, text)?;
        let fields = Fields::new(path, &map);
        if let Some(name) = CONDITIONAL_MASKS
            .iter()
            .find(|name| asks_for(fields.get(name)))
        {
            return Err(fields.unsupported(name));
        }
        let (None, Some(value)) = (&suppressed, fields.get("suppress_tokens")) else {
            continue;
        };
        let wrong = || {
            let expected = format!("token ids below the vocabulary of {vocab_size}");
            fields.wrong("suppress_tokens", short(value), expected)
        };
        let mut ids = token_ids(value).ok_or_else(wrong)?;
        if let Some(&foreign) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            let expected = format!("ids below the vocabulary of {vocab_size}");
            return Err(fields.wrong("suppress_tokens", foreign, expected));
        }
        ids.sort_unstable();
        ids.dedup();
        suppressed = Some(ids);
    }
    Ok(suppressed.unwrap_or_default())
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
pub(crate) fn check_geometry(path: &str, config: &ModelConfig) -> Result<(), ModelError> {
    for layer in &config.layers {
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
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(ModelError::invalid(
                path,
                "head_dim",
                head_dim,
                "an even number above 0",
            ));
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

fn family(fields: Fields<'_>) -> Result<Family, ModelError> {
    let known = "`llama`, `qwen2` or `qwen3`";
    let name = fields
        .str("model_type")?
        .ok_or_else(|| fields.missing("model_type", known))?;
    let (family, architecture) = match name {
        "llama" => (Family::Llama, "LlamaForCausalLM"),
        "qwen2" => (Family::Qwen2, "Qwen2ForCausalLM"),
        "qwen3" => (Family::Qwen3, "Qwen3ForCausalLM"),
        _ => return Err(fields.unsupported("model_type")),
    };
    match fields.get("architectures") {
        Some(Value::Array(list)) if list.iter().any(|one| one != architecture) => {
            Err(fields.unsupported("architectures"))
        }
        _ => Ok(family),
    }
}

fn refuse_unapplied(fields: Fields<'_>, family: Family) -> Result<(), ModelError> {
    if let Some(name) = REFUSED.iter().find(|name| asks_for(fields.get(name))) {
        return Err(fields.unsupported(name));
    }
    // Qwen configs keep a `sliding_window` that `use_sliding_window: false` switches off; a Llama
    // config has no such switch.
    if family == Family::Llama && asks_for(fields.get("sliding_window")) {
        return Err(fields.unsupported("sliding_window"));
    }
    if let Some(types) = fields.get("layer_types") {
        let list = types
            .as_array()
            .ok_or_else(|| fields.wrong("layer_types", short(types), "a list"))?;
        if list.iter().any(|one| one != "full_attention") {
            return Err(fields.unsupported("layer_types"));
        }
    }
    match fields.str("hidden_act")? {
        None | Some("silu") => Ok(()),
        Some(_) => Err(fields.unsupported("hidden_act")),
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

fn head_dim(
    fields: Fields<'_>,
    family: Family,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, ModelError> {
    if let Some(head_dim) = fields.usize("head_dim")? {
        return Ok(head_dim);
    }
    if family == Family::Qwen3 {
        return Ok(QWEN3_HEAD_DIM);
    }
    if !hidden_size.is_multiple_of(heads) {
        let expected = format!("a multiple of num_attention_heads = {heads}");
        return Err(fields.wrong("hidden_size", hidden_size, expected));
    }
    Ok(hidden_size / heads)
}

fn native_dtype(fields: Fields<'_>) -> Result<NativeDtype, ModelError> {
    let (field, name) = match (fields.str("dtype")?, fields.str("torch_dtype")?) {
        (Some(name), _) => ("dtype", name),
        (None, Some(name)) => ("torch_dtype", name),
        (None, None) => {
            let expected = "`float16`, `bfloat16` or `float32` (also as `dtype`)";
            return Err(fields.missing("torch_dtype", expected));
        }
    };
    match name {
        // Checkpoints in 32-bit floats have no 16-bit format of their own: their native cache
        // is the more precise of the two.
        "float16" | "float32" => Ok(NativeDtype::F16),
        "bfloat16" => Ok(NativeDtype::Bf16),
        _ => Err(fields.unsupported(field)),
    }
}
