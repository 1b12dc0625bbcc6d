//! What a sequence keeps of a model whose layers differ: keys and values of every token, those of a
//! window, or a recurrent state of one size.
//!
//! The persistent state of a sequence is all of it together. A recipe changes the bytes of keys and
//! values alone, so that the proportion which it saves depends on the length.

use super::{Component, PAGE_TOKENS, Recipe, vector_bytes};

/// One layer, as far as what it keeps depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerState {
    /// Keys and values.
    Attention {
        /// Key/value heads.
        kv_heads: u32,
        /// Elements per head vector.
        head_dim: u32,
        /// Tokens that are kept at most; `None` for all.
        window: Option<u32>,
    },
    /// A state that does not grow.
    Recurrent {
        /// Bytes of the recurrent matrix.
        matrix_bytes: u64,
        /// Bytes of the inputs that the convolution before it looks back to.
        convolution_bytes: u64,
    },
}

/// Bytes of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceBytes {
    /// Keys and values.
    pub cache: u64,
    /// Recurrent states, whatever the recipe.
    pub recurrent: u64,
}

impl SequenceBytes {
    /// All of it.
    pub fn total(self) -> u64 {
        self.cache.saturating_add(self.recurrent)
    }
}

impl LayerState {
    /// Elements per head vector, where the layer has keys and values.
    pub fn head_dim(&self) -> Option<u32> {
        match *self {
            LayerState::Attention { head_dim, .. } => Some(head_dim),
            LayerState::Recurrent { .. } => None,
        }
    }
}

/// Bytes that a sequence of `tokens` tokens keeps under `recipe`: of every attention layer
/// `min(tokens, window) x kv_heads x (key vector bytes + value vector bytes)` and the room for its
/// first tokens that stay native, of every recurrent layer its state. Skipped layers are native.
/// Saturates at `u64::MAX`.
pub fn sequence_bytes(recipe: &Recipe, layers: &[LayerState], tokens: u64) -> SequenceBytes {
    let mut sum = SequenceBytes {
        cache: sink_bytes_of_layers(recipe, layers),
        ..SequenceBytes::default()
    };
    for (number, layer) in layers.iter().enumerate() {
        match *layer {
            LayerState::Attention { window, .. } => {
                let kept = window.map_or(tokens, |window| tokens.min(u64::from(window)));
                let bytes = token_bytes(recipe, layers, number).saturating_mul(kept);
                sum.cache = sum.cache.saturating_add(bytes);
            }
            LayerState::Recurrent {
                matrix_bytes,
                convolution_bytes,
            } => {
                let bytes = matrix_bytes.saturating_add(convolution_bytes);
                sum.recurrent = sum.recurrent.saturating_add(bytes);
            }
        }
    }
    sum
}

/// Bytes of keys and values that a sequence of `tokens` tokens stores, of which a window keeps the last
/// ones only: what workers count and certificates state. The first tokens of a recipe with a sink
/// count as they are stored, natively. Saturates at `u64::MAX`.
pub fn stored_bytes(recipe: &Recipe, layers: &[LayerState], tokens: u64) -> u64 {
    let first = tokens.min(u64::from(recipe.sink));
    let native = Recipe::native();
    let of_layer = |number: usize| {
        let [own, first_ones] = [recipe, &native].map(|recipe| token_bytes(recipe, layers, number));
        own.saturating_mul(tokens - first)
            .saturating_add(first_ones.saturating_mul(first))
    };
    let layers = (0..layers.len()).map(of_layer);
    layers.fold(0, u64::saturating_add)
}

/// Most pages of a layer that sequences need at a time: `sequences` of up to `tokens` tokens each,
/// while a pass stores up to `pass` tokens beyond one per sequence.
///
/// A layer without a window keeps every token. With one, a row needs the page of the first token
/// that it sees and all pages behind it: `window` tokens lie in up to `(window + 14) / 16 + 1`
/// pages, and what a pass adds to m sequences in up to `(pass + 15 m) / 16` more, both rounded
/// down. Saturates at `u64::MAX`.
pub fn most_pages(window: Option<u64>, sequences: u64, tokens: u64, pass: u64) -> u64 {
    let every = sequences.saturating_mul(tokens.div_ceil(PAGE_TOKENS));
    let Some(window) = window else { return every };
    let spanned = window.saturating_add(PAGE_TOKENS - 2) / PAGE_TOKENS + 1;
    let partly = (PAGE_TOKENS - 1).saturating_mul(sequences.min(pass));
    let written = pass.saturating_add(partly) / PAGE_TOKENS;
    every.min(sequences.saturating_mul(spanned).saturating_add(written))
}

/// Bytes of a sequence of `tokens` tokens in whole pages, which it comes to hold while it grows token
/// by token, and the room for its first tokens: what the built-in workers allocate for its keys and
/// values. Saturates at `u64::MAX`.
pub fn paged_bytes(recipe: &Recipe, layers: &[LayerState], tokens: u64) -> u64 {
    let of_layer = |number: usize| match layers[number] {
        LayerState::Attention { window, .. } => most_pages(window.map(u64::from), 1, tokens, 0)
            .saturating_mul(PAGE_TOKENS)
            .saturating_mul(token_bytes(recipe, layers, number)),
        LayerState::Recurrent { .. } => 0,
    };
    let pages = (0..layers.len()).map(of_layer);
    pages.fold(sink_bytes_of_layers(recipe, layers), u64::saturating_add)
}

/// Bytes that a sequence takes beside its pages for its first tokens, as
/// [`sink_bytes`](super::sink_bytes) has them where layers are alike.
pub fn sink_bytes_of_layers(recipe: &Recipe, layers: &[LayerState]) -> u64 {
    let of_layer = |(number, layer): (usize, &LayerState)| {
        let LayerState::Attention {
            kv_heads, head_dim, ..
        } = *layer
        else {
            return 0;
        };
        let (k, v) = recipe.components_at(number, layers.len());
        let quantised = [k, v].iter().filter(|c| c.is_quantised()).count() as u64;
        vector_bytes(Component::NATIVE, head_dim)
            .saturating_mul(quantised)
            .saturating_mul(u64::from(kv_heads))
            .saturating_mul(u64::from(recipe.sink))
    };
    let bytes = layers.iter().enumerate().map(of_layer);
    bytes.fold(0, u64::saturating_add)
}

/// Bytes that one more token takes once every window is full.
pub fn growth_bytes(recipe: &Recipe, layers: &[LayerState]) -> u64 {
    let grows = |layer: &LayerState| matches!(layer, LayerState::Attention { window: None, .. });
    let numbers = (0..layers.len()).filter(|&number| grows(&layers[number]));
    numbers
        .map(|number| token_bytes(recipe, layers, number))
        .fold(0, u64::saturating_add)
}

/// Bytes of one token's keys and values in one layer; 0 for a recurrent one.
fn token_bytes(recipe: &Recipe, layers: &[LayerState], number: usize) -> u64 {
    let LayerState::Attention {
        kv_heads, head_dim, ..
    } = layers[number]
    else {
        return 0;
    };
    let (k, v): (Component, Component) = recipe.components_at(number, layers.len());
    let bytes = vector_bytes(k, head_dim).saturating_add(vector_bytes(v, head_dim));
    bytes.saturating_mul(u64::from(kv_heads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{CacheShape, bytes_per_token, sink_bytes};

    fn attention(kv_heads: u32, head_dim: u32, window: Option<u32>) -> LayerState {
        LayerState::Attention {
            kv_heads,
            head_dim,
            window,
        }
    }

    #[test]
    fn layers_that_are_alike_grow_as_one_cache() {
        let (layers, kv_heads, head_dim) = (36, 8, 128);
        let shape = CacheShape {
            layers,
            kv_heads,
            head_dim,
        };
        let all = vec![attention(kv_heads, head_dim, None); layers as usize];
        for text in [
            "native",
            "AF",
            "SD",
            "k=e4m3,v=e4m3:fixed,skip-layers=0,-1",
            "k=native,v=int4,sink=4,skip-layers=3",
        ] {
            let recipe = Recipe::parse(text).unwrap();
            let per_token = bytes_per_token(&recipe, &shape);
            let beside = sink_bytes(&recipe, &shape);
            assert_eq!(growth_bytes(&recipe, &all), per_token);
            assert_eq!(sink_bytes_of_layers(&recipe, &all), beside);
            let sequence = sequence_bytes(&recipe, &all, 1000).cache;
            assert_eq!(sequence, 1000 * per_token + beside);
        }
    }

    #[test]
    fn pages_of_a_window_are_those_that_it_can_reach_into() {
        assert_eq!(most_pages(None, 3, 33, 100), 9);
        for (window, pages) in [(1, 1), (2, 2), (17, 2), (18, 3), (512, 33), (514, 34)] {
            assert_eq!(most_pages(Some(window), 1, 10_000, 0), pages, "{window}");
            let touched = (0..16).map(|at| (at + window - 1) / 16 + 1);
            assert_eq!(touched.max(), Some(pages), "{window}");
        }
        // Never more than every token takes.
        assert_eq!(most_pages(Some(512), 2, 100, 8192), 14);
        // A chunk of 8,192 tokens, in one piece or spread over five sequences.
        assert_eq!(most_pages(Some(512), 1, 100_000, 8192), 33 + 512);
        assert_eq!(most_pages(Some(512), 5, 100_000, 8192), 5 * 33 + 516);
        assert_eq!(
            most_pages(Some(u64::MAX), u64::MAX, u64::MAX, u64::MAX),
            u64::MAX
        );
    }

    #[test]
    fn whole_pages_are_counted_layer_by_layer() {
        let recurrent = LayerState::Recurrent {
            matrix_bytes: 100,
            convolution_bytes: 7,
        };
        let layers = [attention(2, 8, Some(20)), recurrent, attention(1, 4, None)];
        let native = Recipe::native();
        assert_eq!(paged_bytes(&native, &layers, 0), 0);
        assert_eq!(paged_bytes(&native, &layers, 17), 2 * 16 * (64 + 16));
        let long = 3 * 16 * 64 + 63 * 16 * 16;
        assert_eq!(paged_bytes(&native, &layers, 1000), long);
        let sink = Recipe::parse("k=native,v=e4m3:fixed,sink=3").unwrap();
        let quantised = 3 * 16 * 48 + 63 * 16 * 12;
        assert_eq!(
            paged_bytes(&sink, &layers, 1000),
            quantised + 3 * (2 * 16 + 8)
        );
        assert_eq!(paged_bytes(&native, &layers, u64::MAX), u64::MAX);
        // Every token is stored once, wherever it lies afterwards.
        assert_eq!(stored_bytes(&native, &layers, 1000), 1000 * (64 + 16));
        assert_eq!(
            stored_bytes(&sink, &layers, 1000),
            997 * (48 + 12) + 3 * (64 + 16)
        );
        assert_eq!(stored_bytes(&sink, &layers, 2), 2 * (64 + 16));
    }

    #[test]
    fn windows_bound_and_states_stay() {
        let recurrent = LayerState::Recurrent {
            matrix_bytes: 100,
            convolution_bytes: 7,
        };
        let layers = [attention(2, 8, Some(16)), recurrent, attention(1, 4, None)];
        let native = Recipe::native();
        let at = |tokens| sequence_bytes(&native, &layers, tokens);
        assert_eq!(at(10).cache, 10 * (64 + 16));
        assert_eq!(at(1000).cache, 16 * 64 + 1000 * 16);
        assert_eq!((at(0).recurrent, at(1000).recurrent), (107, 107));
        assert_eq!(at(1000).total(), 16 * 64 + 16_000 + 107);
        assert_eq!(growth_bytes(&native, &layers), 16);
        assert_eq!(at(u64::MAX).total(), u64::MAX);
        // Layers are skipped by their numbers in the model.
        let skipping = Recipe::parse("k=e4m3:fixed,v=e4m3:fixed,skip-layers=0").unwrap();
        assert_eq!(
            sequence_bytes(&skipping, &layers, 20).cache,
            16 * 64 + 20 * 8
        );
    }
}
