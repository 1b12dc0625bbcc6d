//! Loading from sources with a fault.

use super::*;
use crate::backend::cpu::CpuBackend;
use crate::backend::{NumberType, TensorData};
use crate::model::{NoiseWeights, hf_config};
use crate::recipe::NativeDtype;
use crate::schema::FileDigest;

/// Noise with a head that is stored beside the embedding, with one number changed.
struct Tied {
    noise: NoiseWeights,
    embedding: TensorData,
    changed: Option<f32>,
}

impl WeightSource for Tied {
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        match (name, self.changed) {
            (EMBEDDING, _) => Ok(self.embedding.clone()),
            (HEAD, changed) => {
                let mut numbers = self.embedding.clone().into_f32();
                numbers[3] = changed.unwrap_or(numbers[3]);
                Ok(TensorData::F32(numbers))
            }
            _ => self.noise.load(name, shape),
        }
    }

    fn contains(&self, name: &str) -> bool {
        name == HEAD
    }

    fn files(&self) -> &[FileDigest] {
        &[]
    }
}

/// Noise, of which one matrix lies in a file.
struct InFile {
    noise: NoiseWeights,
    name: &'static str,
    bytes: Vec<u8>,
}

impl WeightSource for InFile {
    fn load(&self, name: &str, shape: &[usize]) -> Result<TensorData, ModelError> {
        if name != self.name {
            return self.noise.load(name, shape);
        }
        Err(ModelError::invalid("a file", name, "a number", "another"))
    }

    fn numbers(&self, name: &str, _: &[usize]) -> Result<Option<StoredNumbers<'_>>, ModelError> {
        let numbers = NumberType::F16;
        let bytes = &self.bytes;
        Ok((name == self.name).then_some(StoredNumbers { numbers, bytes }))
    }

    fn contains(&self, _: &str) -> bool {
        false
    }

    fn files(&self) -> &[FileDigest] {
        &[]
    }
}

fn config() -> ModelConfig {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8,
        "max_position_embeddings": 32, "tie_word_embeddings": true, "torch_dtype": "float16",
    });
    let config = hf_config::parse_config("config.json", config.to_string().as_bytes());
    config.unwrap()
}

/// Numbers are taken from their file; what is wrong with them is said by whoever reads them.
#[test]
fn numbers_of_a_file_are_read_only_where_one_is_wrong() {
    let one = half::f16::ONE.to_le_bytes();
    for (name, outputs) in [
        (EMBEDDING, 8),
        ("model.layers.0.self_attn.o_proj.weight", 16),
        ("model.layers.0.mlp.down_proj.weight", 16),
    ] {
        let mut weights = InFile {
            noise: NoiseWeights::new(NativeDtype::F16),
            name,
            bytes: one.repeat(outputs * 16),
        };
        let load =
            |weights: &InFile| Decoder::load(config(), weights, CpuBackend::new()).map(|_| ());
        load(&weights).unwrap();
        weights.bytes[17] = 0x7c;
        let text = load(&weights).unwrap_err().to_string();
        let expected = format!("a file: {name}: found a number, expected another");
        assert_eq!(text, expected);
    }
}

#[test]
fn a_head_that_is_tied_but_stored_has_to_be_the_embedding() {
    let config = config();
    let load = |changed| {
        let noise = NoiseWeights::new(NativeDtype::F16);
        let embedding = noise.load(EMBEDDING, &[8, 16]).unwrap();
        let weights = Tied {
            noise,
            embedding,
            changed,
        };
        Decoder::load(config.clone(), &weights, CpuBackend::new()).map(|_| ())
    };
    load(None).unwrap();
    let text = load(Some(0.25)).unwrap_err().to_string();
    let expected = "tensor lm_head.weight, which differs from model.embed_tokens.weight \
                    although tie_word_embeddings is true";
    assert!(text.ends_with(expected), "{text}");
}
