//! What a batch layout takes beside weights and cache, and the layout that fits.

use crate::engine::BatchLayout;
use crate::model::{LayerConfig, ModelConfig};
use crate::recipe::{CacheShape, Recipe, bytes_per_token, cache_bytes, most_pages};

use super::schedule::LOGIT_ROWS;

/// Activations are held in f32 and, for products, in 16 bits.
const ELEMENT_BYTES: usize = 4 + 2;

/// Tokens after which a backend may split attention over a sequence and keep partial sums.
const SPAN: usize = 1024;

/// Prompt tokens per pass, the preferred first.
const CHUNKS: [usize; 6] = [8192, 4096, 2048, 1024, 512, 256];

/// Part of the free memory that activations may take: one over this.
const ACTIVATION_PART: usize = 4;

/// Most bytes of activations in a pass under `layout` over sequences of up to `tokens` tokens.
pub(super) fn activations(config: &ModelConfig, layout: BatchLayout, tokens: usize) -> usize {
    let rows = layout.prefill_chunk.saturating_add(layout.slots);
    let queries = config.widest(LayerConfig::q_width);
    let keys = config.widest(LayerConfig::kv_width);
    let heads = config.widest(|layer| layer.heads);
    let recurrent = config.widest(|layer| {
        layer.recurrent.map_or(0, |shape| {
            shape.projected() + shape.channels() + 2 * shape.values()
        })
    });
    let gate = if config.attention_gate { queries } else { 0 };
    let attention = 2 * queries + 2 * keys + gate;
    let has_both = |layer: &LayerConfig| layer.experts.is_some_and(|shape| shape.beside_mlp);
    let beside = usize::from(config.layers.iter().any(has_both));
    let streams = 3 + usize::from(config.output_norms) + beside;
    let widths = streams * config.hidden_size + attention + recurrent + 3 * config.dense_width();
    let spans = tokens.div_ceil(SPAN);
    let partials = if spans > 1 {
        spans * (queries * 4 + heads * 8)
    } else {
        0
    };
    let wanted = rows.min(layout.slots + LOGIT_ROWS);
    let experts = config.widest(|layer| experts(layer, config.hidden_size));
    let of_rows = rows.saturating_mul(widths * ELEMENT_BYTES + partials + experts);
    of_rows.saturating_add(wanted.saturating_mul(config.vocab_size * 4))
}

/// Bytes that a row takes on its way through the experts of a layer: logits, and for each of its
/// experts the gated MLP in at most f32, what that gives, and where it stands among others; or what the
/// rows of one expert, to which all may go, take where they are gathered.
fn experts(layer: &LayerConfig, hidden: usize) -> usize {
    layer.experts.map_or(0, |shape| {
        let each = 4 * shape.intermediate_size + 4 * hidden + 16;
        let gathered = 8 * hidden + 12 * shape.intermediate_size;
        4 * shape.experts + (shape.chosen * each).max(gathered)
    })
}

/// The first of the numbers of sequences side by side in `slots` whose activations, beside those of the
/// largest prompt chunk, are a small part of `free` bytes, over sequences of up to `tokens` tokens; with
/// the last of them the largest chunk that leaves them so.
pub(super) fn fitting(
    config: &ModelConfig,
    slots: &[usize],
    tokens: usize,
    free: usize,
) -> BatchLayout {
    let layout = |slots, prefill_chunk| BatchLayout {
        slots,
        prefill_chunk,
    };
    let least = slots.last().copied().unwrap_or(1);
    let longest = slots.iter().map(|&slots| layout(slots, CHUNKS[0]));
    let shorter = CHUNKS[1..].iter().map(|&chunk| layout(least, chunk));
    let fits =
        |layout: &BatchLayout| activations(config, *layout, tokens) <= free / ACTIVATION_PART;
    let smallest = layout(least, CHUNKS[CHUNKS.len() - 1]);
    longest.chain(shorter).find(fits).unwrap_or(smallest)
}

/// What a run needs of a device at the very least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Least {
    /// Bytes of all weights.
    weights: u64,
    /// Bytes of the native cache of one sequence of `tokens` tokens, with its recurrent state; layers
    /// with a window keep what the shortest passes need.
    cache: u64,
    /// Bytes of activations in the shortest passes.
    activations: u64,
    tokens: usize,
}

impl Least {
    /// For weights of `weights` bytes, `slots` sequences side by side and sequences of up to
    /// `tokens` tokens.
    pub fn new(config: &ModelConfig, weights: u64, slots: usize, tokens: usize) -> Self {
        let shortest = fitting(config, &[slots], tokens, 0);
        let of_layer = |layer: &LayerConfig| {
            let shape = CacheShape {
                layers: 1,
                kv_heads: layer.kv_heads as u32,
                head_dim: layer.head_dim as u32,
            };
            let window = layer.window.map(|window| window as u64);
            let pages = most_pages(window, 1, tokens as u64, shortest.prefill_chunk as u64);
            let bytes = cache_bytes(pages, bytes_per_token(&Recipe::native(), &shape));
            bytes.unwrap_or(u64::MAX)
        };
        let layers = config.layers.iter().map(of_layer);
        let recurrent = config.layers.iter().filter_map(|layer| layer.recurrent);
        let states: u64 = recurrent.flat_map(|shape| shape.bytes()).sum();
        Least {
            weights,
            cache: layers.fold(states, u64::saturating_add),
            activations: activations(config, shortest, tokens) as u64,
            tokens,
        }
    }

    /// All of it.
    fn bytes(self) -> u64 {
        let beside = self.cache.saturating_add(self.activations);
        self.weights.saturating_add(beside)
    }

    /// Whether it fits into `free` of `total` bytes of the device `name`; `remedy` is what helps beside
    /// smaller work.
    ///
    /// # Errors
    /// Says what is free, what is needed and for what, and what would need less.
    pub fn check(self, name: &str, (free, total): (u64, u64), remedy: &str) -> Result<(), String> {
        if self.bytes() <= free {
            return Ok(());
        }
        let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64);
        Err(format!(
            "{name}: found {} of {} memory free, expected at least {}: {} for weights, {} for the \
             cache of one sequence of {} tokens, {} for activations; end what else runs on it, \
             {remedy}, or take shorter panels or a smaller model",
            gib(free),
            gib(total),
            gib(self.bytes()),
            gib(self.weights),
            gib(self.cache),
            self.tokens,
            gib(self.activations)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Activation;
    use crate::model::{ExpertsConfig, Family, Rope, RopeScaling};
    use crate::recipe::NativeDtype;

    const GIB: usize = 1 << 30;

    fn eight_billion() -> ModelConfig {
        ModelConfig {
            suppressed: Vec::new(),
            penalties: Vec::new(),
            family: Family::Qwen3,
            layers: vec![LayerConfig::new(32, 8, 128); 36],
            hidden_size: 4096,
            intermediate_size: 12288,
            vocab_size: 151_936,
            context: 40_960,
            rms_norm_eps: 1e-6,
            ropes: vec![Rope::new(1e6, RopeScaling::Default)],
            qkv_bias: false,
            attention_output_bias: false,
            mlp_bias: false,
            qk_norm: true,
            attention_gate: false,
            fused_projections: false,
            output_norms: false,
            norms_less_one: false,
            value_norm: false,
            layer_scalars: false,
            logit_cap: None,
            activation: Activation::Silu,
            embedding_scale: None,
            text_part_of: None,
            tied_embeddings: false,
            native_dtype: NativeDtype::Bf16,
        }
    }

    #[test]
    fn activations_are_summed_over_rows_and_wanted_rows() {
        let config = eight_billion();
        let layout = |slots, prefill_chunk| BatchLayout {
            slots,
            prefill_chunk,
        };
        let widths = 3 * 4096 + 2 * 4096 + 2 * 1024 + 3 * 12288;
        let logits = 151_936 * 4;
        assert_eq!(
            activations(&config, layout(1, 99), 1024),
            100 * (widths * 6 + logits)
        );
        let large = activations(&config, layout(512, 8192), 1024);
        assert_eq!(large, 8704 * widths * 6 + 2560 * logits);
        let long = activations(&config, layout(512, 8192), 8192);
        assert_eq!(long - large, 8704 * 8 * (4096 * 4 + 32 * 8));
        assert_eq!(
            activations(&config, layout(1, usize::MAX), 1),
            usize::MAX,
            "sizes that no memory holds"
        );
    }

    #[test]
    fn rows_take_room_with_each_of_their_experts() {
        let dense = eight_billion();
        let mut sparse = dense.clone();
        for layer in &mut sparse.layers {
            layer.experts = Some(ExpertsConfig {
                experts: 128,
                chosen: 8,
                intermediate_size: 768,
                renormalised: true,
                beside_mlp: false,
            });
        }
        let layout = BatchLayout {
            slots: 1,
            prefill_chunk: 99,
        };
        let bytes = |config: &ModelConfig| activations(config, layout, 1024);
        let own = 4 * 128 + 8 * (4 * 768 + 4 * 4096 + 16);
        assert_eq!(
            bytes(&sparse) + 100 * 3 * 12_288 * 6,
            bytes(&dense) + 100 * own
        );
    }

    #[test]
    fn slots_and_chunk_shrink_with_the_memory() {
        let config = eight_billion();
        let found = |free| fitting(&config, &[1536, 1024, 512], 8192, free);
        let layout = |slots, prefill_chunk| BatchLayout {
            slots,
            prefill_chunk,
        };
        assert_eq!(found(120 * GIB), layout(1536, 8192));
        assert_eq!(found(26 * GIB), layout(1536, 8192));
        assert_eq!(found(25 * GIB), layout(1024, 8192));
        assert_eq!(found(23 * GIB), layout(512, 8192));
        assert_eq!(found(12 * GIB), layout(512, 2048));
        assert_eq!(found(10 * GIB), layout(512, 1024));
        assert_eq!(found(GIB), layout(512, 256));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_every_figure() {
        let config = eight_billion();
        let weights = 15 << 30;
        let least = Least::new(&config, weights, 512, 8192);
        assert_eq!(least.cache, 8192 * 36 * 8 * 512);
        let shortest = BatchLayout {
            slots: 512,
            prefill_chunk: 256,
        };
        assert_eq!(
            least.activations,
            activations(&config, shortest, 8192) as u64
        );
        let needed = least.weights + least.cache + least.activations;
        assert_eq!(least.check("a GPU", (needed, 1 << 40), ""), Ok(()));
        let refusal = least
            .check("a GPU", (needed - 1, 80 << 30), "name another by --device")
            .unwrap_err();
        for part in [
            "a GPU: found ",
            " of 80.00 GiB memory free",
            "15.00 GiB for weights",
            "1.12 GiB for the cache of one sequence of 8192 tokens",
            "--device",
            "shorter panels",
        ] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        // Layers with a window keep less: its pages, and those of the shortest chunk.
        let mut windowed = config.clone();
        for layer in &mut windowed.layers[1..] {
            layer.window = Some(512);
        }
        let least = Least::new(&windowed, weights, 512, 8192);
        assert_eq!(least.cache, (8192 + 35 * 16 * (33 + 16)) * 8 * 512);
        assert_eq!(crate::model::parameters(&config), 8_190_735_360);
        // Shorter sequences need less.
        let short = Least::new(&config, weights, 512, 1000);
        assert_eq!(short.cache, 1008 * 36 * 8 * 512);
        assert_eq!(short.check("a GPU", (needed - 1, 80 << 30), ""), Ok(()));
        let absurd = Least::new(&config, u64::MAX, 512, 1 << 40);
        assert!(absurd.check("a GPU", (1 << 60, 1 << 60), "").is_err());
    }
}
