use std::collections::HashMap;

use ::safetensors::tensor::TensorView;
use half::{bf16, f16};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// Name, dtype, shape and bytes of a tensor.
type Tensor = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn f32s(name: &'static str, values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    (name, Dtype::F32, vec![values.len()], bytes)
}

fn file_bytes(tensors: &[Tensor]) -> Vec<u8> {
    let views: HashMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| {
            let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
            (*name, view)
        })
        .collect();
    ::safetensors::serialize(views, None).unwrap()
}

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn index(entries: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<String, Value> = entries
        .iter()
        .map(|(tensor, file)| ((*tensor).to_owned(), json!(file)))
        .collect();
    let whole = json!({ "metadata": {"total_size": 8}, "weight_map": map });
    whole.to_string().into_bytes()
}

fn refusal(files: &[(&str, Vec<u8>)]) -> String {
    let folder = folder(files);
    match SafetensorsWeights::open(folder.path()) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    }
}

fn one(file: &'static str, tensor: &'static str) -> (&'static str, Vec<u8>) {
    (file, file_bytes(&[f32s(tensor, &[1.0])]))
}

#[test]
fn every_float_type_is_read_as_stored() {
    let halves = [1.5f32, -2.0].map(f16::from_f32);
    let brains = [1.5f32, -2.0].map(bf16::from_f32);
    let half_bytes = halves.iter().flat_map(|v| v.to_le_bytes()).collect();
    let brain_bytes = brains.iter().flat_map(|v| v.to_le_bytes()).collect();
    let bytes = file_bytes(&[
        f32s("a", &[0.25, 3.0]),
        ("b", Dtype::F16, vec![2, 1], half_bytes),
        ("c", Dtype::BF16, vec![1, 2], brain_bytes),
    ]);
    let folder = folder(&[("model.safetensors", bytes.clone())]);
    let weights = SafetensorsWeights::open(folder.path()).unwrap();
    let a = weights.load("a", &[2]).unwrap();
    assert_eq!(a, TensorData::F32(vec![0.25, 3.0]));
    let b = weights.load("b", &[2, 1]).unwrap();
    assert_eq!(b, TensorData::F16(halves.to_vec()));
    let c = weights.load("c", &[1, 2]).unwrap();
    assert_eq!(c, TensorData::Bf16(brains.to_vec()));
    assert!(weights.contains("a") && !weights.contains("d"));
    for (name, shape, loaded) in [("a", &[2][..], a), ("b", &[2, 1], b), ("c", &[1, 2], c)] {
        let numbers = weights.numbers(name, shape).unwrap().unwrap();
        assert_eq!(numbers.read(), loaded);
        let loaded = weights.load(name, &[7]).unwrap_err().to_string();
        assert_eq!(weights.numbers(name, &[7]).unwrap_err().to_string(), loaded);
    }
    assert!(weights.numbers("d", &[1]).unwrap().is_none());
    let digest = FileDigest {
        path: "model.safetensors".to_owned(),
        sha256: crate::schema::sha256_hex(&bytes),
    };
    assert_eq!(weights.files(), [digest]);
}

#[test]
fn shards_with_an_index_read_as_one() {
    let listing = index(&[("x", "a.safetensors"), ("y", "b.safetensors")]);
    let folder = folder(&[
        one("a.safetensors", "x"),
        one("b.safetensors", "y"),
        one("adapter.safetensors", "z"),
        (INDEX_FILE, listing),
    ]);
    let weights = SafetensorsWeights::open(folder.path()).unwrap();
    assert_eq!(weights.load("y", &[1]).unwrap(), TensorData::F32(vec![1.0]));
    let paths: Vec<_> = weights.files().iter().map(|f| f.path.as_str()).collect();
    assert_eq!(paths, ["a.safetensors", "b.safetensors"]);
}

#[test]
fn files_and_index_must_agree() {
    let a = || one("a.safetensors", "x");
    let two = || index(&[("x", "a.safetensors"), ("y", "b.safetensors")]);
    let only_x = || index(&[("x", "a.safetensors")]);

    let missing = refusal(&[a(), (INDEX_FILE, two())]);
    let expected = "shard `b.safetensors`: found no such file";
    assert!(missing.contains(expected), "{missing}");

    let extra = refusal(&[a(), one("model-z.safetensors", "z"), (INDEX_FILE, only_x())]);
    assert!(extra.contains("file `model-z.safetensors`"), "{extra}");

    let listing = index(&[("x", "a.safetensors"), ("y", "a.safetensors")]);
    let lacking = refusal(&[a(), (INDEX_FILE, listing)]);
    let expected = "a.safetensors: tensor `y`: found nothing";
    assert!(lacking.contains(expected), "{lacking}");

    let both = file_bytes(&[f32s("x", &[1.0]), f32s("w", &[1.0])]);
    let unlisted = refusal(&[("a.safetensors", both), (INDEX_FILE, only_x())]);
    let expected = "tensor `w`: found a tensor outside the index";
    assert!(unlisted.contains(expected), "{unlisted}");

    let twice = refusal(&[a(), one("b.safetensors", "x"), (INDEX_FILE, two())]);
    assert!(twice.contains("tensor `x`: found also in"), "{twice}");

    let loose = refusal(&[
        one("model-1.safetensors", "x"),
        one("model-2.safetensors", "y"),
    ]);
    let expected = "model-1.safetensors, model-2.safetensors without an index";
    assert!(loose.contains(expected), "{loose}");
    let none = refusal(&[]);
    assert!(none.contains("safetensors files: found none"), "{none}");
}

#[test]
fn bad_indexes_are_refused() {
    for text in [
        "",
        "[]",
        "{}",
        r#"{"weight_map": {}}"#,
        r#"{"weight_map": {"x": 1}}"#,
        r#"{"weight_map": {"x": "../a.safetensors"}}"#,
        r#"{"weight_map": {"x": "a.bin"}}"#,
    ] {
        let listing = (INDEX_FILE, text.as_bytes().to_vec());
        let message = refusal(&[one("a.safetensors", "x"), listing]);
        assert!(message.contains(INDEX_FILE), "{text}: {message}");
    }
}

#[test]
fn two_names_of_a_tensor_are_both_named() {
    let bytes = file_bytes(&[
        f32s("model.x", &[1.0]),
        f32s("language_model.model.x", &[1.0]),
    ]);
    let message = refusal(&[("model.safetensors", bytes)]);
    for name in ["`model.x`", "`language_model.model.x`"] {
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn truncation_is_refused_at_every_byte() {
    let bytes = file_bytes(&[f32s("x", &[1.0, 2.0])]);
    for length in 0..bytes.len() {
        let error = refusal(&[("model.safetensors", bytes[..length].to_vec())]);
        assert!(error.contains("model.safetensors"), "{length}: {error}");
    }
}

#[test]
fn wrong_shape_dtype_and_values_name_the_tensor() {
    let infinity = f16::INFINITY.to_le_bytes().to_vec();
    let bytes = file_bytes(&[
        f32s("x", &[1.0, f32::NAN]),
        ("y", Dtype::F16, vec![1], infinity),
        ("z", Dtype::F8_E4M3, vec![1], vec![0]),
    ]);
    let folder = folder(&[("model.safetensors", bytes)]);
    let weights = SafetensorsWeights::open(folder.path()).unwrap();
    for (name, shape, ending) in [
        (
            "x",
            vec![2],
            "element 1 of tensor `x`: found NaN, expected a finite number",
        ),
        (
            "y",
            vec![1],
            "element 0 of tensor `y`: found inf, expected a finite number",
        ),
        (
            "z",
            vec![1],
            "dtype F8_E4M3 of tensor `z` (F32, F16 and BF16 are read)",
        ),
        (
            "x",
            vec![1, 2],
            "shape of tensor `x`: found [2], expected [1, 2]",
        ),
        (
            "w",
            vec![4],
            "tensor `w`: found nothing, expected shape [4]",
        ),
    ] {
        let message = weights.load(name, &shape).unwrap_err().to_string();
        assert!(message.ends_with(ending), "{message}");
    }
}

proptest! {
    #[test]
    fn mutated_files_never_panic(at: usize, byte: u8) {
        let mut bytes = file_bytes(&[f32s("x", &[1.0, 2.0]), f32s("y", &[3.0])]);
        let at = at % bytes.len();
        bytes[at] = byte;
        let folder = folder(&[("model.safetensors", bytes)]);
        if let Ok(weights) = SafetensorsWeights::open(folder.path()) {
            let _ = weights.load("x", &[2]);
            let _ = weights.load("y", &[1]);
        }
    }

    #[test]
    fn mutated_indexes_never_panic(at: usize, byte: u8) {
        let mut text = index(&[("x", "a.safetensors"), ("y", "b.safetensors")]);
        let at = at % text.len();
        text[at] = byte;
        let _ = parse_index("index", &text);
    }
}

#[test]
fn a_file_that_is_cut_or_too_long_is_said_with_its_bytes() {
    let whole = file_bytes(&[f32s("a", &[1.0, 2.0, 3.0])]);
    let length = whole.len();
    let damaged = |bytes: &[u8]| refusal(&[(SINGLE_FILE, bytes.to_vec())]);
    let says = |text: String, expected: String| {
        let expected = format!("model.safetensors: {expected}");
        assert!(text.ends_with(&expected), "{text}");
    };
    says(
        damaged(&whole[..length - 5]),
        format!(
            "length: found {} bytes, 5 too few, expected {length} bytes, as its header says",
            length - 5
        ),
    );
    says(
        damaged(&[&whole[..], &[0; 3]].concat()),
        format!(
            "length: found {} bytes, 3 too many, expected {length} bytes, as its header says",
            length + 3
        ),
    );
    let header = length - 12 - LENGTH_BYTES;
    says(
        damaged(&whole[..30]),
        format!(
            "header's length: found {header} bytes in a file of 30, expected a safetensors header \
             that fits the file"
        ),
    );
    says(
        damaged(&whole[..3]),
        "length: found 3 bytes, expected at least the 8 that give the header's length".to_owned(),
    );
    let mut garbled = whole.clone();
    garbled[LENGTH_BYTES] = b'x';
    assert!(damaged(&garbled).contains("model.safetensors: header: found "));
}

#[test]
fn a_listed_tensor_that_is_missing_is_named_with_its_folder() {
    let folder = folder(&[
        one("model-1.safetensors", "a"),
        (
            INDEX_FILE,
            index(&[("a", "model-1.safetensors"), ("b", "model-1.safetensors")]),
        ),
    ]);
    let Err(error) = SafetensorsWeights::open(folder.path()) else {
        panic!("opened");
    };
    let shard = folder.path().join("model-1.safetensors");
    let expected = format!(
        "{}: tensor `b`: found nothing, expected the tensor, as {INDEX_FILE} lists it",
        shard.display()
    );
    assert_eq!(error.to_string(), expected);
}
