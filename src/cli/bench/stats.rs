//! `kvassay bench stats`: how long the statistics of certificates take.

use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::stats::{self, BootstrapPlan, CounterRng, Side, StatsError};

use super::super::output::{self, Format};
use super::super::{Exit, Failure};
use super::time;

/// Schema name of the JSON document.
const BENCH_SCHEMA: &str = "kvassay.bench-stats/1";

/// Alpha of a certificate's rule: 0.05 over 24.
const ALPHA: f64 = 0.05 / 24.0;
/// Least time of a sample: shorter calls are timed together.
const SAMPLE: Duration = Duration::from_millis(1);
/// Fewest samples.
const SAMPLES: usize = 5;

/// Arguments of `kvassay bench stats`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Little time per method, for a look.
    #[arg(long)]
    quick: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

type Call<'a> = Box<dyn Fn() -> Result<f64, StatsError> + 'a>;

/// The JSON document.
#[derive(Serialize)]
struct Document {
    schema: &'static str,
    version: &'static str,
    threads: usize,
    measured: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// As `kvassay stats` names it.
    method: &'static str,
    /// Its inputs, in words.
    what: &'static str,
    /// Median of a call.
    seconds: f64,
    /// Calls that were timed.
    calls: usize,
}

/// Runs the command.
///
/// # Errors
/// Exit 4 where the output cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let spent = Duration::from_millis(if args.quick { 5 } else { 300 });
    let mut document = Document {
        schema: BENCH_SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        threads: rayon::current_num_threads(),
        measured: Vec::new(),
    };
    if args.format == Format::Text {
        writeln!(out, "medians of a call, {} threads", document.threads)?;
    }
    let documents = documents();
    for (method, what, call) in calls(&documents) {
        let (seconds, calls) = timed(&call, spent).map_err(Failure::worker)?;
        if args.format == Format::Text {
            writeln!(out, "{method:<22} {}  {what}", time(seconds))?;
            out.flush()?;
        }
        document.measured.push(Row {
            method,
            what,
            seconds,
            calls,
        });
    }
    if args.format == Format::Json {
        output::write_json(out, &document)?;
    }
    Ok(Exit::Holds)
}

/// Sums of 64 documents, as native and a candidate give them.
fn documents() -> [Vec<f64>; 2] {
    let mut rng = CounterRng::new(1, 0);
    let native: Vec<f64> = (0..64).map(|_| 2.0 + rng.unit()).collect();
    let candidate = native.iter().map(|native| native + 0.01 * rng.unit());
    [candidate.collect(), native]
}

/// What certificates, audits and contrasts compute, at their sizes.
fn calls([candidate, native]: &[Vec<f64>; 2]) -> Vec<(&'static str, &'static str, Call<'_>)> {
    let p: Vec<f64> = (1..=72).map(|i| f64::from(i) / 1000.0).collect();
    let plan = BootstrapPlan {
        resamples: 100_000,
        seed: 1,
    };
    vec![
        (
            "clopper_pearson_upper",
            "6 of 1319",
            Box::new(|| stats::clopper_pearson_upper(black_box(6), 1_319, ALPHA)),
        ),
        (
            "clopper_pearson_upper",
            "500000 of 1000000",
            Box::new(|| stats::clopper_pearson_upper(black_box(500_000), 1_000_000, ALPHA)),
        ),
        (
            "tango_lower",
            "14 lost, 22 gained of 1319",
            Box::new(|| stats::tango_bound(black_box(14), 22, 1_319, ALPHA, Side::Lower)),
        ),
        (
            "mcnemar_exact",
            "1199 lost, 0 gained",
            Box::new(|| Ok(stats::mcnemar_exact(black_box(1_199), 0).log10_p)),
        ),
        (
            "sign_test",
            "40 positive, 24 negative",
            Box::new(|| Ok(stats::sign_test(black_box(40), 24).two_sided.log10_p)),
        ),
        (
            "holm",
            "72 hypotheses",
            Box::new(move || Ok(stats::holm(black_box(&p))?[0])),
        ),
        (
            "bootstrap_ratio_upper",
            "64 documents, 100000 resamples",
            Box::new(move || {
                let native = black_box(native);
                let bound =
                    stats::bootstrap_ratio_bound(native, candidate, ALPHA, Side::Upper, plan)?;
                Ok(bound.value)
            }),
        ),
    ]
}

/// Median seconds of a call after a first one that does not count, and how many calls were timed.
fn timed(call: &Call<'_>, spent: Duration) -> Result<(f64, usize), StatsError> {
    black_box(call()?);
    let mut together = 1;
    loop {
        let taken = sample(call, together)?;
        if taken >= SAMPLE {
            break;
        }
        together *= 2;
    }
    let mut samples = Vec::new();
    let began = Instant::now();
    while samples.len() < SAMPLES || began.elapsed() < spent {
        samples.push(sample(call, together)?.as_secs_f64() / together as f64);
    }
    samples.sort_unstable_by(f64::total_cmp);
    Ok((samples[samples.len() / 2], together * samples.len()))
}

fn sample(call: &Call<'_>, times: usize) -> Result<Duration, StatsError> {
    let began = Instant::now();
    for _ in 0..times {
        black_box(call()?);
    }
    Ok(began.elapsed())
}
