//! True error of the upper percentile-bootstrap bound, by simulation: the table of
//! `docs/statistics.md`. Run with `cargo run --release --example bootstrap_coverage`.
//!
//! Native values are uniform on 2..3 nats. Each candidate value is its native value times `1 + r`,
//! with `r` independent of it and of mean 0.2%, so that the true ratio is 1.002.

use std::io::Write;

use kvassay::stats::{self, BootstrapPlan, CounterRng, Side, StatsError};

const TRUTH: f64 = 0.002;
const TRIALS: u64 = 4_000;
const RESAMPLES: u32 = 2_500;

/// Distribution of the relative change of one document.
type Change = fn(&mut CounterRng) -> f64;

const SHAPES: [(&str, Change); 3] = [
    ("symmetric", |rng| TRUTH + 0.02 * (unit(rng) - 0.5)),
    ("exponential", |rng| -TRUTH * unit(rng).ln()),
    ("one in 32", |rng| {
        if rng.below(32) == 0 {
            32.0 * TRUTH
        } else {
            0.0
        }
    }),
];

/// Uniform on (0, 1).
fn unit(rng: &mut CounterRng) -> f64 {
    ((rng.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
}

/// Share of trials whose bound lies below the truth.
fn error(change: Change, documents: usize, alpha: f64) -> Result<f64, StatsError> {
    let mut missed = 0;
    for trial in 0..TRIALS {
        let mut rng = CounterRng::new(documents as u64, trial);
        let pairs = (0..documents).map(|_| {
            let native = 2.0 + unit(&mut rng);
            (native, native * (1.0 + change(&mut rng)))
        });
        let (native, candidate): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let plan = BootstrapPlan {
            resamples: RESAMPLES,
            seed: trial,
        };
        let bound = stats::bootstrap_ratio_bound(&native, &candidate, alpha, Side::Upper, plan)?;
        missed += u64::from(bound.value < TRUTH);
    }
    Ok(missed as f64 / TRIALS as f64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| change of a document | documents | 0.05 | 0.05/4 | 0.05/12 |"
    )?;
    writeln!(out, "|---|---|---|---|---|")?;
    for (name, change) in SHAPES {
        for documents in [32, 64] {
            write!(out, "| {name} | {documents} |")?;
            for alpha in [0.05, 0.05 / 4.0, 0.05 / 12.0] {
                write!(out, " {:.1} |", error(change, documents, alpha)? / alpha)?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}
