//! `kvassay doctor`: what this machine has for the GPU worker.

mod model;

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::backend::cuda::{self, Found, Gpu};
use crate::backend::{Backend, cpu::CpuBackend};

use super::output::{self, Format};
use super::{Exit, Failure};
use crate::report::visible;
use model::ModelReport;

/// Schema name of the JSON document.
const DOCTOR_SCHEMA: &str = "kvassay.doctor/1";

/// Arguments of `kvassay doctor`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// A model: whether and how it would run, what its weights and a sequence take. A config.json
    /// alone will do, under any name.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelReport>,
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
/// Exit 2 for a model that cannot be read. One that no worker runs is reported, with exit 3.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut checks = vec![Check::new(
        "cpu worker",
        Found::Ok(CpuBackend::new().device()),
    )];
    let survey = cuda::survey();
    let works = survey.self_test.is_ok();
    checks.push(Check::new("driver", survey.driver));
    let mut gpus = Vec::new();
    for (number, gpu) in survey.gpus.into_iter().enumerate() {
        let described = gpu.as_ref().map(describe).map_err(ToString::to_string);
        checks.push(Check::new(&format!("GPU {number}"), described));
        gpus.push(gpu.ok());
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
    let model = args.model.as_deref().map(|path| model::look(path, &gpus));
    let report = Report {
        schema: DOCTOR_SCHEMA,
        cuda: works,
        checks,
        model: model.transpose()?,
    };
    match args.format {
        Format::Json => output::write_json(out, &report)?,
        Format::Text => write_text(out, &report)?,
    }
    Ok(report.model.as_ref().map_or(Exit::Holds, ModelReport::exit))
}

impl Check {
    fn new(name: &str, found: Result<impl Display, impl Display>) -> Self {
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
    let has_gpu = report
        .checks
        .iter()
        .any(|check| check.name.starts_with("GPU "));
    let worker = match (report.cuda, has_gpu) {
        (true, _) => "The built-in worker of this machine is cuda.",
        (false, false) => "The built-in worker of this machine is cpu.",
        (false, true) => {
            "The cuda worker, which `--worker auto` takes where there is a GPU, does not work: use \
             `--worker cpu`."
        }
    };
    writeln!(out, "\n{worker}")?;
    match &report.model {
        None => Ok(()),
        Some(model) => {
            let mut text = Vec::new();
            model.write(&mut text)?;
            write!(out, "{}", visible(&String::from_utf8_lossy(&text)))
        }
    }
}
