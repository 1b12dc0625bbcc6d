//! Speed of the reference worker at the shapes of SmolLM2-135M: hidden 576, intermediate 1,536,
//! 9 query and 3 key/value heads of 64, vocabulary 49,152.
//!
//! Throughput counts floating-point operations (two per multiply-add) for products, and query-key
//! pairs per head for attention.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvassay::backend::cpu::{CpuBackend, CpuCache, CpuTensor, claim_thread};
use kvassay::backend::{Backend, CacheLayer, CacheLayout, CacheRow, TensorData};
use kvassay::recipe::{NativeDtype, Recipe};

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;

/// The worker as a run uses it. The second group finds the thread claimed already.
fn backend() -> CpuBackend {
    claim_thread().ok();
    CpuBackend::new()
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn stored(kind: &str, len: usize) -> TensorData {
    let data = numbers(len);
    match kind {
        "f32" => TensorData::F32(data),
        _ => TensorData::Bf16(data.into_iter().map(half::bf16::from_f32).collect()),
    }
}

fn products(c: &mut Criterion) {
    let backend = backend();
    for (name, out, inner) in [
        ("q", 576, 576),
        ("up", 1536, 576),
        ("down", 576, 1536),
        ("logits", 49_152, 576),
    ] {
        for kind in ["f32", "bf16"] {
            let mut group = c.benchmark_group(format!("product/{name}/{kind}"));
            let weight = backend
                .weight(stored(kind, out * inner), out, inner)
                .expect("a weight");
            for rows in [1, 8, 32, 256] {
                let x = CpuTensor::from_rows(numbers(rows * inner), inner);
                let mut y = backend.tensor(rows, out).expect("a tensor");
                group.throughput(Throughput::Elements((2 * rows * out * inner) as u64));
                group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                    b.iter(|| {
                        backend
                            .matmul(black_box(&x), &weight, None, &mut y)
                            .expect("a product");
                    });
                });
            }
        }
    }
}

fn filled(backend: &CpuBackend, recipe: &str, slots: usize, tokens: usize) -> CpuCache {
    let layout = CacheLayout {
        layers: vec![CacheLayer::new(KV_HEADS, HEAD_DIM)],
        native: NativeDtype::Bf16,
        slots,
        slot_tokens: tokens,
        pass_tokens: tokens,
        recipe: Recipe::parse(recipe).expect("a recipe"),
        absmax: None,
    };
    let mut cache = backend.cache(&layout).expect("a cache");
    let width = KV_HEADS * HEAD_DIM;
    let x = CpuTensor::from_rows(numbers(tokens * width), width);
    for slot in 0..slots {
        let rows = span(slot, 0, tokens);
        backend
            .store(&mut cache, 0, &x, &x, &rows)
            .expect("storage");
    }
    cache
}

fn span(slot: usize, from: usize, to: usize) -> Vec<CacheRow> {
    (from..to)
        .map(|position| CacheRow { slot, position })
        .collect()
}

fn attention(c: &mut Criterion) {
    let backend = backend();
    let tokens = 2048;
    for recipe in ["native", "SD"] {
        let cache = filled(&backend, recipe, 8, tokens);
        let decode: Vec<_> = (0..8)
            .flat_map(|slot| span(slot, tokens - 1, tokens))
            .collect();
        for (name, rows) in [
            ("decode-8", decode),
            ("prefill-256", span(0, tokens - 256, tokens)),
        ] {
            let mut group = c.benchmark_group(format!("attention/{name}"));
            let width = HEADS * HEAD_DIM;
            let q = CpuTensor::from_rows(numbers(rows.len() * width), width);
            let mut out = backend.tensor(rows.len(), width).expect("a tensor");
            let pairs: usize = rows.iter().map(|row| HEADS * (row.position + 1)).sum();
            group.throughput(Throughput::Elements(pairs as u64));
            group.bench_function(recipe, |b| {
                b.iter(|| {
                    backend
                        .attend(&cache, 0, black_box(&q), &rows, &mut out)
                        .expect("attention");
                });
            });
        }
    }
}

fn storage(c: &mut Criterion) {
    let backend = backend();
    let mut group = c.benchmark_group("store/256");
    let width = KV_HEADS * HEAD_DIM;
    let x = CpuTensor::from_rows(numbers(256 * width), width);
    let rows = span(0, 0, 256);
    group.throughput(Throughput::Elements((2 * 256 * width) as u64));
    for recipe in ["native", "SD"] {
        let mut cache = filled(&backend, recipe, 1, 256);
        group.bench_function(recipe, |b| {
            b.iter(|| {
                backend
                    .store(&mut cache, 0, black_box(&x), &x, &rows)
                    .expect("storage");
            });
        });
    }
}

criterion_group! {
    name = cpu;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600));
    targets = products, attention, storage
}
criterion_main!(cpu);
