//! Metadata of a GGUF file to a [`ModelConfig`].

use crate::backend::Activation;
use crate::recipe::NativeDtype;

use super::super::file_bytes::FileBytes;
use super::super::hf_config::{
    MAX_LAYERS, check_geometry,
    rope::{check_ropes, yarn_mscale},
};
use super::super::{Family, LayerConfig, ModelConfig, ModelError, Rope, RopeScaling};
use super::dequantize::dequantize;
use super::value::Value;
use super::{Header, Metadata};

/// Base of the rotary embedding where the file names none.
const THETA: f64 = 10_000.0;

/// Per-dimension divisors of the rotary frequencies.
pub(super) const ROPE_FREQUENCIES: &str = "rope_freqs.weight";

/// Window of the layers that have one.
const SLIDING_WINDOW: &str = "attention.sliding_window";

/// Every how many layers of Gemma 3 one has no window.
const GEMMA_PATTERN: usize = 6;

/// Layers of the Gemma 3 model whose scores are divided by the root of what the hidden size gives
/// per head, not of the width of heads: files name neither, readers tell it by its depth.
const GEMMA_27B_LAYERS: usize = 62;

/// Keys (after the architecture) that change the forward pass in ways that are not applied;
/// allowed only when absent, 0 or false.
const REFUSED: [&str; 12] = [
    "expert_count",
    "expert_used_count",
    SLIDING_WINDOW,
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "rope.scaling.yarn_log_multiplier",
];

/// Metadata of one architecture: keys are prefixed with its name.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

/// Reads the config of the model in `file`.
///
/// # Errors
/// Names the file and the key that is missing, wrong, or asks for what is not applied.
pub(crate) fn config(file: &FileBytes, header: &Header) -> Result<ModelConfig, ModelError> {
    let (family, keys) = architecture(&header.metadata)?;
    keys.refuse_unapplied(family)?;
    refuse_split(&header.metadata)?;
    let heads = keys.required("attention.head_count")?;
    let hidden_size = keys.required("embedding_length")?;
    let context = keys.required("context_length")?;
    let head_dim = keys.head_dim(hidden_size, heads)?;
    let has = |name: &str| header.tensors.contains_key(name);
    let kv_heads = keys.uniform("attention.head_count_kv")?.unwrap_or(heads);
    let layers = vec![LayerConfig::new(heads, kv_heads, head_dim); keys.layers()?];
    let rope = Rope::new(
        keys.positive("rope.freq_base")?.unwrap_or(THETA),
        keys.rope_scaling(file, header, head_dim, context)?,
    );
    let gemma = family == Family::Gemma3;
    let (layers, ropes) = match family {
        Family::Gemma3 => keys.gemma_layers(layers, rope, hidden_size)?,
        _ => (layers, vec![rope]),
    };
    let config = ModelConfig {
        family,
        layers,
        hidden_size,
        intermediate_size: keys.uniform("feed_forward_length")?.ok_or_else(|| {
            let key = keys.key("feed_forward_length");
            keys.metadata.wrong(&key, "nothing", "a whole number")
        })?,
        vocab_size: header
            .metadata
            .required_strings("tokenizer.ggml.tokens")?
            .len(),
        context,
        rms_norm_eps: keys.epsilon()?,
        ropes,
        qkv_bias: has("blk.0.attn_q.bias"),
        attention_output_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_gate.bias"),
        qk_norm: gemma || family == Family::Qwen3,
        attention_gate: false,
        fused_projections: false,
        output_norms: gemma,
        // These files hold norm weights as they multiply.
        norms_less_one: false,
        value_norm: false,
        layer_scalars: false,
        logit_cap: None,
        activation: if gemma {
            Activation::GeluTanh
        } else {
            Activation::Silu
        },
        embedding_scale: gemma.then(|| (hidden_size as f32).sqrt()),
        text_part_of: None,
        tied_embeddings: !has("output.weight"),
        native_dtype: NativeDtype::F16,
        suppressed: Vec::new(),
        penalties: Vec::new(),
    };
    check_geometry(file.path(), &config.layers)?;
    let settings = format!("metadata `{}`", keys.key("rope"));
    check_ropes(file.path(), &settings, &config)?;
    Ok(config)
}

/// A file that is one of several parts holds only some of the tensors.
fn refuse_split(metadata: &Metadata) -> Result<(), ModelError> {
    let key = "split.count";
    match metadata.u32(key)? {
        Some(parts) if parts > 1 => Err(metadata.unsupported(key)),
        _ => Ok(()),
    }
}

fn architecture(metadata: &Metadata) -> Result<(Family, Keys<'_>), ModelError> {
    let key = "general.architecture";
    let known = "`llama`, `qwen2`, `qwen3` or `gemma3`";
    let name = metadata
        .str(key)?
        .ok_or_else(|| metadata.wrong(key, "nothing", known))?;
    let family = match name {
        "llama" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        "gemma3" => Family::Gemma3,
        _ => return Err(metadata.unsupported_beside(key, known)),
    };
    let keys = Keys {
        metadata,
        architecture: name,
    };
    Ok((family, keys))
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn required(&self, name: &str) -> Result<usize, ModelError> {
        self.metadata.required_usize(&self.key(name))
    }

    /// Windows and rotary embeddings of Gemma 3: every sixth layer sees all tokens and is scaled,
    /// the others have a window and a base of their own.
    fn gemma_layers(
        &self,
        mut layers: Vec<LayerConfig>,
        global: Rope,
        hidden_size: usize,
    ) -> Result<(Vec<LayerConfig>, Vec<Rope>), ModelError> {
        let window = match self.metadata.u32(&self.key(SLIDING_WINDOW))? {
            Some(0) | None => None,
            Some(window) => Some(window as usize),
        };
        let local = self.positive("rope.freq_base_swa")?.unwrap_or(THETA);
        let count = layers.len();
        let has_window = self.has_window(count)?;
        for (layer, has_window) in layers.iter_mut().zip(has_window) {
            if has_window {
                (layer.window, layer.rope) = (window, 1);
            }
            if count == GEMMA_27B_LAYERS {
                layer.score_divisor = (hidden_size as f32 / layer.heads as f32).sqrt();
            }
        }
        let ropes = vec![global, Rope::new(local, RopeScaling::Default)];
        Ok((layers, ropes))
    }

    /// Whether each of `count` layers has a window: as flags say, or all but one in so many.
    fn has_window(&self, count: usize) -> Result<Vec<bool>, ModelError> {
        let key = self.key("attention.sliding_window_pattern");
        match self.metadata.get(&key) {
            Some(Value::Flags(flags)) if flags.len() == count => return Ok(flags.clone()),
            Some(Value::Flags(flags)) => {
                let found = format!("{} flags", flags.len());
                let expected = format!("one for each of {count} layers");
                return Err(self.metadata.wrong(&key, found, expected));
            }
            Some(value) if value.is_array() => return Err(self.metadata.unsupported(&key)),
            _ => {}
        }
        let pattern = self.metadata.u32(&key)?.map(|pattern| pattern as usize);
        let pattern = pattern.unwrap_or(GEMMA_PATTERN).max(1);
        Ok((1..=count)
            .map(|layer| !layer.is_multiple_of(pattern))
            .collect())
    }

    fn layers(&self) -> Result<usize, ModelError> {
        let layers = self.required("block_count")?;
        if layers > MAX_LAYERS {
            let expected = format!("at most {MAX_LAYERS}");
            let key = self.key("block_count");
            return Err(self.metadata.wrong(&key, layers, expected));
        }
        Ok(layers)
    }

    fn positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.metadata.positive(&self.key(name))
    }

    fn refuse_unapplied(&self, family: Family) -> Result<(), ModelError> {
        let is_applied = |name: &str| family == Family::Gemma3 && name == SLIDING_WINDOW;
        for name in REFUSED.into_iter().filter(|name| !is_applied(name)) {
            let key = self.key(name);
            match self.metadata.get(&key) {
                None | Some(Value::Uint(0) | Value::Int(0) | Value::Bool(false)) => {}
                Some(Value::Float(number)) if *number == 0.0 => {}
                Some(_) => return Err(self.metadata.unsupported(&key)),
            }
        }
        Ok(())
    }

    /// A number that may be given per layer, if it is the same for all.
    fn uniform(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let Some(Value::Ints(list)) = self.metadata.get(&key) else {
            return Ok(self.metadata.u32(&key)?.map(|number| number as usize));
        };
        match list.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => {
                let number = u32::try_from(*first)
                    .map_err(|_| self.metadata.wrong(&key, first, "a number below 2^32"))?;
                Ok(Some(number as usize))
            }
            _ => {
                let what = format!("{key} differs between layers");
                Err(ModelError::unsupported(self.metadata.path(), what))
            }
        }
    }

    fn epsilon(&self) -> Result<f32, ModelError> {
        let name = "attention.layer_norm_rms_epsilon";
        let found = self.positive(name)?;
        let epsilon = found.ok_or_else(|| {
            let key = self.key(name);
            self.metadata.wrong(&key, "nothing", "a number above 0")
        })?;
        Ok(epsilon as f32)
    }

    fn head_dim(&self, hidden_size: usize, heads: usize) -> Result<usize, ModelError> {
        let metadata = self.metadata;
        let head_dim = match metadata.u32(&self.key("attention.key_length"))? {
            Some(length) => length as usize,
            None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
            None => {
                let key = self.key("embedding_length");
                let expected = format!("a multiple of the {heads} heads");
                return Err(metadata.wrong(&key, hidden_size, expected));
            }
        };
        for name in ["attention.value_length", "rope.dimension_count"] {
            let key = self.key(name);
            match metadata.u32(&key)? {
                Some(length) if length as usize != head_dim => {
                    let what = format!("{key} = {length} where heads have {head_dim} elements");
                    return Err(ModelError::unsupported(metadata.path(), what));
                }
                _ => {}
            }
        }
        Ok(head_dim)
    }

    fn rope_scaling(
        &self,
        file: &FileBytes,
        header: &Header,
        head_dim: usize,
        context: usize,
    ) -> Result<RopeScaling, ModelError> {
        let key = self.key("rope.scaling.type");
        let named = match self.metadata.str(&key)? {
            None | Some("none") => self.unnamed_scaling()?,
            Some("linear") => RopeScaling::Linear {
                factor: self.scaling_factor()?,
            },
            Some("yarn") => self.yarn(context)?,
            Some(_) => return Err(self.metadata.unsupported_beside(&key, "none, linear, yarn")),
        };
        match frequency_factors(file, header, head_dim)? {
            None => Ok(named),
            Some(factors) if named == RopeScaling::Default => {
                Ok(RopeScaling::FrequencyFactors { factors })
            }
            Some(_) => {
                let what = format!("{ROPE_FREQUENCIES} together with {key}");
                Err(ModelError::unsupported(file.path(), what))
            }
        }
    }

    /// A file without a scaling type must not carry a factor, in either spelling.
    fn unnamed_scaling(&self) -> Result<RopeScaling, ModelError> {
        for name in ["rope.scale_linear", "rope.scaling.factor"] {
            match self.positive(name)? {
                Some(factor) if factor != 1.0 => {
                    return Err(self.metadata.unsupported(&self.key(name)));
                }
                _ => {}
            }
        }
        Ok(RopeScaling::Default)
    }

    fn scaling_factor(&self) -> Result<f64, ModelError> {
        let name = "rope.scaling.factor";
        self.positive(name)?.ok_or_else(|| {
            let key = self.key(name);
            self.metadata.wrong(&key, "nothing", "a number above 0")
        })
    }

    /// YaRN, whose correction bounds are whole dimensions in this format. The multiplier of cos
    /// and sin is the file's `attn_factor` times YaRN's own.
    fn yarn(&self, context: usize) -> Result<RopeScaling, ModelError> {
        let factor = self.scaling_factor()?;
        let scaling = |name: &str| self.positive(&format!("rope.scaling.{name}"));
        if scaling("yarn_ext_factor")?.is_some_and(|ext| ext != 1.0) {
            let key = self.key("rope.scaling.yarn_ext_factor");
            return Err(self.metadata.unsupported(&key));
        }
        let multiplier = match scaling("attn_factor")? {
            Some(multiplier) => multiplier,
            None => scaling("yarn_attn_factor")?.unwrap_or(1.0),
        };
        let original = self
            .metadata
            .u32(&self.key("rope.scaling.original_context_length"))?;
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: scaling("yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: scaling("yarn_beta_slow")?.unwrap_or(1.0),
            original_context: original.map_or(context, |number| number as usize),
            attention_factor: multiplier * yarn_mscale(factor, 1.0),
            truncate: true,
        })
    }
}

/// The divisors of the rotary frequencies, where the file has any.
fn frequency_factors(
    file: &FileBytes,
    header: &Header,
    head_dim: usize,
) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(info) = header.tensors.get(ROPE_FREQUENCIES) else {
        return Ok(None);
    };
    let shape = [head_dim / 2];
    super::super::tensors::check_shape(file.path(), ROPE_FREQUENCIES, &info.shape, &shape)?;
    let factors = dequantize(info.kind, &file.bytes()[info.range.clone()]);
    match factors
        .iter()
        .find(|factor| !(factor.is_finite() && **factor > 0.0))
    {
        None => Ok(Some(factors)),
        Some(bad) => {
            let what = format!("element of tensor `{ROPE_FREQUENCIES}`");
            Err(ModelError::invalid(
                file.path(),
                what,
                bad,
                "a finite number above 0",
            ))
        }
    }
}

#[cfg(test)]
mod tests;
