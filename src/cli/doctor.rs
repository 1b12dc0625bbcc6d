//! `kvassay doctor`: what this machine has for the GPU worker.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::backend::cuda::{self, Found, Gpu};
use crate::backend::{Backend, cpu::CpuBackend};

use super::output::{self, Format};
use super::prepare::model_failure;
use super::resolve::model_source;
use super::{Exit, Failure};

/// Schema name of the JSON document.
const DOCTOR_SCHEMA: &str = "kvassay.doctor/1";

/// Arguments of `kvassay doctor`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A model whose files are opened and checked as well.
    #[arg(long, value_name = "PATH|demo-tolerant|demo-sensitive")]
    model: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The JSON document.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    /// Whether `--worker cuda` works here.
    cuda: bool,
    checks: Vec<Check>,
}

/// Something that was looked for.
#[derive(Serialize)]
struct Check {
    name: String,
    ok: bool,
    /// What was found, or what is missing.
    found: String,
}

/// Runs the command. A machine without a GPU is no failure: the CPU worker runs everywhere.
///
/// # Errors
/// Exit 2 or 3 for a model that is refused.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut checks = vec![Check::new("cpu worker", Ok(CpuBackend::new().device()))];
    let survey = cuda::survey();
    let works = survey.self_test.is_ok();
    checks.push(Check::new("driver", survey.driver));
    for (number, gpu) in survey.gpus.into_iter().enumerate() {
        checks.push(Check::new(
            &format!("GPU {number}"),
            gpu.map(|gpu| describe(&gpu)),
        ));
    }
    checks.push(Check::new("compiler", survey.compiler));
    checks.push(Check::new("matrix products", survey.products));
    checks.push(Check::new(
        "kernel self-test",
        survey
            .self_test
            .map(|kernels| format!("passed ({kernels})")),
    ));
    checks.push(Check::new(
        "embedded kernels",
        survey
            .embedded_self_test
            .map(|kernels| format!("passed ({kernels})")),
    ));
    if let Some(path) = &args.model {
        let files = model_source(path)?.open().map_err(model_failure)?;
        let geometry = files.identity().geometry;
        let notes = files.config.notes().into_iter();
        let notes: String = notes.map(|note| format!("; {note}")).collect();
        let found = format!(
            "{}: {}, {} layers, {} KV heads of {}, context {}{notes}",
            files.name,
            files.config.family.name(),
            geometry.layers,
            geometry.kv_heads,
            geometry.head_dim,
            geometry.context
        );
        checks.push(Check::new("model", Ok(found)));
    }
    let report = Report {
        schema: DOCTOR_SCHEMA,
        cuda: works,
        checks,
    };
    match args.format {
        Format::Json => output::write_json(out, &report)?,
        Format::Text => write_text(out, &report)?,
    }
    Ok(Exit::Holds)
}

impl Check {
    fn new(name: &str, found: Found<impl Display>) -> Self {
        let ok = found.is_ok();
        Check {
            name: name.to_owned(),
            ok,
            found: found.map_or_else(|error| error.to_string(), |found| found.to_string()),
        }
    }
}

fn describe(gpu: &Gpu) -> String {
    let (major, minor) = gpu.capability;
    let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
    format!(
        "{}, compute capability {major}.{minor}, {:.1} of {:.1} GiB free",
        gpu.name,
        gib(gpu.free),
        gib(gpu.total)
    )
}

fn write_text(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    for check in &report.checks {
        let mark = if check.ok { "ok" } else { "--" };
        writeln!(out, "{mark}  {}: {}", check.name, check.found)?;
    }
    let worker = if report.cuda { "cuda" } else { "cpu" };
    writeln!(out, "\nThe built-in worker of this machine is {worker}.")
}
