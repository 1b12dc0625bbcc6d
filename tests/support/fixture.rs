//! Reads the fixtures under `fixtures/parity` and `fixtures/demo`.

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use kvassay::backend::{Backend, TensorData};
use kvassay::model::{self, Decoder, SafetensorsWeights};
use safetensors::{Dtype, SafeTensors};

/// Input and logits of one fixture.
pub struct Expected {
    pub ids: Vec<u32>,
    pub rows: Vec<usize>,
    /// `[rows, vocab_size]`, nothing rounded.
    pub logits: Vec<f32>,
    /// The same with the native cache format.
    pub logits_rounded: Vec<f32>,
}

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/parity")
        .join(name)
}

/// The demo model's folder.
pub fn demo_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures/demo")
        .join(name)
}

/// Input and logits of the last rows of a demo model; nothing rounded.
pub fn demo_expected(name: &str) -> Expected {
    let bytes = std::fs::read(demo_folder(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str, dtype: Dtype| -> Vec<[u8; 4]> {
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), dtype);
        let words = view.data().chunks(4);
        words.map(|word| word.try_into().unwrap()).collect()
    };
    let ids: Vec<u32> = words("ids", Dtype::I32)
        .into_iter()
        .map(|word| u32::try_from(i32::from_le_bytes(word)).unwrap())
        .collect();
    let kept = file.tensor("logits").unwrap().shape()[0];
    let logits = words("logits", Dtype::F32);
    Expected {
        rows: (ids.len() - kept..ids.len()).collect(),
        ids,
        logits: logits.into_iter().map(f32::from_le_bytes).collect(),
        logits_rounded: Vec::new(),
    }
}

pub fn expected(name: &str) -> Expected {
    let path = folder("expected").join(format!("{name}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let integers = |name: &str| -> Vec<u32> {
        let data = file.tensor(name).unwrap().data();
        data.chunks(8)
            .map(|b| u32::try_from(i64::from_le_bytes(b.try_into().unwrap())).unwrap())
            .collect()
    };
    let floats = |name: &str| -> Vec<f32> {
        let view = file.tensor(name).unwrap();
        assert_eq!(view.dtype(), Dtype::F32);
        let words = view.data().chunks(4);
        words
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    Expected {
        ids: integers("ids"),
        rows: integers("rows").into_iter().map(|r| r as usize).collect(),
        logits: floats("logits"),
        logits_rounded: floats("logits_rounded"),
    }
}

/// How far the library's own 16-bit arithmetic lies from its 32-bit logits.
#[derive(serde::Deserialize)]
pub struct InHalves {
    pub dtype: String,
    pub largest: f64,
    pub typical: f64,
}

/// Of one fixture.
pub fn library_in_16_bits(name: &str) -> InHalves {
    #[derive(serde::Deserialize)]
    struct Measured {
        models: std::collections::HashMap<String, InHalves>,
    }
    let bytes = std::fs::read(folder("expected").join("16bit.json")).unwrap();
    let mut measured: Measured = serde_json::from_slice(&bytes).unwrap();
    measured.models.remove(name).expect(name)
}

/// Logits of the kept rows under a recipe, of a fixture that has them.
pub fn logits_of(name: &str, recipe: &str) -> Vec<f32> {
    let path = folder("expected").join(format!("{name}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(&format!("logits_{recipe}")).unwrap();
    assert_eq!(view.dtype(), Dtype::F32);
    let words = view.data().as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

/// Names, shapes and numbers of modules whose weights are stored as codes.
pub fn expected_weights(name: &str) -> Vec<(String, Vec<usize>, TensorData)> {
    let path = folder("expected").join(format!("{name}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut weights = Vec::new();
    for (name, view) in file.tensors() {
        let Some(module) = name.strip_prefix("weight.") else {
            continue;
        };
        let halves = view.data().as_chunks::<2>().0.iter();
        let numbers = match view.dtype() {
            Dtype::F16 => TensorData::F16(halves.map(|b| f16::from_le_bytes(*b)).collect()),
            Dtype::BF16 => TensorData::Bf16(halves.map(|b| bf16::from_le_bytes(*b)).collect()),
            other => panic!("{other}"),
        };
        weights.push((module.to_owned(), view.shape().to_vec(), numbers));
    }
    weights
}

/// Input and logits of one fixture under every recipe, by its spelling.
pub fn recipes(name: &str) -> Vec<(String, Expected)> {
    let path = folder("expected").join(format!("{name}-recipes.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str, size: usize| {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let rows: Vec<usize> = words("rows", 8)
        .into_iter()
        .map(|word| usize::try_from(i64::from_le_bytes(word.try_into().unwrap())).unwrap())
        .collect();
    let ids = expected(name).ids;
    let names = file.names().into_iter().filter(|name| *name != "rows");
    let under = |recipe: &str| Expected {
        ids: ids.clone(),
        rows: rows.clone(),
        logits: words(recipe, 4)
            .into_iter()
            .map(|word| f32::from_le_bytes(word.try_into().unwrap()))
            .collect(),
        logits_rounded: Vec::new(),
    };
    names.map(|name| (name.to_owned(), under(name))).collect()
}

/// A decoder over a fixture's folder, read as any checkpoint is.
pub fn decoder<B: Backend>(folder: &Path, backend: B) -> Decoder<B> {
    let config = model::read_config(&folder.join("config.json")).unwrap();
    let weights = SafetensorsWeights::open(folder).unwrap();
    weights.check(&config).unwrap();
    Decoder::load(config, &weights, backend).unwrap()
}
