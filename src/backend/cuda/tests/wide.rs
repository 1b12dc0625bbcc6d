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
fn long(limit: usize, (recipe, exact, window): (&str, bool, Option<usize>)) {
    let Some(backend) = gpu_of(limit) else { return };
    for heads in [2, 16] {
        let shape = Shape {
            layers: 1,
            heads,
            kv_heads: 1,
            head_dim: 512,
        };
        long_sequences(&backend, shape, recipe, exact, window);
    }
}

/// A test for each recipe: one by one they are short enough for a sanitizer.
macro_rules! long_tests {
    ($limit:expr; $($name:ident: $recipe:expr;)+) => {
        $(
            #[test]
            fn $name() {
                long($limit, $recipe);
            }
        )+
    };
}

mod long_sequences_in_blocks_of_9_0 {
    use super::*;

    long_tests! {
        LARGEST;
        native: ("native", false, None);
        fp8: ("SD", false, None);
        fp8_within_a_window: ("AD", false, Some(700));
        int4: ("k=int4,v=int4-64", false, None);
        int8_behind_a_sink: ("k=e4m3,v=int8,sink=4", false, None);
        exact_queries: ("RD", true, None);
    }
}

mod long_sequences_in_blocks_of_8_0 {
    use super::*;

    long_tests! {
        MIDDLE;
        native: ("native", false, None);
        fp8: ("SD", false, None);
        fp8_within_a_window: ("AD", false, Some(700));
        int4: ("k=int4,v=int4-64", false, None);
        int8_behind_a_sink: ("k=e4m3,v=int8,sink=4", false, None);
    }
}

mod long_sequences_in_blocks_of_8_6 {
    use super::*;

    long_tests! {
        SMALLEST;
        native: ("native", false, None);
        fp8: ("SD", false, None);
        fp8_within_a_window: ("AD", false, Some(700));
    }
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
    let suite = suite(&backend);
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
