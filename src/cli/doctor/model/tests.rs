use super::*;

/// Layers with a window are counted as far as they keep tokens, in whole pages.
#[test]
fn sequences_fit_by_their_pages() {
    let layer = |window| LayerState::Attention {
        kv_heads: 8,
        head_dim: 256,
        window,
    };
    let rows = rows(&[layer(Some(1024)), layer(None)], 8192);
    let (native, token) = (&rows[0], 8 * 256 * 2 * 2);
    assert_eq!(native.bytes_per_token, token);
    assert_eq!(native.cache_bytes, token * (1024 + 8192));
    // 1,024 tokens lie in 65 pages at most.
    assert_eq!(native.page_bytes, token * 16 * (65 + 512));
    let weights = Weights {
        stored_bytes: 0,
        loaded_bytes: 1000,
        quantised: None,
    };
    for (more, sequences) in [(0, 3), (-1, 2)] {
        let gpu = Gpu {
            name: "a GPU".to_owned(),
            capability: (9, 0),
            free: (1000 + 3 * native.page_bytes as i64 + more) as usize,
            total: usize::MAX,
        };
        assert_eq!(fit(0, &gpu, &weights, &rows).sequences[0], sequences);
    }
}
