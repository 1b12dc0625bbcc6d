//! Checkpoints with weights in FP8 and scales of their own for the cache, through the binary.

use std::collections::BTreeMap;
use std::fs;

use kvassay::recipe::{ByteFormat, float8};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::tiny::Tiny;

/// Scales of keys and values of both layers; none of the values is what a calibration would find.
const SCALES: [[f32; 2]; 2] = [[0.0123, 0.5], [1.0, 0.0625]];

/// Stores the projections of the tiny model in E4M3 with one scale per row, and adds `SCALES`.
fn quantise(tiny: &Tiny, scales: &[[f32; 2]]) {
    let path = tiny.model().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, view) in file.tensors() {
        let shape = view.shape().to_vec();
        let Some(module) = name
            .strip_suffix(".weight")
            .filter(|name| name.contains("_proj"))
        else {
            tensors.insert(name, (view.dtype(), shape, view.data().to_vec()));
            continue;
        };
        assert_eq!(view.dtype(), Dtype::F32);
        let numbers = view.data().as_chunks::<4>().0.iter();
        let numbers: Vec<f32> = numbers.map(|b| f32::from_le_bytes(*b)).collect();
        let (mut codes, mut row_scales) = (Vec::new(), Vec::new());
        for row in numbers.chunks(shape[1]) {
            let absmax = row.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = half::f16::from_f32(absmax / 448.0 * 1.01);
            row_scales.extend(scale.to_le_bytes());
            let code = |x: &f32| float8::quantise(ByteFormat::E4m3, *x, scale.to_f32());
            codes.extend(row.iter().map(code));
        }
        let rows = vec![shape[0], 1];
        tensors.insert(
            format!("{module}.weight_scale"),
            (Dtype::F16, rows, row_scales),
        );
        tensors.insert(name, (Dtype::F8_E4M3, shape, codes));
    }
    for (layer, sides) in scales.iter().enumerate() {
        for (side, scale) in ["k", "v"].into_iter().zip(sides) {
            let name = format!("model.layers.{layer}.self_attn.{side}_scale");
            tensors.insert(name, (Dtype::F32, vec![1], scale.to_le_bytes().to_vec()));
        }
    }
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let path = tiny.model().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let float = json!({"num_bits": 8, "type": "float", "symmetric": true});
    let with = |strategy: &str, dynamic: bool| {
        let mut scheme = float.clone();
        scheme["strategy"] = strategy.into();
        scheme["dynamic"] = dynamic.into();
        scheme
    };
    config["quantization_config"] = json!({
        "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": with("channel", false),
            "input_activations": with("token", true)}},
        "kv_cache_scheme": with("tensor", false), "ignore": ["lm_head"],
    });
    fs::write(path, config.to_string()).unwrap();
}

fn kvassay(tiny: &Tiny, args: &[&str]) -> (i32, String) {
    let output = tiny.kvassay().args(args).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code().unwrap(), text.concat())
}

fn json_of(tiny: &Tiny, path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(tiny.path(path)).unwrap()).unwrap()
}

/// The protocol takes them, the run stores them, every arm with fixed scales uses them, the
/// certificate says so, and verification holds the calibration to the checkpoint.
#[test]
fn scales_of_a_checkpoint_are_fixed_scales() {
    let tiny = Tiny::new();
    quantise(&tiny, &SCALES);
    let asked = json!({"repetition_penalty": 1.05, "temperature": 0.7}).to_string();
    fs::write(tiny.model().join("generation_config.json"), asked).unwrap();
    let new = [
        "protocol",
        "new",
        "--from",
        "tiny.json",
        "--name",
        "own",
        "--out",
        "own.json",
    ];
    let (code, text) = kvassay(
        &tiny,
        &[&new[..], &["--calibration", "checkpoint"]].concat(),
    );
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("calibration: the checkpoint's own scales"),
        "{text}"
    );
    let model = [
        "--model",
        "tiny-llama",
        "--protocol",
        "own.json",
        "--data",
        "data",
    ];
    let run = ["qualify", "AF", "--worker", "cpu", "--out", "run"];
    let (code, text) = kvassay(&tiny, &[&run[..], &model].concat());
    assert_eq!(code, 1, "{text}");
    let calibration = json_of(&tiny, "run/calibration.json");
    assert_eq!(calibration["source"], "checkpoint");
    assert_eq!(calibration["documents"], 0);
    let engagement = json_of(&tiny, "run/arms/AF/engagement.json");
    for (layer, sides) in SCALES.iter().enumerate() {
        let scale = engagement["layers"][layer]["v"]["scale_min"]
            .as_f64()
            .unwrap();
        assert_eq!(scale as f32, sides[1], "layer {layer}");
    }
    let certificate = json_of(&tiny, "run/certificates/AF.json");
    let stored = &certificate["model"]["quantised"];
    assert_eq!(
        stored["weights"]["forms"],
        json!(["E4M3, one scale per row"])
    );
    assert_eq!(stored["weights"]["numbers"], "f16");
    assert_eq!(stored["cache_scales"].as_array().unwrap().len(), 2);
    let caveats = certificate["caveats"].to_string();
    for part in [
        "Fixed scales are those that the checkpoint brings along",
        "Weights are stored as codes (compressed-tensors: E4M3, one scale per row)",
        "The checkpoint asks for activations of 8 bits, type float, dynamic scales",
        "The checkpoint asks for repetition_penalty = 1.05 (generation_config.json); answers are greedy without",
    ] {
        assert!(caveats.contains(part), "{part}: {caveats}");
    }
    let verify = ["verify", "run/certificates/AF.json", "--run", "run"];
    let (code, text) = kvassay(&tiny, &verify);
    assert_eq!(code, 0, "{text}");
    // Other scales than the checkpoint's are no calibration of this run.
    let mut other = calibration;
    other["layers"][0]["v"] = json!(7.0);
    fs::write(tiny.path("run/calibration.json"), other.to_string()).unwrap();
    let (code, text) = kvassay(&tiny, &verify);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("calibration.json: layers"), "{text}");
}

#[test]
fn calibrate_writes_them_and_names_unit_scales() {
    let tiny = Tiny::new();
    quantise(&tiny, &[[1.0; 2]; 2]);
    let calibrate = |out: &str| {
        let mut command = tiny.command("calibrate");
        let output = command
            .args(["--from-checkpoint", "--out", out])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), text.concat())
    };
    let (code, text) = calibrate("scales.json");
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 layers from the checkpoint's own scales, all of them unit scales"));
    let written = json_of(&tiny, "scales.json");
    assert_eq!(
        written["layers"],
        json!([{"k": 448.0, "v": 448.0}, {"k": 448.0, "v": 448.0}])
    );
    let (code, text) = kvassay(&tiny, &["doctor", "--model", "tiny-llama"]);
    assert_eq!(code, 0, "{text}");
    for part in [
        "compressed-tensors (E4M3, one scale per row)",
        "as f16 numbers on a device",
        "brings scales for its cache, all of them unit scales (1.0)",
        "here they stay native",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A checkpoint without any, and one with half of them.
    quantise_plain(&tiny);
    let (code, text) = calibrate("none.json");
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("scales of the cache: found none, expected k_scale"),
        "{text}"
    );
    let partly = Tiny::new();
    quantise(&partly, &SCALES[..1]);
    let (code, text) = kvassay(&partly, &["doctor", "--model", "tiny-llama"]);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("scales of the cache of layer 1: found none, expected one"),
        "{text}"
    );
}

/// The tiny model as it was.
fn quantise_plain(tiny: &Tiny) {
    let plain = Tiny::new();
    for name in ["model.safetensors", "config.json"] {
        fs::copy(plain.model().join(name), tiny.model().join(name)).unwrap();
    }
}
