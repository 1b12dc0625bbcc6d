//! `kvassay panel`: tasks and their data, and panels built for one tokenizer.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

use crate::panel::{
    DataDir, Materialised, Outcome, Panel, PanelError, PanelTokenizer, SourceFile, builtin_tasks,
    materialise, read_panel, write_panel,
};
use crate::schema::{Geometry, PanelPlan, Protocol};

use super::output::{self, Format};
use super::prepare::model_failure;
use super::protocol;
use super::resolve::{default_protocol, model_source};
use super::{Exit, Failure, qualify};

/// Schema name of the JSON document of `panel list`.
const LIST_SCHEMA: &str = "kvassay.panel-list/1";
/// Schema name of the JSON document of `panel build`.
const BUILD_SCHEMA: &str = "kvassay.panel-build/1";

/// Arguments of `kvassay panel`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the panels of a protocol for a model's tokenizer.
    Build(BuildArgs),
    /// List the tasks, the source data that were found, and the panels of a protocol.
    List(ListArgs),
}

/// Arguments of `kvassay panel build`.
#[derive(Debug, ClapArgs)]
struct BuildArgs {
    /// A folder with config.json, tokenizer.json and safetensors, a GGUF file, or one of the
    /// built-in models demo-tolerant and demo-sensitive.
    #[arg(long, value_name = "PATH|demo-tolerant|demo-sensitive")]
    model: PathBuf,
    /// Built-in protocol, or a JSON or TOML file [default: demo for a built-in model, else
    /// reference].
    #[arg(long, value_name = "NAME|PATH")]
    protocol: Option<String>,
    /// Folder with gsm8k/ and wikipedia/ [default: $KVASSAY_DATA, else the cache folder].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder for the panel files.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Arguments of `kvassay panel list`.
#[derive(Debug, ClapArgs)]
struct ListArgs {
    /// Built-in protocol, or a JSON or TOML file, whose panels are listed.
    #[arg(long, value_name = "NAME|PATH", default_value = "reference")]
    protocol: String,
    /// Folder with gsm8k/ and wikipedia/ [default: $KVASSAY_DATA, else the cache folder].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs the command.
///
/// # Errors
/// Exit 2 for data, protocols, models and panel files that are absent or wrong.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.command {
        Command::Build(args) => {
            let source = model_source(&args.model)?;
            let protocol = args
                .protocol
                .as_deref()
                .unwrap_or_else(|| default_protocol(&source));
            let protocol = protocol::load(protocol).map_err(Failure::input)?;
            let data = DataDir::resolve(args.data.as_deref()).map_err(Failure::input)?;
            let model = source.open().map_err(model_failure)?;
            let geometry = model.config.geometry();
            let source = Source {
                data: &data,
                tokenizer: &model.tokenizer,
                geometry: &geometry,
            };
            build(&protocol, &source, &args.out, args.format, out)
        }
        Command::List(args) => {
            let protocol = protocol::load(&args.protocol).map_err(Failure::input)?;
            let data = DataDir::resolve(args.data.as_deref()).map_err(Failure::input)?;
            list(&protocol, &data, args.format, out)?;
            Ok(Exit::Holds)
        }
    }
}

/// What panels are built from, beside the protocol.
struct Source<'a> {
    data: &'a DataDir,
    tokenizer: &'a dyn PanelTokenizer,
    geometry: &'a Geometry,
}

#[derive(Serialize)]
struct BuildDocument {
    schema: &'static str,
    protocol: String,
    tokenizer_sha256: String,
    panels: Vec<BuildRow>,
}

#[derive(Serialize)]
struct BuildRow {
    panel: String,
    cases: u32,
    file: Option<PathBuf>,
    sha256: Option<String>,
    unsupported: Option<String>,
}

fn build(
    protocol: &Protocol,
    source: &Source<'_>,
    folder: &Path,
    format: Format,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let built = materialise(protocol, source.data, source.tokenizer, source.geometry)
        .map_err(Failure::input)?;
    let document = BuildDocument {
        schema: BUILD_SCHEMA,
        protocol: protocol.name.clone(),
        tokenizer_sha256: source.tokenizer.sha256().to_owned(),
        panels: store_all(&built, folder)?,
    };
    match format {
        Format::Json => output::write_json(out, &document)?,
        Format::Text => write_built(&document, out)?,
    }
    let whole = document.panels.iter().all(|row| row.unsupported.is_none());
    Ok(if whole { Exit::Holds } else { Exit::Incomplete })
}

fn store_all(built: &Materialised, folder: &Path) -> Result<Vec<BuildRow>, Failure> {
    output::make_folder("--out", folder)?;
    let calibration = built
        .calibration
        .as_ref()
        .map(|outcome| ("calibration".to_owned(), outcome.clone()));
    let panels = built
        .panels
        .iter()
        .map(|panel| (panel.name.clone(), panel.outcome.clone()));
    panels
        .chain(calibration)
        .map(|(name, outcome)| match outcome {
            Outcome::Built(panel) => {
                store(folder, name, &panel).map_err(|error| qualify::failure(error.into()))
            }
            Outcome::Unsupported(reason) => Ok(BuildRow {
                panel: name,
                cases: 0,
                file: None,
                sha256: None,
                unsupported: Some(reason),
            }),
        })
        .collect()
}

/// Writes a panel. A file that is there is kept if it is the same panel and refused if it is not: a
/// panel is frozen once it is built.
fn store(folder: &Path, name: String, panel: &Panel) -> Result<BuildRow, PanelError> {
    let path = folder.join(format!("{name}.jsonl"));
    if path.exists() {
        read_panel(&path, &panel.sha256)?;
    } else {
        write_panel(&path, &panel.header, &panel.cases)?;
    }
    Ok(BuildRow {
        panel: name,
        cases: panel.header.cases,
        file: Some(path),
        sha256: Some(panel.sha256.clone()),
        unsupported: None,
    })
}

fn write_built(document: &BuildDocument, out: &mut dyn Write) -> Result<(), Failure> {
    let head = ["panel", "cases", "sha256"].map(str::to_owned).to_vec();
    let rows = document.panels.iter().filter_map(|row| {
        let sha256 = row.sha256.clone()?;
        Some(vec![row.panel.clone(), row.cases.to_string(), sha256])
    });
    let table: Vec<_> = std::iter::once(head).chain(rows).collect();
    output::write_table(out, &table)?;
    for row in &document.panels {
        if let Some(reason) = &row.unsupported {
            writeln!(out, "{}: unsupported: {reason}", row.panel)?;
        }
    }
    Ok(())
}

#[derive(Serialize)]
struct ListDocument {
    schema: &'static str,
    data: PathBuf,
    tasks: Vec<TaskRow>,
    protocol: String,
    panels: Vec<PanelRow>,
}

#[derive(Serialize)]
struct TaskRow {
    task: String,
    kind: &'static str,
    parser: String,
    description: String,
    sources: Vec<SourceRow>,
    /// Why there are no usable data.
    problem: Option<String>,
}

#[derive(Serialize)]
struct SourceRow {
    path: String,
    sha256: String,
    pinned: bool,
}

impl From<SourceFile> for SourceRow {
    fn from(file: SourceFile) -> Self {
        SourceRow {
            path: file.digest.path,
            sha256: file.digest.sha256,
            pinned: file.pinned,
        }
    }
}

#[derive(Serialize)]
struct PanelRow {
    panel: String,
    task: String,
    cases: u32,
}

fn list(
    protocol: &Protocol,
    data: &DataDir,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let document = ListDocument {
        schema: LIST_SCHEMA,
        data: data.path().to_owned(),
        tasks: task_rows(data),
        protocol: protocol.name.clone(),
        panels: protocol
            .panels
            .iter()
            .map(|plan| PanelRow {
                panel: plan.panel_name(),
                task: task_name(plan).to_owned(),
                cases: plan.case_count(),
            })
            .collect(),
    };
    match format {
        Format::Json => output::write_json(out, &document),
        Format::Text => write_list(&document, out),
    }
}

fn task_name(plan: &PanelPlan) -> &str {
    match plan {
        PanelPlan::Math { task, .. }
        | PanelPlan::Nll { task, .. }
        | PanelPlan::Retrieval { task, .. } => task,
    }
}

fn task_rows(data: &DataDir) -> Vec<TaskRow> {
    builtin_tasks()
        .into_iter()
        .map(|task| {
            let (sources, problem) = match data.locate(&task) {
                Ok(located) => (located.files, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            TaskRow {
                task: task.id(),
                kind: task.kind.name(),
                parser: task.parser,
                description: task.description,
                sources: sources.into_iter().map(SourceRow::from).collect(),
                problem,
            }
        })
        .collect()
}

fn write_list(document: &ListDocument, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "data: {}", document.data.display())?;
    for row in &document.tasks {
        writeln!(out, "\n{} ({}): {}", row.task, row.kind, row.description)?;
        for source in &row.sources {
            let pinned = if source.pinned { "pinned" } else { "unpinned" };
            writeln!(out, "  {}  {pinned}  {}", source.path, source.sha256)?;
        }
        if let Some(problem) = &row.problem {
            writeln!(out, "  no data: {problem}")?;
        }
    }
    writeln!(out, "\npanels of {}:", document.protocol)?;
    let head = ["panel", "task", "cases"].map(str::to_owned).to_vec();
    let rows = document
        .panels
        .iter()
        .map(|row| vec![row.panel.clone(), row.task.clone(), row.cases.to_string()]);
    let table: Vec<_> = std::iter::once(head).chain(rows).collect();
    output::write_table(out, &table)?;
    Ok(())
}
