//! The fields of a `config.json` on which it depends what layers keep.

mod refused;

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::GeometryError;
use crate::model::ModelError;
use crate::recipe::LayerState;
use refused::{PATTERN, check_counts, refuse_other_layers};

/// More layers than any model has; keeps sums over layers small.
const MOST_LAYERS: u32 = 10_000;

/// Every so many layers of these families attend to all tokens where the config lists no kinds.
const PATTERNS: [(&str, u32, Kind); 6] = [
    ("gemma2", 2, Kind::Sliding),
    ("gemma3", 6, Kind::Sliding),
    ("gemma4", 6, Kind::Sliding),
    ("cohere2", 4, Kind::Sliding),
    ("qwen3_next", 4, Kind::Recurrent),
    ("qwen3_5", 4, Kind::Recurrent),
];

/// Families whose heads have 256 elements where the config names no width.
const WIDE_HEADS: [&str; 5] = ["gemma2", "gemma3", "gemma4", "qwen3_next", "qwen3_5"];

/// Bytes of an element of a recurrent matrix, which stays in FP32.
const MATRIX_ELEMENT: u64 = 4;

/// Bytes of an element that a convolution looks back to, in the native format.
const CONVOLUTION_ELEMENT: u64 = 2;

/// The fields. Multimodal configs hold them in `text_config`.
#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
    num_hidden_layers: Option<u32>,
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    hidden_size: Option<u32>,
    kv_lora_rank: Option<u32>,
    num_kv_shared_layers: Option<u32>,
    sliding_window: Option<u32>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<u32>,
    sliding_window_pattern: Option<Value>,
    full_attention_interval: Option<u32>,
    layer_types: Option<Vec<String>>,
    global_head_dim: Option<u32>,
    num_global_key_value_heads: Option<u32>,
    attention_k_eq_v: Option<bool>,
    linear_num_value_heads: Option<u32>,
    linear_num_key_heads: Option<u32>,
    linear_key_head_dim: Option<u32>,
    linear_value_head_dim: Option<u32>,
    linear_conv_kernel_dim: Option<u32>,
    text_config: Option<Box<Config>>,
}

/// What a layer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Full,
    Sliding,
    Recurrent,
}

/// What is wrong, before the file is known.
#[derive(Debug)]
pub(super) enum Problem {
    Json(serde_json::Error),
    Field(&'static str, String, &'static str),
    Unsupported(String),
}

impl Problem {
    pub fn at(self, path: &Path) -> GeometryError {
        let path = path.to_owned();
        match self {
            Problem::Json(source) => GeometryError::Json { path, source },
            Problem::Unsupported(what) => {
                let path = path.display().to_string();
                ModelError::Unsupported { path, what }.into()
            }
            Problem::Field(field, found, expected) => GeometryError::Field {
                path,
                field,
                found,
                expected,
            },
        }
    }
}

/// What the layers keep that the text of a config describes.
pub(super) fn parse(bytes: &[u8]) -> Result<Vec<LayerState>, Problem> {
    let value: Value = serde_json::from_slice(bytes).map_err(Problem::Json)?;
    check_counts(&value)?;
    refuse_other_layers(&value)?;
    let mut config: Config = serde_json::from_slice(bytes).map_err(Problem::Json)?;
    if let (None, Some(text)) = (config.num_hidden_layers, config.text_config.take()) {
        let outer = config.model_type;
        config = *text;
        config.model_type = config.model_type.or(outer);
    }
    config.refuse_other_caches()?;
    let layers = positive("num_hidden_layers", config.num_hidden_layers)?;
    if layers > MOST_LAYERS {
        let found = layers.to_string();
        return Err(Problem::Field(
            "num_hidden_layers",
            found,
            "at most 10,000 layers",
        ));
    }
    let kinds = config.kinds(layers)?;
    kinds.into_iter().map(|kind| config.layer(kind)).collect()
}

impl Config {
    fn is_family(&self, prefix: &str) -> bool {
        let name = self.model_type.as_deref();
        name.is_some_and(|name| name.starts_with(prefix))
    }

    /// The pattern as a count; others were refused.
    fn pattern(&self) -> Option<u32> {
        let count = self.sliding_window_pattern.as_ref()?.as_u64()?;
        u32::try_from(count).ok()
    }

    /// What each layer does: as listed, or as the family and its switches say.
    fn kinds(&self, layers: u32) -> Result<Vec<Kind>, Problem> {
        if let Some(types) = &self.layer_types {
            let kinds: Vec<Kind> = types
                .iter()
                .enumerate()
                .map(|(index, name)| match name.as_str() {
                    "full_attention" => Ok(Kind::Full),
                    "sliding_attention" => Ok(Kind::Sliding),
                    "linear_attention" => Ok(Kind::Recurrent),
                    other => Err(Problem::Field(
                        "layer_types",
                        format!("`{other}` in entry {index}"),
                        "full_attention, sliding_attention or linear_attention",
                    )),
                })
                .collect::<Result<_, _>>()?;
            if kinds.len() != layers as usize {
                return Err(Problem::Field(
                    "layer_types",
                    format!("{} layers", kinds.len()),
                    "as many as num_hidden_layers",
                ));
            }
            if kinds.iter().all(|kind| *kind == Kind::Recurrent) {
                let found = "linear_attention in every layer".to_owned();
                let expected = "attention in at least one, else there is no KV cache";
                return Err(Problem::Field("layer_types", found, expected));
            }
            return Ok(kinds);
        }
        let pattern = PATTERNS.iter().find(|(family, ..)| self.is_family(family));
        if let Some(&(_, usual, other)) = pattern {
            let (field, named) = match other {
                Kind::Recurrent => ("full_attention_interval", self.full_attention_interval),
                Kind::Full | Kind::Sliding => (PATTERN, self.pattern()),
            };
            let every = positive(field, Some(named.unwrap_or(usual)))?;
            if other == Kind::Recurrent && every > layers {
                let found = format!("{every} with {layers} layers");
                return Err(Problem::Field(
                    field,
                    found,
                    "no more than there are layers",
                ));
            }
            let kind = |number: u32| {
                if (number + 1).is_multiple_of(every) {
                    Kind::Full
                } else {
                    other
                }
            };
            return Ok((0..layers).map(kind).collect());
        }
        // Layers differ, and which ones do is not known of this family.
        for (field, value) in [
            (PATTERN, self.pattern()),
            ("full_attention_interval", self.full_attention_interval),
            ("linear_num_value_heads", self.linear_num_value_heads),
            ("linear_num_key_heads", self.linear_num_key_heads),
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
            ("linear_conv_kernel_dim", self.linear_conv_kernel_dim),
        ] {
            if let Some(value) = value {
                let what = format!("{field} = {value} without layer_types in this family");
                return Err(Problem::Unsupported(what));
            }
        }
        let switched_on = self.use_sliding_window != Some(false);
        let slides = switched_on && self.sliding_window.is_some();
        // Layers below this one of Qwen's attend to all tokens.
        let first = match self.use_sliding_window {
            Some(true) => self.max_window_layers.unwrap_or(0),
            _ => 0,
        };
        let kind = |number: u32| {
            if slides && number >= first {
                Kind::Sliding
            } else {
                Kind::Full
            }
        };
        Ok((0..layers).map(kind).collect())
    }

    fn layer(&self, kind: Kind) -> Result<LayerState, Problem> {
        match kind {
            Kind::Recurrent => self.recurrent(),
            Kind::Sliding => Ok(LayerState::Attention {
                kv_heads: self.kv_heads()?,
                head_dim: self.head_dim()?,
                window: Some(positive("sliding_window", self.sliding_window)?),
            }),
            Kind::Full => self.full(),
        }
    }

    /// Gemma 4's layers that attend to all tokens have heads of their own.
    fn full(&self) -> Result<LayerState, Problem> {
        let is_gemma4 = self.is_family("gemma4");
        let head_dim = match self.global_head_dim {
            Some(_) if is_gemma4 => positive("global_head_dim", self.global_head_dim)?,
            None if is_gemma4 => 512,
            _ => self.head_dim()?,
        };
        let own_heads =
            is_gemma4 && (self.attention_k_eq_v == Some(true) || self.is_family("gemma4_unified"));
        let kv_heads = match self.num_global_key_value_heads {
            Some(_) if own_heads => positive(
                "num_global_key_value_heads",
                self.num_global_key_value_heads,
            )?,
            _ => self.kv_heads()?,
        };
        Ok(LayerState::Attention {
            kv_heads,
            head_dim,
            window: None,
        })
    }

    /// A gated delta rule: a matrix `[value heads, key dim, value dim]` in FP32, and the last
    /// `kernel - 1` inputs of the convolution over queries, keys and values.
    fn recurrent(&self) -> Result<LayerState, Problem> {
        let value_heads = positive("linear_num_value_heads", self.linear_num_value_heads)?;
        let key_heads = positive("linear_num_key_heads", self.linear_num_key_heads)?;
        let key_dim = positive("linear_key_head_dim", self.linear_key_head_dim)?;
        let value_dim = positive("linear_value_head_dim", self.linear_value_head_dim)?;
        let kernel = positive("linear_conv_kernel_dim", self.linear_conv_kernel_dim)?;
        let product = |sides: &[u32]| {
            let sides = sides.iter().map(|&side| u64::from(side));
            sides.fold(1u64, u64::saturating_mul)
        };
        let keys = product(&[2, key_heads, key_dim]);
        let channels = keys.saturating_add(product(&[value_heads, value_dim]));
        Ok(LayerState::Recurrent {
            matrix_bytes: product(&[value_heads, key_dim, value_dim])
                .saturating_mul(MATRIX_ELEMENT),
            convolution_bytes: channels
                .saturating_mul(u64::from(kernel - 1))
                .saturating_mul(CONVOLUTION_ELEMENT),
        })
    }

    fn kv_heads(&self) -> Result<u32, Problem> {
        if self.num_key_value_heads.is_none() {
            return positive("num_attention_heads", self.num_attention_heads);
        }
        let kv_heads = positive("num_key_value_heads", self.num_key_value_heads)?;
        match self.num_attention_heads {
            Some(heads) if heads == 0 || !heads.is_multiple_of(kv_heads) => Err(Problem::Field(
                "num_key_value_heads",
                format!("{kv_heads} for {heads} query heads"),
                "a divisor of num_attention_heads",
            )),
            _ => Ok(kv_heads),
        }
    }

    fn head_dim(&self) -> Result<u32, Problem> {
        if self.head_dim.is_some() {
            return positive("head_dim", self.head_dim);
        }
        if WIDE_HEADS.iter().any(|family| self.is_family(family)) {
            return Ok(256);
        }
        let hidden = positive("hidden_size", self.hidden_size)?;
        let heads = positive("num_attention_heads", self.num_attention_heads)?;
        if !hidden.is_multiple_of(heads) {
            return Err(Problem::Field(
                "hidden_size",
                format!("{hidden} for {heads} heads"),
                "a multiple of num_attention_heads where head_dim is absent",
            ));
        }
        Ok(hidden / heads)
    }

    /// Refuses models whose cache does not hold one key and one value vector per token, layer and
    /// KV head: bytes per token would be wrong for them.
    fn refuse_other_caches(&self) -> Result<(), Problem> {
        if let Some(rank) = self.kv_lora_rank {
            let found = format!("{rank} (latent attention)");
            let expected = "keys and values per KV head";
            return Err(Problem::Field("kv_lora_rank", found, expected));
        }
        if let Some(shared) = self.num_kv_shared_layers.filter(|&shared| shared > 0) {
            let expected = "keys and values of its own in every layer";
            return Err(Problem::Field(
                "num_kv_shared_layers",
                shared.to_string(),
                expected,
            ));
        }
        Ok(())
    }
}

fn positive(field: &'static str, value: Option<u32>) -> Result<u32, Problem> {
    const EXPECTED: &str = "a positive whole number";
    match value {
        Some(0) => Err(Problem::Field(field, "0".to_owned(), EXPECTED)),
        Some(value) => Ok(value),
        None => Err(Problem::Field(field, "nothing".to_owned(), EXPECTED)),
    }
}
