//! The tensors that a config implies, by their Hugging Face names.

use std::collections::BTreeMap;

use crate::backend::RecurrentLayer;

use super::{ExpertsConfig, Family, LayerConfig, ModelConfig, ModelError};

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
    for (number, layer) in config.layers.iter().enumerate() {
        for (part, shape) in layer_tensors(config, layer) {
            shapes.insert(format!("model.layers.{number}.{part}"), shape);
        }
    }
    shapes
}

/// Names of the projections that read the same input, with their output features.
pub(crate) struct Projections {
    /// Of `self_attn`: queries, keys, and values where they have one.
    pub heads: Vec<(&'static str, usize)>,
    /// Of `mlp`: gate, up.
    pub gate_up: Vec<(&'static str, usize)>,
}

impl Projections {
    /// Of one layer.
    pub(crate) fn new(config: &ModelConfig, layer: &LayerConfig) -> Self {
        let (q, kv, mlp) = (layer.q_width(), layer.kv_width(), config.intermediate_size);
        if config.fused_projections {
            Projections {
                heads: vec![("qkv_proj", q + 2 * kv)],
                gate_up: vec![("gate_up_proj", 2 * mlp)],
            }
        } else {
            // Queries and the gate of the output, where there is one.
            let q = if config.attention_gate { 2 * q } else { q };
            let mut heads = vec![("q_proj", q), ("k_proj", kv)];
            if !layer.keys_are_values {
                heads.push(("v_proj", kv));
            }
            Projections {
                heads,
                gate_up: vec![("gate_proj", mlp), ("up_proj", mlp)],
            }
        }
    }
}

/// Names of a layer's norms over the residual stream.
pub(crate) struct Norms {
    /// Before attention.
    pub attention: &'static str,
    /// On what attention adds to the residual stream.
    pub attention_output: Option<&'static str>,
    /// Before the MLP.
    pub mlp: &'static str,
    /// On what the MLP adds to the residual stream.
    pub mlp_output: Option<&'static str>,
}

impl Norms {
    /// Of every layer. What stands before the MLP is named after attention unless attention has an
    /// output norm.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let outputs = config.output_norms;
        Norms {
            attention: "input_layernorm.weight",
            attention_output: outputs.then_some("post_attention_layernorm.weight"),
            mlp: if outputs {
                "pre_feedforward_layernorm.weight"
            } else {
                "post_attention_layernorm.weight"
            },
            mlp_output: outputs.then_some("post_feedforward_layernorm.weight"),
        }
    }
}

/// Name of what the residual stream is multiplied by after a layer.
pub(crate) const LAYER_SCALAR: &str = "layer_scalar";

/// Names of a recurrent layer's tensors below `linear_attn`, with their shapes.
pub(crate) fn recurrent_tensors(
    shape: &RecurrentLayer,
    hidden: usize,
) -> [(&'static str, Vec<usize>); 9] {
    let (channels, values, heads) = (shape.channels(), shape.values(), shape.value_heads);
    [
        ("in_proj_qkv.weight", vec![channels, hidden]),
        ("in_proj_z.weight", vec![values, hidden]),
        ("in_proj_b.weight", vec![heads, hidden]),
        ("in_proj_a.weight", vec![heads, hidden]),
        ("conv1d.weight", vec![channels, 1, shape.kernel]),
        ("A_log", vec![heads]),
        ("dt_bias", vec![heads]),
        ("norm.weight", vec![shape.value_dim]),
        ("out_proj.weight", vec![hidden, values]),
    ]
}

/// Names of a mixture of experts.
pub(crate) struct ExpertNames {
    /// Of the router, `[experts, hidden_size]`.
    pub router: &'static str,
    /// Beginning of those of experts.
    pub folder: &'static str,
}

impl ExpertNames {
    /// Of experts in place of an MLP, or beside it.
    pub(crate) fn new(shape: ExpertsConfig) -> Self {
        match shape.beside_mlp {
            false => ExpertNames {
                router: "mlp.gate",
                folder: "mlp.experts",
            },
            true => ExpertNames {
                router: "router.proj",
                folder: "experts",
            },
        }
    }
}

/// What experts beside an MLP have of their own.
pub(crate) mod beside {
    /// What the router's input is multiplied by, `[hidden_size]`.
    pub const ROUTER_SCALE: &str = "router.scale";
    /// What the weight of an expert is multiplied by, `[experts]`.
    pub const EXPERT_SCALES: &str = "router.per_expert_scale";
    /// Norm before experts.
    pub const EXPERT_NORM: &str = "pre_feedforward_layernorm_2.weight";
    /// Norm on what the MLP gives.
    pub const MLP_OUTPUT: &str = "post_feedforward_layernorm_1.weight";
    /// Norm on what experts give.
    pub const EXPERT_OUTPUT: &str = "post_feedforward_layernorm_2.weight";
}

/// Names of a layer's router and experts, with their shapes.
fn expert_tensors(shape: ExpertsConfig, hidden: usize) -> Vec<(String, Vec<usize>)> {
    let (width, names) = (shape.intermediate_size, ExpertNames::new(shape));
    let own = |expert: usize| {
        let parts = [
            ("gate_proj", vec![width, hidden]),
            ("up_proj", vec![width, hidden]),
            ("down_proj", vec![hidden, width]),
        ];
        let folder = names.folder;
        parts.map(|(part, sides)| (format!("{folder}.{expert}.{part}.weight"), sides))
    };
    let mut tensors: Vec<_> = (0..shape.experts).flat_map(own).collect();
    let router = format!("{}.weight", names.router);
    tensors.push((router, vec![shape.experts, hidden]));
    if shape.beside_mlp {
        tensors.push((beside::EXPERT_SCALES.to_owned(), vec![shape.experts]));
        let of_stream = [
            beside::ROUTER_SCALE,
            beside::EXPERT_NORM,
            beside::MLP_OUTPUT,
            beside::EXPERT_OUTPUT,
        ];
        tensors.extend(of_stream.map(|name| (name.to_owned(), vec![hidden])));
    }
    tensors
}

fn layer_tensors(config: &ModelConfig, layer: &LayerConfig) -> Vec<(String, Vec<usize>)> {
    let hidden = config.hidden_size;
    let norms = Norms::new(config);
    let norms = [Some(norms.attention), Some(norms.mlp)]
        .into_iter()
        .chain([norms.attention_output, norms.mlp_output]);
    let mut tensors: Vec<_> = norms
        .flatten()
        .map(|name| (name.to_owned(), vec![hidden]))
        .collect();
    if config.layer_scalars {
        tensors.push((LAYER_SCALAR.to_owned(), vec![1]));
    }
    let Projections { heads, gate_up } = Projections::new(config, layer);
    let mut projections = Vec::new();
    if let Some(shape) = layer.experts {
        tensors.extend(expert_tensors(shape, hidden));
    }
    if layer.experts.is_none_or(|shape| shape.beside_mlp) {
        let (width, bias) = (config.intermediate_size, config.mlp_bias);
        projections.push(("mlp", gate_up, hidden, bias));
        projections.push(("mlp", vec![("down_proj", hidden)], width, bias));
    }
    if let Some(shape) = &layer.recurrent {
        let named = |(name, shape)| (format!("linear_attn.{name}"), shape);
        tensors.extend(recurrent_tensors(shape, hidden).map(named));
    } else {
        let (q, bias) = (layer.q_width(), config.attention_output_bias);
        projections.push(("self_attn", heads, hidden, config.qkv_bias));
        projections.push(("self_attn", vec![("o_proj", hidden)], q, bias));
        if config.qk_norm {
            for name in ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] {
                tensors.push((name.to_owned(), vec![layer.head_dim]));
            }
        }
    }
    for (folder, parts, inner, bias) in projections {
        for (part, out) in parts {
            tensors.push((format!("{folder}.{part}.weight"), vec![out, inner]));
            if bias {
                tensors.push((format!("{folder}.{part}.bias"), vec![out]));
            }
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

/// Beginnings of tensor names of a multimodal checkpoint's other parts.
const OTHER_PARTS: [&str; 9] = [
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
    "model.visual.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
    "model.vision_embedder.",
];

/// Beginning of the names of layers that predict tokens beyond the next one.
pub(crate) const DRAFT_LAYERS: &str = "mtp.";

/// Whether a tensor of this name belongs to another part than the text of a multimodal model.
pub(crate) fn is_other_part(name: &str) -> bool {
    OTHER_PARTS.iter().any(|part| name.starts_with(part))
}

/// Tensors that text does not need: rotary frequencies (from the config), a stored copy of the
/// embedding where the config ties the output to it, and other parts of a multimodal model, and Qwen3.5's
/// draft layers.
fn is_redundant(name: &str, config: &ModelConfig) -> bool {
    if config.text_part_of.is_some() && is_other_part(name) {
        return true;
    }
    if config.family == Family::Qwen35 && name.starts_with(DRAFT_LAYERS) {
        return true;
    }
    name.ends_with(".rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight")
}
