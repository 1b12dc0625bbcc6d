//! Runs a decoder over a fixture's tokens.

// Figures are shown beside the limits that they are held to.
#![allow(clippy::print_stdout)]

use kvassay::backend::{Backend, CacheLayout, CacheRow};
use kvassay::model::{Decoder, ModelConfig, Workspace};
use kvassay::recipe::Recipe;
use kvassay::schema::LayerAbsmax;

use super::fixture::{self, Expected};

/// Room for two sequences.
pub fn layout(config: &ModelConfig, recipe: &str, absmax: &[LayerAbsmax]) -> CacheLayout {
    let recipe = Recipe::parse(recipe).unwrap();
    CacheLayout {
        layers: config.cache_layers(),
        native: config.native_dtype,
        slots: 2,
        slot_tokens: 512,
        pass_tokens: 512,
        absmax: recipe.needs_calibration().then(|| absmax.to_vec()),
        recipe,
    }
}

/// Logits of the kept rows, and the largest values that the cache holds.
pub fn run<B: Backend>(
    decoder: &Decoder<B>,
    layout: &CacheLayout,
    expected: &Expected,
    chunk: usize,
) -> (Vec<f32>, Vec<LayerAbsmax>) {
    run_beside(decoder, layout, expected, chunk, false)
}

/// The same with as many rows of another sequence beside those of each pass where `beside` is set.
pub fn run_beside<B: Backend>(
    decoder: &Decoder<B>,
    layout: &CacheLayout,
    expected: &Expected,
    chunk: usize,
    beside: bool,
) -> (Vec<f32>, Vec<LayerAbsmax>) {
    let backend = decoder.backend();
    let mut cache = backend.cache(layout).unwrap();
    let mut workspace = Workspace::new(backend, decoder.config()).unwrap();
    let mut found = Vec::new();
    for start in (0..expected.ids.len()).step_by(chunk) {
        let end = expected.ids.len().min(start + chunk);
        let row = |position| CacheRow { slot: 1, position };
        let mut rows: Vec<CacheRow> = (start..end).map(row).collect();
        let kept = expected
            .rows
            .iter()
            .filter(|row| (start..end).contains(row));
        let wanted: Vec<usize> = kept.map(|row| row - start).collect();
        let mut ids = expected.ids[start..end].to_vec();
        if beside {
            rows.extend((start..end).map(|position| CacheRow { slot: 0, position }));
            ids.extend(expected.ids.iter().rev().skip(start).take(end - start));
        }
        let logits = decoder.forward(&mut cache, &rows, &ids, &wanted, &mut workspace);
        if let Some(logits) = logits.unwrap() {
            found.extend(backend.to_host(logits).unwrap());
        }
    }
    backend.settle().unwrap();
    (found, backend.slot_absmax(&cache, 1).unwrap())
}

/// Root mean square of the differences over that of the expected numbers.
pub fn difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let differences: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (differences / expected.iter().copied().map(square).sum::<f64>()).sqrt()
}

/// Recipes change logits as an emulation in transformers does, by a part of what they change at all:
/// numbers that lie next to a midpoint may be stored as neighbours. Gives the largest values that a
/// native cache holds.
pub fn stores_as_recipes_say<B: Backend>(
    name: &str,
    backend: B,
    native_limit: f64,
    (part, least): (f64, f64),
) -> Vec<LayerAbsmax> {
    let decoder = fixture::decoder(&fixture::folder(name), backend);
    let (expected, config) = (fixture::expected(name), decoder.config());
    let native = layout(config, "native", &[]);
    let (native, absmax) = run(&decoder, &native, &expected, 97);
    let found = difference(&native, &expected.logits_rounded);
    println!("{name} native: {found:.1e}");
    assert!(found < native_limit, "{name} native: {found:e}");
    for recipe in ["AD", "SD", "SF"] {
        let emulated = fixture::logits_of(name, recipe);
        let (found, _) = run(&decoder, &layout(config, recipe, &absmax), &expected, 61);
        let moved = difference(&expected.logits_rounded, &emulated);
        let found = difference(&found, &emulated);
        println!("{name} {recipe}: {found:.1e} of {moved:.1e}");
        let limit = (part * moved).max(least);
        assert!(found < limit, "{name} {recipe}: {found:e} of {moved:e}");
    }
    absmax
}
