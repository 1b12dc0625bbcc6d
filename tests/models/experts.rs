//! Models with experts: recipes, chunks, experts that are stored as codes or together, commands, and
//! what is refused.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::decoding::{self, layout, run};
use crate::support::fixture;
use crate::support::oracle::Oracle;
use assert_cmd::Command;
use half::f16;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::backend::{Backend, TensorData};
use kvassay::model::{
    ModelFiles, NoiseWeights, SafetensorsWeights, WeightSource, open, read_config, weight_bytes,
};
use kvassay::recipe::ByteFormat;
use kvassay::recipe::float8::{dequantise, quantise, scale_from_absmax};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

/// Experts in both layers, three of ten for a token.
const NAME: &str = "qwen3_moe";
/// Experts in the last of four layers, stored together.
const MIXED: &str = "qwen3_moe-mixed";

fn stores_as_recipes_say<B: Backend>(backend: B, native_limit: f64, limits: (f64, f64)) {
    decoding::stores_as_recipes_say(NAME, backend, native_limit, limits);
}

#[test]
fn oracle_stores_as_recipes_say() {
    stores_as_recipes_say(Oracle::default(), 1e-4, (0.1, 0.0));
}

#[test]
fn cpu_stores_as_recipes_say() {
    stores_as_recipes_say(CpuBackend::new(), 1e-4, (0.1, 0.0));
}

/// Activations are rounded to 16 bits, which itself moves logits.
#[test]
fn cuda_stores_as_recipes_say() {
    match CudaBackend::new(0) {
        Ok(backend) => stores_as_recipes_say(backend, 4e-3, (0.7, 4e-3)),
        Err(error) => println!("skipped: {error}"),
    }
}

/// Chunks and neighbours change no bit, and so neither does where other tokens go.
fn bits_stay<B: Backend>(backend: impl Fn() -> B) {
    for name in [NAME, MIXED] {
        let decoder = fixture::decoder(&fixture::folder(name), backend());
        let expected = fixture::expected(name);
        let layout = layout(decoder.config(), "SD", &[]);
        let bits = |chunk: usize| -> Vec<u32> {
            let (found, _) = run(&decoder, &layout, &expected, chunk);
            found.into_iter().map(f32::to_bits).collect()
        };
        let whole = bits(expected.ids.len());
        for chunk in [1, 2, 7, 64, 149] {
            assert!(bits(chunk) == whole, "{name}: chunks of {chunk}");
        }
    }
}

#[test]
fn chunks_change_no_bit_on_the_cpu() {
    bits_stay(CpuBackend::new);
}

#[test]
fn chunks_change_no_bit_on_the_gpu() {
    match CudaBackend::new(0) {
        Ok(_) => bits_stay(|| CudaBackend::new(0).unwrap()),
        Err(error) => println!("skipped: {error}"),
    }
}

/// Tensors of a checkpoint: type, shape, content.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// What a fixture stores.
fn stored(name: &str) -> Tensors {
    let bytes = std::fs::read(fixture::folder(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let own = |(name, view): (String, TensorView<'_>)| {
        let content = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        (name, content)
    };
    file.tensors().into_iter().map(own).collect()
}

/// Writes a checkpoint with the config of a fixture, changed.
fn write(folder: &Path, name: &str, changes: &Value, tensors: &Tensors) {
    let text = std::fs::read_to_string(fixture::folder(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let map = config.as_object_mut().unwrap();
    map.extend(changes.as_object().unwrap().clone());
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

/// Numbers of F16 content.
fn numbers(bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.as_chunks::<2>().0.iter();
    halves
        .map(|half| f16::from_le_bytes(*half).to_f32())
        .collect()
}

fn bytes<const N: usize>(numbers: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    numbers.into_iter().flatten().collect()
}

/// A matrix `[rows, columns]` in another form: tensors by the ends of their names, and the numbers
/// that they stand for.
type Stored = (Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>, Vec<f32>);

/// E4M3 in blocks of 16 x 16.
fn fp8(weight: &[f32], [rows, columns]: [usize; 2]) -> Stored {
    let format = ByteFormat::E4m3;
    let grid = [rows.div_ceil(16), columns.div_ceil(16)];
    let mut largest = vec![0.0_f32; grid[0] * grid[1]];
    let block = |i: usize| i / columns / 16 * grid[1] + i % columns / 16;
    for (i, x) in weight.iter().enumerate() {
        largest[block(i)] = largest[block(i)].max(x.abs());
    }
    let scales: Vec<f32> = largest
        .into_iter()
        .map(|x| scale_from_absmax(format, x))
        .collect();
    let codes: Vec<u8> = (0..weight.len())
        .map(|i| quantise(format, weight[i], scales[block(i)]))
        .collect();
    let numbers = (0..weight.len()).map(|i| dequantise(format, codes[i], scales[block(i)]));
    let numbers = numbers.collect();
    let scales = bytes(scales.iter().map(|x| x.to_le_bytes()));
    let parts = vec![
        ("weight", Dtype::F8_E4M3, vec![rows, columns], codes),
        ("weight_scale_inv", Dtype::F32, grid.to_vec(), scales),
    ];
    (parts, numbers)
}

/// Codes of 4 bits in groups of 8 columns, with F16 scales: `(code - zero) * scale`.
fn codes(weight: &[f32], columns: usize, zero: u32) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let groups = weight.as_chunks::<8>().0;
    assert!(columns.is_multiple_of(8));
    let scale = |group: &[f32; 8]| {
        let largest = group.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
        f16::from_f32(largest / 7.0).to_f32()
    };
    let scales: Vec<f32> = groups.iter().map(scale).collect();
    let code = |(i, x): (usize, &f32)| {
        let code = (x / scales[i / 8]).round() + zero as f32;
        code.clamp(0.0, 15.0) as u32
    };
    let codes: Vec<u32> = weight.iter().enumerate().map(code).collect();
    let number = |(i, code): (usize, &u32)| (*code as f32 - zero as f32) * scales[i / 8];
    let numbers = codes.iter().enumerate().map(number).collect();
    (codes, scales, numbers)
}

/// Words of eight codes, in an order.
fn words(codes: &[u32], order: [usize; 8]) -> Vec<u8> {
    let word = |codes: &[u32; 8]| {
        let bits = order.iter().enumerate();
        let word = bits.fold(0, |word, (at, &own)| word | codes[own] << (4 * at));
        word.to_le_bytes()
    };
    bytes(codes.as_chunks::<8>().0.iter().map(word))
}

/// `[rows, columns]` as `[columns, rows]`.
fn turned<T: Copy>(data: &[T], columns: usize) -> Vec<T> {
    let column = |column: usize| data.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

fn halves(numbers: &[f32]) -> Vec<u8> {
    bytes(numbers.iter().map(|x| f16::from_f32(*x).to_le_bytes()))
}

/// compressed-tensors, symmetric.
fn packed(weight: &[f32], [rows, columns]: [usize; 2]) -> Stored {
    let (codes, scales, numbers) = codes(weight, columns, 8);
    let shape = bytes([rows, columns].map(|side| (side as i64).to_le_bytes()));
    let words = words(&codes, [0, 1, 2, 3, 4, 5, 6, 7]);
    let parts = vec![
        ("weight_packed", Dtype::I32, vec![rows, columns / 8], words),
        (
            "weight_scale",
            Dtype::F16,
            vec![rows, columns / 8],
            halves(&scales),
        ),
        ("weight_shape", Dtype::I64, vec![2], shape),
    ];
    (parts, numbers)
}

/// AutoAWQ in its GEMM order, every zero point 7.
fn awq(weight: &[f32], [rows, columns]: [usize; 2]) -> Stored {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let (codes, scales, numbers) = codes(weight, columns, 7);
    let zeros = vec![0x7777_7777_u32; columns / 8 * rows / 8];
    let parts = vec![
        (
            "qweight",
            Dtype::I32,
            vec![columns, rows / 8],
            words(&turned(&codes, columns), ORDER),
        ),
        (
            "qzeros",
            Dtype::I32,
            vec![columns / 8, rows / 8],
            bytes(zeros.into_iter().map(u32::to_le_bytes)),
        ),
        (
            "scales",
            Dtype::F16,
            vec![columns / 8, rows],
            halves(&turned(&scales, columns / 8)),
        ),
    ];
    (parts, numbers)
}

/// Codes of every expert become numbers, whatever their form; what is not stored as codes stays.
#[test]
fn experts_that_are_stored_as_codes_are_found_one_by_one() {
    let plain = stored(NAME);
    let weights = json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 8,
        "symmetric": true, "dynamic": false});
    type Form = fn(&[f32], [usize; 2]) -> Stored;
    let forms: [(Form, Value); 3] = [
        (
            fp8,
            json!({"quant_method": "fp8", "weight_block_size": [16, 16],
                "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "gate"]}),
        ),
        (
            packed,
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized",
                "ignore": ["lm_head", "re:.*mlp.gate$", "re:.*self_attn.*"],
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}),
        ),
        (
            awq,
            json!({"quant_method": "awq", "bits": 4, "group_size": 8, "zero_point": true,
                "version": "gemm", "modules_to_not_convert": ["gate", "self_attn"]}),
        ),
    ];
    for (form, config) in forms {
        let (mut tensors, mut expected) = (Tensors::new(), Vec::new());
        for (name, (dtype, shape, content)) in &plain {
            let module = name.strip_suffix(".weight").unwrap();
            if !module.contains(".experts.") {
                tensors.insert(name.clone(), (*dtype, shape.clone(), content.clone()));
                continue;
            }
            let sides = [shape[0], shape[1]];
            let (parts, numbers) = form(&numbers(content), sides);
            for (part, dtype, shape, content) in parts {
                tensors.insert(format!("{module}.{part}"), (dtype, shape, content));
            }
            expected.push((name, sides, numbers));
        }
        assert_eq!(expected.len(), 2 * 10 * 3);
        let folder = tempfile::tempdir().unwrap();
        let changes = json!({"quantization_config": config});
        write(folder.path(), NAME, &changes, &tensors);
        let weights = SafetensorsWeights::open(folder.path()).unwrap();
        let read = read_config(&folder.path().join("config.json")).unwrap();
        weights.check(&read).unwrap();
        for (name, sides, numbers) in expected {
            let rounded = numbers.into_iter().map(f16::from_f32).collect();
            let found = weights.load(name, &sides).unwrap();
            assert!(found == TensorData::F16(rounded), "{config}: {name}");
        }
        fixture::decoder(folder.path(), CpuBackend::new());
        // Which of two is meant cannot be known.
        let (dtype, shape, _) = &plain["model.layers.1.mlp.experts.0.gate_proj.weight"];
        let shape = vec![10, 2 * shape[0], shape[1]];
        let zeros = vec![0; shape.iter().product::<usize>() * 2];
        let whole = "model.layers.1.mlp.experts.gate_up_proj".to_owned();
        tensors.insert(whole, (*dtype, shape, zeros));
        write(folder.path(), NAME, &changes, &tensors);
        let weights = SafetensorsWeights::open(folder.path()).unwrap();
        let error = weights.check(&read).unwrap_err().to_string();
        let expected = "unsupported: tensor `model.layers.1.mlp.experts.gate_up_proj`";
        assert!(error.contains(expected), "{config}: {error}");
    }
}

fn opened(folder: &Path) -> Result<ModelFiles, String> {
    let tokenizer = "fixtures/demo/tolerant/tokenizer.json";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(tokenizer);
    std::fs::copy(path, folder.join("tokenizer.json")).unwrap();
    open(folder).map_err(|error| error.to_string())
}

/// Experts that are stored together are those that are stored one by one; both at once, another
/// orientation or another number of them are refused by name.
#[test]
fn experts_that_are_stored_together_are_taken_apart() {
    let together = stored(MIXED);
    let prefix = "model.layers.3.mlp.experts";
    let mut apart = together.clone();
    let (dtype, shape, whole) = apart.remove(&format!("{prefix}.gate_up_proj")).unwrap();
    assert_eq!(shape, [6, 80, 64]);
    for (number, half) in whole.chunks_exact(40 * 64 * 2).enumerate() {
        let part = ["gate_proj", "up_proj"][number % 2];
        let name = format!("{prefix}.{}.{part}.weight", number / 2);
        apart.insert(name, (dtype, vec![40, 64], half.to_vec()));
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), MIXED, &json!({}), &apart);
    let expected = fixture::expected(MIXED);
    let logits = |folder: &Path| {
        let decoder = fixture::decoder(folder, CpuBackend::new());
        let layout = layout(decoder.config(), "native", &[]);
        run(&decoder, &layout, &expected, 150).0
    };
    assert_eq!(logits(folder.path()), logits(&fixture::folder(MIXED)));

    let mut twice = apart.clone();
    twice.insert(
        format!("{prefix}.gate_up_proj"),
        (dtype, shape, whole.clone()),
    );
    let mut other = together.clone();
    other.get_mut(&format!("{prefix}.gate_up_proj")).unwrap().1 = vec![6, 64, 80];
    let mut fewer = together.clone();
    fewer.get_mut(&format!("{prefix}.down_proj")).unwrap().1 = vec![5, 64, 48];
    for (tensors, expected) in [
        (
            &twice,
            "unsupported: tensor `model.layers.3.mlp.experts.gate_up_proj`",
        ),
        (
            &other,
            "shape of tensor `model.layers.3.mlp.experts.0.gate_proj.weight`: found [32, 80]",
        ),
        (
            &fewer,
            "shape of tensor `model.layers.3.mlp.experts.0.down_proj.weight`: found [64, 48]",
        ),
    ] {
        write(folder.path(), MIXED, &json!({}), tensors);
        let error = opened(folder.path()).err().unwrap();
        assert!(error.contains(expected), "{error}");
    }
}

fn kvassay(arguments: &[&str], path: &Path, code: i32) -> Value {
    let mut command = Command::cargo_bin("kvassay").unwrap();
    let assert = command.args(arguments).arg(path).assert().code(code);
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

#[test]
fn doctor_counts_experts_and_names_what_is_not_applied() {
    let doctor = |path: &Path, code: i32| {
        let arguments = ["doctor", "--format", "json", "--model"];
        kvassay(&arguments, path, code)["model"].clone()
    };
    let folder = fixture::folder(MIXED);
    let report = doctor(&folder.join("config.json"), 0);
    assert_eq!(report["family"], "qwen3_moe");
    let notes = report["notes"].to_string();
    let expected = "1 of 4 layers have 6 experts, of which a token goes through 2";
    assert!(notes.contains(expected), "{notes}");

    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (field, value) in [
        ("shared_expert_intermediate_size", json!(96)),
        ("scoring_func", json!("sigmoid")),
        ("model_type", json!("qwen2_moe")),
    ] {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[field] = value;
        std::fs::write(&path, config.to_string()).unwrap();
        let report = doctor(&path, 3);
        let refused = report["refused"].as_str().unwrap();
        assert!(
            refused.contains(&format!("unsupported: {field} = ")),
            "{refused}"
        );
    }
}

/// Parameters and cache of Qwen3-30B-A3B, by hand: 48 layers of attention (32 and 4 heads of 128), norms,
/// a router and 128 experts, and two tables of tokens.
#[test]
fn a_published_shape_has_its_parameters() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/configs/qwen3-30b-a3b.json");
    let config = read_config(&path).unwrap();
    let heads = 2048 * (2 * 4096 + 2 * 512) + 2 * 2048 + 2 * 128;
    let layer = heads + 128 * 2048 + 128 * 3 * 768 * 2048;
    let parameters: u64 = 48 * layer + 2 * 151_936 * 2048 + 2048;
    assert_eq!(parameters, 30_532_122_624);
    // What no file names the type of counts as FP32.
    let weights = NoiseWeights::new(config.native_dtype);
    assert_eq!(weight_bytes(&config, &weights), 4 * parameters);
    let memory = ["memory", "--budget", "1GiB", "--format", "json"];
    let report = kvassay(&memory, &path, 0);
    assert_eq!(report["recipes"][0]["bytes_per_token"], 98_304, "{report}");
}

/// Every figure has a floor, which experts are part of.
#[test]
fn a_shape_with_experts_is_timed() {
    let config = fixture::folder(NAME).join("config.json");
    let arguments = [
        "bench",
        "worker",
        "--worker",
        "cpu",
        "--quick",
        "--format",
        "json",
        "--work",
        "load,prefill-1k,decode,math",
        "--recipe",
        "AD",
        "--shape",
    ];
    let document = kvassay(&arguments, &config, 0);
    let rows = document["measured"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows.iter().skip(1) {
        let share = row["share_of_floor"].as_f64().unwrap();
        assert!(share > 0.0 && share < 1.0, "{row}");
    }
}
