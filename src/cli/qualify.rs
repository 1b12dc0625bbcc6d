//! `kvassay qualify`: runs the arms and issues certificates.

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args as ClapArgs, ValueEnum};

use crate::engine::{BatchLayout, EngineError};
use crate::panel::runner::{self, Ended, RunError, RunInput};
use crate::report::Progress;
use crate::schema::{Manifest, ObjectiveName, Shard};
use crate::store::RunDir;

use super::baseline::{BaselineArgs, Baselines};
use super::issue::{self, Issued};
use super::output::SummaryArgs;
use super::prepare::Prepared;
use super::resolve::{ModelArgs, QualifySettings};
use super::servers::{PreparedServers, ServerArgs, ServerSettings};
use super::{Exit, Failure, interrupt, withdraw};

/// Arguments of `kvassay qualify`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Recipes that must hold the required objective: AF, AD, RF, RD, SF, SD, or k=FORMAT,v=FORMAT
    /// with :fixed or :dynamic. With none named, every recipe of the protocol is surveyed and
    /// nothing is required.
    #[arg(value_name = "RECIPES")]
    pub recipes: Vec<String>,
    /// Model, protocol, worker and data.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Run directory [default: kvassay-runs/MODEL-PROTOCOL].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Continue the run in the run directory: only cases without a record are asked.
    #[arg(long)]
    pub resume: bool,
    /// Run only the first N cases of each panel. Certificates are then incomplete.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Run only part I of N equal parts of each panel; `kvassay merge` joins the parts. A part has no
    /// certificates of its own.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Engines of the cpu worker that run arms side by side, each with the model in memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: u32,
    /// Generate every answer token by token. By default candidates verify the control's answer:
    /// its tokens are fed at once and taken over as far as the candidate agrees, which gives the
    /// same records sooner; 32 cases of each candidate are generated plainly as well. Models with
    /// recurrent layers always generate token by token.
    #[arg(long)]
    pub plain: bool,
    /// Objective that the named recipes must hold besides the protocol's own; with no recipe named
    /// nothing is required, and this is refused.
    #[arg(long, value_enum, requires = "recipes")]
    pub require: Option<Require>,
    /// Earlier certificates.
    #[command(flatten)]
    pub baselines: BaselineArgs,
    /// How the summary is given.
    #[command(flatten)]
    pub summary: SummaryArgs,
    // The last, as its heading stands over whatever follows.
    /// Runs on servers.
    #[command(flatten)]
    pub servers: ServerArgs,
}

/// Values of `--require`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Require {
    /// gross_loss, nll and retrieval.
    Preservation,
    /// net_change, nll and retrieval.
    Aggregate,
    /// Both objectives.
    Both,
}

impl Require {
    /// The objectives.
    pub fn objectives(self) -> Vec<ObjectiveName> {
        match self {
            Require::Preservation => vec![ObjectiveName::Preservation],
            Require::Aggregate => vec![ObjectiveName::Aggregate],
            Require::Both => vec![ObjectiveName::Preservation, ObjectiveName::Aggregate],
        }
    }
}

mod shard;

/// Runs the command.
///
/// # Errors
/// [`Failure`] with the exit code of the design: bad input 2, interrupted 3, worker or system 4.
pub fn run(args: &Args, quiet: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    let outcome = qualify(args, quiet, out);
    args.summary.annotated(outcome, out)
}

fn qualify(args: &Args, quiet: bool, out: &mut dyn Write) -> Result<Exit, Failure> {
    shard::check(args)?;
    args.summary.check(args.baselines.paths())?;
    let baselines = args.baselines.read()?;
    let mut settings = QualifySettings::resolve(args)?;
    if let Some(servers) = settings.servers.take() {
        return on_servers(args, servers, &settings, &baselines, quiet, out);
    }
    let mut prepared = Prepared::open(&settings.model)?;
    let manifest = manifest(&settings, &prepared)?;
    let path = settings.run_path(&manifest.model.name);
    baselines.check(&manifest, &path)?;
    let dir = open_run(&path, settings.resume, &manifest)?;
    runner::store_panels(&dir, &prepared.panels).map_err(failure)?;
    let input = RunInput {
        dir: &dir,
        panels: &prepared.panels,
        layout: prepared.layout,
        verify: !settings.plain && prepared.engine.takes_drafts(),
        stop: interrupt::stop_flag()?,
    };
    let mut progress = Progress::stderr(quiet);
    let ended = runner::run_side_by_side(
        &input,
        prepared.engine.as_mut(),
        &prepared.others,
        settings.model.others_are_named,
        &mut |worker, event| progress.event_of(worker, event),
    )
    .map_err(|error| withdraw::of_run(&dir, error))?;
    conclude(args, &settings, &baselines, &dir, ended, out)
}

/// The same on servers.
fn on_servers(
    args: &Args,
    servers: ServerSettings,
    settings: &QualifySettings,
    baselines: &Baselines,
    quiet: bool,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let [candidate] = settings.candidates.as_slice() else {
        return Err(Failure::input(anyhow!("expected one recipe")));
    };
    let resumed = |model: &str| {
        let path = settings.run_path(model);
        (settings.resume && path.join("run.json").exists()).then_some(path)
    };
    let model = &settings.model;
    let prepared = PreparedServers::open(servers, model, candidate, settings.extent, resumed)?;
    let PreparedServers {
        panels,
        mut engine,
        manifest,
    } = prepared;
    let path = settings.run_path(&manifest.model.name);
    baselines.check(&manifest, &path)?;
    let dir = open_run(&path, settings.resume, &manifest)?;
    runner::store_panels(&dir, &panels).map_err(failure)?;
    let input = RunInput {
        dir: &dir,
        panels: &panels,
        // Servers lay out their batches themselves.
        layout: BatchLayout {
            slots: 1,
            prefill_chunk: 1,
        },
        verify: false,
        stop: interrupt::stop_flag()?,
    };
    let mut progress = Progress::stderr(quiet);
    let ended = runner::run(&input, &mut engine, &mut |event| progress.event(event));
    let ended = ended.map_err(|error| withdraw::of_run(&dir, error))?;
    conclude(args, settings, baselines, &dir, ended, out)
}

/// Certificates, summary and exit code of a run that ended.
fn conclude(
    args: &Args,
    settings: &QualifySettings,
    baselines: &Baselines,
    dir: &RunDir,
    ended: Ended,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let path = dir.path();
    if ended == Ended::Interrupted {
        return Err(interrupted(path));
    }
    if let Some(part) = dir.manifest().shard {
        return shard::conclude(dir, part, args.summary.format, out);
    }
    let certificates = issue::issue(dir)?;
    let required = settings.required();
    let manifest = dir.manifest();
    let issued = Issued {
        run: path,
        stored: Some(&issue::certificates_folder(path)),
        protocol: &manifest.protocol,
        certificates: &certificates,
        required: &required,
        baselines: &baselines.compare(manifest, &certificates)?,
    };
    issue::present(&issued, &args.summary, out)
}

fn manifest(settings: &QualifySettings, prepared: &Prepared) -> Result<Manifest, Failure> {
    let protocol = &settings.model.protocol;
    let layers = prepared.engine.model().geometry.layers as usize;
    for recipe in &settings.candidates {
        recipe.check_layers(layers).map_err(Failure::input)?;
    }
    let digest = protocol.sha256().map_err(Failure::input)?;
    runner::manifest(
        protocol,
        digest,
        &prepared.panels,
        &settings.candidates,
        settings.extent,
        prepared.engine.as_ref(),
    )
    .map_err(Failure::worker)
}

/// A new run directory, or the one to continue.
fn open_run(path: &std::path::Path, resume: bool, manifest: &Manifest) -> Result<RunDir, Failure> {
    let opened = if resume && path.join("run.json").exists() {
        RunDir::resume(path, manifest)
    } else {
        RunDir::create(path, manifest)
    };
    opened.map_err(|error| failure(RunError::Store(error)))
}

fn interrupted(path: &std::path::Path) -> Failure {
    Failure {
        exit: Exit::Incomplete,
        error: anyhow!(
            "interrupted: the run in {} is incomplete; continue it with the same command and --resume",
            path.display()
        ),
    }
}

/// What went wrong decides the exit code: files of the user 2, worker and system 4.
pub(super) fn failure(error: RunError) -> Failure {
    match &error {
        RunError::Engine {
            source: EngineError::Unsupported(_),
            ..
        }
        | RunError::Open(EngineError::Unsupported(_)) => Failure::unsupported(error),
        RunError::Engine { .. }
        | RunError::Open(_)
        | RunError::AaDiffers { .. }
        | RunError::RegenerationDiffers { .. }
        | RunError::NotEngaged { .. } => Failure::worker(error),
        RunError::Store(store) if store.is_system() => Failure::worker(error),
        RunError::Panel(panel) if panel.is_system() => Failure::worker(error),
        RunError::Store(_)
        | RunError::Panel(_)
        | RunError::Recipe { .. }
        | RunError::MixedPanel { .. }
        | RunError::Parser { .. }
        | RunError::Calibration { .. }
        | RunError::NoCalibration { .. } => Failure::input(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::PanelError;
    use crate::store::StoreError;

    #[test]
    fn exit_codes_of_a_run_that_cannot_go_on() {
        let io = |code: i32| StoreError::Io {
            path: "run/run.json".into(),
            action: "write",
            source: std::io::Error::from_raw_os_error(code),
        };
        // ENOSPC, EIO, EROFS, EFBIG and ENOENT as Linux numbers them.
        for (code, exit) in [(28, 4), (5, 4), (30, 4), (27, 4), (2, 2)] {
            assert_eq!(failure(io(code).into()).exit.code(), exit, "{code}");
            let panel = RunError::Panel(PanelError::Store(io(code)));
            assert_eq!(failure(panel).exit.code(), exit, "{code}");
        }
        let lock = "run/run.lock".into();
        assert_eq!(failure(StoreError::Locked { lock }.into()).exit.code(), 2);
        let text = || "x".to_owned();
        let not_engaged = RunError::NotEngaged {
            arm: text(),
            recipe: text(),
            what: text(),
        };
        assert_eq!(failure(not_engaged).exit.code(), 4);
        let differs = RunError::RegenerationDiffers {
            arm: text(),
            panel: text(),
            case: text(),
            what: "output",
        };
        assert_eq!(failure(differs).exit.code(), 4);
    }
}
