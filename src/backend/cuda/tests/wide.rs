//! Heads of more than 256 elements, whose blocks hold fewer tiles, down to one where a device has
//! little shared memory.

use super::long::long_sequences;
use super::*;

/// Shared memory of blocks of compute capability 9.0, 8.0 and 8.6.
const LARGEST: usize = 227 << 10;
const MIDDLE: usize = 163 << 10;
const SMALLEST: usize = 99 << 10;

/// The first GPU as one whose blocks have `limit` bytes.
fn gpu_of(limit: usize) -> Option<CudaBackend> {
    let backend = gpu()?;
    backend.kernels.device.limit_shared(limit);
    Some(backend)
}

/// Queries of 16 bits, as 16-bit weights give them.
fn attends(limit: usize, check: impl FnOnce(&Suite<'_, CudaBackend>)) {
    let Some(backend) = gpu_of(limit) else { return };
    check(&with_native_queries(&backend));
}

mod blocks_of_9_0 {
    use super::*;

    crate::backend::conformance::conformance_tests!(attends_here: wide_heads wide_heads_in_groups);

    fn attends_here(check: impl FnOnce(&Suite<'_, CudaBackend>)) {
        attends(LARGEST, check);
    }
}

mod blocks_of_8_0 {
    use super::*;

    crate::backend::conformance::conformance_tests!(attends_here: wide_heads wide_heads_in_groups);

    fn attends_here(check: impl FnOnce(&Suite<'_, CudaBackend>)) {
        attends(MIDDLE, check);
    }
}

/// Groups lie beside their operands, for which the smallest blocks have no room.
mod blocks_of_8_6 {
    use super::*;

    crate::backend::conformance::conformance_tests!(attends_here: wide_heads);

    fn attends_here(check: impl FnOnce(&Suite<'_, CudaBackend>)) {
        attends(SMALLEST, check);
    }
}

/// Queries of 32 bits take twice the room.
mod exact_queries {
    use super::*;

    crate::backend::conformance::conformance_tests!(conforms: wide_heads wide_heads_in_groups);
}

/// Rows beyond the first span, alone and as prompts in chunks of every kind.
fn long(limit: usize) {
    let Some(backend) = gpu_of(limit) else { return };
    for (heads, kv_heads, head_dim) in [(2, 1, 512), (16, 1, 512)] {
        let shape = Shape {
            layers: 1,
            heads,
            kv_heads,
            head_dim,
        };
        for recipe in ["native", "SD"] {
            long_sequences(&backend, shape, recipe, false, None);
        }
        long_sequences(&backend, shape, "AD", false, Some(700));
        if limit > SMALLEST {
            long_sequences(&backend, shape, "k=int4,v=int4-64", false, None);
            long_sequences(&backend, shape, "k=e4m3,v=int8,sink=4", false, None);
        }
        if limit == LARGEST {
            long_sequences(&backend, shape, "RD", true, None);
        }
    }
}

#[test]
fn long_wide_heads_in_blocks_of_9_0_have_the_same_bits_in_every_chunk() {
    long(LARGEST);
}

#[test]
fn long_wide_heads_in_blocks_of_8_0_have_the_same_bits_in_every_chunk() {
    long(MIDDLE);
}

#[test]
fn long_wide_heads_in_blocks_of_8_6_have_the_same_bits_in_every_chunk() {
    long(SMALLEST);
}

/// What has no room is refused with what it would need.
#[test]
fn wide_heads_that_a_device_has_no_room_for_are_refused() {
    let Some(backend) = gpu_of(SMALLEST) else {
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
