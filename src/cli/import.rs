//! `kvassay import`: paired outcomes of other harnesses, certified by the same rules.

mod notes;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{anyhow, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args as ClapArgs, Subcommand};

use crate::import::{self, ImportError, ImportPlan, Logs, csv, inspect, lighteval, lm_eval};
use crate::recipe::Recipe;
use crate::report::Summary;
use crate::schema::{ImportReport, PanelPlan, Protocol};

use super::output::SummaryArgs;
use super::qualify::Require;
use super::{Exit, Failure, issue, protocol};

/// Name of a candidate whose recipe is not named.
const CANDIDATE: &str = "candidate";
/// Names of arms that no candidate may have.
const RESERVED: [&str; 2] = ["native", "native-aa"];

/// Arguments of `kvassay import`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    harness: Harness,
}

#[derive(Debug, Subcommand)]
enum Harness {
    /// lm-evaluation-harness: samples_*.jsonl, written with --log_samples.
    LmEval {
        #[command(flatten)]
        files: Files,
        /// Metric field that says whether an answer is right [default: exact_match].
        #[arg(long, value_name = "NAME")]
        metric: Option<String>,
        /// Filter of the answers, where the logs hold several.
        #[arg(long, value_name = "NAME")]
        filter: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Inspect AI: logs in JSON (convert .eval logs with `inspect log convert`).
    Inspect {
        #[command(flatten)]
        files: Files,
        /// Scorer that says whether an answer is right, where the logs hold several.
        #[arg(long, value_name = "NAME")]
        metric: Option<String>,
        /// Epoch, where the logs hold several.
        #[arg(long, value_name = "N")]
        epoch: Option<u32>,
        #[command(flatten)]
        common: Common,
    },
    /// lighteval: details_*.parquet, written with --save-details.
    Lighteval {
        #[command(flatten)]
        files: Files,
        /// Metric that says whether an answer is right, where the details hold several.
        #[arg(long, value_name = "NAME")]
        metric: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// A table with columns case and correct, or case, native and candidate.
    Csv {
        #[command(flatten)]
        tables: Tables,
        #[command(flatten)]
        common: Common,
    },
}

/// Files of both arms.
#[derive(Debug, ClapArgs)]
struct Files {
    /// Files of the native arm.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    native: Vec<PathBuf>,
    /// Files of the candidate arm.
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    candidate: Vec<PathBuf>,
}

/// Tables of both arms.
#[derive(Debug, ClapArgs)]
struct Tables {
    /// Tables of the native arm.
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present = "pairs")]
    native: Vec<PathBuf>,
    /// Tables of the candidate arm.
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present = "pairs")]
    candidate: Vec<PathBuf>,
    /// Tables that hold both arms, instead of --native and --candidate.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["native", "candidate"])]
    pairs: Vec<PathBuf>,
    /// Column with the native outcomes [default: correct, else native].
    #[arg(long, value_name = "NAME")]
    native_column: Option<String>,
    /// Column with the candidate's outcomes [default: correct, else candidate].
    #[arg(long, value_name = "NAME")]
    candidate_column: Option<String>,
}

/// Arguments of every harness.
#[derive(Debug, ClapArgs)]
struct Common {
    /// New run directory.
    #[arg(long, value_name = "RUN")]
    out: PathBuf,
    /// Built-in protocol, or a JSON or TOML file.
    #[arg(long, value_name = "NAME|PATH", default_value = "reference")]
    protocol: String,
    /// The protocol's panel that the cases stand for.
    #[arg(long, value_name = "PANEL", default_value = "math")]
    panel: String,
    /// The candidate's recipe, as for qualify, or a free name [default: candidate].
    #[arg(long, value_name = "RECIPE")]
    recipe: Option<String>,
    /// The protocol's control that the native files stand for, where it has several.
    #[arg(long, value_name = "NAME")]
    control: Option<String>,
    /// Model name [default: the one that the files state].
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    model: Option<String>,
    /// Objective that must hold; with none the exit code says whether the evidence is complete.
    #[arg(long, value_enum)]
    require: Option<Require>,
    /// How the summary is given.
    #[command(flatten)]
    summary: SummaryArgs,
}

/// Imports, certifies and prints the summary.
///
/// # Errors
/// [`Failure`]: files that are not what they should be 2, a disk that fails 4.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let common = args.harness.common();
    common.summary.check(&args.harness.files())?;
    let plan = plan(common).map_err(Failure::input)?;
    let logs = args.harness.read().map_err(failure)?;
    let (dir, report) = import::write(&common.out, &plan, &logs).map_err(failure)?;
    notes::write(&report, &common.out, &mut std::io::stderr())?;
    let certificates = issue::issue(&dir)?;
    let required = common.require.map_or_else(Vec::new, Require::objectives);
    // What is wrong with the files comes before what the rules say of the rest.
    let exit = if is_complete(&report) {
        issue::exit(&plan.protocol, &certificates, &required, &[])
    } else {
        Exit::Incomplete
    };
    let run = common.out.display().to_string();
    let stored = issue::certificates_folder(&common.out);
    let summary = Summary {
        run: &run,
        stored: Some(&stored),
        protocol: &plan.protocol,
        required: &required,
        exit: exit.code(),
        certificates: &certificates,
        baselines: &[],
    };
    common.summary.present(&summary, out)?;
    Ok(exit)
}

impl Harness {
    fn common(&self) -> &Common {
        match self {
            Harness::LmEval { common, .. }
            | Harness::Inspect { common, .. }
            | Harness::Lighteval { common, .. }
            | Harness::Csv { common, .. } => common,
        }
    }

    /// Files that are read.
    fn files(&self) -> Vec<PathBuf> {
        match self {
            Harness::LmEval { files, .. }
            | Harness::Inspect { files, .. }
            | Harness::Lighteval { files, .. } => [&files.native[..], &files.candidate].concat(),
            Harness::Csv { tables, .. } => {
                [&tables.native[..], &tables.candidate, &tables.pairs].concat()
            }
        }
    }

    fn read(&self) -> Result<Logs, ImportError> {
        // One table may hold both arms: its columns are looked at where they are known.
        if let Harness::LmEval { files, .. }
        | Harness::Inspect { files, .. }
        | Harness::Lighteval { files, .. } = self
        {
            import::refuse_shared(&files.native, &files.candidate)?;
        }
        match self {
            Harness::LmEval {
                files,
                metric,
                filter,
                ..
            } => {
                let (metric, filter) = (metric.clone(), filter.clone());
                let options = lm_eval::Options { metric, filter };
                lm_eval::read(&files.native, &files.candidate, &options)
            }
            Harness::Inspect {
                files,
                metric,
                epoch,
                ..
            } => {
                let (metric, epoch) = (metric.clone(), *epoch);
                let options = inspect::Options { metric, epoch };
                inspect::read(&files.native, &files.candidate, &options)
            }
            Harness::Lighteval { files, metric, .. } => {
                let metric = metric.clone();
                let options = lighteval::Options { metric };
                lighteval::read(&files.native, &files.candidate, &options)
            }
            Harness::Csv { tables, .. } => {
                let options = csv::Options {
                    native_column: tables.native_column.clone(),
                    candidate_column: tables.candidate_column.clone(),
                };
                let [native, candidate] = match tables.pairs.is_empty() {
                    true => [&tables.native, &tables.candidate],
                    false => [&tables.pairs, &tables.pairs],
                };
                csv::read(native, candidate, &options)
            }
        }
    }
}

fn plan(common: &Common) -> anyhow::Result<ImportPlan> {
    let protocol = protocol::load(&common.protocol)?;
    let (candidate_arm, recipe) = recipe(common.recipe.as_deref())?;
    Ok(ImportPlan {
        protocol_sha256: protocol.sha256()?,
        panel: panel(&protocol, &common.panel)?,
        control_arm: control_arm(&protocol, common.control.as_deref())?,
        candidate_arm,
        recipe,
        model: common.model.clone(),
        protocol,
    })
}

/// Arm name and recipe: what reads as a recipe is one, and what looks like one must be.
fn recipe(text: Option<&str>) -> anyhow::Result<(String, String)> {
    let text = text.unwrap_or(CANDIDATE);
    match Recipe::parse(text) {
        Ok(recipe) if recipe.is_native() => bail!(
            "--recipe {text}: found the native cache, expected a candidate: native is the control"
        ),
        Ok(recipe) => Ok((recipe.name.clone(), recipe.spec())),
        Err(error) if text.contains('=') => Err(error.into()),
        Err(_) => {
            let fits_a_file = !text.is_empty()
                && !text.starts_with('.')
                && !text.contains(['/', '\\', '\0'])
                && !text.chars().any(char::is_control);
            if !fits_a_file || RESERVED.contains(&text) || text.starts_with("control-") {
                bail!(
                    "--recipe: found `{text}`, expected a recipe or a name without separators \
                     that no other arm has"
                );
            }
            Ok((text.to_owned(), text.to_owned()))
        }
    }
}

fn panel(protocol: &Protocol, name: &str) -> anyhow::Result<PanelPlan> {
    let with_answers = || {
        let panels = protocol.panels.iter();
        panels.filter(|plan| !matches!(plan, PanelPlan::Nll { .. }))
    };
    let found = with_answers().find(|plan| plan.panel_name() == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<String> = with_answers().map(PanelPlan::panel_name).collect();
        let names = names.join(", ");
        anyhow!("--panel: found `{name}`, expected one of: {names}")
    })
}

fn control_arm(protocol: &Protocol, asked: Option<&str>) -> anyhow::Result<String> {
    let controls = &protocol.controls;
    let names = || controls.join(", ");
    match (controls.as_slice(), asked) {
        ([_], None) => Ok("native".to_owned()),
        ([only], Some(name)) if name == only => Ok("native".to_owned()),
        (_, Some(name)) if controls.iter().any(|control| control == name) => {
            Ok(format!("control-{name}"))
        }
        (_, Some(name)) => bail!("--control: found `{name}`, expected one of: {}", names()),
        (_, None) => bail!(
            "--control: protocol {} has several controls, expected one of: {}",
            protocol.name,
            names()
        ),
    }
}

fn is_complete(report: &ImportReport) -> bool {
    let unfinished = |arm: &crate::schema::ImportArm| !arm.unfinished.is_empty();
    report.faults.is_empty() && !unfinished(&report.native) && !unfinished(&report.candidate)
}

fn failure(error: ImportError) -> Failure {
    if error.is_system() {
        Failure::worker(error)
    } else {
        Failure::input(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_read_and_free_names_kept() {
        let ok = |text| recipe(Some(text)).unwrap();
        let owned = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(ok("AD"), owned("AD", "k=native,v=e4m3:dynamic"));
        assert_eq!(
            ok("k=native,v=e4m3:dynamic"),
            owned("AD", "k=native,v=e4m3:dynamic")
        );
        assert_eq!(ok("vllm fp8"), owned("vllm fp8", "vllm fp8"));
        assert_eq!(recipe(None).unwrap(), owned("candidate", "candidate"));
        for bad in ["k=natve,v=e4m3", "native", "a/b", ".x", "", "control-x"] {
            assert!(recipe(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn several_controls_must_be_chosen_from() {
        let mut protocol = protocol::load("reference").unwrap();
        assert_eq!(control_arm(&protocol, None).unwrap(), "native");
        assert!(control_arm(&protocol, Some("other")).is_err());
        protocol.controls = vec!["a".to_owned(), "b".to_owned()];
        assert_eq!(control_arm(&protocol, Some("b")).unwrap(), "control-b");
        let error = control_arm(&protocol, None).unwrap_err().to_string();
        assert!(error.contains("expected one of: a, b"), "{error}");
    }
}
