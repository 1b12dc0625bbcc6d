//! Single operations on the device's clock.

use crate::backend::timing::Timed;
use crate::backend::{BackendError, CacheLayout, CacheRow, TensorData};
use crate::model::{NoiseWeights, WeightSource};
use crate::recipe::{NativeDtype, Recipe};
use crate::schema::LayerAbsmax;

use super::{Bench, BenchError, Measured, Work};

/// Repetitions of the product.
const PRODUCTS: usize = 5;
/// Attention is started this often per timing: one start is too short for the clock.
const STARTS: usize = 8;
/// Layers of the cache that attention reads in turn, so that none is found in a device's own cache.
const LAYERS: usize = 2;
/// Tokens stored at a time.
const STORED_AT_ONCE: usize = 4096;

/// The middle of values, the larger one of two.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Noise `[rows, width]` in a 16-bit format, as a weight.
fn noise(rows: usize, width: usize, native: NativeDtype) -> TensorData {
    let source = NoiseWeights::new(native);
    source
        .load("noise.weight", &[rows, width])
        .unwrap_or_else(|error| unreachable!("noise is never missing: {error}"))
}

/// Rows of noise on the device, in the same format.
fn rows_of_noise<B: Timed>(
    backend: &B,
    rows: usize,
    width: usize,
    native: NativeDtype,
) -> Result<B::Tensor, BackendError> {
    let table = backend.weight(noise(rows, width, native), rows, width)?;
    let ids: Vec<u32> = (0..rows as u32).collect();
    let mut tensor = backend.tensor(rows, width)?;
    backend.embed(&table, &ids, &mut tensor)?;
    Ok(tensor)
}

/// Operations per second of a product of square matrices in F16, the fastest of several.
pub(super) fn product_rate<B: Timed>(backend: &B, side: usize) -> Result<f64, BackendError> {
    let weight = backend.weight(noise(side, side, NativeDtype::F16), side, side)?;
    let x = rows_of_noise(backend, side, side, NativeDtype::F16)?;
    let mut out = backend.tensor(side, side)?;
    let mut fastest = f64::INFINITY;
    for _ in 0..PRODUCTS {
        let seconds = backend.seconds(&mut || backend.matmul(&x, &weight, None, &mut out))?;
        fastest = fastest.min(seconds);
    }
    Ok(2.0 * (side as f64).powi(3) / fastest)
}

impl<B: Timed> Bench<B> {
    /// Attention of one decode step in one layer, over a cache of noise.
    pub(super) fn attention(
        &self,
        recipe: &Recipe,
        absmax: Option<&[LayerAbsmax]>,
    ) -> Result<Measured, BenchError> {
        let config = self.engine.decoder().config();
        let (backend, native) = (self.engine.decoder().backend(), config.native_dtype);
        let (slots, tokens) = self.sizes.step;
        // Layers that a recipe skips are native, which has a figure of its own.
        let applied = Recipe {
            skip_layers: Vec::new(),
            ..recipe.clone()
        };
        let first = config.first_attention();
        let layer = &config.layers[first];
        let layout = CacheLayout {
            layers: vec![layer.cache_layer(); LAYERS],
            native,
            slots,
            slot_tokens: tokens,
            pass_tokens: tokens,
            recipe: applied.clone(),
            absmax: absmax.map(|absmax| vec![absmax[first]; LAYERS]),
        };
        let mut cache = backend.cache(&layout)?;
        let width = layer.kv_width();
        let at_once = STORED_AT_ONCE.min(slots * tokens);
        let k = rows_of_noise(backend, at_once, width, native)?;
        let all: Vec<CacheRow> = (0..slots)
            .flat_map(|slot| (0..tokens).map(move |position| CacheRow { slot, position }))
            .collect();
        for rows in all.chunks_exact(at_once) {
            for layer in 0..LAYERS {
                backend.store(&mut cache, layer, &k, &k, rows)?;
            }
        }
        let q = rows_of_noise(backend, slots, layer.q_width(), native)?;
        let mut out = backend.tensor(slots, layer.q_width())?;
        let last: Vec<CacheRow> = (0..slots)
            .map(|slot| CacheRow {
                slot,
                position: tokens - 1,
            })
            .collect();
        let mut times = Vec::new();
        for _ in 0..=self.sizes.repeats {
            times.push(backend.seconds(&mut || {
                (0..STARTS)
                    .try_for_each(|i| backend.attend(&cache, i % LAYERS, &q, &last, &mut out))
            })?);
        }
        backend.settle()?;
        let seconds = median(times.split_off(1)) / STARTS as f64;
        let cost = self.costs.attention(&applied, &last);
        Ok(Measured {
            work: Work::Attention.name(),
            recipe: Some(recipe.name.clone()),
            what: format!("attention of one layer, {slots} sequences of {tokens} tokens"),
            seconds,
            figure: cost.bytes / seconds / 1e9,
            unit: "GB/s",
            floor: Some(cost.floor(self.rates)),
        })
    }
}
