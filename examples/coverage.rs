//! Measured coverage of the bounds: the tables of `docs/statistics.md`. Run with
//! `cargo run --release --example coverage`, in about two minutes of two cores.
//!
//! Bounds on counts are enumerated exactly; the bootstrap is simulated. Every figure is the true
//! error divided by alpha: 1 is nominal, more is too bold, less is cautious.

use std::io::Write;

use kvassay::stats::{
    BootstrapPlan, CounterRng, Criterion, Rates, Side, StatsError, bootstrap_ratio_bounds,
    loss_pass_probability, net_pass_probability,
};

const ALPHAS: [f64; 3] = [0.05, 0.05 / 8.0, 0.05 / 24.0];
const PAIRS: u64 = 1_319;

/// Loss and gain rates of the exact tables.
const RATES: [f64; 5] = [0.001, 0.003, 0.01, 0.02, 0.03];
/// Gain rates on the boundary of non-inferiority by one point.
const GAINS_AT_BOUNDARY: [f64; 5] = [0.0, 0.001, 0.003, 0.01, 0.02];

/// Simulated data sets per distribution and number of documents.
const TRIALS: u64 = 4_000;
/// `RESAMPLES + 1` times each alpha is a whole number, so that no alpha is rounded.
const RESAMPLES: u32 = 4_799;
/// Mean relative change of a document, and its spread where it has one.
const TRUTH: f64 = 0.002;
const SD: f64 = 0.01;

/// Draws the relative change of one document.
type Change = fn(&mut CounterRng) -> f64;

const CHANGES: [(&str, Change); 4] = [
    ("normal", |rng| TRUTH + SD * rng.normal()),
    ("heavy tails", |rng| {
        // Student's t with 3 degrees of freedom has variance 3.
        let chi_square: f64 = (0..3).map(|_| rng.normal().powi(2)).sum();
        TRUTH + SD / 3_f64.sqrt() * rng.normal() / (chi_square / 3.0).sqrt()
    }),
    ("skewed", |rng| {
        // exp(Z) has mean sqrt(e) and variance e (e - 1).
        let e = std::f64::consts::E;
        TRUTH + SD * (rng.normal().exp() - e.sqrt()) / (e * (e - 1.0)).sqrt()
    }),
    ("one in 32", |rng| {
        if rng.below(32) == 0 {
            32.0 * TRUTH
        } else {
            0.0
        }
    }),
];

/// True error of the Tango lower bound over alpha. A bound that is held against the truth passes
/// exactly where it lies above it.
fn tango_error(loss: f64, gain: f64, alpha: f64) -> Result<f64, StatsError> {
    let limit = gain - loss;
    let criterion = Criterion { alpha, limit };
    let found = net_pass_probability(PAIRS, Rates::new(loss, gain)?, criterion)?;
    Ok(found.probability / alpha)
}

/// True error of the Clopper-Pearson upper bound over alpha.
fn exact_error(loss: f64, alpha: f64) -> Result<f64, StatsError> {
    let criterion = Criterion { alpha, limit: loss };
    Ok(loss_pass_probability(PAIRS, loss, criterion)? / alpha)
}

/// Share of simulated data sets whose upper bound lies below the truth, at each alpha.
fn bootstrap_errors(change: Change, documents: u64) -> Result<[f64; 3], StatsError> {
    let mut missed = [0_u64; 3];
    for trial in 0..TRIALS {
        let mut rng = CounterRng::new(documents, trial);
        let pairs = (0..documents).map(|_| {
            let native = 2.0 + rng.unit();
            (native, native * (1.0 + change(&mut rng)))
        });
        let (native, candidate): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let plan = BootstrapPlan {
            resamples: RESAMPLES,
            seed: trial,
        };
        let bounds = bootstrap_ratio_bounds(&native, &candidate, &ALPHAS, Side::Upper, plan)?;
        for (missed, bound) in missed.iter_mut().zip(bounds) {
            *missed += u64::from(bound.value < TRUTH);
        }
    }
    Ok(missed.map(|missed| missed as f64 / TRIALS as f64))
}

fn tango_tables(out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    writeln!(out, "Tango lower bound, {PAIRS} pairs, exact\n")?;
    writeln!(
        out,
        "| loss | gain | 0.05 | 0.05/8 | 0.05/24 |\n|---|---|---|---|---|"
    )?;
    let grid = RATES.map(|loss| RATES.map(|gain| (loss, gain)));
    let boundary = GAINS_AT_BOUNDARY.map(|gain| (gain + 0.01, gain));
    for (loss, gain) in grid.into_iter().flatten().chain(boundary) {
        write!(out, "| {:.1}% | {:.1}% |", 100.0 * loss, 100.0 * gain)?;
        for alpha in ALPHAS {
            write!(out, " {:.2} |", tango_error(loss, gain, alpha)?)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn exact_table(out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    writeln!(out, "\nClopper-Pearson upper bound, {PAIRS} pairs, exact\n")?;
    writeln!(out, "| loss | 0.05 | 0.05/8 | 0.05/24 |\n|---|---|---|---|")?;
    for loss in RATES {
        write!(out, "| {:.1}% |", 100.0 * loss)?;
        for alpha in ALPHAS {
            write!(out, " {:.2} |", exact_error(loss, alpha)?)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn bootstrap_table(out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
    writeln!(
        out,
        "\nPercentile-bootstrap upper bound, {TRIALS} data sets, {RESAMPLES} resamples, with the \
         standard error of the simulation\n"
    )?;
    writeln!(
        out,
        "| change | documents | 0.05 | 0.05/8 | 0.05/24 |\n|---|---|---|---|---|"
    )?;
    for (name, change) in CHANGES {
        for documents in [32, 64, 128] {
            write!(out, "| {name} | {documents} |")?;
            for (error, alpha) in bootstrap_errors(change, documents)?.into_iter().zip(ALPHAS) {
                let se = (error * (1.0 - error) / TRIALS as f64).sqrt();
                write!(out, " {:.2} ± {:.2} |", error / alpha, se / alpha)?;
            }
            writeln!(out)?;
            out.flush()?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    tango_tables(&mut out)?;
    exact_table(&mut out)?;
    bootstrap_table(&mut out)
}
