mod any;
mod cache_scales;
mod config;

use std::collections::BTreeMap;

use ::safetensors::tensor::Dtype;
use half::{bf16, f16};
use serde_json::{Value, json};

use super::config::Ignored;
use super::form::{ByteKind, Form, Granularity};
use super::*;
use crate::backend::TensorData;
use crate::recipe::ByteFormat;

/// Tensors of a file: type, shape, content.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn lookup<'a>(tensors: &'a Tensors) -> impl Fn(&str) -> Option<Stored<'a>> + 'a {
    move |name| {
        let (dtype, shape, bytes) = tensors.get(name)?;
        Some(Stored {
            path: "model.safetensors",
            dtype: *dtype,
            shape,
            bytes,
        })
    }
}

fn parse(config: Value) -> Result<Option<Quantisation>, ModelError> {
    let config = json!({"dtype": "bfloat16", "quantization_config": config});
    of_text("config.json", config.to_string().as_bytes())
}

fn parsed(config: Value) -> Quantisation {
    parse(config).unwrap().unwrap()
}

fn found(quantisation: &Quantisation, tensors: &Tensors) -> Result<Found, ModelError> {
    find(
        quantisation,
        tensors.keys().map(String::as_str),
        &lookup(tensors),
    )
}

/// Bytes from a counter.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Halves of moderate size.
fn scales(count: usize, seed: u64) -> Vec<u8> {
    let bytes = noise(count, seed);
    bytes
        .iter()
        .flat_map(|&byte| f16::from_f32((f32::from(byte) + 1.0) / 977.0).to_le_bytes())
        .collect()
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
}

/// Code number `at` of 4 bits, low ones first.
fn code_at(bytes: &[u8], at: usize) -> i32 {
    i32::from((bytes[at / 2] >> (4 * (at % 2))) & 0xf)
}

fn awq(order: &str, group: usize) -> Quantisation {
    parsed(json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": order}))
}

const SHAPE: [usize; 2] = [264, 96];

fn loaded(quantisation: &Quantisation, tensors: &Tensors) -> Vec<f32> {
    let found = found(quantisation, tensors).unwrap();
    assert_eq!(found.parts.len(), tensors.len(), "{:?}", found.parts);
    let matrix = &found.matrices["m.weight"];
    assert_eq!(matrix.shape, SHAPE);
    let data = matrix
        .codes(NumberType::Bf16, &lookup(tensors))
        .unwrap()
        .decode();
    assert!(matches!(data, TensorData::Bf16(_)));
    data.into_f32()
}

fn check(found: &[f32], expected: impl Fn(usize, usize) -> f32) {
    for (at, number) in found.iter().enumerate() {
        let (row, column) = (at / SHAPE[1], at % SHAPE[1]);
        let expected = bf16::from_f32(expected(row, column)).to_f32();
        assert_eq!(*number, expected, "row {row}, column {column}");
    }
}

/// More rows than a thread takes, in the order in which AutoAWQ interleaves them.
#[test]
fn gemm_order_interleaves_outputs() {
    let ([rows, columns], group) = (SHAPE, 32);
    let groups = columns / group;
    let (codes, zeros) = (noise(rows / 2 * columns, 1), noise(groups * rows / 2, 2));
    let scale = scales(groups * rows, 3);
    let words = |lines: usize, bytes: &Vec<u8>| (Dtype::I32, vec![lines, rows / 8], bytes.clone());
    let tensors = Tensors::from([
        ("m.qweight".to_owned(), words(columns, &codes)),
        ("m.qzeros".to_owned(), words(groups, &zeros)),
        (
            "m.scales".to_owned(),
            (Dtype::F16, vec![groups, rows], scale.clone()),
        ),
    ]);
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let code = |bytes: &[u8], line: usize, row: usize| {
        let place = ORDER.iter().position(|&output| output == row % 8).unwrap();
        code_at(bytes, line * rows + row / 8 * 8 + place)
    };
    check(&loaded(&awq("GEMM", group), &tensors), |row, column| {
        let line = column / group;
        let whole = code(&codes, column, row) - code(&zeros, line, row);
        whole as f32 * half_at(&scale, line * rows + row)
    });
}

/// Rows of zero points and scales are longer than the groups are many.
#[test]
fn gemv_order_pads_zero_points() {
    let [rows, columns] = SHAPE;
    for (group, words) in [(32, 4), (16, 4), (96, 2)] {
        let codes = noise(rows * columns / 2, 4);
        let (zeros, scale) = (noise(rows * words * 4, 5), scales(rows * words * 8, 6));
        let tensors = Tensors::from([
            (
                "m.qweight".to_owned(),
                (Dtype::I32, vec![rows, columns / 8], codes.clone()),
            ),
            (
                "m.qzeros".to_owned(),
                (Dtype::I32, vec![rows, words], zeros.clone()),
            ),
            (
                "m.scales".to_owned(),
                (Dtype::F16, vec![rows, words * 8], scale.clone()),
            ),
        ]);
        check(&loaded(&awq("gemv", group), &tensors), |row, column| {
            let at = row * words * 8 + column / group;
            let whole = code_at(&codes, row * columns + column) - code_at(&zeros, at);
            whole as f32 * half_at(&scale, at)
        });
    }
}

fn packed_config(bits: u32, symmetric: bool) -> Value {
    json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int",
            "strategy": "group", "group_size": 32, "symmetric": symmetric}}}})
}

fn written_shape() -> (Dtype, Vec<usize>, Vec<u8>) {
    let sides = SHAPE.iter().flat_map(|&side| (side as i64).to_le_bytes());
    (Dtype::I64, vec![2], sides.collect())
}

#[test]
fn packed_words_hold_codes_of_both_widths_and_zero_points_of_every_kind() {
    let [rows, columns] = SHAPE;
    let groups = columns / 32;
    for bits in [4u32, 8] {
        let codes = noise(rows * columns * bits as usize / 8, 7);
        let scale = scales(rows * groups, 8);
        let words = rows * bits as usize / 32;
        let signed: Vec<u8> = noise(rows * groups, 9)
            .iter()
            .map(|byte| (byte % (1 << (bits - 1))).wrapping_sub(1 << (bits - 2)))
            .collect();
        let packed = noise(words * groups * 4, 10);
        let code = |at: usize| match bits {
            4 => code_at(&codes, at),
            _ => i32::from(codes[at]),
        };
        let mut tensors = Tensors::from([
            (
                "m.weight_packed".to_owned(),
                (
                    Dtype::I32,
                    vec![rows, columns * bits as usize / 32],
                    codes.clone(),
                ),
            ),
            (
                "m.weight_scale".to_owned(),
                (Dtype::F16, vec![rows, groups], scale.clone()),
            ),
            ("m.weight_shape".to_owned(), written_shape()),
        ]);
        let scale_of = |row: usize, column: usize| half_at(&scale, row * groups + column / 32);
        let half = 1 << (bits - 1);
        check(
            &loaded(&parsed(packed_config(bits, true)), &tensors),
            |row, column| (code(row * columns + column) - half) as f32 * scale_of(row, column),
        );
        let asymmetric = parsed(packed_config(bits, false));
        let zeros = (Dtype::I8, vec![rows, groups], signed.clone());
        tensors.insert("m.weight_zero_point".to_owned(), zeros);
        check(&loaded(&asymmetric, &tensors), |row, column| {
            let zero = i32::from(signed[row * groups + column / 32] as i8) + half;
            (code(row * columns + column) - zero) as f32 * scale_of(row, column)
        });
        let zeros = (Dtype::I32, vec![words, groups], packed.clone());
        tensors.insert("m.weight_zero_point".to_owned(), zeros);
        let per_word = 32 / bits as usize;
        check(&loaded(&asymmetric, &tensors), |row, column| {
            let word = (row / per_word * groups + column / 32) * 4;
            let zero = match bits {
                4 => code_at(&packed[word..], row % per_word),
                _ => i32::from(packed[word + row % per_word]),
            };
            (code(row * columns + column) - zero) as f32 * scale_of(row, column)
        });
    }
}

/// Tiles that end within a thread's rows, reach beyond them, and do not divide the matrix.
#[test]
fn bytes_take_the_scale_of_their_tile() {
    let [rows, columns] = SHAPE;
    let bytes: Vec<u8> = noise(rows * columns, 11)
        .iter()
        .map(|byte| byte & 0xf7)
        .collect();
    let block = |sides: [usize; 2]| (Granularity::Block(sides), sides);
    for (scale, tile) in [
        (Granularity::Tensor, SHAPE),
        (Granularity::Channel, [1, columns]),
        (Granularity::Group(24), [1, 24]),
        block([128, 64]),
        block([48, 40]),
        block([200, 7]),
    ] {
        let grid = [rows.div_ceil(tile[0]), columns.div_ceil(tile[1])];
        let numbers = scales(grid[0] * grid[1], 12);
        for (kind, dtype) in [
            (ByteKind::E4m3, Dtype::F8_E4M3),
            (ByteKind::Int8, Dtype::I8),
        ] {
            let quantisation = Quantisation {
                forms: vec![Form::Bytes { kind, scale }],
                ..awq("gemm", 128)
            };
            let shape = if tile == SHAPE {
                Vec::new()
            } else {
                grid.to_vec()
            };
            let tensors = Tensors::from([
                (
                    "m.weight".to_owned(),
                    (dtype, SHAPE.to_vec(), bytes.clone()),
                ),
                (
                    "m.weight_scale_inv".to_owned(),
                    (Dtype::F16, shape, numbers.clone()),
                ),
            ]);
            check(&loaded(&quantisation, &tensors), |row, column| {
                let byte = bytes[row * columns + column];
                let value = match kind {
                    ByteKind::E4m3 => ByteFormat::E4m3.table()[usize::from(byte)],
                    ByteKind::Int8 => f32::from(byte as i8),
                };
                value * half_at(&numbers, row / tile[0] * grid[1] + column / tile[1])
            });
        }
    }
}

fn gemm_tensors() -> Tensors {
    Tensors::from([
        (
            "m.qweight".to_owned(),
            (Dtype::I32, vec![64, 2], noise(512, 1)),
        ),
        (
            "m.qzeros".to_owned(),
            (Dtype::I32, vec![2, 2], noise(16, 2)),
        ),
        (
            "m.scales".to_owned(),
            (Dtype::F16, vec![2, 16], scales(32, 3)),
        ),
    ])
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let refusal = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = gemm_tensors();
        change(&mut tensors);
        found(&awq("gemm", 32), &tensors).unwrap_err().to_string()
    };
    let message = refusal(&|tensors| drop(tensors.remove("m.qzeros")));
    assert!(
        message.contains("tensor `m.qzeros`: found nothing, expected shape [2, 2]"),
        "{message}"
    );
    let message = refusal(&|tensors| tensors.get_mut("m.scales").unwrap().1 = vec![16, 2]);
    assert!(
        message.contains("shape of tensor `m.scales`: found [16, 2], expected [2, 16]"),
        "{message}"
    );
    let message = refusal(&|tensors| tensors.get_mut("m.qzeros").unwrap().0 = Dtype::F32);
    assert!(
        message.contains("dtype of tensor `m.qzeros`: found F32, expected I32"),
        "{message}"
    );
    let message = refusal(&|tensors| tensors.get_mut("m.scales").unwrap().0 = Dtype::F8_E8M0);
    assert!(
        message.contains("unsupported: dtype F8_E8M0 of tensor `m.scales`"),
        "{message}"
    );
    // Those of a part that is never loaded do not matter.
    let mut tensors = gemm_tensors();
    let codes = tensors["m.qweight"].clone();
    tensors.insert("vision_tower.m.qweight".to_owned(), codes);
    let matrices = found(&awq("gemm", 32), &tensors).unwrap().matrices;
    assert_eq!(matrices.into_keys().collect::<Vec<_>>(), ["m.weight"]);
    let left_out = Quantisation {
        ignored: vec![Ignored::new("m").unwrap()],
        ..awq("gemm", 32)
    };
    let message = found(&left_out, &gemm_tensors()).unwrap_err().to_string();
    assert!(
        message.contains("the config leaves this module out"),
        "{message}"
    );
    let fp8 = parsed(json!({"quant_method": "fp8"}));
    let message = found(&fp8, &gemm_tensors()).unwrap_err().to_string();
    assert!(
        message.contains("in no form that the config names for fp8"),
        "{message}"
    );
    let message = found(&awq("gemm", 24), &gemm_tensors())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("found 64, expected a multiple of the group size 24"),
        "{message}"
    );
}
