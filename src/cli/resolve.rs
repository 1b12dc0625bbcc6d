//! From arguments to settings: everything that was typed is checked here, once.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args as ClapArgs;

use crate::backend::cuda;
use crate::model::{DemoModel, ModelSource};
use crate::panel::DataDir;
use crate::recipe::Recipe;
use crate::schema::{Extent, ObjectiveName, Protocol};

use super::qualify::{Args as QualifyArgs, Require};
use super::servers::{ServerArgs, ServerSettings, is_server};
use super::{Failure, protocol};

/// The one control that a built-in worker provides.
const BUILTIN_CONTROL: &str = "native";

/// Arguments of every command that runs a model.
#[derive(Debug, ClapArgs)]
pub struct ModelArgs {
    /// A folder with config.json, tokenizer.json and safetensors, a GGUF file, or one of the
    /// built-in models demo-tolerant and demo-sensitive.
    #[arg(
        long,
        value_name = "PATH|demo-tolerant|demo-sensitive",
        default_value = "demo-tolerant"
    )]
    pub model: PathBuf,
    /// Built-in protocol, or a JSON or TOML file [default: demo for a built-in model, else
    /// reference].
    #[arg(long, value_name = "NAME|PATH")]
    pub protocol: Option<String>,
    /// What runs the model: cpu, cuda, or auto, which is cuda where the driver sees a GPU; qualify
    /// also takes the http:// or https:// address of a server.
    #[arg(long, value_name = "auto|cpu|cuda|URL", default_value = "auto")]
    pub worker: String,
    /// Numbers of the GPUs; more than one run arms side by side where there are arms [default: every
    /// GPU].
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    pub device: Vec<usize>,
    /// Folder with gsm8k/ and wikipedia/ [default: $KVASSAY_DATA, else the cache folder].
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// Workers of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worker {
    /// The built-in CPU worker.
    Cpu,
    /// The built-in worker on a GPU.
    Cuda {
        /// Number of the GPU.
        device: usize,
    },
}

/// Settings of every command that runs a model.
#[derive(Debug)]
pub(super) struct ModelSettings {
    /// Model; a path exists.
    pub model: ModelSource,
    /// Validated protocol.
    pub protocol: Protocol,
    /// Worker; none where it is a server.
    pub worker: Option<Worker>,
    /// Workers that run arms beside it.
    pub others: Vec<Worker>,
    /// They were asked for, not just found.
    pub others_are_named: bool,
    /// Source data.
    pub data: DataDir,
}

impl ModelSettings {
    /// Checks what was typed.
    pub fn resolve(args: &ModelArgs) -> Result<Self, Failure> {
        let (worker, others) = if is_server(&args.worker) {
            no_device(&args.device).map_err(Failure::input)?;
            (None, Vec::new())
        } else {
            let found = workers(&args.worker, &args.device).map_err(Failure::input)?;
            (Some(found.0), found.1)
        };
        let model = model_source(&args.model)?;
        let protocol = args
            .protocol
            .as_deref()
            .unwrap_or_else(|| default_protocol(&model));
        let protocol = protocol::load(protocol).map_err(Failure::input)?;
        Ok(ModelSettings {
            model,
            protocol,
            worker,
            others,
            others_are_named: args.device.len() > 1,
            data: DataDir::resolve(args.data.as_deref()).map_err(Failure::input)?,
        })
    }
}

/// Settings of `kvassay qualify`.
#[derive(Debug)]
pub(super) struct QualifySettings {
    /// Model, protocol, worker, data.
    pub model: ModelSettings,
    /// Recipes to run, in order.
    pub candidates: Vec<Recipe>,
    /// Recipes were named, so each must hold what is required.
    pub named: bool,
    /// `--require`.
    pub require: Option<Require>,
    /// `--out`.
    pub out: Option<PathBuf>,
    /// `--resume`.
    pub resume: bool,
    /// `--limit` and `--shard`.
    pub extent: Extent,
    /// `--plain`.
    pub plain: bool,
    /// The servers of a run over HTTP.
    pub servers: Option<ServerSettings>,
}

impl QualifySettings {
    /// Checks what was typed.
    pub fn resolve(args: &QualifyArgs) -> Result<Self, Failure> {
        let mut model = ModelSettings::resolve(&args.model)?;
        run_beside(&mut model, args.jobs).map_err(Failure::input)?;
        let named = named_recipes(&args.recipes, &model.protocol).map_err(Failure::input)?;
        let on_servers = model.worker.is_none();
        if !on_servers {
            one_control(&model.protocol).map_err(Failure::input)?;
            no_servers(&args.servers).map_err(Failure::input)?;
        }
        let candidates = if named.is_empty() {
            declared_recipes(&model.protocol).map_err(Failure::input)?
        } else {
            named
        };
        let worker = &args.model.worker;
        let resolved = on_servers
            .then(|| ServerSettings::resolve(worker, &args.servers, &model.protocol, &candidates));
        Ok(QualifySettings {
            servers: resolved.transpose().map_err(Failure::input)?,
            model,
            candidates,
            named: !args.recipes.is_empty(),
            require: args.require,
            out: args.out.clone(),
            resume: args.resume,
            extent: Extent {
                limit: args.limit,
                shard: args.shard,
            },
            plain: args.plain,
        })
    }

    /// Objectives that every recipe must hold; none for a survey.
    pub fn required(&self) -> Vec<ObjectiveName> {
        if !self.named {
            return Vec::new();
        }
        let mut required = vec![self.model.protocol.required];
        required.extend(self.require.iter().flat_map(|require| require.objectives()));
        required.sort_unstable();
        required.dedup();
        required
    }

    /// `--out`, or a folder named after model and protocol.
    pub fn run_path(&self, model: &str) -> PathBuf {
        self.out.clone().unwrap_or_else(|| {
            let protocol = &self.model.protocol.name;
            let part = self.extent.shard.map_or_else(String::new, |shard| {
                format!("-shard-{}-of-{}", shard.index(), shard.of())
            });
            Path::new("kvassay-runs").join(format!("{model}-{protocol}{part}"))
        })
    }
}

/// A demo model, or a path where something is.
pub(super) fn model_source(model: &Path) -> Result<ModelSource, Failure> {
    let source = ModelSource::parse(model);
    match &source {
        ModelSource::Path(path) if !path.exists() => Err(Failure::input(anyhow!(
            "--model {}: found nothing there, expected a folder, a GGUF file, or one of {}",
            path.display(),
            DemoModel::ALL.map(DemoModel::name).join(" and ")
        ))),
        ModelSource::Path(_) | ModelSource::Demo(_) => Ok(source),
    }
}

/// The protocol whose panels suit the model.
pub(super) fn default_protocol(model: &ModelSource) -> &'static str {
    match model {
        ModelSource::Demo(_) => "demo",
        ModelSource::Path(_) => "reference",
    }
}

/// Recipes by their own name, by the name that the protocol gives them, or written out.
fn named_recipes(texts: &[String], protocol: &Protocol) -> anyhow::Result<Vec<Recipe>> {
    let mut recipes: Vec<Recipe> = Vec::new();
    for text in texts {
        let mut declared = protocol.candidates.iter();
        let declared = declared.find(|candidate| candidate.name == *text);
        let recipe = Recipe::parse(declared.map_or(text, |candidate| &candidate.spec))?;
        let recipe = as_declared(recipe, protocol);
        if recipe.is_native() {
            bail!(
                "recipe `{text}`: found the native cache, expected a candidate: native is the control of every run"
            );
        }
        if recipes.iter().any(|other| other.spec() == recipe.spec()) {
            bail!("recipe `{text}`: found twice on the command line, expected once");
        }
        recipes.push(recipe);
    }
    Ok(recipes)
}

fn declared_recipes(protocol: &Protocol) -> anyhow::Result<Vec<Recipe>> {
    protocol
        .candidates
        .iter()
        .map(|candidate| {
            Recipe::parse(&candidate.spec)
                .with_context(|| {
                    format!("protocol {}: candidate {}", protocol.name, candidate.name)
                })
                .map(|recipe| as_declared(recipe, protocol))
        })
        .collect()
}

/// The recipe under the name that the protocol declares it by, where it does.
fn as_declared(mut recipe: Recipe, protocol: &Protocol) -> Recipe {
    let spec = recipe.spec();
    let mut candidates = protocol.candidates.iter();
    if let Some(candidate) = candidates.find(|candidate| candidate.spec == spec) {
        recipe.name.clone_from(&candidate.name);
    }
    recipe
}

fn one_control(protocol: &Protocol) -> anyhow::Result<()> {
    if protocol.controls != [BUILTIN_CONTROL] {
        bail!(
            "protocol {}: controls: found {}, expected {BUILTIN_CONTROL} alone: a built-in worker is one control",
            protocol.name,
            protocol.controls.join(", ")
        );
    }
    Ok(())
}

/// Options of servers mean nothing to a built-in worker.
fn no_servers(args: &ServerArgs) -> anyhow::Result<()> {
    if !args.control.is_empty() {
        bail!("--control: found a server beside a built-in worker, expected --worker URL too");
    }
    if args.api_key_file.is_some() || args.served_model.is_some() {
        bail!("--api-key-file, --served-model: found without a server, expected --worker URL");
    }
    Ok(())
}

/// A server has the GPUs that it has.
fn no_device(devices: &[usize]) -> anyhow::Result<()> {
    match devices.first() {
        Some(device) => bail!("--device: found {device} with a server, expected the cuda worker"),
        None => Ok(()),
    }
}

/// Engines of the CPU worker beside the first one.
fn run_beside(model: &mut ModelSettings, jobs: u32) -> anyhow::Result<()> {
    if jobs > 1 && model.worker != Some(Worker::Cpu) {
        bail!(
            "--jobs: found {jobs}, expected the cpu worker: GPUs are named by --device, requests to a server by --concurrency"
        );
    }
    model.others.extend((1..jobs).map(|_| Worker::Cpu));
    model.others_are_named |= jobs > 1;
    Ok(())
}

/// The worker that runs on this thread, and those beside it.
pub(super) fn workers(text: &str, devices: &[usize]) -> anyhow::Result<(Worker, Vec<Worker>)> {
    let is_cuda = match text {
        "cpu" => false,
        "cuda" => true,
        "auto" => cuda::gpu_count() > 0,
        other => bail!(
            "--worker: found `{other}`, expected auto, cpu or cuda, or with qualify a server as http://HOST:PORT"
        ),
    };
    if !is_cuda {
        if let Some(device) = devices.first() {
            bail!("--device: found {device} with the cpu worker, expected the cuda worker");
        }
        return Ok((Worker::Cpu, Vec::new()));
    }
    let twice = |(at, device): (usize, &usize)| devices[..at].contains(device);
    if let Some(at) = devices.iter().enumerate().position(twice) {
        bail!(
            "--device: found {} twice, expected each GPU once",
            devices[at]
        );
    }
    let count = cuda::gpu_count();
    // Without any, opening one says what is missing.
    if let Some(device) = devices.iter().find(|&&device| count > 0 && device >= count) {
        bail!("--device: found {device}, expected 0 to {}", count - 1);
    }
    let all = match devices {
        [] => (0..count).collect(),
        devices => devices.to_vec(),
    };
    let cuda = |device| Worker::Cuda { device };
    let first = all.first().copied().unwrap_or(0);
    Ok((cuda(first), all.into_iter().skip(1).map(cuda).collect()))
}
