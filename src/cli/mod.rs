//! Command line: arguments, settings, exit codes.
//!
//! Parse, resolve, run: argument structs do no I/O, each command turns them into settings and
//! hands those down. Data goes to the `out` writer (stdout), diagnostics to stderr.

mod audit;
mod badge;
mod baseline;
mod bench;
mod calibrate;
mod certify;
mod doctor;
mod compare;
mod completions;
mod exit;
mod explain;
mod geometry;
mod import;
mod interrupt;
mod issue;
mod man;
mod memory;
mod merge;
mod output;
mod panel;
mod power;
mod prepare;
mod protocol;
mod qualify;
mod report;
mod resolve;
mod servers;
mod shell;
mod size;
mod stats;
mod values;
mod verify;
mod withdraw;

use std::io::Write;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use shell::{Color, ShellArgs};

pub use exit::{Exit, Failure};

/// Tests a KV-cache recipe of a language model against the native cache and issues certificates.
#[derive(Debug, Parser)]
#[command(name = "kvassay", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    shell: ShellArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Qualify KV-cache recipes of a model and issue certificates.
    Qualify(qualify::Args),
    /// Recompute the certificates of a run directory.
    Certify(certify::Args),
    /// Join the parts of a run that was split over several jobs.
    Merge(merge::Args),
    /// Contrasts between the recipes of a run, or of one run per model.
    Compare(compare::Args),
    /// Show the certificates of a run, or of one run per model, as one HTML file.
    Report(report::Args),
    /// Check a certificate against its run, or by its own figures.
    Verify(verify::Args),
    /// Say in plain words what certificates hold, what not, why, and what would be needed.
    Explain(explain::Args),
    /// Draw the verdict of a certificate as an SVG badge.
    Badge(badge::Args),
    /// Certify paired outcomes that another harness has logged.
    Import(import::Args),
    /// Measure the fixed scales of a model on its native cache.
    Calibrate(calibrate::Args),
    /// What a cache budget holds under each recipe.
    Memory(memory::Args),
    /// List, show and write protocols.
    Protocol(protocol::Args),
    /// Build panels for a model's tokenizer; list tasks and their data.
    Panel(panel::Args),
    /// Recompute bounds and tests from a table of counts.
    Audit(audit::Args),
    /// Time a worker without model files.
    Bench(bench::Args),
    /// Say what this machine has for the GPU worker and whether it works.
    Doctor(doctor::Args),
    /// How likely rules pass before a run, and what they lacked after one.
    Power(power::Args),
    /// Compute one statistic from flags, or many from JSON lines.
    Stats(stats::Args),
    /// Print a completion script for a shell.
    Completions(completions::Args),
    /// Print a manual page, or write all of them.
    Man(man::Args),
}

/// Runs the command line of this process and returns its exit code.
pub fn main() -> std::process::ExitCode {
    let color = Color::typed(std::env::args_os());
    color.choose();
    let command = with_negative_numbers(Cli::command()).color(color.of_help());
    let parsed = command
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return exit::clap_exit(&error, shell::stderr()),
    };
    let mut out = exit::UntilClosed::new(std::io::stdout().lock());
    let outcome = interrupt::survive_file_size_limit().and_then(|()| run(&cli, &mut out));
    exit::finish(outcome, &mut out, &mut std::io::stderr(), shell::stderr())
}

/// `--limit -1` is a value that is out of range, not an unknown option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |arg: clap::Arg| {
        let takes_value = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_value)
    };
    command
        .mut_args(allow)
        .mut_subcommands(with_negative_numbers)
}

fn run(cli: &Cli, out: &mut exit::UntilClosed<impl Write>) -> Result<Exit, Failure> {
    match &cli.command {
        Command::Qualify(args) => qualify::run(args, cli.shell.quiet, out),
        Command::Certify(args) => certify::run(args, out),
        Command::Merge(args) => merge::run(args, out),
        Command::Compare(args) => compare::run(args, out),
        Command::Report(args) => report::run(args, out),
        Command::Verify(args) => verify::run(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Badge(args) => badge::run(args, out),
        Command::Import(args) => import::run(args, out),
        Command::Calibrate(args) => calibrate::run(args, cli.shell.quiet, out),
        Command::Memory(args) => memory::run(args, out),
        Command::Protocol(args) => protocol::run(args, out),
        Command::Panel(args) => panel::run(args, out),
        Command::Audit(args) => audit::run(args, out),
        Command::Bench(args) => bench::run(args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Power(args) => power::run(args, out),
        Command::Stats(args) => stats::run(args, out),
        Command::Completions(args) => completions::run(args, out),
        Command::Man(args) => man::run(args, out),
    }
}
