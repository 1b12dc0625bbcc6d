//! Heads of more than 256 elements, whose blocks hold fewer tiles, down to one where a device has
//! little shared memory.

use super::*;

/// Blocks of compute capability 9.0, 8.0 and 8.6.
const LIMITS: [usize; 3] = [227 << 10, 163 << 10, 99 << 10];

/// The first GPU as one whose blocks have `limit` bytes.
fn gpu_of(limit: usize) -> Option<CudaBackend> {
    let backend = gpu()?;
    backend.kernels.device.limit_shared(limit);
    Some(backend)
}

#[test]
fn a_gpu_attends_to_wide_heads() {
    for limit in LIMITS {
        let Some(backend) = gpu_of(limit) else { return };
        let suite = Suite {
            backend: &backend,
            tolerance: Tolerance {
                attention_f16: 8e-4,
                attention_bf16: 6e-3,
                ..TOLERANCE
            },
            native_queries: true,
        };
        // Groups lie beside their operands, for which the smallest blocks have no room.
        suite.wide_heads(limit > 99 << 10);
    }
}

/// Queries of 32 bits take twice the room.
#[test]
fn a_gpu_attends_to_wide_heads_with_exact_queries() {
    let Some(backend) = gpu() else { return };
    let suite = Suite {
        backend: &backend,
        tolerance: TOLERANCE,
        native_queries: false,
    };
    suite.wide_heads(true);
}

#[test]
fn long_sequences_of_wide_heads_have_the_same_bits_in_every_chunk() {
    for limit in LIMITS {
        let Some(backend) = gpu_of(limit) else { return };
        for (heads, kv_heads, head_dim) in [(2, 1, 512), (16, 1, 512), (3, 1, 384)] {
            let shape = Shape {
                layers: 1,
                heads,
                kv_heads,
                head_dim,
            };
            for recipe in ["native", "SD", "AF"] {
                long_sequences(&backend, shape, recipe, false, None);
            }
            long_sequences(&backend, shape, "AD", false, Some(700));
            if limit > 99 << 10 {
                long_sequences(&backend, shape, "k=int4,v=int4-64", false, None);
                long_sequences(&backend, shape, "k=e4m3,v=int8,sink=4", false, None);
            }
            if limit == LIMITS[0] {
                long_sequences(&backend, shape, "RD", true, None);
            }
        }
    }
}

/// What has no room is refused with what it would need.
#[test]
fn wide_heads_that_a_device_has_no_room_for_are_refused() {
    let Some(backend) = gpu_of(99 << 10) else {
        return;
    };
    let shape = Shape {
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 512,
    };
    let layout = shape.layout("k=int4,v=int4", NativeDtype::F16);
    let mut cache = backend.cache(&layout).unwrap();
    let rows = span(0, 0, 1);
    let suite = Suite {
        backend: &backend,
        tolerance: TOLERANCE,
        native_queries: false,
    };
    let (q, k) = (noise(1, 1024), noise(2, 512));
    let (q, k) = (suite.upload(&q, 1024), suite.upload(&k, 512));
    backend.store(&mut cache, 0, &k, &k, &rows).unwrap();
    let mut out = backend.tensor(1, 1024).unwrap();
    let error = backend.attend(&cache, 0, &q, &rows, &mut out);
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("head_dim 512") && text.contains("has 101376"),
        "{text}"
    );
}
