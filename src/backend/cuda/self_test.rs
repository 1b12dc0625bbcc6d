//! Whether kernels run and are right on a GPU: a product and attention small enough for a moment,
//! against the host.

use super::functions::Source;
use super::{CudaBackend, compile};
use crate::backend::{Backend, BackendError, CacheLayer, CacheLayout, CacheRow, TensorData};
use crate::recipe::{NativeDtype, Recipe};

/// Side of the product.
const SIDE: usize = 64;
/// Elements per head vector of attention.
const HEAD_DIM: usize = 64;
/// Query heads, all of which share one head of keys and values.
const HEADS: usize = 2;
/// Tokens: several tiles and pages, the last ones partly filled.
const TOKENS: usize = 150;
/// Largest element of every key and value: FP8 E4M3 with a scale of 2^-8, which is exact.
const LARGEST: f32 = 1.75;
/// How far attention may lie from f64: values reach 1.75, and weights are rounded to 16 bits.
const TOLERANCE: f64 = 2e-3;

/// Runs both on a GPU; says where the kernels came from.
///
/// # Errors
/// What is missing, or which number is wrong.
pub fn run(ordinal: usize, source: Source) -> Result<String, BackendError> {
    let backend = CudaBackend::with_kernels(ordinal, source, None)?;
    product(&backend)?;
    for recipe in ["native", "AD", "RD", "SD"] {
        let recipe = Recipe::parse(recipe).map_err(|error| wrong(&error.to_string()))?;
        attention(&backend, recipe)?;
    }
    let name = backend.kernels.delivery.name();
    // A compiler that is missing is reported as such.
    Ok(match &backend.kernels.refusal {
        Some(refusal) if compile::version().is_ok() => format!("{name}: {refusal}"),
        _ => name.to_owned(),
    })
}

fn wrong(what: &str) -> BackendError {
    BackendError::Device(format!("kernel self-test: {what}"))
}

/// Rows on the device, from F16 where `half` says so.
fn upload<B: Backend>(
    backend: &B,
    data: &[f32],
    width: usize,
    half: bool,
) -> Result<B::Tensor, BackendError> {
    let rows = data.len() / width;
    let table = if half {
        TensorData::F16(data.iter().map(|&x| half::f16::from_f32(x)).collect())
    } else {
        TensorData::F32(data.to_vec())
    };
    let table = backend.weight(table, rows, width)?;
    let mut tensor = backend.tensor(rows, width)?;
    let ids: Vec<u32> = (0..rows as u32).collect();
    backend.embed(&table, &ids, &mut tensor)?;
    Ok(tensor)
}

/// A product of whole numbers, which every arithmetic here computes exactly.
fn product<B: Backend>(backend: &B) -> Result<(), BackendError> {
    let number = |i: usize, by: usize| (i * by % 7) as f32 - 3.0;
    let x: Vec<f32> = (0..SIDE * SIDE).map(|i| number(i, 5)).collect();
    let w: Vec<f32> = (0..SIDE * SIDE).map(|i| number(i, 3)).collect();
    let half = w.iter().map(|&w| half::f16::from_f32(w)).collect();
    let weight = backend.weight(TensorData::F16(half), SIDE, SIDE)?;
    let input = upload(backend, &x, SIDE, false)?;
    let mut out = backend.tensor(SIDE, SIDE)?;
    backend.matmul(&input, &weight, None, &mut out)?;
    for (i, &found) in backend.to_host(&out)?.iter().enumerate() {
        let (row, column) = (i / SIDE, i % SIDE);
        let terms = (0..SIDE).map(|k| x[row * SIDE + k] * w[column * SIDE + k]);
        let expected: f32 = terms.sum();
        if found != expected {
            let what = format!("element {i} of a product is {found}, expected {expected}");
            return Err(wrong(&what));
        }
    }
    Ok(())
}

/// Quarters between -1.75 and 1.75, which 16-bit and FP8 formats all hold; the first element of
/// every head vector is the largest, and so its scale is known. Without a period: attention to
/// other tokens gives other sums.
fn quarters(count: usize, seed: u32) -> Vec<f32> {
    let quarter = |i: usize| {
        let bits = (i as u32 ^ (seed << 20)).wrapping_mul(0x9e37_79b1);
        let bits = (bits ^ (bits >> 15)).wrapping_mul(0x85eb_ca6b);
        ((bits ^ (bits >> 13)) % 15) as f32 * 0.25 - LARGEST
    };
    (0..count)
        .map(|i| {
            if i % HEAD_DIM == 0 {
                LARGEST
            } else {
                quarter(i)
            }
        })
        .collect()
}

/// One sequence; the last token's queries over all that is stored, and those of a token amid.
fn attention<B: Backend>(backend: &B, recipe: Recipe) -> Result<(), BackendError> {
    let name = recipe.name.clone();
    let layout = CacheLayout {
        layers: vec![CacheLayer::new(1, HEAD_DIM)],
        native: NativeDtype::F16,
        slots: 1,
        slot_tokens: TOKENS,
        pass_tokens: TOKENS,
        recipe,
        absmax: None,
    };
    let mut cache = backend.cache(&layout)?;
    let rows = |positions: &mut dyn Iterator<Item = usize>| -> Vec<CacheRow> {
        positions
            .map(|position| CacheRow { slot: 0, position })
            .collect()
    };
    let (k, v) = (
        quarters(TOKENS * HEAD_DIM, 1),
        quarters(TOKENS * HEAD_DIM, 2),
    );
    let [keys, values] = [&k, &v].map(|x| upload(backend, x, HEAD_DIM, true));
    backend.store(&mut cache, 0, &keys?, &values?, &rows(&mut (0..TOKENS)))?;
    let asked = [TOKENS / 2, TOKENS - 1];
    let q = quarters(asked.len() * HEADS * HEAD_DIM, 3);
    let queries = upload(backend, &q, HEADS * HEAD_DIM, true)?;
    let mut out = backend.tensor(asked.len(), HEADS * HEAD_DIM)?;
    let places = rows(&mut asked.into_iter());
    backend.attend(&cache, 0, &queries, &places, &mut out)?;
    backend.settle()?;
    let found = backend.to_host(&out)?;
    for (i, (found, q)) in found.chunks(HEAD_DIM).zip(q.chunks(HEAD_DIM)).enumerate() {
        let expected = attended(q, &k, &v, asked[i / HEADS] + 1);
        for (d, (&found, expected)) in found.iter().zip(expected).enumerate() {
            // NaN is far from everything.
            let near = (f64::from(found) - expected).abs() <= TOLERANCE;
            if !near {
                let what = format!(
                    "recipe {name}: element {d} of head {i} of attention is {found}, expected \
                     {expected:.5}"
                );
                return Err(wrong(&what));
            }
        }
    }
    Ok(())
}

/// Attention of one head vector over the first `tokens` tokens, in f64.
fn attended(q: &[f32], k: &[f32], v: &[f32], tokens: usize) -> Vec<f64> {
    let dot = |k: &[f32]| -> f64 {
        let terms = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k));
        terms.sum::<f64>() / (HEAD_DIM as f64).sqrt()
    };
    let scores: Vec<f64> = k.chunks(HEAD_DIM).take(tokens).map(dot).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; HEAD_DIM];
    for (weight, v) in weights.iter().zip(v.chunks(HEAD_DIM)) {
        for (out, v) in out.iter_mut().zip(v) {
            *out += weight / sum * f64::from(*v);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::CpuBackend;

    /// The reference worker passes, whatever the formats: what is stored is exact in all of them.
    #[test]
    fn the_reference_worker_passes() {
        let backend = CpuBackend::new();
        product(&backend).unwrap();
        for recipe in ["native", "AD", "RD", "SD"] {
            attention(&backend, Recipe::parse(recipe).unwrap()).unwrap();
        }
    }

    /// Attention is not so even that a wrong one would pass: what other tokens weigh matters.
    #[test]
    fn a_wrong_result_is_far_away() {
        let (k, v) = (
            quarters(TOKENS * HEAD_DIM, 1),
            quarters(TOKENS * HEAD_DIM, 2),
        );
        let q = quarters(HEAD_DIM, 3);
        let right = attended(&q, &k, &v, TOKENS);
        for tokens in [64, TOKENS - 1] {
            let other = attended(&q, &k, &v, tokens);
            let apart = right.iter().zip(other).map(|(a, b)| (a - b).abs());
            assert!(
                apart.fold(0.0, f64::max) > 2.0 * TOLERANCE,
                "{tokens} tokens"
            );
        }
    }
}
