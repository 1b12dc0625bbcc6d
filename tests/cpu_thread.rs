//! The thread that runs the model joins the pool. A process of its own: there is one pool.

use kvassay::backend::cpu::{CpuBackend, CpuTensor, claim_thread};
use kvassay::backend::{Backend, TensorData};

fn product(backend: &CpuBackend) -> Vec<f32> {
    let numbers = |len: u32| (0..len).map(|i| (i % 37) as f32 - 18.5).collect::<Vec<_>>();
    let weight = backend
        .weight(TensorData::F32(numbers(320 * 64)), 320, 64)
        .expect("a weight");
    let x = CpuTensor::from_rows(numbers(70 * 64), 64);
    let mut out = backend.tensor(70, 320).expect("a tensor");
    backend
        .matmul(&x, &weight, None, &mut out)
        .expect("a product");
    backend.to_host(&out).expect("a copy")
}

#[test]
fn a_claimed_thread_computes_the_same() {
    claim_thread().expect("no pool exists yet");
    let again = claim_thread().expect_err("the pool exists");
    assert!(again.to_string().contains("thread pool"), "{again}");
    let backend = CpuBackend::new();
    let claimed = product(&backend);
    let other = std::thread::scope(|scope| {
        let outside = scope.spawn(|| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build();
            pool.expect("a pool").install(|| product(&backend))
        });
        outside.join().expect("the other thread")
    });
    assert_eq!(claimed, other);
}
