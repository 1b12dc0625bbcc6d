//! What a batch layout takes beside weights and cache, and the layout that fits.

use crate::engine::BatchLayout;
use crate::model::ModelConfig;

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
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    let widths = 3 * config.hidden_size + 2 * queries + 2 * keys + 3 * config.intermediate_size;
    let spans = tokens.div_ceil(SPAN);
    let partials = if spans > 1 {
        spans * (queries * 4 + config.heads * 8)
    } else {
        0
    };
    let wanted = rows.min(layout.slots + LOGIT_ROWS);
    let of_rows = rows.saturating_mul(widths * ELEMENT_BYTES + partials);
    of_rows.saturating_add(wanted.saturating_mul(config.vocab_size * 4))
}

/// `slots` sequences side by side, and the largest prompt chunk whose activations are a small part
/// of `free` bytes, over sequences of up to `tokens` tokens.
pub(super) fn fitting(
    config: &ModelConfig,
    slots: usize,
    tokens: usize,
    free: usize,
) -> BatchLayout {
    let layouts = CHUNKS.map(|prefill_chunk| BatchLayout {
        slots,
        prefill_chunk,
    });
    let fits =
        |layout: &&BatchLayout| activations(config, **layout, tokens) <= free / ACTIVATION_PART;
    let smallest = layouts[CHUNKS.len() - 1];
    layouts.iter().find(fits).copied().unwrap_or(smallest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Family, Rope, RopeScaling};
    use crate::recipe::NativeDtype;

    const GIB: usize = 1 << 30;

    fn eight_billion() -> ModelConfig {
        ModelConfig {
            family: Family::Qwen3,
            layers: 36,
            hidden_size: 4096,
            intermediate_size: 12288,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            vocab_size: 151_936,
            context: 40_960,
            rms_norm_eps: 1e-6,
            rope: Rope {
                theta: 1e6,
                scaling: RopeScaling::Default,
            },
            qkv_bias: false,
            attention_output_bias: false,
            mlp_bias: false,
            qk_norm: true,
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
        assert_eq!(large, 8704 * widths * 6 + 1536 * logits);
        let long = activations(&config, layout(512, 8192), 8192);
        assert_eq!(long - large, 8704 * 8 * (4096 * 4 + 32 * 8));
        assert_eq!(
            activations(&config, layout(1, usize::MAX), 1),
            usize::MAX,
            "sizes that no memory holds"
        );
    }

    #[test]
    fn the_chunk_shrinks_with_the_memory() {
        let config = eight_billion();
        let chunk = |free| fitting(&config, 512, 8192, free).prefill_chunk;
        assert_eq!(chunk(120 * GIB), 8192);
        assert_eq!((chunk(12 * GIB), chunk(10 * GIB)), (4096, 2048));
        assert_eq!(chunk(GIB), 256);
        assert_eq!(fitting(&config, 512, 8192, GIB).slots, 512);
    }
}
