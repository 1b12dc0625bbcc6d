//! Servers that misbehave, each with what kvassay must do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use predicates::str::contains;
use serde_json::{Value, json};

use crate::mock::{BOOK, Mock, Shape, World, completed, counts, ids};
use crate::server::{Reply, Request};

/// Index of the math question that a request of the run asks.
fn question(request: &Request) -> Option<usize> {
    let known = BOOK.asked(request).filter(|_| counts(request))?;
    (known.panel == "math").then_some(known.index)
}

/// Whether a request is the first of its kind.
fn is_first(seen: &Mutex<HashSet<String>>, request: &Request) -> bool {
    let key = format!("{}{}", request.path, request.body);
    seen.lock().unwrap().insert(key)
}

fn busy() -> Reply {
    Reply::Raw(429, vec![("retry-after", "0".to_owned())], b"busy".to_vec())
}

#[test]
fn a_storm_of_429_changes_no_record() {
    let (control, seen) = (Mock::new(Shape::Vllm), Mutex::default());
    let candidate = Mock::candidate(Shape::Vllm);
    let (calm, quiet) = (candidate.clone().start(), control.start());
    let stormy = candidate
        .with_fault(move |request: &Request| {
            let is_post = !request.body.is_null();
            (is_post && is_first(&seen, request)).then(busy)
        })
        .start();
    let mut bytes = Vec::new();
    for server in [&calm, &stormy] {
        let world = World::new();
        world.qualify(&server.url(), &quiet.url()).assert().code(0);
        let read = |name: &str| fs::read(world.path(&format!("run/arms/SF/{name}"))).unwrap();
        bytes.push(["math.jsonl", "nll-256.jsonl", "retrieval-256.jsonl"].map(read));
        if server.url() == stormy.url() {
            // The probe has asked some of these before.
            let attempts = world.records("SF", "math.attempts");
            assert_eq!(attempts.len(), 60);
            assert_eq!(attempts[0]["status"], 429);
            assert_eq!(attempts[0]["attempt"], 1);
            assert!(attempts[0]["wait_ms"].is_u64());
        }
    }
    assert!(bytes[0] == bytes[1]);
}

/// One fault for each of some questions; everything else is answered.
#[test]
fn faults_of_single_replies_are_recorded_case_by_case() {
    let tries = Mutex::new(HashMap::<usize, u32>::new());
    let candidate = Mock::candidate(Shape::Vllm);
    let answers = candidate.clone();
    let fault = move |request: &Request| {
        let index = question(request)?;
        let count = {
            let mut tries = tries.lock().unwrap();
            let count = tries.entry(index).or_insert(0);
            *count += 1;
            *count
        };
        let mut reply = completed("#### 1", true, 9);
        let choice = &mut reply["choices"][0];
        let body = reply_bytes(&answers, request);
        match (index, count) {
            (1, _) => Some(Reply::Json(500, json!({"error": "it broke"}))),
            (2, _) => Some(Reply::Raw(200, Vec::new(), vec![b'x'; 10 << 20])),
            (3, _) => Some(Reply::Raw(
                200,
                Vec::new(),
                b"{\"model\": \"\xff\"}".to_vec(),
            )),
            (4, _) => {
                choice["message"]["content"] = Value::Null;
                Some(Reply::Json(200, reply))
            }
            (5, _) => {
                choice["message"]["content"] = json!(BOOK.asked(request)?.answer);
                choice["finish_reason"] = json!("length");
                Some(Reply::Json(200, reply))
            }
            (6, _) => {
                choice["finish_reason"] = json!("content_filter");
                Some(Reply::Json(200, reply))
            }
            (7, _) => Some(Reply::Slow(Duration::from_secs(9), body)),
            (8, 1) => Some(Reply::Cut(body)),
            (9, 1) => Some(Reply::Hangup),
            (10, 1 | 2) => Some(Reply::Json(503, json!({"error": "loading"}))),
            (11, _) => Some(Reply::Json(400, json!({"error": "no"}))),
            (12, _) => Some(Reply::Json(200, json!({"choices": []}))),
            (13, _) => {
                choice["message"]["content"] = json!([{"type": "text", "text": "#### 1"}]);
                Some(Reply::Json(200, reply))
            }
            _ => None,
        }
    };
    let (candidate, control) = (
        candidate.with_fault(fault).start(),
        Mock::new(Shape::Vllm).start(),
    );
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .args(["--timeout", "4", "--concurrency", "32"])
        .assert()
        .code(3);
    let records = world.records("SF", "math");
    assert_eq!(records.len(), 60);
    let error = |at: usize| records[at]["error"].as_str().unwrap_or_default().to_owned();
    for (at, words) in [
        (
            1,
            "status 500 (Internal Server Error): {\"error\":\"it broke\"}",
        ),
        (2, "reply is larger than 8 MiB"),
        (3, "reply is no JSON"),
        (
            6,
            "choices[0].finish_reason: found \"content_filter\", expected stop or length",
        ),
        (7, "no reply in time"),
        (11, "status 400 (Bad Request): {\"error\":\"no\"}"),
        (12, "choices: found a list of 0, expected one entry"),
        (
            13,
            "choices[0].message.content: found a list of 1, expected a text",
        ),
    ] {
        let found = error(at);
        assert!(found.contains(words), "case {at}: {found}");
        assert!(found.contains("/v1/chat/completions"), "case {at}: {found}");
        assert_eq!(records[at]["finish"], "error");
        assert!(!found.contains("attempt"), "case {at}: {found}");
    }
    for at in [8, 9, 10] {
        assert_eq!(records[at]["correct"], true, "case {at}");
    }
    assert_eq!(
        (&records[4]["output"], &records[4]["correct"]),
        (&json!(""), &json!(false))
    );
    assert_eq!(records[5]["finish"], "length");
    assert_eq!(records[5]["correct"], false);
    let certificate = world.certificate();
    let counted = &certificate["counts"];
    assert_eq!(
        (&counted["errors"], &counted["truncated"]),
        (&json!(8), &json!(1))
    );
    assert_eq!(counted["empty"], 1);
    for objective in ["preservation", "aggregate"] {
        let found = &certificate["objectives"][objective];
        assert_eq!(found["verdict"], "incomplete");
        assert_eq!(found["reason"], "errored_records");
    }
    let mut attempts = BTreeMap::new();
    for attempt in world.records("SF", "math.attempts") {
        *attempts
            .entry(attempt["case"].as_str().unwrap().to_owned())
            .or_insert(0) += 1;
    }
    let of = |at: usize| {
        attempts
            .get(&format!("demo-math-{at:04}"))
            .copied()
            .unwrap_or(0)
    };
    // Retried: failures of the server, connections and time-outs; nothing else. Every attempt that
    // failed is there, and of those that had an answer none.
    assert_eq!(
        [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13].map(of),
        [4, 1, 1, 0, 0, 1, 2, 1, 2, 1, 1, 1]
    );
    let attempts = world.records("SF", "math.attempts");
    let unread = attempts
        .iter()
        .find(|attempt| attempt["case"] == "demo-math-0003")
        .unwrap();
    assert_eq!(
        (&unread["attempt"], &unread["status"], &unread["wait_ms"]),
        (&json!(1), &json!(200), &Value::Null)
    );
    assert_eq!(unread["error"], records[3]["error"]);
}

fn reply_bytes(mock: &Mock, request: &Request) -> Vec<u8> {
    match mock.reply(request) {
        Reply::Json(_, value) => value.to_string().into_bytes(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn likelihoods_that_cannot_be_checked_are_not_guessed() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 3] = [
        (
            |choice| {
                let entries = choice["prompt_logprobs"].as_array_mut().unwrap();
                entries.pop();
            },
            "found a list of 255, expected one entry for each of 256 tokens",
        ),
        (
            |choice| choice["prompt_logprobs"][9] = json!({"3": {"logprob": -1.0}}),
            "choices[0].prompt_logprobs[9]: found an object, expected an entry for token",
        ),
        (
            |choice| choice["prompt_logprobs"] = Value::Null,
            "prompt_logprobs: found nothing",
        ),
    ];
    for (change, words) in changes {
        let candidate = Mock::candidate(Shape::Vllm);
        let answers = candidate.clone();
        let fault = move |request: &Request| {
            if request.body.get("echo").is_some() {
                return Some(Reply::Json(400, json!({"error": "no echo"})));
            }
            request.body.get("prompt_logprobs")?;
            let Reply::Json(_, mut reply) = answers.reply(request) else {
                return None;
            };
            change(&mut reply["choices"][0]);
            Some(Reply::Json(200, reply))
        };
        let (candidate, control) = (
            candidate.with_fault(fault).start(),
            Mock::new(Shape::Vllm).start(),
        );
        let world = World::new();
        world
            .qualify(&candidate.url(), &control.url())
            .assert()
            .code(3);
        let found = &world.certificate()["objectives"]["preservation"];
        assert_eq!(found["verdict"], "unsupported");
        assert_eq!(found["reason"], "panel_unsupported");
        let detail = found["detail"].as_str().unwrap();
        assert!(
            detail.contains("panel nll-256") && detail.contains(words),
            "{detail}"
        );
        assert!(!world.path("run/arms/SF/nll-256.jsonl").exists());
    }
}

/// The probe met no fault; a window of the run does.
#[test]
fn one_window_of_other_tokens_is_an_errored_case() {
    let candidate = Mock::candidate(Shape::Vllm);
    let (answers, count) = (candidate.clone(), Mutex::new(0));
    let fault = move |request: &Request| {
        request.body.get("prompt_logprobs")?;
        let mut count = count.lock().unwrap();
        *count += 1;
        let Reply::Json(_, mut reply) = answers.reply(request) else {
            return None;
        };
        if *count != 7 {
            return None;
        }
        reply["choices"][0]["prompt_logprobs"][200] = json!({"1": {"logprob": -0.1}});
        Some(Reply::Json(200, reply))
    };
    let (candidate, control) = (
        candidate.with_fault(fault).start(),
        Mock::new(Shape::Vllm).start(),
    );
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(3);
    let records = world.records("SF", "nll-256");
    let errors: Vec<&Value> = records
        .iter()
        .filter(|record| record["error"].is_string())
        .collect();
    assert_eq!(errors.len(), 1);
    let found = &world.certificate()["objectives"]["preservation"];
    assert_eq!(found["reason"], "errored_records");
}

#[test]
fn a_second_bos_is_refused_where_this_tool_renders_prompts() {
    let doubled = |mock: Mock| {
        let answers = mock.clone();
        mock.with_fault(move |request: &Request| {
            let known = ids(request).is_some() || request.body["prompt"].is_string();
            let is_answer = request.body.get("prompt_logprobs").is_none();
            if !known || !is_answer || request.path != "/v1/completions" {
                return None;
            }
            let Reply::Json(200, mut reply) = answers.reply(request) else {
                return Some(Reply::Json(400, json!({"error": "text only"})));
            };
            let tokens = reply["usage"]["prompt_tokens"].as_u64().unwrap();
            reply["usage"]["prompt_tokens"] = json!(tokens + 1);
            Some(Reply::Json(200, reply))
        })
    };
    let candidate = doubled(Mock::candidate(Shape::Vllm)).start();
    let control = Mock::new(Shape::Vllm).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .args(["--template", "local"])
        .assert()
        .code(3);
    let found = &world.certificate()["objectives"]["preservation"];
    assert_eq!(found["reason"], "panel_unsupported");
    let detail = found["detail"].as_str().unwrap();
    assert!(
        detail.contains("a second beginning-of-sequence token"),
        "{detail}"
    );
    assert!(!world.path("run/arms/SF/math.jsonl").exists());

    // Without the fault the same prompts go out as token ids.
    let candidate = Mock::candidate(Shape::Vllm).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .args(["--template", "local"])
        .assert()
        .code(0);
    let chats = candidate.posts().into_iter();
    assert_eq!(chats.filter(|post| post.path.contains("chat")).count(), 0);
    let forms = &world.certificate()["servers"]["servers"][0]["probe"]["prompts"];
    assert_eq!(forms, &json!(["token_ids"]));
}

#[test]
fn reasoning_is_noted_and_never_scored() {
    let candidate = Mock::candidate(Shape::Vllm);
    let answers = candidate.clone();
    let fault = move |request: &Request| {
        if request.path != "/v1/chat/completions" {
            return None;
        }
        let Reply::Json(200, mut reply) = answers.reply(request) else {
            return None;
        };
        reply["choices"][0]["message"]["reasoning_content"] = json!("#### 7");
        if question(request) == Some(3) {
            reply["choices"][0]["message"]["content"] = Value::Null;
        }
        Some(Reply::Json(200, reply))
    };
    let (candidate, control) = (
        candidate.with_fault(fault).start(),
        Mock::new(Shape::Vllm).start(),
    );
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(0);
    let record = &world.records("SF", "math")[3];
    assert_eq!(
        (&record["output"], &record["correct"]),
        (&json!(""), &json!(false))
    );
    let certificate = world.certificate();
    assert_eq!(
        certificate["servers"]["servers"][0]["probe"]["reasoning"],
        true
    );
    let caveats = certificate["caveats"].to_string();
    assert!(
        caveats.contains("Server of candidate: it reasons beside its answers"),
        "{caveats}"
    );
}

#[test]
fn a_server_that_cannot_be_asked_ends_the_run_before_it_begins() {
    let control = Mock::new(Shape::Plain).start();
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let locked = Mock::new(Shape::Plain)
        .with_fault(|_| Some(Reply::Json(401, json!({"error": "key needed"}))))
        .start();
    let other = Mock::new(Shape::Plain)
        .with_fault(|request: &Request| {
            let models = json!({"data": [{"id": "a"}, {"id": "b"}]});
            (request.path == "/v1/models").then(|| Reply::Json(200, models))
        })
        .start();
    let moved = Mock::new(Shape::Plain)
        .with_fault(|_| {
            let to = vec![("location", "http://127.0.0.1:1/".to_owned())];
            Some(Reply::Raw(307, to, Vec::new()))
        })
        .start();
    for (url, code, words) in [
        (closed, 4, "cannot connect"),
        (
            locked.url(),
            4,
            "status 401 (Unauthorized): {\"error\":\"key needed\"}",
        ),
        (moved.url(), 4, "status 307"),
        (other.url(), 2, "found a, b, expected one model"),
        (
            "http://user:secret@h".to_owned(),
            2,
            "found a user or password in the URL",
        ),
    ] {
        let world = World::new();
        world
            .qualify(&url, &control.url())
            .assert()
            .code(code)
            .stderr(contains(words));
        assert!(!world.path("run").exists());
    }
}
