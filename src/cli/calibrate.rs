//! `kvassay calibrate`: measures the fixed scales of a model.

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args as ClapArgs;

use crate::panel::runner;
use crate::report::Progress;
use crate::store::write_json_atomic;

use super::prepare::Prepared;
use super::qualify::failure;
use super::resolve::{ModelArgs, ModelSettings};
use super::{Exit, Failure, interrupt};

/// Arguments of `kvassay calibrate`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Model, protocol, worker and data.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where the calibration is written.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// Runs the protocol's calibration documents over the native cache and writes the largest
/// absolute key and value of each layer.
///
/// # Errors
/// [`Failure`]; nothing is written then.
pub fn run(args: &Args, quiet: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let settings = ModelSettings::resolve(&args.model)?;
    if settings.others_are_named {
        let found = settings.others.len() + 1;
        return Err(Failure::input(anyhow!(
            "--device: found {found} GPUs, expected one: calibration runs on one"
        )));
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
