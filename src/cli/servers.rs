//! `kvassay qualify` on servers: what was typed, and how a run is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args as ClapArgs, ValueEnum};

use crate::engine::http::{
    ApiKey, ConnectError, HttpEngine, HttpSettings, RetryPolicy, ServerSpec, ServerUrl, unseen,
};
use crate::panel::{self, BuiltPanels, runner};
use crate::recipe::Recipe;
use crate::schema::{Extent, Manifest, PromptTemplate, Protocol};
use crate::store::RunDir;

use super::Failure;
use super::prepare::model_failure;
use super::resolve::ModelSettings;

/// Environment variable of the key.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
/// Name of the candidate's server.
const CANDIDATE: &str = "candidate";
/// Seed of every request.
const SEED: u64 = 0;

/// Arguments of runs on servers.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Servers")]
pub struct ServerArgs {
    /// Server of a native control, named as in the protocol where it has several; --worker is then
    /// the candidate's server.
    #[arg(long, value_name = "[NAME=]URL")]
    pub control: Vec<String>,
    /// Model name that servers know; needed where one serves several models.
    #[arg(long, value_name = "NAME")]
    pub served_model: Option<String>,
    /// Who renders chat messages: the server, or this tool with the template of --model.
    #[arg(long, value_enum, default_value_t)]
    pub template: Template,
    /// Most requests at a time.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,
    /// Seconds that a request may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// Times that a request is tried again after 429, a failure of the server or a cut connection.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// File with the servers' API key [default: $OPENAI_API_KEY].
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
}

/// Values of `--template`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// Messages go to the chat endpoint.
    #[default]
    Server,
    /// Rendered prompts go to the completions endpoint.
    Local,
}

/// Settings of a run on servers.
#[derive(Debug)]
pub(super) struct ServerSettings {
    specs: Vec<ServerSpec>,
    http: HttpSettings,
}

impl ServerSettings {
    /// Checks what was typed. `worker` is the candidate's address.
    pub fn resolve(
        worker: &str,
        args: &ServerArgs,
        protocol: &Protocol,
        candidates: &[Recipe],
    ) -> anyhow::Result<Self> {
        let [candidate] = candidates else {
            let names: Vec<&str> = candidates
                .iter()
                .map(|recipe| recipe.name.as_str())
                .collect();
            bail!(
                "RECIPES: found {} ({}), expected one: the server of --worker stores its cache in one way",
                names.len(),
                names.join(", ")
            );
        };
        if let Some(what) = unseen(candidate) {
            bail!("RECIPES: {what}");
        }
        let url = |option: &str, text: &str| {
            ServerUrl::parse(text).map_err(|error| anyhow!("{option}: {error}"))
        };
        let mut specs = vec![ServerSpec {
            name: CANDIDATE.to_owned(),
            arms: vec![candidate.name.clone()],
            url: url("--worker", worker)?,
        }];
        let given = controls(&args.control, protocol)?;
        for (at, (name, arm)) in runner::control_arms(protocol).into_iter().enumerate() {
            let Some((_, text)) = given.iter().find(|(given, _)| *given == name) else {
                bail!(
                    "--control: found none for control {name} of protocol {}, expected --control {name}=URL",
                    protocol.name
                );
            };
            let mut arms = vec![arm];
            if at == 0 {
                arms.push(crate::schema::AA_ARM.to_owned());
            }
            specs.push(ServerSpec {
                url: url(&format!("--control {name}"), text)?,
                name,
                arms,
            });
        }
        Ok(ServerSettings {
            specs,
            http: HttpSettings {
                template: match args.template {
                    Template::Server => PromptTemplate::Server,
                    Template::Local => PromptTemplate::Local,
                },
                concurrency: args.concurrency as usize,
                seed: SEED,
                timeout: Duration::from_secs(args.timeout),
                retry: RetryPolicy {
                    attempts: args.retries + 1,
                    ..RetryPolicy::default()
                },
                key: key(args.api_key_file.as_deref())?.map(Arc::new),
                served_model: args.served_model.clone(),
            },
        })
    }
}

/// Whether `--worker` names a server.
pub(super) fn is_server(worker: &str) -> bool {
    worker.contains("://")
}

/// Names and addresses of `--control`; the only control needs no name.
fn controls<'a>(
    given: &'a [String],
    protocol: &'a Protocol,
) -> anyhow::Result<Vec<(&'a str, &'a str)>> {
    let declared = || protocol.controls.join(", ");
    let mut controls: Vec<(&str, &str)> = Vec::new();
    for text in given {
        // An address may hold `=` itself.
        let named = text
            .split_once('=')
            .filter(|(name, _)| !name.contains("://"));
        let (name, url) = match (named, protocol.controls.as_slice()) {
            (Some(named), _) => named,
            (None, [only]) => (only.as_str(), text.as_str()),
            (None, _) => bail!(
                "--control: found an address without a name, expected NAME=URL with one of {}",
                declared()
            ),
        };
        if !protocol.controls.iter().any(|control| control == name) {
            bail!(
                "--control {name}: protocol {} declares {}",
                protocol.name,
                declared()
            );
        }
        if controls.iter().any(|(other, _)| *other == name) {
            bail!("--control {name}: found twice, expected once");
        }
        controls.push((name, url));
    }
    Ok(controls)
}

fn key(file: Option<&Path>) -> anyhow::Result<Option<ApiKey>> {
    let Some(path) = file else {
        let text = std::env::var(KEY_VARIABLE).unwrap_or_default();
        return ApiKey::parse(&text).with_context(|| KEY_VARIABLE.to_owned());
    };
    let option = || format!("--api-key-file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(option)?;
    let key = ApiKey::parse(&text).with_context(option)?;
    match key {
        Some(key) => Ok(Some(key)),
        None => bail!("{}: found an empty file, expected a key", option()),
    }
}

/// A run on servers, ready to begin or to go on.
pub(super) struct PreparedServers {
    /// Panels that the servers can be asked.
    pub panels: BuiltPanels,
    /// The servers.
    pub engine: HttpEngine,
    /// What the run directory must hold.
    pub manifest: Manifest,
}

impl PreparedServers {
    /// Meets the servers, builds the panels for the model's tokenizer, and probes the servers; a run
    /// that goes on in `resumed` keeps what its probe found.
    pub fn open(
        settings: ServerSettings,
        model: &ModelSettings,
        candidate: &Recipe,
        extent: Extent,
        resumed: impl FnOnce(&str) -> Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let text = model.model.open_text().map_err(model_failure)?;
        let (identity, protocol) = (text.identity(), &model.protocol);
        let layers = identity.geometry.layers as usize;
        candidate.check_layers(layers).map_err(Failure::input)?;
        let tokenizer = Arc::new(text.tokenizer);
        let geometry = identity.geometry.clone();
        let path = resumed(&identity.name);
        let mut engine = HttpEngine::connect(settings.specs, settings.http, identity, &tokenizer)
            .map_err(connect_failure)?;
        let mut panels = panel::build(protocol, &model.data, tokenizer.as_ref(), &geometry)
            .map_err(Failure::input)?;
        runner::fit_context(&mut panels, &engine);
        let stored = match path {
            Some(path) => {
                let run = RunDir::open(&path).map_err(Failure::input)?;
                run.manifest().servers.clone()
            }
            None => None,
        };
        match stored {
            Some(stored) => engine.adopt(&stored),
            None => engine
                .probe(&runner::probe_material(&panels, &tokenizer))
                .map_err(Failure::worker)?,
        }
        runner::fit_probe(&mut panels, &engine);
        let digest = protocol.sha256().map_err(Failure::input)?;
        let manifest =
            runner::server_manifest(protocol, digest, &panels, candidate, extent, &engine)
                .map_err(Failure::worker)?;
        Ok(PreparedServers {
            panels,
            engine,
            manifest,
        })
    }
}

fn connect_failure(error: ConnectError) -> Failure {
    match error {
        ConnectError::Input(_) => Failure::input(error),
        ConnectError::Worker(_) => Failure::worker(error),
    }
}
