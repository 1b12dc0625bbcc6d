//! What a recipe costs in cache bytes.
//!
//! Counted: elements, the inline FP32 scales of dynamic components and what groups hold beside their
//! elements. Not counted: fixed scales
//! (one FP32 per layer and component, once) and what an allocator rounds up.

use super::{Component, Recipe, ScalePolicy};

/// Tokens per cache page.
pub const PAGE_TOKENS: u64 = 16;
/// Bytes of one inline scale.
pub const SCALE_BYTES: u64 = 4;

/// The shape of a model, as far as cache bytes depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Decoder layers.
    pub layers: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Elements per head vector.
    pub head_dim: u32,
}

/// How much fits into a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Whole pages over all layers.
    pub blocks: u64,
    /// Tokens that those pages hold.
    pub token_slots: u64,
}

/// Stored bytes of one head vector of one component: elements, scales and minima of groups, and the
/// inline scale of a dynamic component.
pub fn vector_bytes(component: Component, head_dim: u32) -> u64 {
    let scale = match component.scale {
        Some(ScalePolicy::Dynamic) => SCALE_BYTES,
        Some(ScalePolicy::Fixed) | None => 0,
    };
    component.format.stored_bytes(u64::from(head_dim)) + scale
}

/// Cache bytes per token: the sum over layers of
/// `kv_heads x (key vector bytes + value vector bytes)`; skipped layers are native. Tokens of a sink
/// take a place like any other, and [`sink_bytes`] beside it.
///
/// Saturates at `u64::MAX` for shapes that no model has.
pub fn bytes_per_token(recipe: &Recipe, shape: &CacheShape) -> u64 {
    // Skipped layers are counted, not every layer looked at: a foreign file may claim any depth.
    let skipped = recipe.skipped_layers(shape.layers as usize).len() as u64;
    let layer_bytes = |k, v| vector_bytes(k, shape.head_dim) + vector_bytes(v, shape.head_dim);
    let native = layer_bytes(Component::NATIVE, Component::NATIVE);
    let quantised = u64::from(shape.layers) - skipped;
    skipped
        .saturating_mul(native)
        .saturating_add(quantised.saturating_mul(layer_bytes(recipe.k, recipe.v)))
        .saturating_mul(u64::from(shape.kv_heads))
}

/// Bytes that a sequence takes beside its pages: its first `sink` tokens, stored natively wherever
/// the recipe quantises. Their places in the pages stay empty, so that a cache takes
/// `pages x 16 x bytes_per_token + sequences x sink_bytes` where every layer keeps every token.
///
/// Saturates at `u64::MAX`.
pub fn sink_bytes(recipe: &Recipe, shape: &CacheShape) -> u64 {
    let skipped = recipe.skipped_layers(shape.layers as usize).len() as u64;
    let quantised = [recipe.k, recipe.v]
        .into_iter()
        .filter(|component| component.is_quantised());
    (quantised.count() as u64)
        .saturating_mul(vector_bytes(Component::NATIVE, shape.head_dim))
        .saturating_mul(u64::from(shape.layers) - skipped)
        .saturating_mul(u64::from(shape.kv_heads))
        .saturating_mul(u64::from(recipe.sink))
}

/// Whole pages and token slots of a cache that may take `budget` bytes, `reserve` of which stay
/// free: `blocks = floor((budget - reserve) / (16 x bytes_per_token))`,
/// `token_slots = 16 x blocks`. Nothing fits where the reserve exceeds the budget or a token has
/// no bytes.
pub fn capacity(budget: u64, reserve: u64, bytes_per_token: u64) -> Capacity {
    let page = u128::from(PAGE_TOKENS) * u128::from(bytes_per_token);
    let usable = u128::from(budget.saturating_sub(reserve));
    // At least 16 bytes a page: the quotient fits 60 bits, and the slots fit 64.
    let blocks = usable.checked_div(page).unwrap_or(0) as u64;
    Capacity {
        blocks,
        token_slots: blocks * PAGE_TOKENS,
    }
}

/// Bytes of `pages` whole pages: what workers allocate for them, to the byte. `None` beyond 64 bits.
pub fn cache_bytes(pages: u64, bytes_per_token: u64) -> Option<u64> {
    pages
        .checked_mul(PAGE_TOKENS)
        .and_then(|tokens| tokens.checked_mul(bytes_per_token))
}

/// Proportion of native bytes that a recipe saves: `1 - bytes_per_token / native_bytes_per_token`,
/// as one quotient so that it is rounded once. Zero where native has no bytes.
pub fn saved(bytes_per_token: u64, native_bytes_per_token: u64) -> f64 {
    if native_bytes_per_token == 0 {
        return 0.0;
    }
    let native = native_bytes_per_token as f64;
    (native - bytes_per_token as f64) / native
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QWEN3_8B: CacheShape = CacheShape {
        layers: 36,
        kv_heads: 8,
        head_dim: 128,
    };

    fn bytes(recipe: &str, shape: &CacheShape) -> u64 {
        bytes_per_token(&Recipe::parse(recipe).unwrap(), shape)
    }

    #[test]
    fn bytes_of_every_kind_of_recipe() {
        let heads = 36 * 8;
        assert_eq!(bytes("native", &QWEN3_8B), heads * 512);
        assert_eq!(bytes("AF", &QWEN3_8B), heads * 384);
        assert_eq!(bytes("RF", &QWEN3_8B), heads * 384);
        assert_eq!(bytes("AD", &QWEN3_8B), heads * 388);
        assert_eq!(bytes("SF", &QWEN3_8B), heads * 256);
        assert_eq!(bytes("SD", &QWEN3_8B), heads * 264);
        assert_eq!(bytes("k=int8:fixed,v=e5m2:dynamic", &QWEN3_8B), heads * 260);
        let blocks = "k=native,v=q8_0";
        assert_eq!(bytes(blocks, &QWEN3_8B), heads * (256 + 136));
        let skipping = "k=e4m3:fixed,v=e4m3:fixed,skip-layers=0,-1";
        assert_eq!(bytes(skipping, &QWEN3_8B), 8 * (34 * 256 + 2 * 512));
        assert_eq!(bytes("k=int4,v=int4", &QWEN3_8B), heads * 160);
        assert_eq!(bytes("k=int4-64,v=native", &QWEN3_8B), heads * (72 + 256));
        assert_eq!(bytes("k=e4m3,v=int4,q=e4m3", &QWEN3_8B), heads * (132 + 80));
    }

    #[test]
    fn a_sink_is_counted_apart() {
        let both = |recipe: &str| {
            let recipe = Recipe::parse(recipe).unwrap();
            let [per_token, sink] = [bytes_per_token, sink_bytes].map(|of| of(&recipe, &QWEN3_8B));
            (per_token, sink)
        };
        let heads = 36 * 8;
        assert_eq!(both("SD").1, 0);
        assert_eq!(both("k=e4m3,v=e4m3,sink=4"), (heads * 264, 4 * heads * 512));
        // Native values need no other place, and skipped layers none at all.
        assert_eq!(
            both("k=int4,v=native,sink=3,skip-layers=0"),
            (8 * (35 * 336 + 512), 3 * 35 * 8 * 256)
        );
    }

    #[test]
    fn nothing_fits_a_reserve_beyond_the_budget() {
        let nothing = Capacity {
            blocks: 0,
            token_slots: 0,
        };
        assert_eq!(capacity(10, 11, 1), nothing);
        assert_eq!(capacity(10, 0, 0), nothing);
        assert_eq!(capacity(u64::MAX, 0, 1).token_slots, u64::MAX - 15);
    }

    #[test]
    fn pages_beyond_64_bits_have_no_bytes() {
        assert_eq!(cache_bytes(3, 100), Some(4800));
        assert_eq!(cache_bytes(1 << 40, 1 << 20), None);
        assert_eq!(cache_bytes(u64::MAX, 1), None);
    }

    proptest! {
        #[test]
        fn blocks_are_as_many_as_fit(
            budget in 0..1u64 << 50, reserve in 0..1u64 << 50, per_token in 1..1u64 << 30
        ) {
            let found = capacity(budget, reserve, per_token);
            let page = u128::from(per_token) * 16;
            let usable = u128::from(budget.saturating_sub(reserve));
            prop_assert!(u128::from(found.blocks) * page <= usable);
            prop_assert!((u128::from(found.blocks) + 1) * page > usable);
        }

        #[test]
        fn skipping_layers_never_saves(
            layers in 2u32..80, kv_heads in 1u32..64, head_dim in 8u32..512, skip in 0u32..80
        ) {
            let shape = CacheShape { layers, kv_heads, head_dim };
            let skip = skip % layers;
            let whole = bytes("SD", &shape);
            let part = bytes(
                &format!("k=e4m3:dynamic,v=e4m3:dynamic,skip-layers={skip}"), &shape,
            );
            prop_assert!(whole < part && part < bytes("native", &shape));
        }
    }
}
