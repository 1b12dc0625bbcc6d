//! True error of the paired bootstrap test of equal means, by simulation: the table of
//! `docs/statistics.md`. Run with `cargo run --release --example bootstrap_test_size`.
//!
//! Differences of documents are drawn independently with mean 0, so that every rejection is false.

use std::io::Write;

use kvassay::stats::{self, BootstrapPlan, CounterRng, StatsError};

const TRIALS: u64 = 4_000;
const RESAMPLES: u32 = 2_500;
const ALPHAS: [f64; 3] = [0.05, 0.05 / 4.0, 0.05 / 8.0];

/// Distribution of the difference of one document; its mean is 0.
type Difference = fn(&mut CounterRng) -> f64;

const SHAPES: [(&str, Difference); 3] = [
    ("symmetric", |rng| unit(rng) - 0.5),
    ("exponential", |rng| -unit(rng).ln() - 1.0),
    (
        "one in 32",
        |rng| {
            if rng.below(32) == 0 { 31.0 } else { -1.0 }
        },
    ),
];

/// Uniform on (0, 1).
fn unit(rng: &mut CounterRng) -> f64 {
    ((rng.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// Share of trials that reject at each alpha, divided by it.
fn errors(difference: Difference, documents: usize) -> Result<[f64; 3], StatsError> {
    let mut rejected = [0_u32; 3];
    for trial in 0..TRIALS {
        let mut rng = CounterRng::new(documents as u64, trial);
        let second: Vec<f64> = (0..documents).map(|_| difference(&mut rng)).collect();
        let plan = BootstrapPlan {
            resamples: RESAMPLES,
            seed: trial,
        };
        let test = stats::bootstrap_difference_test(&vec![0.0; documents], &second, plan)?;
        for (count, alpha) in rejected.iter_mut().zip(ALPHAS) {
            *count += u32::from(test.p.p <= alpha);
        }
    }
    let mut errors = [0.0; 3];
    for ((error, count), alpha) in errors.iter_mut().zip(rejected).zip(ALPHAS) {
        *error = f64::from(count) / TRIALS as f64 / alpha;
    }
    Ok(errors)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "| differences | documents | 0.05 | 0.05/4 | 0.05/8 |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for (name, difference) in SHAPES {
        for documents in [8, 32, 64] {
            let [a, b, c] = errors(difference, documents)?;
            writeln!(out, "| {name} | {documents} | {a:.1} | {b:.1} | {c:.1} |")?;
        }
    }
    Ok(())
}
