//! Logits of the decoder against those of transformers, on tiny models of every family and rotary
//! variant (`fixtures/parity/make_parity.py`).

use std::path::Path;

use crate::support::fixture::{self, Expected};
use crate::support::oracle::Oracle;
use kvassay::backend::cpu::CpuBackend;
use kvassay::backend::cuda::CudaBackend;
use kvassay::backend::{Backend, CacheLayout, CacheRow};
use kvassay::model::{SafetensorsWeights, WeightSource, Workspace};
use kvassay::recipe::Recipe;

const MODELS: [&str; 19] = [
    "gemma3",
    "gemma4",
    "gemma4-experts",
    "gemma4-whole",
    "llama",
    "llama-linear",
    "llama-llama3",
    "llama-yarn",
    "mistral",
    "mistral3",
    "phi3-long",
    "phi3-short",
    "qwen2",
    "qwen3",
    "qwen3-window",
    "qwen3_5",
    "qwen3_5-whole",
    "qwen3_moe",
    "qwen3_moe-mixed",
];

/// The same decoder with weights that are stored as codes (`fixtures/parity/make_quantised.py`).
const QUANTISED: [&str; 7] = [
    "quantised-awq-gemm",
    "quantised-awq-gemv",
    "quantised-fp8-block",
    "quantised-fp8-channel",
    "quantised-fp8-tensor",
    "quantised-packed-asymmetric",
    "quantised-packed-symmetric",
];

fn models() -> impl Iterator<Item = &'static str> {
    QUANTISED.into_iter().chain(MODELS)
}

/// Differences from the expected logits, relative to their size.
struct Difference {
    /// `max |found - expected| / max |expected|` over all logits.
    largest: f64,
    /// Root mean square of the differences over that of the expected logits.
    typical: f64,
}

fn difference(found: &[f32], expected: &[f32]) -> Difference {
    assert_eq!(found.len(), expected.len());
    let differences: Vec<f64> = found
        .iter()
        .zip(expected)
        .map(|(a, b)| f64::from(*a) - f64::from(*b))
        .collect();
    let expected: Vec<f64> = expected.iter().map(|x| f64::from(*x)).collect();
    assert!(differences.iter().all(|d| d.is_finite()));
    let largest = |x: &[f64]| x.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    Difference {
        largest: largest(&differences) / largest(&expected),
        typical: (square(&differences) / square(&expected)).sqrt(),
    }
}

/// Runs the fixture's ids in chunks and returns the kept rows' logits.
fn logits<B: Backend>(folder: &Path, expected: &Expected, backend: B, chunk: usize) -> Vec<f32> {
    logits_under(Recipe::native(), folder, expected, backend, chunk)
}

/// The same under a recipe.
fn logits_under<B: Backend>(
    recipe: Recipe,
    folder: &Path,
    expected: &Expected,
    backend: B,
    chunk: usize,
) -> Vec<f32> {
    let decoder = fixture::decoder(folder, backend);
    let config = decoder.config();
    let mut cache = decoder
        .backend()
        .cache(&CacheLayout {
            layers: config.cache_layers(),
            native: config.native_dtype,
            slots: 1,
            slot_tokens: expected.ids.len(),
            pass_tokens: expected.ids.len(),
            recipe,
            absmax: None,
        })
        .unwrap();
    let mut workspace = Workspace::new(decoder.backend(), config).unwrap();
    let mut found = Vec::new();
    for start in (0..expected.ids.len()).step_by(chunk) {
        let end = expected.ids.len().min(start + chunk);
        let rows: Vec<CacheRow> = (start..end)
            .map(|position| CacheRow { slot: 0, position })
            .collect();
        let wanted: Vec<usize> = (start..end)
            .filter(|position| expected.rows.contains(position))
            .map(|position| position - start)
            .collect();
        let ids = &expected.ids[start..end];
        let logits = decoder
            .forward(&mut cache, &rows, ids, &wanted, &mut workspace)
            .unwrap();
        if let Some(logits) = logits {
            found.extend(decoder.backend().to_host(logits).unwrap());
        }
    }
    found
}

/// Codes become the numbers of the definition, to the bit.
#[test]
fn codes_become_the_numbers_that_they_stand_for() {
    for name in QUANTISED {
        let weights = SafetensorsWeights::open(&fixture::folder(name)).unwrap();
        let expected = fixture::expected_weights(name);
        assert_eq!(expected.len(), 3, "{name}");
        for (module, shape, numbers) in expected {
            let found = weights.load(&format!("{module}.weight"), &shape).unwrap();
            assert!(found == numbers, "{name}: {module}");
        }
    }
}

/// Nothing rounded on either side.
#[test]
fn oracle_agrees_with_an_unmodified_forward_pass() {
    for name in models() {
        let expected = fixture::expected(name);
        let oracle = Oracle { exact: true };
        let found = logits(&fixture::folder(name), &expected, oracle, 128);
        let found = difference(&found, &expected.logits);
        println!("{name}: {:.1e} {:.1e}", found.largest, found.typical);
        assert!(found.largest < 1e-5, "{name}: {:e}", found.largest);
    }
}

/// The worker's own arithmetic, with nothing rounded on either side: no family is off by more than f32 is.
#[test]
fn cpu_agrees_with_an_unmodified_forward_pass() {
    for name in models() {
        let expected = fixture::expected(name);
        let backend = CpuBackend::unrounded();
        let found = logits(&fixture::folder(name), &expected, backend, 97);
        let found = difference(&found, &expected.logits);
        println!("{name}: {:.1e} {:.1e}", found.largest, found.typical);
        assert!(found.largest < 1e-5, "{name}: {:e}", found.largest);
    }
}

/// Both sides round keys and values to the native cache format. Where a key differs in its last
/// f32 bit, the two sides may round it to neighbours, a step of 2^-11 (2^-8 in BF16): the largest
/// difference is that of the token whose attention hangs on such a key. Recurrent layers round every
/// input of their convolutions so, and norm what the states give, however small: what a neighbour
/// changes there is seen in many tokens.
fn agrees_with_a_native_cache<B: Backend>(backend: impl Fn() -> B, limit: f64) {
    for name in models() {
        let expected = fixture::expected(name);
        let found = logits(&fixture::folder(name), &expected, backend(), 97);
        let found = difference(&found, &expected.logits_rounded);
        println!("{name}: {:.1e} {:.1e}", found.largest, found.typical);
        let (largest, typical) = match name {
            "qwen3_5" => (1e-3, 5e-4),
            "qwen3_5-whole" => (1e-2, 5e-3),
            _ => (limit, 1e-4),
        };
        assert!(found.largest < largest, "{name}: {:e}", found.largest);
        assert!(found.typical < typical, "{name}: {:e}", found.typical);
    }
}

#[test]
fn oracle_agrees_with_a_native_cache() {
    agrees_with_a_native_cache(Oracle::default, 4e-4);
}

#[test]
fn cpu_agrees_with_a_native_cache() {
    agrees_with_a_native_cache(CpuBackend::new, 1e-4);
}

/// F32 checkpoints are computed in f32. Others lie no further off than the library's own 16-bit
/// arithmetic on the same kind of card does (`fixtures/parity/measure_16bit.py`); that is held to as a
/// root mean square, since which single logit is off most is chance.
#[test]
fn cuda_agrees_with_a_native_cache() {
    for name in models() {
        let backend = match CudaBackend::new(0) {
            Ok(backend) => backend,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        let expected = fixture::expected(name);
        let found = logits(&fixture::folder(name), &expected, backend, 97);
        let found = difference(&found, &expected.logits_rounded);
        let library = fixture::library_in_16_bits(name);
        let limit = match name.starts_with("llama") {
            true => 5e-4,
            false => library.typical,
        };
        println!(
            "{name}: {:.1e} {:.1e}, the library {:.1e} {:.1e}",
            found.largest, found.typical, library.largest, library.typical
        );
        assert!(found.typical < limit, "{name}: {:e}", found.typical);
        let largest = 1.5 * library.largest;
        assert!(found.largest < largest, "{name}: {:e}", found.largest);
    }
}

/// Every model was measured, in the type that its native cache has.
#[test]
fn the_library_was_measured_in_16_bits() {
    for name in models() {
        let library = fixture::library_in_16_bits(name);
        let bfloat16 = library.dtype == "bfloat16";
        assert!(bfloat16 || library.dtype == "float16", "{name}");
        // A step of rounding is 2^-8 or 2^-11 of a number; ten of them and no more.
        let step = if bfloat16 {
            2.0_f64.powi(-8)
        } else {
            2.0_f64.powi(-11)
        };
        let typical = library.typical;
        assert!(
            step < 2.0 * typical && typical < 12.0 * step,
            "{name}: {typical:e}"
        );
        assert!(
            library.largest < 24.0 * step,
            "{name}: {:e}",
            library.largest
        );
    }
}

/// Transformers keeps nothing in a 16-bit cache here. Keys of `sensitive` are as large as 390, where
/// halves lie 0.25 apart, so the native cache shows in its logits; the tokens stay the same.
#[test]
fn demo_models_agree_with_transformers() {
    for (name, native_limit) in [("tolerant", 1e-2), ("sensitive", 1e-1)] {
        let (folder, expected) = (fixture::demo_folder(name), fixture::demo_expected(name));
        let exact = logits(&folder, &expected, Oracle { exact: true }, 256);
        let native = logits(&folder, &expected, CpuBackend::new(), 97);
        let exact_difference = difference(&exact, &expected.logits).largest;
        let native_difference = difference(&native, &expected.logits).largest;
        println!("{name}: {exact_difference:.1e} exact, {native_difference:.1e} native cache");
        assert!(exact_difference < 1e-4, "{name}: {exact_difference:e}");
        assert!(
            native_difference < native_limit,
            "{name}: {native_difference:e}"
        );
        let vocab = expected.logits.len() / expected.rows.len();
        let greedy = |logits: &[f32]| -> Vec<usize> {
            let best = |row: &[f32]| (0..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b]));
            logits.chunks(vocab).filter_map(best).collect()
        };
        assert_eq!(greedy(&native), greedy(&expected.logits), "{name}");
    }
}

/// Logits under every recipe against those of a plain emulation (`fixtures/parity/make_recipes.py`).
/// Where a number lies in its last f32 bit on the other side of a midpoint, the two store neighbours,
/// up to a step of 1/15 of a group's range apart: so the root mean square is what is held to a limit, at
/// a small part of what the recipe itself changes.
fn stores_as_recipes_say<B: Backend>(backend: impl Fn() -> B, part: f64, least: f64) {
    let (folder, recipes) = (fixture::folder("qwen3"), fixture::recipes("qwen3"));
    let native = &recipes
        .iter()
        .find(|(name, _)| name == "k=native,v=native")
        .unwrap()
        .1
        .logits;
    assert_eq!(recipes.len(), 7);
    for (name, expected) in &recipes {
        let recipe = Recipe::parse(name).unwrap();
        assert_eq!(recipe.spec(), *name);
        let found = logits_under(recipe, &folder, expected, backend(), 97);
        let moved = difference(native, &expected.logits).typical;
        let found = difference(&found, &expected.logits);
        println!(
            "{name}: {:.1e} {:.1e} of {moved:.1e}",
            found.largest, found.typical
        );
        let limit = (part * moved).max(least);
        assert!(
            found.typical < limit,
            "{name}: {:e} of {moved:e}",
            found.typical
        );
    }
}

#[test]
fn oracle_stores_as_recipes_say() {
    stores_as_recipes_say(Oracle::default, 0.1, 1e-4);
}

#[test]
fn cpu_stores_as_recipes_say() {
    stores_as_recipes_say(CpuBackend::new, 0.1, 1e-4);
}

/// Activations are rounded to 16 bits, which itself moves numbers over midpoints.
#[test]
fn cuda_stores_as_recipes_say() {
    if let Err(error) = CudaBackend::new(0) {
        println!("skipped: {error}");
        return;
    }
    stores_as_recipes_say(|| CudaBackend::new(0).unwrap(), 0.7, 4e-3);
}
