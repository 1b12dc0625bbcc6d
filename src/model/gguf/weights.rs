//! Tensors of a GGUF file under their Hugging Face names.

use std::collections::BTreeMap;
use std::path::Path;

use crate::backend::{NumberType, StoredNumbers, TensorData};
use crate::schema::FileDigest;

use super::super::file_bytes::{Digests, FileBytes};
use super::super::safetensors::check_finite;
use super::super::tensors::{self, Shapes};
use super::super::{Family, ModelConfig, ModelError, WeightSource};
use super::config::ROPE_FREQUENCIES;
use super::dequantize::dequantize;
use super::{GgmlType, Header, TensorInfo};

/// Names outside the layers: in the file, and as asked for.
const GLOBAL_NAMES: [(&str, &str); 3] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

/// Names within a layer of which norms stand before and behind attention and MLP.
const OUTPUT_NORM_NAMES: [(&str, &str); 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Names within a layer: in the file, and as asked for.
const LAYER_NAMES: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// Weights read from a memory-mapped GGUF file.
pub struct GgufWeights {
    file: FileBytes,
    tensors: BTreeMap<String, TensorInfo>,
    digests: Digests,
    /// Elements per head where query and key rows are stored pairwise interleaved.
    interleaved_head_dim: Option<usize>,
}

impl GgufWeights {
    /// Opens a GGUF file, reads its config and starts to hash it.
    ///
    /// # Errors
    /// As for any GGUF model: malformed bytes, settings and tensor types that are not applied,
    /// tensors that the config does not account for.
    pub fn open(path: &Path) -> Result<(ModelConfig, Self), ModelError> {
        let file = FileBytes::open(path)?;
        let header = super::parse(file.path(), file.bytes())?;
        let config = super::config(&file, &header)?;
        let weights = Self::new(file, header, &config)?;
        Ok((config, weights))
    }

    /// Wraps a parsed file; checks that its tensors are exactly those that `config` implies.
    pub(crate) fn new(
        file: FileBytes,
        header: Header,
        config: &ModelConfig,
    ) -> Result<Self, ModelError> {
        let mut tensors = BTreeMap::new();
        for (name, info) in header.tensors {
            if name == ROPE_FREQUENCIES {
                continue; // Read into the config.
            }
            let renamed = hugging_face_name(&name, config.output_norms).unwrap_or(name);
            tensors.insert(renamed, info);
        }
        let shapes: Shapes = tensors
            .iter()
            .map(|(name, info)| (name.clone(), info.shape.clone()))
            .collect();
        tensors::check(config, &shapes, file.path(), |_| file.path().to_owned())?;
        Ok(GgufWeights {
            digests: Digests::of([&file]),
            tensors,
            interleaved_head_dim: (config.family == Family::Llama)
                .then(|| config.widest(|layer| layer.head_dim)),
            file,
        })
    }

    fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.file.bytes()[info.range.clone()]
    }

    /// The numbers of a tensor that is stored as such.
    fn stored(&self, info: &TensorInfo) -> Option<StoredNumbers<'_>> {
        let numbers = match info.kind {
            GgmlType::F32 => NumberType::F32,
            GgmlType::F16 => NumberType::F16,
            GgmlType::Bf16 => NumberType::Bf16,
            _ => return None,
        };
        let bytes = self.bytes(info);
        Some(StoredNumbers { numbers, bytes })
    }

    fn read(&self, info: &TensorInfo) -> TensorData {
        match self.stored(info) {
            Some(stored) => stored.read(),
            None => TensorData::F32(dequantize(info.kind, self.bytes(info))),
        }
    }

    /// Elements per head of a tensor whose rows are to be put in another order.
    fn interleaved(&self, name: &str) -> Option<usize> {
        self.interleaved_head_dim.filter(|_| is_rotated(name))
    }
}

impl WeightSource for GgufWeights {
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        let path = self.file.path();
        let info = self
            .tensors
            .get(name)
            .ok_or_else(|| tensors::missing(path, name, shape))?;
        tensors::check_shape(path, name, &info.shape, shape)?;
        let data = self.read(info);
        check_finite(path, name, &data)?;
        match self.interleaved(name) {
            Some(head_dim) => Ok(deinterleave(data, head_dim, shape[0])),
            None => Ok(data),
        }
    }

    fn numbers(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<StoredNumbers<'_>>, ModelError> {
        let found = self.tensors.get(name);
        let Some(info) = found.filter(|_| self.interleaved(name).is_none()) else {
            return Ok(None);
        };
        tensors::check_shape(self.file.path(), name, &info.shape, shape)?;
        Ok(self.stored(info))
    }

    /// Blocks are dequantised to f32.
    fn element_bytes(&self, name: &str) -> u64 {
        match self.tensors.get(name).map(|info| info.kind) {
            Some(GgmlType::F16 | GgmlType::Bf16) => 2,
            _ => 4,
        }
    }

    fn stored_bytes(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn files(&self) -> &[FileDigest] {
        self.digests.all()
    }
}

/// The name under which a tensor of the file is asked for; `output_norms` as in the config.
fn hugging_face_name(name: &str, output_norms: bool) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.')?;
    if !matches!(suffix, "weight" | "bias") {
        return None;
    }
    if let Some((_, renamed)) = GLOBAL_NAMES.iter().find(|(own, _)| *own == stem) {
        return Some(format!("{renamed}.{suffix}"));
    }
    let (layer, part) = stem.strip_prefix("blk.")?.split_once('.')?;
    // Only the plain spelling of a number, so that no two names of a file become one.
    let number: u32 = layer
        .parse()
        .ok()
        .filter(|n: &u32| n.to_string() == layer)?;
    let norms: &[(&str, &str)] = if output_norms {
        &OUTPUT_NORM_NAMES
    } else {
        &[]
    };
    let mut names = norms.iter().chain(&LAYER_NAMES);
    let (_, renamed) = names.find(|(own, _)| *own == part)?;
    Some(format!("model.layers.{number}.{renamed}.{suffix}"))
}

/// Whether the rows of a tensor are rotated by position.
fn is_rotated(name: &str) -> bool {
    name.contains(".self_attn.q_proj.") || name.contains(".self_attn.k_proj.")
}

/// Brings rows from pairwise order to halves. Files of the `llama` architecture store row `2j + h`
/// of each head where the checkpoint has row `h * head_dim / 2 + j`.
fn deinterleave(data: TensorData, head_dim: usize, rows: usize) -> TensorData {
    match data {
        TensorData::F32(v) => TensorData::F32(reorder(&v, head_dim, rows)),
        TensorData::F16(v) => TensorData::F16(reorder(&v, head_dim, rows)),
        TensorData::Bf16(v) => TensorData::Bf16(reorder(&v, head_dim, rows)),
    }
}

fn reorder<T: Copy>(values: &[T], head_dim: usize, rows: usize) -> Vec<T> {
    let width = values.len() / rows;
    let mut out = Vec::with_capacity(values.len());
    for row in 0..rows {
        let (head, within) = (row / head_dim, row % head_dim);
        let (h, j) = (within / (head_dim / 2), within % (head_dim / 2));
        let source = head * head_dim + 2 * j + h;
        out.extend_from_slice(&values[source * width..][..width]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_map_one_to_one() {
        for (own, asked) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            (
                "blk.11.attn_k.bias",
                "model.layers.11.self_attn.k_proj.bias",
            ),
            (
                "blk.0.ffn_norm.weight",
                "model.layers.0.post_attention_layernorm.weight",
            ),
        ] {
            assert_eq!(hugging_face_name(own, false).as_deref(), Some(asked));
        }
        for (own, asked) in [
            ("attn_norm", "input_layernorm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ] {
            let asked = format!("model.layers.3.{asked}.weight");
            let own = format!("blk.3.{own}.weight");
            assert_eq!(hugging_face_name(&own, true), Some(asked));
        }
        for own in [
            "blk.01.attn_k.weight",
            "blk.x.attn_k.weight",
            "blk.0.attn_k",
            "rope.weight",
        ] {
            assert_eq!(hugging_face_name(own, true), None, "{own}");
        }
    }

    #[test]
    fn rows_come_back_as_halves() {
        // Two heads of four rows of one element, numbered in checkpoint order.
        let stored = [0, 2, 1, 3, 4, 6, 5, 7];
        assert_eq!(reorder(&stored, 4, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        let wide = [0, 0, 1, 1, 2, 2, 3, 3];
        assert_eq!(reorder(&wide, 4, 4), [0, 0, 2, 2, 1, 1, 3, 3]);
    }

    #[test]
    fn what_is_stored_as_loaded_is_at_hand() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gguf/tiny.gguf");
        let (config, weights) = GgufWeights::open(path.as_ref()).unwrap();
        let mut found = Vec::new();
        for (name, shape) in tensors::expected(&config) {
            if let Some(numbers) = weights.numbers(&name, &shape).unwrap() {
                let loaded = weights.load(&name, &shape).unwrap();
                assert_eq!(numbers.read(), loaded, "{name}");
                found.push(name);
            }
        }
        let has = |part: &str| found.iter().any(|name| name.contains(part));
        // Rows of queries and keys come in another order.
        assert!(
            has("layernorm") && !has("q_proj") && !has("k_proj"),
            "{found:?}"
        );
    }
}
