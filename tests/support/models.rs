//! Tiny models with seeded random weights.

use std::collections::BTreeMap;

use kvassay::backend::{Activation, RecurrentLayer, TensorData};
use kvassay::model::{
    ExpertsConfig, Family, LayerConfig, ModelConfig, ModelError, Rope, RopeScaling, WeightSource,
};
use kvassay::recipe::NativeDtype;
use kvassay::schema::FileDigest;

/// Weights held in memory.
#[derive(Default)]
pub struct MemoryWeights {
    pub tensors: BTreeMap<String, (Vec<usize>, TensorData)>,
    pub files: Vec<FileDigest>,
}

impl WeightSource for MemoryWeights {
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        let found = self.tensors.get(name);
        match found {
            Some((found, data)) if found == shape => Ok(data.clone()),
            other => Err(ModelError::Invalid {
                path: "memory".to_owned(),
                what: name.to_owned(),
                found: format!("{:?}", other.map(|(shape, _)| shape)),
                expected: format!("{shape:?}"),
            }),
        }
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn files(&self) -> &[FileDigest] {
        &self.files
    }
}

/// Uniform numbers in -1..1 from a counter (splitmix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn ids(&mut self, count: usize, vocab_size: usize) -> Vec<u32> {
        (0..count)
            .map(|_| (self.bits() % vocab_size as u64) as u32)
            .collect()
    }
}

/// Sizes of recurrent layers: two value heads share queries and keys.
const RECURRENT: RecurrentLayer = RecurrentLayer {
    key_heads: 2,
    value_heads: 4,
    key_dim: 8,
    value_dim: 12,
    kernel: 4,
};

/// A mixture of experts, of which a token goes through two.
const EXPERTS: ExpertsConfig = ExpertsConfig {
    experts: 5,
    chosen: 2,
    intermediate_size: 16,
    renormalised: true,
    beside_mlp: false,
};

fn has_head_norms(family: Family) -> bool {
    matches!(family, Family::Qwen3 | Family::Qwen3Moe | Family::Qwen35)
}

/// Layers of a family.
fn layers(family: Family) -> Vec<LayerConfig> {
    let kv_heads = if family == Family::Llama { 1 } else { 2 };
    let is_wide = has_head_norms(family);
    let attention = LayerConfig::new(4, kv_heads, if is_wide { 16 } else { 8 });
    let recurrent = LayerConfig::recurrent(RECURRENT);
    match family {
        Family::Qwen35 => vec![attention, recurrent, recurrent, attention],
        Family::Qwen3Moe => {
            let experts = Some(EXPERTS);
            let sparse = LayerConfig {
                experts,
                ..attention
            };
            vec![sparse, attention, sparse]
        }
        _ => vec![attention; 2],
    }
}

/// Small configuration of a family; every optional part of a layer occurs in one of them.
pub fn config(family: Family) -> ModelConfig {
    ModelConfig {
        family,
        layers: layers(family),
        hidden_size: 24,
        intermediate_size: 40,
        vocab_size: 61,
        context: 96,
        rms_norm_eps: 1e-5,
        ropes: vec![Rope::new(10000.0, RopeScaling::Default)],
        qkv_bias: family == Family::Qwen2,
        attention_output_bias: family == Family::Llama,
        mlp_bias: family == Family::Llama,
        qk_norm: has_head_norms(family),
        attention_gate: family == Family::Qwen35,
        fused_projections: false,
        output_norms: false,
        norms_less_one: false,
        value_norm: false,
        layer_scalars: false,
        logit_cap: None,
        activation: Activation::Silu,
        embedding_scale: None,
        text_part_of: None,
        tied_embeddings: family != Family::Qwen3,
        native_dtype: if family == Family::Qwen2 {
            NativeDtype::Bf16
        } else {
            NativeDtype::F16
        },
        suppressed: Vec::new(),
        penalties: Vec::new(),
    }
}

/// Names and shapes of every tensor that `config` asks for.
fn tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let vocab = vec![config.vocab_size, hidden];
    let mut list = vec![
        ("model.embed_tokens.weight".to_owned(), vocab.clone()),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    if !config.tied_embeddings {
        list.push(("lm_head.weight".to_owned(), vocab));
    }
    for (layer, shape) in config.layers.iter().enumerate() {
        let (queries, keys, dim) = (shape.q_width(), shape.kv_width(), shape.head_dim);
        let gates = if config.attention_gate { queries } else { 0 };
        let projections = [
            ("self_attn.q_proj", queries + gates, hidden, config.qkv_bias),
            ("self_attn.k_proj", keys, hidden, config.qkv_bias),
            ("self_attn.v_proj", keys, hidden, config.qkv_bias),
            (
                "self_attn.o_proj",
                hidden,
                queries,
                config.attention_output_bias,
            ),
            ("mlp.gate_proj", inner, hidden, config.mlp_bias),
            ("mlp.up_proj", inner, hidden, config.mlp_bias),
            ("mlp.down_proj", hidden, inner, config.mlp_bias),
        ];
        let LayerConfig {
            recurrent, experts, ..
        } = shape;
        let mut add = |part: String, shape: Vec<usize>| {
            list.push((format!("model.layers.{layer}.{part}"), shape));
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("{norm}.weight"), vec![hidden]);
        }
        if let Some(shape) = recurrent {
            let (channels, values) = (shape.channels(), shape.values());
            for (name, shape) in [
                ("in_proj_qkv.weight", vec![channels, hidden]),
                ("in_proj_z.weight", vec![values, hidden]),
                ("in_proj_b.weight", vec![shape.value_heads, hidden]),
                ("in_proj_a.weight", vec![shape.value_heads, hidden]),
                ("conv1d.weight", vec![channels, 1, shape.kernel]),
                ("A_log", vec![shape.value_heads]),
                ("dt_bias", vec![shape.value_heads]),
                ("norm.weight", vec![shape.value_dim]),
                ("out_proj.weight", vec![hidden, values]),
            ] {
                add(format!("linear_attn.{name}"), shape);
            }
        } else if config.qk_norm {
            add("self_attn.q_norm.weight".to_owned(), vec![dim]);
            add("self_attn.k_norm.weight".to_owned(), vec![dim]);
        }
        if let Some(ExpertsConfig {
            experts,
            intermediate_size: own,
            ..
        }) = *experts
        {
            add("mlp.gate.weight".to_owned(), vec![experts, hidden]);
            for expert in 0..experts {
                for (name, shape) in [
                    ("gate_proj", [own, hidden]),
                    ("up_proj", [own, hidden]),
                    ("down_proj", [hidden, own]),
                ] {
                    add(
                        format!("mlp.experts.{expert}.{name}.weight"),
                        shape.to_vec(),
                    );
                }
            }
        }
        for (name, out, width, bias) in projections {
            if experts.is_some() && name.starts_with("mlp") {
                continue;
            }
            if recurrent.is_some() && name.starts_with("self_attn") {
                continue;
            }
            add(format!("{name}.weight"), vec![out, width]);
            if bias {
                add(format!("{name}.bias"), vec![out]);
            }
        }
    }
    list
}

/// Random weights with lively attention and logits.
pub fn weights(config: &ModelConfig, seed: u64) -> MemoryWeights {
    let mut noise = Noise(seed);
    let tensors = tensors(config)
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let (offset, gain) = match shape.as_slice() {
                [_] if name.ends_with("bias") => (0.0, 0.5),
                [_] if name.ends_with("A_log") => (-1.5, 1.5),
                [_] => (1.0, 0.3),
                [_, inner] => (0.0, 3.0 / (*inner as f32).sqrt()),
                [_, 1, _] => (0.0, 1.0),
                other => panic!("shape {other:?}"),
            };
            let data = (0..count).map(|_| offset + gain * noise.unit()).collect();
            (name, (shape, TensorData::F32(data)))
        })
        .collect();
    MemoryWeights {
        tensors,
        files: Vec::new(),
    }
}

/// The same weights, matrices in a 16-bit format.
pub fn in_native_format(mut weights: MemoryWeights, native: NativeDtype) -> MemoryWeights {
    for (shape, data) in weights.tensors.values_mut() {
        if let (2, TensorData::F32(numbers)) = (shape.len(), &*data) {
            let numbers = numbers.iter();
            *data = match native {
                NativeDtype::F16 => {
                    TensorData::F16(numbers.map(|&x| half::f16::from_f32(x)).collect())
                }
                NativeDtype::Bf16 => {
                    TensorData::Bf16(numbers.map(|&x| half::bf16::from_f32(x)).collect())
                }
            };
        }
    }
    weights
}
