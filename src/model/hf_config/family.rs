//! What families take for granted, and which part of a config describes the decoder.

use std::borrow::Cow;

use serde_json::Value;

use crate::model::fields::Fields;
use crate::model::{Family, ModelError};

/// `model_type` and architecture of every family.
const KNOWN: [(&str, &str, Family); 12] = [
    ("llama", "LlamaForCausalLM", Family::Llama),
    ("qwen2", "Qwen2ForCausalLM", Family::Qwen2),
    ("qwen3", "Qwen3ForCausalLM", Family::Qwen3),
    ("qwen3_moe", "Qwen3MoeForCausalLM", Family::Qwen3Moe),
    ("qwen3_5_text", "Qwen3_5ForCausalLM", Family::Qwen35),
    ("phi3", "Phi3ForCausalLM", Family::Phi3),
    ("mistral", "MistralForCausalLM", Family::Mistral),
    ("ministral3", "Ministral3ForCausalLM", Family::Ministral3),
    ("gemma3_text", "Gemma3ForCausalLM", Family::Gemma3),
    // What the text part of a multimodal Gemma 3 is called where it is stored alone.
    ("gemma3", "Gemma3ForCausalLM", Family::Gemma3),
    ("gemma4_text", "Gemma4ForCausalLM", Family::Gemma4),
    (UNIFIED, "Gemma4UnifiedForCausalLM", Family::Gemma4),
];

/// Gemma 4 that takes in other media without towers of their own: the same decoder with other
/// defaults.
const UNIFIED: &str = "gemma4_unified_text";

/// Multimodal models whose text part is read: `model_type`, architecture, and the type of a text
/// part that names none.
const MULTIMODAL: [(&str, &str, &str); 5] = [
    ("mistral3", "Mistral3ForConditionalGeneration", "mistral"),
    ("gemma3", "Gemma3ForConditionalGeneration", "gemma3_text"),
    ("gemma4", "Gemma4ForConditionalGeneration", "gemma4_text"),
    (
        "gemma4_unified",
        "Gemma4UnifiedForConditionalGeneration",
        UNIFIED,
    ),
    ("qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text"),
];

/// Values of fields that a config leaves out, as the library that writes it has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// Query heads.
    pub heads: Option<usize>,
    /// Key/value heads; where there is no default, as many as query heads.
    pub kv_heads: Option<usize>,
    /// Elements per head vector; where there is no default, what the hidden size gives.
    pub head_dim: Option<usize>,
    /// Width of the gated MLP.
    pub intermediate_size: Option<usize>,
    /// Vocabulary.
    pub vocab_size: Option<usize>,
    /// Context.
    pub context: Option<usize>,
    /// Epsilon of every RMSNorm.
    pub epsilon: f64,
    /// Window; 0 for none.
    pub window: usize,
    /// Whether the output projection is the embedding.
    pub tied: bool,
    /// Width of what every layer takes in of a token beside the residual stream; 0 for nothing.
    pub layer_input: usize,
}

/// The defaults of a family.
fn defaults(family: Family) -> Defaults {
    let common = Defaults {
        heads: None,
        kv_heads: None,
        head_dim: None,
        intermediate_size: None,
        vocab_size: None,
        context: None,
        epsilon: 1e-6,
        window: 0,
        tied: false,
        layer_input: 0,
    };
    match family {
        Family::Llama => common,
        Family::Qwen2 => Defaults {
            window: 4096,
            ..common
        },
        Family::Qwen3 => Defaults {
            head_dim: Some(128),
            window: 4096,
            ..common
        },
        Family::Qwen3Moe => Defaults {
            heads: Some(32),
            kv_heads: Some(4),
            intermediate_size: Some(6144),
            vocab_size: Some(151_936),
            context: Some(32_768),
            window: 4096,
            ..common
        },
        Family::Qwen35 => Defaults {
            heads: Some(16),
            kv_heads: Some(4),
            head_dim: Some(256),
            vocab_size: Some(248_320),
            context: Some(32_768),
            ..common
        },
        Family::Phi3 => Defaults {
            epsilon: 1e-5,
            ..common
        },
        Family::Mistral => Defaults {
            kv_heads: Some(8),
            window: 4096,
            ..common
        },
        Family::Ministral3 => Defaults {
            kv_heads: Some(8),
            head_dim: Some(128),
            epsilon: 1e-5,
            ..common
        },
        Family::Gemma3 => Defaults {
            heads: Some(8),
            kv_heads: Some(4),
            head_dim: Some(256),
            vocab_size: Some(262_208),
            context: Some(131_072),
            window: 4096,
            tied: true,
            ..common
        },
        Family::Gemma4 => Defaults {
            heads: Some(8),
            kv_heads: Some(4),
            head_dim: Some(256),
            vocab_size: Some(262_144),
            context: Some(131_072),
            window: 512,
            tied: true,
            layer_input: 256,
            ..common
        },
    }
}

/// The defaults of a `model_type`.
fn defaults_of(name: &str, family: Family) -> Defaults {
    let defaults = defaults(family);
    if name != UNIFIED {
        return defaults;
    }
    Defaults {
        context: Some(262_144),
        window: 1024,
        layer_input: 0,
        ..defaults
    }
}

/// The part of a config that describes the decoder.
pub(super) struct Decoder<'a> {
    /// Its family.
    pub family: Family,
    /// What it leaves out.
    pub defaults: Defaults,
    /// Its fields.
    pub fields: Fields<'a>,
    /// The multimodal model that it belongs to.
    pub text_part_of: Option<String>,
}

/// Finds the decoder in a config.
pub(super) fn decoder(fields: Fields<'_>) -> Result<Decoder<'_>, ModelError> {
    let name = fields
        .str("model_type")?
        .ok_or_else(|| fields.missing("model_type", known()))?;
    let multimodal = MULTIMODAL.iter().find(|(own, ..)| *own == name);
    let text = fields.object("text_config")?;
    let (Some((_, architecture, inner)), Some(text)) = (multimodal, text) else {
        let (_, architecture, family) = KNOWN
            .iter()
            .find(|(own, ..)| *own == name)
            .ok_or_else(|| fields.unsupported_beside("model_type", known()))?;
        check_architecture(fields, architecture)?;
        return Ok(Decoder {
            family: *family,
            defaults: defaults_of(name, *family),
            fields,
            text_part_of: None,
        });
    };
    check_architecture(fields, architecture)?;
    let inner = text.str("model_type")?.unwrap_or(inner);
    let (.., family) = KNOWN
        .iter()
        .find(|(own, ..)| *own == inner)
        .ok_or_else(|| text.unsupported_beside("model_type", decoders().join(", ")))?;
    Ok(Decoder {
        family: *family,
        defaults: defaults_of(inner, *family),
        fields: text,
        text_part_of: Some(name.to_owned()),
    })
}

/// Every `model_type` of a decoder, in words.
fn decoders() -> Vec<String> {
    let mut names: Vec<String> = KNOWN.iter().map(|(name, ..)| format!("`{name}`")).collect();
    names.dedup();
    names
}

/// Every `model_type`, in words.
fn known() -> Cow<'static, str> {
    let mut names = decoders();
    let whole = ["`mistral3`", "`gemma4`", "`gemma4_unified`", "`qwen3_5`"];
    names.extend(whole.map(str::to_owned));
    names.join(", ").into()
}

fn check_architecture(fields: Fields<'_>, architecture: &str) -> Result<(), ModelError> {
    match fields.get("architectures") {
        Some(Value::Array(list)) if list.iter().any(|one| one != architecture) => {
            Err(fields.unsupported_beside("architectures", architecture))
        }
        _ => Ok(()),
    }
}
