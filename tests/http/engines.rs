//! What is asked of each engine, and how it is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::mock::{BOOK, MODEL, Mock, Shape, World, counts};
use crate::server::{Reply, Request, Server};

fn refused(status: u16) -> Reply {
    Reply::Json(status, json!({"error": "not here"}))
}

/// A list of models with an owner.
fn models(owned_by: &str) -> Reply {
    Reply::Json(200, json!({"data": [{"id": MODEL, "owned_by": owned_by}]}))
}

/// Requests for answers that count.
fn answers(server: &Server) -> Vec<Value> {
    let posts = server.posts().into_iter();
    let posts = posts.filter(|post| counts(post) && BOOK.asked(post).is_some());
    posts.map(|post| post.body).collect()
}

/// A whole run on servers that are as `change` makes them: the candidate's, and the certificate.
fn certified(shape: Shape, change: impl Fn(Mock) -> Mock) -> (Server, Value) {
    let candidate = change(Mock::candidate(shape)).start();
    let control = change(Mock::new(shape)).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(0);
    (candidate, world.certificate())
}

/// Ends in the probe of a candidate that refuses messages after the first `answered`.
fn refused_after(answered: usize) {
    let count = AtomicUsize::new(0);
    let candidate = Mock::candidate(Shape::Vllm)
        .with_fault(move |request: &Request| {
            let is_chat = request.path == "/v1/chat/completions";
            let is_over = is_chat && count.fetch_add(1, Ordering::SeqCst) >= answered;
            is_over.then(|| refused(400))
        })
        .start();
    let control = Mock::new(Shape::Vllm).start();
    World::new()
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(4)
        .stderr(contains("conformance probe of candidate").and(contains("status 400")));
}

fn penalty_is_off(body: &Value) -> bool {
    body["repetition_penalty"] == json!(1)
}

#[test]
fn llama_cpp_is_asked_without_any_sampler_but_the_temperature() {
    let (candidate, _) = certified(Shape::Llama, |mock| mock);
    let posts = candidate.posts().into_iter();
    let posts: Vec<Request> = posts.filter(|post| post.path != "/tokenize").collect();
    for endpoint in ["/v1/chat/completions", "/completion"] {
        assert!(posts.iter().any(|post| post.path == endpoint));
    }
    for Request { path, body, .. } in posts {
        for (name, value) in [
            ("temperature", json!(0)),
            ("repeat_penalty", json!(1)),
            ("presence_penalty", json!(0)),
            ("frequency_penalty", json!(0)),
            ("dry_multiplier", json!(0)),
            ("xtc_probability", json!(0)),
            ("mirostat", json!(0)),
            ("dynatemp_range", json!(0)),
            ("samplers", json!(["temperature"])),
        ] {
            assert_eq!(body[name], value, "{path} {name}");
        }
        assert!(body.get("repetition_penalty").is_none(), "{path}");
        let biases = body["logit_bias"].as_array().unwrap().len();
        assert_eq!(biases, usize::from(path == "/completion"));
    }
}

#[test]
fn the_owner_of_a_model_names_the_engine_where_nothing_else_does() {
    let owned = |mock: Mock| {
        mock.with_fault(|request: &Request| match request.path.as_str() {
            "/v1/models" => Some(models("vllm")),
            "/version" => Some(Reply::Json(200, json!({"version": "0.1-mock"}))),
            _ => None,
        })
    };
    let (candidate, certificate) = certified(Shape::Plain, owned);
    let identity = &certificate["servers"]["servers"][0]["identity"];
    assert_eq!(identity["engine"], "vllm");
    assert_eq!(identity["version"], "0.1-mock");
    let answers = answers(&candidate);
    assert!(!answers.is_empty());
    assert!(answers.iter().all(penalty_is_off));
}

#[test]
fn repetition_penalty_is_switched_off_where_the_server_takes_the_field() {
    for is_strict in [false, true] {
        let owned = |mock: Mock| {
            mock.with_fault(move |request: &Request| {
                let has_field = request.body.get("repetition_penalty").is_some();
                (is_strict && has_field).then(|| refused(422))
            })
        };
        let (candidate, certificate) = certified(Shape::Plain, owned);
        let server = &certificate["servers"]["servers"][0];
        assert_eq!(server["identity"]["engine"], "unknown");
        let probe = &server["probe"];
        let (found, caveat) = match is_strict {
            true => ("refused", "it takes no repetition_penalty"),
            false => ("sent", "whether it heeds repetition_penalty is not known"),
        };
        assert_eq!(probe["repetition_penalty"], found);
        assert_eq!(probe["thinking_switch"], true);
        assert!(certificate["caveats"].to_string().contains(caveat));
        let answers = answers(&candidate);
        assert!(!answers.is_empty());
        assert!(answers.iter().all(|body| penalty_is_off(body) != is_strict));
    }
}

#[test]
fn engines_that_heed_repetition_penalty_are_asked_with_it() {
    for (owned_by, engine) in [("sglang", "sglang"), ("tensorrt_llm", "tensorrt-llm")] {
        let owned = |mock: Mock| {
            mock.with_fault(|request: &Request| {
                (request.path == "/v1/models").then(|| models(owned_by))
            })
        };
        let (_, certificate) = certified(Shape::Plain, owned);
        let server = &certificate["servers"]["servers"][0];
        assert_eq!(server["identity"]["engine"], engine);
        assert_eq!(server["probe"]["repetition_penalty"], "sent");
        let caveats = certificate["caveats"].to_string();
        assert!(!caveats.contains("repetition_penalty"), "{caveats}");
    }
}

#[test]
fn a_switch_that_is_refused_is_told_from_a_penalty_that_is() {
    let strict = |mock: Mock| {
        mock.with_fault(|request: &Request| {
            let has_switch = request.body.get("chat_template_kwargs").is_some();
            has_switch.then(|| refused(400))
        })
    };
    let (candidate, certificate) = certified(Shape::Plain, strict);
    let probe = &certificate["servers"]["servers"][0]["probe"];
    assert_eq!(probe["thinking_switch"], false);
    assert_eq!(probe["repetition_penalty"], "sent");
    let answers = answers(&candidate);
    assert!(!answers.is_empty());
    assert!(answers.iter().all(penalty_is_off));
}

#[test]
fn a_resumed_run_asks_as_its_probe_found() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let (flag, count) = (Arc::clone(&is_broken), AtomicUsize::new(0));
    let strict = |request: &Request| {
        let has_field = request.body.get("repetition_penalty").is_some();
        has_field.then(|| refused(400))
    };
    let candidate = Mock::candidate(Shape::Plain)
        .with_fault(move |request: &Request| {
            if counts(request) && flag.load(Ordering::SeqCst) {
                let number = count.fetch_add(1, Ordering::SeqCst);
                return (number >= 40).then(|| Reply::Json(200, json!({"model": "another"})));
            }
            strict(request)
        })
        .start();
    let control = Mock::new(Shape::Plain).with_fault(strict).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(4);
    is_broken.store(false, Ordering::SeqCst);
    let asked = candidate.posts().len();
    world
        .qualify(&candidate.url(), &control.url())
        .arg("--resume")
        .assert()
        .code(0);
    let posts = candidate.posts().split_off(asked);
    assert!(posts.iter().any(counts));
    let has_field = |post: &Request| post.body.get("repetition_penalty").is_some();
    assert!(!posts.iter().any(has_field));
    let probe = &world.certificate()["servers"]["servers"][0]["probe"];
    assert_eq!(probe["repetition_penalty"], "refused");
}

#[test]
fn an_endpoint_that_is_overloaded_is_not_one_that_is_missing() {
    for (path, status) in [("/metrics", 503), ("/props", 429)] {
        let candidate = Mock::candidate(Shape::Vllm)
            .with_fault(move |request: &Request| (request.path == path).then(|| refused(status)))
            .start();
        let control = Mock::new(Shape::Vllm).start();
        let world = World::new();
        world
            .qualify(&candidate.url(), &control.url())
            .assert()
            .code(4)
            .stderr(contains(format!("{path}: status {status}")));
        assert!(!world.path("run").exists());
    }
}

#[test]
fn endpoints_that_a_server_keeps_to_itself_are_done_without() {
    for status in [401, 403, 500, 501, 307] {
        let closed = |mock: Mock| {
            mock.with_fault(move |request: &Request| {
                let is_open = request.path.starts_with("/v1/");
                (!is_open).then(|| refused(status))
            })
        };
        let (candidate, certificate) = certified(Shape::Plain, closed);
        let server = &certificate["servers"]["servers"][0];
        assert_eq!(server["identity"]["engine"], "unknown");
        assert!(server["probe"]["tokens"]["bos_servers"].is_null());
        let posts = candidate.posts();
        assert!(posts.iter().any(|post| post.path == "/tokenize"));
    }
}

#[test]
fn a_router_is_asked_for_the_model() {
    let routed = |mock: Mock| {
        let answers = mock.clone();
        mock.with_fault(move |request: &Request| {
            let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
            if path != "/props" {
                return None;
            }
            if query == "model=demo" {
                let path = path.to_owned();
                return Some(answers.reply(&Request {
                    path,
                    ..request.clone()
                }));
            }
            let settings = json!({"params": {}, "n_ctx": 0});
            Some(Reply::Json(
                200,
                json!({"role": "router", "build_info": "b0-mock", "model_path": "none",
                       "default_generation_settings": settings}),
            ))
        })
    };
    let (_, certificate) = certified(Shape::Llama, routed);
    let identity = &certificate["servers"]["servers"][0]["identity"];
    assert_eq!(identity["engine"], "llama.cpp");
    assert_eq!(identity["context"], 4096);
}

#[test]
fn a_prompt_that_is_refused_is_left_out_of_the_probe() {
    let long = |request: &Request| {
        let known = BOOK.asked(request)?;
        (known.panel == "math" && known.index == 0).then(|| refused(400))
    };
    let candidate = Mock::candidate(Shape::Vllm).with_fault(long).start();
    let control = Mock::new(Shape::Vllm).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(3);
    let records = world.records("SF", "math");
    let errored = records.iter().filter(|record| record["error"].is_string());
    assert_eq!(errored.count(), 1);
    let probes = world.certificate()["servers"]["servers"].clone();
    let prompts = |at: usize| probes[at]["probe"]["parallel"]["prompts"].as_u64().unwrap();
    assert_eq!(prompts(0) + 1, prompts(1));

    // What is asked one by one, the first prompt of the form and the repeated one among them, is answered, and
    // one of those side by side.
    refused_after(19);
    refused_after(1);
}
