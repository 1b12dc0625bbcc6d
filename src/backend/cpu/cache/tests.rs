use crate::backend::conformance::{Shape, bits, noise, span};
use crate::backend::cpu::{CpuBackend, CpuTensor};
use crate::backend::{Backend, Purpose};
use crate::recipe::{CacheShape, NativeDtype, bytes_per_token, cache_bytes, sink_bytes};

const SHAPE: Shape = Shape {
    layers: 1,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
};

fn tensor(seed: u64, rows: usize, width: usize) -> CpuTensor {
    CpuTensor::from_rows(noise(seed, rows * width), width)
}

#[test]
fn slots_that_hold_no_token_never_enter_arithmetic() {
    let backend = CpuBackend::new();
    for recipe in [
        "native",
        "AD",
        "SF",
        "k=int8:dynamic,v=e5m2:dynamic",
        "k=int4,v=int4/64",
        "k=e4m3,v=int4,sink=19",
    ] {
        let run = |poison: bool| {
            let layout = SHAPE.layout(recipe, NativeDtype::F16);
            let mut cache = backend.cache(&layout).expect("a cache");
            // Used pages go back to the pool full of poison.
            let rows = span(2, 0, 100);
            let x = tensor(1, 100, SHAPE.kv_width());
            backend
                .store(&mut cache, 0, &x, &x, &rows)
                .expect("storage");
            backend.reset_slot(&mut cache, 2).expect("a reset");
            let mut results = Vec::new();
            for position in 0..40 {
                if poison {
                    cache.poison();
                }
                let rows = span(0, position, position + 1);
                let k = tensor(position as u64, 1, SHAPE.kv_width());
                backend
                    .store(&mut cache, 0, &k, &k, &rows)
                    .expect("storage");
                if poison {
                    cache.poison();
                }
                let q = tensor(1000 + position as u64, 1, SHAPE.q_width());
                let mut out = backend.tensor(1, SHAPE.q_width()).expect("a tensor");
                backend
                    .attend(&cache, 0, &q, &rows, &mut out)
                    .expect("attention");
                let out = backend.to_host(&out).expect("a copy");
                assert!(out.iter().all(|x| x.is_finite()), "{recipe} at {position}");
                results.push(bits(&out));
            }
            let totals = backend.slot_totals(&cache, 0).expect("totals");
            (
                results,
                totals,
                backend.slot_absmax(&cache, 0).expect("absmax"),
            )
        };
        assert_eq!(run(false), run(true), "{recipe}");
    }
}

#[test]
fn pages_come_from_a_pool() {
    let backend = CpuBackend::new();
    let layout = SHAPE.layout("native", NativeDtype::F16);
    let mut cache = backend.cache(&layout).expect("a cache");
    assert_eq!(cache.page_count(), 0);
    let x = tensor(1, 33, SHAPE.kv_width());
    for slot in [0, 1, 0, 2] {
        backend
            .store(&mut cache, 0, &x, &x, &span(slot, 0, 33))
            .expect("storage");
        if slot == 1 {
            backend.reset_slot(&mut cache, 1).expect("a reset");
        }
    }
    assert_eq!(cache.page_count(), 6);
}

#[test]
#[should_panic(expected = "position 512 of a slot of 512 tokens")]
fn positions_beyond_the_slot_are_refused() {
    let backend = CpuBackend::new();
    let layout = SHAPE.layout("native", NativeDtype::F16);
    let mut cache = backend.cache(&layout).expect("a cache");
    let x = tensor(1, 1, SHAPE.kv_width());
    let _ = backend.store(&mut cache, 0, &x, &x, &span(0, 512, 513));
}

#[test]
fn the_ledger_holds_the_bytes_that_memory_figures_give() {
    let backend = CpuBackend::new();
    let ledger = backend.meter().ledger;
    let shape = CacheShape {
        layers: SHAPE.layers as u32,
        kv_heads: SHAPE.kv_heads as u32,
        head_dim: SHAPE.head_dim as u32,
    };
    for recipe in [
        "native",
        "AF",
        "RD",
        "SD",
        "k=int8:fixed,v=native",
        "k=int4,v=int4/64",
        "k=native,v=e4m3,sink=4",
        "k=int4,v=e4m3,sink=33",
    ] {
        let layout = SHAPE.layout(recipe, NativeDtype::Bf16);
        let mut cache = backend.cache(&layout).expect("a cache");
        let beside = layout.slots as u64 * sink_bytes(&layout.recipe, &shape);
        assert_eq!(ledger.held(Purpose::Cache), beside);
        let x = backend.tensor(50, SHAPE.kv_width()).expect("a tensor");
        assert!(ledger.held(Purpose::Staging) >= 50 * SHAPE.kv_width() as u64 * 4);
        for slot in 0..2 {
            backend
                .store(&mut cache, 0, &x, &x, &span(slot, 0, 50))
                .expect("storage");
        }
        // Fifty tokens are four pages.
        let pages = cache_bytes(8, bytes_per_token(&layout.recipe, &shape));
        let expected = pages.map(|pages| pages + beside);
        assert_eq!(Some(ledger.held(Purpose::Cache)), expected, "{recipe}");
        assert!(ledger.held(Purpose::Counters) > 0);
    }
    assert_eq!(ledger.held(Purpose::Cache), 0);
    assert_eq!(ledger.held(Purpose::Staging), 0);
}
