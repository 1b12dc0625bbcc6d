pub mod alone;
mod long;
mod wide;

use alone::is_alone;

use super::product::RANGES;
use super::projections::MANY_ROWS;
use super::*;
use crate::backend::conformance::{
    MANY_TOKENS, Shape, Suite, Tolerance, bits, noise, span, storage,
};
use crate::backend::{Backend, NumberType, StoredNumbers, TensorData};
use crate::recipe::{CacheShape, NativeDtype, bytes_per_token, cache_bytes, sink_bytes};

const TOLERANCE: Tolerance = Tolerance {
    f32: 4e-6,
    f16: 6e-4,
    bf16: 4e-3,
    attention_f16: 1e-5,
    attention_bf16: 1e-4,
};

/// The first GPU, or a note that there is none. One that does not work fails the test.
fn gpu() -> Option<CudaBackend> {
    match device::count() {
        Ok(0) => println!("skipped: the driver sees no GPU"),
        Err(error) => println!("skipped: {error}"),
        Ok(_) => return Some(CudaBackend::new(0).unwrap()),
    }
    None
}

fn suite(backend: &CudaBackend) -> Suite<'_, CudaBackend> {
    Suite {
        backend,
        tolerance: TOLERANCE,
        native_queries: false,
    }
}

fn conforms(check: impl FnOnce(&Suite<'_, CudaBackend>)) {
    let Some(backend) = gpu() else { return };
    check(&suite(&backend));
}

mod conformance {
    use super::conforms;

    crate::backend::conformance::conformance_tests!(conforms);
}

/// Alone: other threads that wait for the device break recordings off.
#[test]
fn a_gpu_starts_passes_that_repeat_from_recordings() {
    let Some(backend) = gpu() else { return };
    if !is_alone(
        module_path!(),
        "a_gpu_starts_passes_that_repeat_from_recordings",
    ) {
        return;
    }
    let suite = suite(&backend);
    suite.repeats();
    // Of about 55 steps, what follows four equal ones.
    let recorded = backend.recorded_passes();
    assert!((20..40).contains(&recorded), "{recorded} passes");
}

/// Whatever else runs in the process may break recordings off: no pass is lost by it.
#[test]
fn a_gpu_runs_passes_whose_recordings_are_broken_off() {
    let Some(backend) = gpu() else { return };
    backend.kernels.device.recordings.interrupted.set(true);
    suite(&backend).repeats();
    assert_eq!(backend.recorded_passes(), 0);
}

/// Queries of 16 bits, as 16-bit weights give them: weights of attention are rounded once.
fn with_native_queries(backend: &CudaBackend) -> Suite<'_, CudaBackend> {
    Suite {
        tolerance: Tolerance {
            attention_f16: 8e-4,
            attention_bf16: 6e-3,
            ..TOLERANCE
        },
        native_queries: true,
        ..suite(backend)
    }
}

#[test]
fn a_gpu_attends_to_short_prompts() {
    let Some(backend) = gpu() else { return };
    with_native_queries(&backend).prompts();
}

fn conforms_with_native_queries(check: impl FnOnce(&Suite<'_, CudaBackend>)) {
    let Some(backend) = gpu() else { return };
    check(&with_native_queries(&backend));
}

mod native_queries {
    use super::conforms_with_native_queries;

    crate::backend::conformance::conformance_tests!(
        conforms_with_native_queries:
        attention_in_f16 attention_in_bf16 attention_within_windows
        attention_of_heads_of_8 attention_of_heads_of_64 attention_of_heads_of_80
        attention_of_heads_of_128
    );
}

/// Heads are split by one block for each row, and by several.
const _: () = assert!(MANY_ROWS < MANY_TOKENS && MANY_TOKENS < 2 * MANY_ROWS);

#[test]
fn products_of_real_shapes_do_not_depend_on_the_number_of_rows() {
    let Some(backend) = gpu() else { return };
    let suite = suite(&backend);
    let longest = STEP_ROWS + 64;
    for (out, inner) in [(1024, 4096), (4096, 1024), (576, 1536), (2048, 576)] {
        let w: Vec<f32> = noise(1, out * inner).iter().map(|x| x * 0.02).collect();
        let f16 = TensorData::F16(w.iter().map(|&x| half::f16::from_f32(x)).collect());
        let bf16 = TensorData::Bf16(w.iter().map(|&x| half::bf16::from_f32(x)).collect());
        for data in [f16, bf16, TensorData::F32(w)] {
            let weight = backend.weight(data, out, inner).unwrap();
            let x = noise(2, longest * inner);
            let run = |from: usize, to: usize| {
                let x = suite.upload(&x[from * inner..to * inner], inner);
                let mut y = backend.tensor(to - from, out).unwrap();
                backend.matmul(&x, &weight, None, &mut y).unwrap();
                bits(&backend.to_host(&y).unwrap())
            };
            let whole = run(0, longest);
            // Both ends of every range, and what lies between.
            let ranges = RANGES.windows(2).filter(|ends| ends[1] <= longest);
            let counts = ranges.flat_map(|ends| [ends[0] + 1, ends[0].midpoint(ends[1]), ends[1]]);
            for rows in counts.chain([1, 513, 550]) {
                let from = rows * 37 % (longest + 1 - rows);
                let to = from + rows;
                assert!(
                    run(from, to) == whole[from * out..to * out],
                    "{out} x {inner} {:?} rows {from} to {to}",
                    weight.format
                );
            }
        }
    }
    let (library, all) = backend.planned_products();
    println!("{library} of {all} shapes by cuBLASLt");
}

/// A weight of more pieces of page-locked memory than take turns, with a number that is not finite in the
/// first, in the last, and nowhere.
#[test]
fn a_large_weight_crosses_from_its_file_whole_or_not_at_all() {
    let Some(backend) = gpu() else { return };
    let (out, inner) = (6 * 1024, 8192);
    let mut words: Vec<u16> = (0..out * inner)
        .map(|i| half::f16::from_f32((i % 1021) as f32 / 1021.0).to_bits())
        .collect();
    let weight = |words: &[u16]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let parts = [0..bytes.len() / 3 * 2, bytes.len() / 3 * 2..bytes.len()];
        let parts = parts.map(|part| StoredNumbers {
            numbers: NumberType::F16,
            bytes: &bytes[part],
        });
        let parts = StoredParts::Numbers(parts.to_vec());
        backend.stored_weight(&parts, out, inner).unwrap()
    };
    for wrong in [0, out * inner - 1] {
        let right = std::mem::replace(&mut words[wrong], half::f16::NEG_INFINITY.to_bits());
        assert!(weight(&words).is_none(), "{wrong}");
        words[wrong] = right;
    }
    let found = weight(&words).expect("finite numbers");
    assert!(found.data.read::<u16>(words.len()).unwrap() == words);
}

/// Every finite 16-bit number, and numbers between, through every format.
#[test]
fn conversion_on_the_device_is_that_of_the_host() {
    let Some(backend) = gpu() else { return };
    let width = 256;
    let mut numbers: Vec<f32> = (0..=u16::MAX)
        .map(|bits| half::f16::from_bits(bits).to_f32())
        .filter(|x| x.is_finite())
        .flat_map(|x| [x, x * 1.000_1, x * 0.999_7])
        .filter(|x| x.abs() < 65504.0)
        .collect();
    numbers.truncate(numbers.len() / width * width);
    let tokens = numbers.len() / width;
    let suite = suite(&backend);
    for recipe in [
        "SF",
        "k=e5m2:fixed,v=int8:fixed",
        "SD",
        "k=int8:dynamic,v=e5m2:dynamic",
        "k=int4,v=int4-64",
    ] {
        let shape = Shape {
            layers: 1,
            heads: 1,
            kv_heads: 1,
            head_dim: width,
        };
        let mut layout = shape.layout(recipe, NativeDtype::F16);
        layout.slot_tokens = tokens;
        let mut cache = backend.cache(&layout).unwrap();
        let x = suite.upload(&numbers, width);
        backend
            .store(&mut cache, 0, &x, &x, &span(0, 0, tokens))
            .unwrap();
        backend.settle().unwrap();
        let [k, v] = storage::stored_rows(&layout, 0, &numbers, &numbers);
        for token in 0..tokens {
            let stored = cache.read_token(0, 0, token).unwrap();
            for (stored, expected) in stored.iter().zip([&k, &v]) {
                let expected = &expected[token * width..(token + 1) * width];
                let found: Vec<u32> = stored.iter().map(|x| (x + 0.0).to_bits()).collect();
                let expected: Vec<u32> = expected.iter().map(|x| (x + 0.0).to_bits()).collect();
                assert_eq!(found, expected, "{recipe} token {token}");
            }
        }
    }
}

#[test]
fn a_key_names_what_broke() {
    let key = 3_u64 << 54 | 77 << 37 | 1 << 36 | 513 << 20 | u64::from(f32::NAN.to_bits() >> 12);
    let BackendError::NotFinite { row, what } = what_broke(key) else {
        panic!("another error");
    };
    assert_eq!(row, 77);
    assert!(what.contains("layer 3: value element 513 is NaN"), "{what}");
}

#[test]
fn a_full_cache_takes_the_bytes_that_memory_figures_give() {
    let Some(backend) = gpu() else { return };
    let shape = Shape {
        layers: 3,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
    };
    let figures = CacheShape {
        layers: 3,
        kv_heads: 2,
        head_dim: 64,
    };
    let ledger = backend.meter().ledger;
    let mut taken = Vec::new();
    let recipes = ["native", "AF", "RF", "AD", "RD", "SD"];
    for recipe in recipes.into_iter().chain(["k=int4,v=int4-64,sink=4"]) {
        let layout = shape.layout(recipe, NativeDtype::F16);
        let mut cache = backend.cache(&layout).unwrap();
        for slot in 0..layout.slots {
            for layer in 0..layout.layers.len() {
                let rows = span(slot, 0, layout.slot_tokens);
                cache
                    .reserve(&backend.kernels, layer..layer + 1, &rows)
                    .unwrap();
            }
        }
        let pages = (layout.slots * layout.slot_tokens / 16) as u64;
        let beside = layout.slots as u64 * sink_bytes(&layout.recipe, &figures);
        let expected = cache_bytes(pages, bytes_per_token(&layout.recipe, &figures));
        let expected = expected.map(|pages| pages + beside);
        assert_eq!(Some(ledger.held(Purpose::Cache)), expected, "{recipe}");
        taken.push(ledger.held(Purpose::Cache) + ledger.held(Purpose::Counters));
        drop(cache);
        assert_eq!(ledger.held(Purpose::Cache), 0);
    }
    assert_eq!((taken[1], taken[3]), (taken[2], taken[4]), "A and R");
}

#[test]
fn memory_in_use_is_read_from_another_thread() {
    let Some(backend) = gpu() else { return };
    let meter = backend.meter();
    let gauge = meter.gauge.clone().unwrap();
    let before = gauge.in_use().unwrap();
    let bytes = 256 << 20;
    let held = backend.kernels.device.allocate(bytes, Purpose::Weights);
    let held = held.unwrap();
    let seen = std::thread::spawn(move || gauge.in_use()).join().unwrap();
    assert!(
        seen.unwrap() >= before + bytes as u64 / 2,
        "{seen:?} after {before}"
    );
    assert!(seen <= meter.total_bytes);
    assert_eq!(meter.ledger.held(Purpose::Weights), bytes as u64);
    drop(held);
}

#[test]
fn memory_beyond_a_limit_does_not_count() {
    assert_eq!(within(None, (70, 100)), (70, 100));
    assert_eq!(within(Some(100), (70, 100)), (70, 100));
    assert_eq!(within(Some(1 << 40), (70, 100)), (70, 100));
    assert_eq!(within(Some(80), (70, 100)), (50, 80));
    assert_eq!(within(Some(20), (70, 100)), (0, 20));
}
