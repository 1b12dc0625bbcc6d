//! The same operations in plain f64, each element with the sum of magnitudes behind it.

use crate::backend::{Activation, CacheLayer};

/// A value and the sum of magnitudes of the terms that make it up.
pub type Term = (f64, f64);

pub fn product(x: &[f32], weight: &[f32], inner: usize, bias: Option<&[f32]>) -> Vec<Term> {
    let out = weight.len() / inner;
    let mut result = Vec::new();
    for x in x.chunks_exact(inner) {
        for (o, w) in weight.chunks_exact(inner).enumerate() {
            let bias = bias.map_or(0.0, |b| f64::from(b[o]));
            let terms = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w));
            let (sum, size) = terms.fold((bias, bias.abs()), |(s, a), t| (s + t, a + t.abs()));
            result.push((sum, size));
        }
    }
    assert_eq!(result.len(), x.len() / inner * out);
    result
}

pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<Term> {
    let mut result = Vec::new();
    for x in x.chunks_exact(weight.len()) {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let rms = (squares / x.len() as f64 + f64::from(eps)).sqrt();
        for (&x, &w) in x.iter().zip(weight) {
            let y = f64::from(x) / rms * f64::from(w);
            result.push((y, y.abs()));
        }
    }
    result
}

/// `activation(gate) * up` of a row that holds gate, then up.
pub fn gated(activation: Activation, packed: &[f32]) -> Vec<Term> {
    let activated = |g: f64| match activation {
        Activation::Silu => g / (1.0 + (-g).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044_715 * g.powi(3));
            g / (1.0 + (-2.0 * inner).exp())
        }
    };
    let (gate, up) = packed.split_at(packed.len() / 2);
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| {
            let y = activated(f64::from(g)) * f64::from(u);
            (y, y.abs())
        })
        .collect()
}

/// Attention of one query row at `position` over `k` and `v` (`[tokens, kv_heads * head_dim]`).
pub fn attention(layer: CacheLayer, q: &[f32], position: usize, kv: [&[f32]; 2]) -> Vec<Term> {
    let (d, width, [k, v]) = (layer.head_dim, layer.width(), kv);
    let seen = layer
        .window
        .map_or(0, |window| (position + 1).saturating_sub(window));
    let group = q.len() / width;
    let mut result = Vec::new();
    for (head, q) in q.chunks_exact(d).enumerate() {
        let first = head / group * d;
        let scores: Vec<f64> = (seen..=position)
            .map(|t| {
                let k = &k[t * width + first..][..d];
                let dot: f64 = q
                    .iter()
                    .zip(k)
                    .map(|(&q, &k)| f64::from(q) * f64::from(k))
                    .sum();
                dot / f64::from(layer.score_divisor)
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        for i in 0..d {
            let terms = weights
                .iter()
                .enumerate()
                .map(|(t, w)| w / total * f64::from(v[(seen + t) * width + first + i]));
            result.push(terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs())));
        }
    }
    result
}

pub fn nll(logits: &[f32], target: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&x| (f64::from(x) - f64::from(largest)).exp())
        .sum();
    f64::from(largest) + sum.ln() - f64::from(logits[target])
}
