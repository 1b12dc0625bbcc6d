//! Meeting servers: who they are, that they are several, what the probe finds.

use std::sync::Arc;

use tokio::runtime::Builder;

use crate::engine::EngineError;
use crate::model::Tokenizer;
use crate::schema::{
    HTTP_WORKER, ModelIdentity, RepetitionPenalty, ServerIdentity, ServerRun, WorkerIdentity,
};

use super::asker::{Asker, Slots};
use super::client::{CallError, Client};
use super::identity::{self, Found, IdentityError};
use super::probe::{self, ProbeMaterial};
use super::sampling;
use super::{Endpoint, HttpEngine, HttpSettings, ServerSpec};

/// Threads that send and receive; the thread of the run writes records.
const THREADS: usize = 2;

/// Why servers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Two servers that must not be one are, or the served model is not the one that was asked for.
    #[error("{0}")]
    Input(String),
    /// A server cannot be asked.
    #[error(transparent)]
    Worker(EngineError),
}

impl HttpEngine {
    /// Meets every server of `specs`, the candidate's first, and asks who it is.
    ///
    /// # Errors
    /// [`ConnectError`]; the same server twice is refused.
    pub fn connect(
        specs: Vec<ServerSpec>,
        settings: HttpSettings,
        model: ModelIdentity,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Self, ConnectError> {
        let worker = |what: String| ConnectError::Worker(EngineError::Worker(what));
        refuse_same_address(&specs)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .enable_all()
            .build()
            .map_err(|error| worker(format!("cannot start threads: {error}")))?;
        let mut endpoints: Vec<Endpoint> = Vec::new();
        for spec in specs {
            let key = settings.key.clone();
            let client = Client::new(&spec.url, key, settings.timeout, settings.retry)
                .map_err(|what| worker(format!("{}: {what}", spec.url)))?;
            let wanted = settings.served_model.as_deref();
            let asked = runtime.block_on(identity::ask(&client, &spec.url, wanted));
            let found = asked.map_err(|error| match error {
                IdentityError::Model(what) => ConnectError::Input(what),
                IdentityError::Call(error) => worker(error.what().to_owned()),
            })?;
            let asker = Asker {
                client,
                url: spec.url.clone(),
                identity: found.identity.clone(),
                tokenizer: Arc::clone(tokenizer),
                template: settings.template,
                seed: settings.seed,
                reply_model: None,
                thinking_switch: false,
                repetition_penalty: !sampling::is_llama(&found.identity),
                chat: true,
                raw: None,
                slots: Slots::new(found.slots.unwrap_or(0)),
            };
            refuse_same_process(&endpoints, &spec, &found)?;
            endpoints.push(Endpoint {
                spec,
                found,
                asker,
                probe: None,
            });
        }
        Ok(HttpEngine {
            runtime,
            settings,
            worker: worker_identity(&endpoints),
            model,
            endpoints,
            open: 0,
        })
    }

    /// Probes every server; nothing that counts was asked before.
    ///
    /// # Errors
    /// [`EngineError::Worker`] where one cannot be asked or refuses prompts.
    pub fn probe(&mut self, material: &ProbeMaterial) -> Result<(), EngineError> {
        for endpoint in &mut self.endpoints {
            let probing = probe::probe(&mut endpoint.asker, material, self.settings.concurrency);
            let found = self.runtime.block_on(probing).map_err(|error| {
                let (name, what) = (&endpoint.spec.name, error.what());
                EngineError::Worker(format!("conformance probe of {name}: {what}"))
            })?;
            endpoint.probe = Some(found);
        }
        Ok(())
    }

    /// Takes over what the probe found when the run began: it stands in the manifest, and a second
    /// one may find other figures. Servers of other names are left unprobed, so that the manifests
    /// differ.
    pub fn adopt(&mut self, stored: &ServerRun) {
        for endpoint in &mut self.endpoints {
            let mut servers = stored.servers.iter();
            let Some(server) = servers.find(|server| server.name == endpoint.spec.name) else {
                continue;
            };
            let probe = &server.probe;
            let asker = &mut endpoint.asker;
            asker.reply_model.clone_from(&probe.reply_model);
            asker.thinking_switch = probe.thinking_switch;
            asker.repetition_penalty = match probe.repetition_penalty {
                Some(found) => found == RepetitionPenalty::Sent,
                // A run that began before this was found out, or asked nothing.
                None => asker.identity.heeds_repetition_penalty(),
            };
            asker.chat = probe.chat_refused.is_none();
            let raw = |form: &&_| **form != crate::schema::PromptForm::Messages;
            asker.raw = probe.prompts.iter().find(raw).copied();
            endpoint.probe = Some(probe.clone());
        }
    }

    /// Asks the open arm's server again who it is.
    ///
    /// # Errors
    /// [`EngineError::Worker`] where it says something else than before.
    pub(super) fn check_unchanged(&self) -> Result<(), EngineError> {
        let endpoint = self.endpoint();
        let expected = &endpoint.found.identity;
        let asking = identity::ask(
            &endpoint.asker.client,
            &endpoint.spec.url,
            Some(&expected.model),
        );
        let found = match self.runtime.block_on(asking) {
            Ok(found) => found.identity,
            Err(IdentityError::Model(what)) => {
                return Err(EngineError::Worker(format!(
                    "{what}: the server has changed"
                )));
            }
            Err(IdentityError::Call(CallError::Server(what) | CallError::Request { what, .. })) => {
                return Err(EngineError::Worker(what));
            }
        };
        if found == *expected {
            return Ok(());
        }
        Err(EngineError::Worker(format!(
            "{}: the server has changed: found {}, expected {}",
            endpoint.spec.url,
            words(&found),
            words(expected)
        )))
    }
}

/// A server in one line; its model's name is the only text that is not made to be shown yet.
fn words(identity: &ServerIdentity) -> String {
    let shown = ServerIdentity {
        model: identity::shown(&identity.model),
        ..identity.clone()
    };
    serde_json::to_string(&shown).unwrap_or_else(|error| error.to_string())
}

fn refuse_same_address(specs: &[ServerSpec]) -> Result<(), ConnectError> {
    for (at, spec) in specs.iter().enumerate() {
        if let Some(other) = specs[..at]
            .iter()
            .find(|other| other.url.is_same(&spec.url))
        {
            return Err(same(&other.name, spec, "its address is the same"));
        }
    }
    Ok(())
}

fn refuse_same_process(
    met: &[Endpoint],
    spec: &ServerSpec,
    found: &Found,
) -> Result<(), ConnectError> {
    let Some(start) = found.process_start else {
        return Ok(());
    };
    let is_same = |other: &&Endpoint| {
        other.found.process_start == Some(start)
            && other.found.identity.engine == found.identity.engine
            && other.found.identity.cache == found.identity.cache
    };
    match met.iter().find(is_same) {
        None => Ok(()),
        Some(other) => {
            let why = format!("both metrics say that the process began at {start}");
            Err(same(&other.spec.name, spec, &why))
        }
    }
}

fn same(other: &str, spec: &ServerSpec, why: &str) -> ConnectError {
    ConnectError::Input(format!(
        "{} of {}: found the server of {other} again ({why}), expected another one: a server \
         compared with itself shows nothing",
        spec.url, spec.name
    ))
}

/// The engines of all servers, the candidate's first.
fn worker_identity(endpoints: &[Endpoint]) -> WorkerIdentity {
    let mut names: Vec<String> = Vec::new();
    for Endpoint { found, .. } in endpoints {
        let version = found.identity.version.as_ref();
        let version = version.map_or(String::new(), |version| format!(" {version}"));
        let name = format!("{}{version}", found.identity.engine);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    WorkerIdentity {
        kind: HTTP_WORKER.to_owned(),
        device: names.join(", "),
        arithmetic: "as served".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_said_as_files_have_it() {
        let server = ServerIdentity {
            url: "http://h".to_owned(),
            engine: "vllm".to_owned(),
            version: None,
            model: "m".to_owned(),
            context: Some(9),
            cache: None,
        };
        let expected = r#"{"url":"http://h","engine":"vllm","model":"m","context":9}"#;
        assert_eq!(words(&server), expected);
    }
}
