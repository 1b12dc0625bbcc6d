use proptest::prelude::*;
use serde_json::Value;

use super::*;

const GOLDEN: &str = include_str!("../../../fixtures/parity/rotary.json");

fn number(parameters: &Value, name: &str) -> Option<f64> {
    parameters.get(name).and_then(Value::as_f64)
}

fn rope(parameters: &Value) -> Rope {
    let get = |name| number(parameters, name).unwrap();
    let context = |name| parameters[name].as_u64().unwrap() as usize;
    let scaling = match parameters["rope_type"].as_str().unwrap() {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear {
            factor: get("factor"),
        },
        "llama3" => RopeScaling::Llama3 {
            factor: get("factor"),
            low_freq_factor: get("low_freq_factor"),
            high_freq_factor: get("high_freq_factor"),
            original_context: context("original_max_position_embeddings"),
        },
        "yarn" => RopeScaling::Yarn {
            factor: get("factor"),
            beta_fast: number(parameters, "beta_fast").unwrap_or(32.0),
            beta_slow: number(parameters, "beta_slow").unwrap_or(1.0),
            original_context: context("original_max_position_embeddings"),
            attention_factor: number(parameters, "attention_factor")
                .unwrap_or_else(|| 0.1 * get("factor").ln() + 1.0),
            truncate: parameters.get("truncate").is_none_or(|t| t == true),
        },
        other => panic!("fixture with rope_type {other}"),
    };
    Rope::new(get("rope_theta"), scaling)
}

fn empty_table(head_dim: usize) -> RotaryTable {
    RotaryTables::new(&Rope::new(1e4, RopeScaling::Default), head_dim).k
}

fn floats(value: &Value) -> Vec<f32> {
    let list = value.as_array().unwrap();
    list.iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// Tables of whole-size configurations against those of transformers. Powers come from different
/// libraries, so an inverse frequency may differ in its last bits, which the position multiplies.
#[test]
fn tables_agree_with_transformers() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let positions: Vec<usize> = golden["positions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p.as_u64().unwrap() as usize)
        .collect();
    for (name, table) in golden["tables"].as_object().unwrap() {
        let head_dim = table["head_dim"].as_u64().unwrap() as usize;
        let rope = rope(&table["rope_parameters"]);
        let expected = floats(&table["inv_freq"]);
        let found = inverse_frequencies(&rope, head_dim);
        let exact = found.iter().zip(&expected).filter(|(a, b)| a == b).count();
        println!(
            "{name}: {exact} of {} inverse frequencies have the same bits",
            found.len()
        );
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() <= 2e-7 * b, "{name}: {a} against {b}");
        }
        let mut ours = empty_table(head_dim);
        extend_table(&mut ours, &rope, 1 + positions.iter().max().unwrap());
        for (row, &position) in positions.iter().enumerate() {
            let cos = floats(&table["cos"][row]);
            let sin = floats(&table["sin"][row]);
            for i in 0..head_dim / 2 {
                let at = position * (head_dim / 2) + i;
                let differs = (found[i] - expected[i]).abs() * position as f32;
                // Two angles that differ in the last bit of the product, at most.
                let rounding = expected[i] * position as f32 * f32::EPSILON * 0.5;
                let limit = 2.0 * (differs + if differs > 0.0 { rounding } else { 0.0 }) + 3e-7;
                for (a, b) in [(ours.cos[at], cos[i]), (ours.sin[at], sin[i])] {
                    assert!(
                        (a - b).abs() <= limit,
                        "{name} {position} {i}: {a} against {b}"
                    );
                }
            }
        }
    }
}

#[test]
fn linear_scaling_stretches_positions() {
    let plain = Rope::new(10000.0, RopeScaling::Default);
    let stretched = Rope::new(10000.0, RopeScaling::Linear { factor: 4.0 });
    let (mut a, mut b) = (empty_table(16), empty_table(16));
    extend_table(&mut a, &plain, 26);
    extend_table(&mut b, &stretched, 101);
    for i in 0..8 {
        assert!((a.cos[25 * 8 + i] - b.cos[100 * 8 + i]).abs() < 1e-5);
        assert!((a.sin[25 * 8 + i] - b.sin[100 * 8 + i]).abs() < 1e-5);
    }
}

/// Factors that say what linear scaling says give the same table.
#[test]
fn frequency_factors_divide_each_frequency() {
    let rope = |scaling| Rope::new(10000.0, scaling);
    let linear = rope(RopeScaling::Linear { factor: 4.0 });
    let factors = rope(RopeScaling::FrequencyFactors {
        factors: vec![4.0; 8],
    });
    assert_eq!(
        inverse_frequencies(&linear, 16),
        inverse_frequencies(&factors, 16)
    );
    let mixed = rope(RopeScaling::FrequencyFactors {
        factors: (1..9).map(|i| i as f32).collect(),
    });
    let plain = inverse_frequencies(&rope(RopeScaling::Default), 16);
    for (i, found) in inverse_frequencies(&mixed, 16).into_iter().enumerate() {
        assert_eq!(found, plain[i] / (i + 1) as f32);
    }
}

proptest! {
    #[test]
    fn extending_in_steps_gives_the_same_table(cuts in proptest::collection::vec(0usize..60, 0..6)) {
        let rope = Rope::new(10000.0, RopeScaling::Yarn {
                factor: 4.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_context: 64,
                attention_factor: 1.138,
                truncate: true,
            });
        let mut whole = empty_table(16);
        extend_table(&mut whole, &rope, 60);
        let mut stepped = empty_table(16);
        for cut in cuts {
            extend_table(&mut stepped, &rope, cut);
        }
        extend_table(&mut stepped, &rope, 60);
        prop_assert_eq!(whole, stepped);
    }
}

#[test]
fn a_part_of_a_head_vector_has_the_frequencies_of_its_own_width() {
    let whole = Rope::new(10000.0, RopeScaling::Default);
    let part = Rope {
        partial: 0.75,
        ..whole.clone()
    };
    assert_eq!(part.rotated(64), 48);
    assert_eq!(
        inverse_frequencies(&part, 64),
        inverse_frequencies(&whole, 48)
    );
    let mut tables = RotaryTables::new(&part, 64);
    tables.extend(&part, 9);
    assert_eq!((tables.k.half, tables.k.head_dim), (24, 64));
    assert_eq!((tables.positions(), tables.k.cos.len()), (9, 9 * 24));
    assert_eq!(tables.q, tables.k);
}

#[test]
fn queries_grow_with_every_period() {
    let growth = QueryGrowth {
        beta: 0.1,
        period: 16,
    };
    let rope = Rope {
        query_growth: Some(growth),
        ..Rope::new(10000.0, RopeScaling::Default)
    };
    let mut tables = RotaryTables::new(&rope, 8);
    tables.extend(&rope, 5);
    tables.extend(&rope, 40);
    for position in 0..40 {
        let factor = 1.0 + 0.1 * (1.0 + (position / 16) as f32).ln();
        for i in position * 4..(position + 1) * 4 {
            assert_eq!(tables.q.cos[i], tables.k.cos[i] * factor);
            assert_eq!(tables.q.sin[i], tables.k.sin[i] * factor);
        }
    }
    assert_eq!(query_factor(growth, 15), 1.0);
}
