use pulp::Arch;

use super::*;
use crate::backend::conformance::{Shape, Suite, Tolerance, bits, noise, span};
use crate::recipe::NativeDtype;

/// Every instruction set of this machine, the widest first.
fn instruction_sets() -> Vec<Arch> {
    let mut sets = vec![Arch::new()];
    #[cfg(target_arch = "x86_64")]
    sets.extend(pulp::x86::V3::try_new().map(Arch::V3));
    sets.push(Arch::Scalar);
    sets
}

fn conforms(check: impl FnOnce(&Suite<'_, CpuBackend>)) {
    check(&Suite {
        backend: &CpuBackend::new(),
        tolerance: Tolerance::of_f32(4e-6),
        native_queries: false,
    });
}

mod conformance {
    use super::conforms;

    crate::backend::conformance::conformance_tests!(conforms);
    crate::backend::conformance::conformance_tests!(conforms: wide_heads wide_heads_in_groups);
}

/// Bits of one pass through every operation.
fn pass(b: &CpuBackend, recipe: &str) -> Vec<Vec<u32>> {
    let shape = Shape {
        layers: 1,
        heads: 4,
        kv_heads: 2,
        head_dim: 40,
    };
    let (rows, width) = (span(1, 0, 77), shape.q_width());
    let x = CpuTensor::from_rows(noise(1, rows.len() * width), width);
    let weight = |out: usize, seed: u64| {
        let w = noise(seed, out * width).into_iter();
        let data = TensorData::Bf16(w.map(half::bf16::from_f32).collect());
        b.weight(data, out, width).expect("a weight")
    };
    let tensor = |width| b.tensor(rows.len(), width).expect("a tensor");
    let norm = noise(2, width);
    let mut y = tensor(width);
    b.rms_norm(&x, &norm, 1e-5, &mut y).expect("a norm");
    let (mut q, mut k, mut v) = (
        tensor(width),
        tensor(shape.kv_width()),
        tensor(shape.kv_width()),
    );
    b.matmul(&y, &weight(width, 3), None, &mut q)
        .expect("queries");
    b.matmul(&y, &weight(shape.kv_width(), 4), None, &mut k)
        .expect("keys");
    b.matmul(&y, &weight(shape.kv_width(), 5), None, &mut v)
        .expect("values");
    let table = RotaryTable {
        cos: noise(6, 77 * 20).into(),
        sin: noise(7, 77 * 20).into(),
        half: 20,
        head_dim: 40,
    };
    b.rotary(&mut k, &table, &rows).expect("a rotation");
    let layout = shape.layout(recipe, NativeDtype::F16);
    let mut cache = b.cache(&layout).expect("a cache");
    b.store(&mut cache, 0, &k, &v, &rows).expect("storage");
    let mut out = tensor(width);
    b.attend(&cache, 0, &q, &rows, &mut out).expect("attention");
    let mut gate = tensor(width / 2);
    b.gate(&out, Activation::Silu, &mut gate).expect("a gate");
    let targets = vec![3; rows.len()];
    let nll = b.nll(&gate, &targets, &[]).expect("likelihoods");
    vec![
        bits(&y.data),
        bits(&q.data),
        bits(&k.data),
        bits(&out.data),
        bits(&gate.data),
        nll.iter()
            .map(|x| (x.to_bits() >> 32) as u32 ^ x.to_bits() as u32)
            .collect(),
        b.argmax(&gate, &[]).expect("choices"),
    ]
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    for recipe in ["native", "SD", "AF"] {
        let widest = pass(&CpuBackend::new(), recipe);
        for arch in instruction_sets() {
            assert!(
                pass(&CpuBackend::on(arch), recipe) == widest,
                "{recipe} on {arch:?}"
            );
        }
    }
}

#[test]
fn a_count_of_threads_changes_no_bit() {
    let widest = pass(&CpuBackend::new(), "SD");
    for threads in [1, 2, 5] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let got = pool
            .expect("a pool")
            .install(|| pass(&CpuBackend::new(), "SD"));
        assert!(got == widest, "{threads} threads");
    }
}
