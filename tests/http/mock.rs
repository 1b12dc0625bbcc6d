//! A server that answers the panels of a small protocol: right, but for the cases that it is told to
//! lose, and with likelihoods that follow from the tokens.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use kvassay::model::{DemoModel, ModelSource, ModelText};
use kvassay::panel::{self, DataDir, Outcome};
use kvassay::schema::{CaseTask, Protocol};
use serde_json::{Value, json};

use crate::server::{Reply, Request, Server};

/// Family of one model, one candidate, two objectives.
pub const PROTOCOL: &str = include_str!("protocol.toml");
/// The served model.
pub const MODEL: &str = "demo";

/// A case as the server knows it.
#[derive(Clone, Debug)]
pub struct Known {
    pub case: String,
    pub index: usize,
    pub panel: String,
    pub answer: String,
    pub prompt_tokens: usize,
}

/// The panels of [`PROTOCOL`] for the demo model.
pub struct Book {
    pub text: ModelText,
    by_content: HashMap<String, Known>,
    by_ids: HashMap<Vec<u32>, Known>,
}

pub static BOOK: LazyLock<Book> = LazyLock::new(|| {
    let text = ModelSource::Demo(DemoModel::Tolerant).open_text().unwrap();
    let protocol = Protocol::from_toml(PROTOCOL).unwrap();
    let data = DataDir::resolve(None).unwrap();
    let geometry = text.config.geometry();
    let built = panel::build(&protocol, &data, &text.tokenizer, &geometry).unwrap();
    let mut book = Book {
        text,
        by_content: HashMap::new(),
        by_ids: HashMap::new(),
    };
    for panel in &built.panels {
        let Outcome::Built(panel) = &panel.outcome else {
            panic!("{} is unsupported", panel.name);
        };
        for (index, case) in panel.cases.iter().enumerate() {
            let answer = match &case.task {
                CaseTask::Math { gold, .. } => format!("It is {gold}.\n#### {gold}"),
                CaseTask::Retrieval { gold, .. } => gold.clone(),
                _ => continue,
            };
            let known = Known {
                case: case.case.clone(),
                index,
                panel: panel.header.panel.clone(),
                answer,
                prompt_tokens: case.prompt_ids.len(),
            };
            let content = case.messages[0].content.clone();
            book.by_content.insert(content, known.clone());
            book.by_ids.insert(case.prompt_ids.clone(), known);
        }
    }
    book
});

impl Book {
    /// The case that a request asks, if it is one.
    pub fn asked(&self, request: &Request) -> Option<&Known> {
        if let Some(content) = request.body["messages"][0]["content"].as_str() {
            return self.by_content.get(content);
        }
        self.by_ids.get(&ids(request)?)
    }
}

/// Token ids of a prompt.
pub fn ids(request: &Request) -> Option<Vec<u32>> {
    serde_json::from_value(request.body["prompt"].clone()).ok()
}

/// Whether a request is one of the run's own, not of the probe, whose answers are cut shorter.
pub fn counts(request: &Request) -> bool {
    request.body["max_tokens"]
        .as_u64()
        .is_some_and(|n| n == 96 || n == 8)
}

/// Which engine the server looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    Vllm,
    Llama,
    /// Endpoints of OpenAI alone, with echoed log-probabilities.
    Plain,
}

type Fault = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// How a server behaves.
#[derive(Clone)]
pub struct Mock {
    pub shape: Shape,
    /// Cache format that it tells (vLLM).
    pub cache: &'static str,
    /// Cases of the math panel that it answers wrong.
    pub wrong: &'static [usize],
    /// Added to every negative log-likelihood, in nats.
    pub shift: f64,
    /// What it does instead, where it does.
    pub fault: Option<Arc<Fault>>,
}

impl Mock {
    pub fn new(shape: Shape) -> Self {
        Mock {
            shape,
            cache: "auto",
            wrong: &[],
            shift: 0.0,
            fault: None,
        }
    }

    /// A candidate whose likelihoods differ a little.
    pub fn candidate(shape: Shape) -> Self {
        Mock {
            cache: "fp8",
            shift: 0.0005,
            ..Mock::new(shape)
        }
    }

    pub fn with_fault(
        mut self,
        fault: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        self.fault = Some(Arc::new(fault));
        self
    }

    pub fn start(self) -> Server {
        LazyLock::force(&BOOK);
        Server::start(move |request| {
            let instead = self.fault.as_ref().and_then(|fault| fault(request));
            instead.unwrap_or_else(|| self.reply(request))
        })
    }

    pub fn reply(&self, request: &Request) -> Reply {
        let missing = || Reply::Json(404, json!({"error": "not found"}));
        match (request.path.as_str(), self.shape) {
            ("/v1/models", _) => {
                Reply::Json(200, json!({"object": "list", "data": [{"id": MODEL}]}))
            }
            ("/metrics", Shape::Vllm) => {
                let text = format!(
                    "# TYPE vllm:cache_config_info gauge\n\
                     vllm:cache_config_info{{block_size=\"16\",cache_dtype=\"{}\"}} 1.0\n",
                    self.cache
                );
                Reply::Raw(200, Vec::new(), text.into_bytes())
            }
            ("/version", Shape::Vllm) => Reply::Json(200, json!({"version": "0.0-mock"})),
            ("/props", Shape::Llama) => Reply::Json(
                200,
                json!({"build_info": "b0-mock", "total_slots": 2,
                       "default_generation_settings": {"n_ctx": 4096}}),
            ),
            ("/tokenize", Shape::Vllm | Shape::Llama) => {
                let text = request.body["prompt"].as_str();
                let text = text
                    .or(request.body["content"].as_str())
                    .unwrap_or_default();
                let tokenizer = &BOOK.text.tokenizer;
                Reply::Json(
                    200,
                    json!({"tokens": tokenizer.encode_rendered(text).unwrap()}),
                )
            }
            ("/completion", Shape::Llama) => self.forced(request),
            ("/v1/chat/completions", _) => self.answer(request, true),
            ("/v1/completions", _) if request.body.get("prompt_logprobs").is_some() => {
                match self.shape {
                    Shape::Vllm => self.prompt_logprobs(request),
                    _ => Reply::Json(400, json!({"error": "unknown prompt_logprobs"})),
                }
            }
            ("/v1/completions", _) if request.body.get("echo").is_some() => self.echo(request),
            ("/v1/completions", _) => self.answer(request, false),
            _ => missing(),
        }
    }

    /// The answer of a case, right or wrong.
    pub fn text(&self, known: &Known) -> String {
        if known.panel == "math" && self.wrong.contains(&known.index) {
            return "I do not know.".to_owned();
        }
        known.answer.clone()
    }

    fn answer(&self, request: &Request, chat: bool) -> Reply {
        let Some(known) = BOOK.asked(request) else {
            return Reply::Json(400, json!({"error": "an unknown prompt"}));
        };
        let text = self.text(known);
        Reply::Json(200, completed(&text, chat, known.prompt_tokens))
    }

    /// Negative log-likelihood of token `at` of `ids`.
    pub fn nll(&self, ids: &[u32], at: usize) -> f64 {
        let mixed = (ids[at] * 31 + ids[at - 1] * 17) % 997;
        1.0 + f64::from(mixed) / 500.0 + self.shift
    }

    fn prompt_logprobs(&self, request: &Request) -> Reply {
        let ids = ids(request).unwrap();
        let entry = |at: usize| match at {
            0 => Value::Null,
            at => json!({ids[at].to_string(): {"logprob": -self.nll(&ids, at), "rank": 1,
                                               "decoded_token": "x"}}),
        };
        let entries: Vec<Value> = (0..ids.len()).map(entry).collect();
        let mut reply = completed("x", false, ids.len());
        reply["choices"][0]["prompt_logprobs"] = json!(entries);
        reply["choices"][0]["finish_reason"] = json!("length");
        Reply::Json(200, reply)
    }

    fn echo(&self, request: &Request) -> Reply {
        let ids = ids(request).unwrap();
        let tokenizer = &BOOK.text.tokenizer;
        let mut tokens: Vec<String> = ids.iter().map(|&id| tokenizer.piece(id)).collect();
        let mut values: Vec<Value> = vec![Value::Null];
        values.extend((1..ids.len()).map(|at| json!(-self.nll(&ids, at))));
        tokens.push("x".to_owned());
        values.push(json!(-0.5));
        let mut reply = completed("x", false, ids.len());
        reply["choices"][0]["logprobs"] = json!({"tokens": tokens, "token_logprobs": values});
        Reply::Json(200, reply)
    }

    fn forced(&self, request: &Request) -> Reply {
        let mut ids = ids(request).unwrap();
        let read = ids.len();
        let target = request.body["logit_bias"][0][0].as_u64().unwrap() as u32;
        let mut reply = json!({"model": MODEL, "content": "x", "tokens_evaluated": read});
        let mut logprob = |id: u32| {
            ids.truncate(read);
            ids.push(id);
            -self.nll(&ids, read)
        };
        // As llama.cpp does: nothing is told of a token that ends within a character.
        if !BOOK.text.tokenizer.piece(target).contains('\u{fffd}') {
            let listed = request.body["n_probs"].as_u64().unwrap();
            let all = if listed > 1 {
                0..listed.min(1024) as u32
            } else {
                0..0
            };
            let mut list: Vec<(u32, f64)> = all.map(|id| (id, logprob(id))).collect();
            list.sort_by(|a, b| b.1.total_cmp(&a.1));
            let entry =
                |(id, logprob): (u32, f64)| json!({"id": id, "token": "x", "logprob": logprob});
            let list: Vec<Value> = list.into_iter().map(entry).collect();
            reply["completion_probabilities"] = json!([{"id": target, "token": "x",
                "logprob": logprob(target), "top_logprobs": list}]);
        }
        Reply::Json(200, reply)
    }
}

/// A reply with one choice.
pub fn completed(text: &str, chat: bool, prompt_tokens: usize) -> Value {
    let mut choice = json!({"index": 0, "finish_reason": "stop"});
    match chat {
        true => choice["message"] = json!({"role": "assistant", "content": text}),
        false => choice["text"] = json!(text),
    }
    json!({"id": "x", "model": MODEL, "choices": [choice],
           "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 5}})
}

/// A folder with the protocol, in which runs are made.
pub struct World {
    pub dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("small.toml"), PROTOCOL).unwrap();
        World { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `kvassay qualify SF` of `candidate` against `control`.
    pub fn qualify(&self, candidate: &str, control: &str) -> assert_cmd::Command {
        let mut command = self.kvassay();
        command
            .args(["qualify", "SF", "--model", "demo-tolerant", "--out", "run"])
            .args(["--protocol", "small.toml", "--worker", candidate])
            .args(["--control", control, "--retries", "3"]);
        command
    }

    pub fn kvassay(&self) -> assert_cmd::Command {
        let mut command = assert_cmd::Command::cargo_bin("kvassay").unwrap();
        command
            .current_dir(self.dir.path())
            .env_remove("OPENAI_API_KEY")
            .timeout(std::time::Duration::from_secs(120));
        command
    }

    pub fn certificate(&self) -> Value {
        json_file(&self.path("run/certificates/SF.json"))
    }

    pub fn records(&self, arm: &str, panel: &str) -> Vec<Value> {
        let path = self.path(&format!("run/arms/{arm}/{panel}.jsonl"));
        let text = fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

pub fn json_file(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
