//! Speed of the bounds that certificates and audits compute.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvassay::stats::{self, BootstrapPlan, CounterRng, Side};

const ALPHA: f64 = 0.05 / 24.0;

fn clopper_pearson(criterion: &mut Criterion) {
    for (k, n) in [(6, 1_319), (500_000, 1_000_000)] {
        criterion.bench_function(&format!("clopper_pearson_upper {k}/{n}"), |bench| {
            bench.iter(|| stats::clopper_pearson_upper(black_box(k), n, ALPHA));
        });
    }
}

fn tango(criterion: &mut Criterion) {
    criterion.bench_function("tango_bound 14/22 of 1319", |bench| {
        bench.iter(|| stats::tango_bound(black_box(14), 22, 1_319, ALPHA, Side::Lower));
    });
}

fn mcnemar(criterion: &mut Criterion) {
    criterion.bench_function("mcnemar_exact 1199/0", |bench| {
        bench.iter(|| stats::mcnemar_exact(black_box(1_199), 0));
    });
}

fn bootstrap(criterion: &mut Criterion) {
    let mut rng = CounterRng::new(1, 0);
    let (native, candidate): (Vec<f64>, Vec<f64>) = (0..64)
        .map(|_| {
            let native = 2.0 + rng.below(1_000) as f64 / 1_000.0;
            (native, native + rng.below(1_000) as f64 / 1e5)
        })
        .unzip();
    let plan = BootstrapPlan {
        resamples: 100_000,
        seed: 7,
    };
    let mut group = criterion.benchmark_group("bootstrap_ratio_bound");
    group.sample_size(20);
    group.bench_function("100000 x 64", |bench| {
        bench.iter(|| {
            let native = black_box(&native);
            stats::bootstrap_ratio_bound(native, &candidate, ALPHA, Side::Upper, plan)
        });
    });
    group.finish();
}

criterion_group!(benches, clopper_pearson, tango, mcnemar, bootstrap);
criterion_main!(benches);
