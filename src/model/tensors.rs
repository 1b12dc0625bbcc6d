//! The tensors that a config implies, by their Hugging Face names.

use std::collections::BTreeMap;

use super::{ModelConfig, ModelError};

/// Shapes by name.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// Every tensor that the forward pass of `config` reads.
pub(crate) fn expected(config: &ModelConfig) -> Shapes {
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let mut shapes = Shapes::new();
    shapes.insert("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]);
    shapes.insert("model.norm.weight".to_owned(), vec![hidden]);
    if !config.tied_embeddings {
        shapes.insert("lm_head.weight".to_owned(), vec![vocab, hidden]);
    }
    for layer in 0..config.layers {
        for (part, shape) in layer_tensors(config) {
            shapes.insert(format!("model.layers.{layer}.{part}"), shape);
        }
    }
    shapes
}

fn layer_tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let hidden = config.hidden_size;
    let q = config.heads * config.head_dim;
    let kv = config.kv_heads * config.head_dim;
    let mlp = config.intermediate_size;
    let projections = [
        ("self_attn.q_proj", q, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q, config.attention_output_bias),
        ("mlp.gate_proj", mlp, hidden, config.mlp_bias),
        ("mlp.up_proj", mlp, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, mlp, config.mlp_bias),
    ];
    let mut tensors = vec![
        ("input_layernorm.weight".to_owned(), vec![hidden]),
        ("post_attention_layernorm.weight".to_owned(), vec![hidden]),
    ];
    for (name, out, inner, bias) in projections {
        tensors.push((format!("{name}.weight"), vec![out, inner]));
        if bias {
            tensors.push((format!("{name}.bias"), vec![out]));
        }
    }
    if config.qk_norm {
        for name in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
            tensors.push((name.to_owned(), vec![config.head_dim]));
        }
    }
    tensors
}

/// Checks that the files hold exactly the tensors that `config` implies, in the right shapes.
///
/// `path_of` names the file of a tensor for messages; `folder` stands for the files together.
///
/// # Errors
/// Names the tensor that is missing, has another shape, or would be left unapplied.
pub(crate) fn check(
    config: &ModelConfig,
    found: &Shapes,
    folder: &str,
    path_of: impl Fn(&str) -> String,
) -> Result<(), ModelError> {
    let expected = expected(config);
    for (name, shape) in &expected {
        let Some(stored) = found.get(name) else {
            return Err(missing(folder, name, shape));
        };
        check_shape(&path_of(name), name, stored, shape)?;
    }
    let unapplied = |name: &&String| !expected.contains_key(*name) && !is_redundant(name, config);
    match found.keys().find(unapplied) {
        Some(name) => {
            let what = format!("tensor `{name}`, which the config does not account for");
            Err(ModelError::unsupported(path_of(name), what))
        }
        None => Ok(()),
    }
}

/// Error about a tensor that is not there.
pub(crate) fn missing(path: &str, name: &str, shape: &[usize]) -> ModelError {
    let expected = format!("shape {shape:?}");
    ModelError::invalid(path, format!("tensor `{name}`"), "nothing", expected)
}

/// Compares a stored shape with the expected one.
pub(crate) fn check_shape(
    path: &str,
    name: &str,
    stored: &[usize],
    expected: &[usize],
) -> Result<(), ModelError> {
    if stored == expected {
        return Ok(());
    }
    Err(ModelError::invalid(
        path,
        format!("shape of tensor `{name}`"),
        format!("{stored:?}"),
        format!("{expected:?}"),
    ))
}

/// Tensors that say nothing new: rotary frequencies (from the config) and a stored copy of the
/// embedding where the config ties the output to it.
fn is_redundant(name: &str, config: &ModelConfig) -> bool {
    name.ends_with(".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight")
}
