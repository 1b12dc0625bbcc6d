//! `kvassay calibrate`: measures the fixed scales of a model.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;

use crate::panel::runner;
use crate::report::Progress;
use crate::schema::CalibrationSource;
use crate::store::{MANIFEST_FILE, write_json_atomic};

use super::certify::real;
use super::output::{Kind, Output};
use super::prepare::{Prepared, model_failure};
use super::qualify::failure;
use super::resolve::{ModelArgs, ModelSettings};
use super::{Exit, Failure, interrupt};

/// Arguments of `kvassay calibrate`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Model, protocol, worker and data.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Take the scales that the checkpoint brings along (k_scale, v_scale and other names in use)
    /// instead of measuring.
    #[arg(long)]
    pub from_checkpoint: bool,
    /// Where the calibration is written.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// A run's own calibration is evidence that its certificates name.
fn refuse_in_run(out: &Path) -> Result<(), Failure> {
    let real = real(out)
        .with_context(|| format!("--out {}", out.display()))
        .map_err(Failure::input)?;
    let is_run = |folder: &&Path| folder.join(MANIFEST_FILE).is_file();
    match real.ancestors().find(is_run) {
        None => Ok(()),
        Some(run) => Err(Failure::input(anyhow!(
            "--out {}: found a file of the run {}, expected one outside of it",
            out.display(),
            run.display()
        ))),
    }
}

/// Runs the protocol's calibration documents over the native cache and writes the largest
/// absolute key and value of each layer, or those that the checkpoint's scales stand for.
///
/// # Errors
/// [`Failure`], also for a file in the calibration's place that is none; nothing is written then.
pub fn run(args: &Args, quiet: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let output = Output {
        option: "--out",
        path: &args.out,
        kind: Kind::Calibration,
    };
    output.check(&[])?;
    refuse_in_run(&args.out)?;
    let settings = ModelSettings::resolve(&args.model)?;
    if settings.others_are_named {
        let found = settings.others.len() + 1;
        return Err(Failure::input(anyhow!(
            "--device: found {found} GPUs, expected one: calibration runs on one"
        )));
    }
    let source = settings.protocol.calibration.source;
    if args.from_checkpoint || source == CalibrationSource::Checkpoint {
        return from_checkpoint(&settings, &args.out, out);
    }
    let mut prepared = Prepared::open(&settings)?;
    let Some(documents) = &prepared.panels.calibration else {
        return Err(Failure::input(anyhow!(
            "protocol {}: calibration: found no documents, expected some",
            settings.protocol.name
        )));
    };
    let mut progress = Progress::stderr(quiet);
    let calibration = runner::calibrate(
        documents,
        settings.protocol.calibration.forced_tokens,
        prepared.engine.as_mut(),
        interrupt::stop_flag()?,
        &mut |event| progress.event(event),
    )
    .map_err(failure)?;
    let Some(calibration) = calibration else {
        return Err(Failure {
            exit: Exit::Incomplete,
            error: anyhow!("interrupted: {} is not written", args.out.display()),
        });
    };
    write_json_atomic(&args.out, &calibration).map_err(|error| failure(error.into()))?;
    writeln!(
        out,
        "{}: {} layers from {} documents, {} tokens",
        args.out.display(),
        calibration.layers.len(),
        calibration.documents,
        calibration.tokens
    )?;
    Ok(Exit::Holds)
}

/// Writes what the checkpoint's own scales stand for; nothing is run.
fn from_checkpoint(
    settings: &ModelSettings,
    path: &Path,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let model = settings.model.open().map_err(model_failure)?.identity();
    let Some(calibration) = runner::of_checkpoint(&model) else {
        return Err(Failure::unsupported(anyhow!(
            "{}: scales of the cache: found none, expected k_scale and v_scale (or other names in \
             use) in every layer",
            model.name
        )));
    };
    let is_unit = model
        .cache_scales()
        .iter()
        .all(|scales| scales.k == 1.0 && scales.v == 1.0);
    let unit = if is_unit {
        ", all of them unit scales (1.0)"
    } else {
        ""
    };
    write_json_atomic(path, &calibration).map_err(|error| failure(error.into()))?;
    let (path, layers) = (path.display(), calibration.layers.len());
    writeln!(
        out,
        "{path}: {layers} layers from the checkpoint's own scales{unit}"
    )?;
    Ok(Exit::Holds)
}
