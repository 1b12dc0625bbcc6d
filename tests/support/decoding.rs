//! Runs a decoder over a fixture's tokens.

use kvassay::backend::{Backend, CacheLayout, CacheRow};
use kvassay::model::{Decoder, ModelConfig, Workspace};
use kvassay::recipe::Recipe;
use kvassay::schema::LayerAbsmax;

use super::fixture::Expected;

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
    let backend = decoder.backend();
    let mut cache = backend.cache(layout).unwrap();
    let mut workspace = Workspace::new(backend, decoder.config()).unwrap();
    let mut found = Vec::new();
    for start in (0..expected.ids.len()).step_by(chunk) {
        let end = expected.ids.len().min(start + chunk);
        let row = |position| CacheRow { slot: 1, position };
        let rows: Vec<CacheRow> = (start..end).map(row).collect();
        let kept = expected
            .rows
            .iter()
            .filter(|row| (start..end).contains(row));
        let wanted: Vec<usize> = kept.map(|row| row - start).collect();
        let ids = &expected.ids[start..end];
        let logits = decoder.forward(&mut cache, &rows, ids, &wanted, &mut workspace);
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
