//! Servers that lack something: what they can be asked is asked, the rest is refused by name.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::mock::{BOOK, Mock, PROTOCOL, Shape, World, completed, ids};
use crate::server::{Reply, Request};

/// A model whose tokenizer reads a frequent word as a character of two bytes, each a token.
fn model_of_parts(world: &World) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/tolerant");
    let to = world.path("model");
    fs::create_dir(&to).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let text = fs::read_to_string(to.join("tokenizer.json")).unwrap();
    let mut definition: Value = serde_json::from_str(&text).unwrap();
    definition["normalizer"] =
        json!({"type": "Replace", "pattern": {"String": "the"}, "content": "\u{f7}"});
    fs::write(to.join("tokenizer.json"), definition.to_string()).unwrap();
}

fn qualify(world: &World, candidate: &str, control: &str) -> assert_cmd::Command {
    let mut command = world.kvassay();
    command
        .args(["qualify", "SF", "--model", "model", "--out", "run"])
        .args(["--protocol", "small.toml", "--worker", candidate])
        .args(["--control", control, "--retries", "1"]);
    command
}

#[test]
fn targets_within_a_character_are_read_from_the_list_of_all_tokens() {
    // With other tokens other texts fit a haystack: the mock knows no answer to these.
    let guess = |mock: Mock| {
        mock.with_fault(|request: &Request| {
            let is_unknown = request.path.contains("chat") && BOOK.asked(request).is_none();
            is_unknown.then(|| Reply::Json(200, completed("?", true, 9)))
        })
    };
    let mock = Mock::candidate(Shape::Llama);
    let candidate = guess(mock.clone()).start();
    let control = guess(Mock::new(Shape::Llama)).start();
    let world = World::new();
    let text = PROTOCOL.replace("retrieval = 0.9", "retrieval = 0.5");
    assert_ne!(text, PROTOCOL);
    fs::write(world.path("small.toml"), text).unwrap();
    model_of_parts(&world);
    qualify(&world, &candidate.url(), &control.url())
        .assert()
        .code(0);
    let listed = candidate.posts().into_iter();
    let listed = listed.filter(|post| post.body["n_probs"].as_u64().is_some_and(|n| n > 1));
    assert!(listed.count() > 4);
    let panel = fs::read_to_string(world.path("run/panels/nll-256.jsonl")).unwrap();
    let cases: Vec<Value> = panel
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|line: &Value| line.get("prompt_ids").is_some())
        .collect();
    let records = world.records("SF", "nll-256");
    assert_eq!((cases.len(), records.len()), (33, 33));
    for (case, record) in cases.iter().zip(&records) {
        let ids: Vec<u32> = serde_json::from_value(case["prompt_ids"].clone()).unwrap();
        let expected: f64 = (ids.len() - 16..ids.len())
            .map(|at| mock.nll(&ids, at))
            .sum();
        let found = record["nll_sum"].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }
}

/// A server may echo a token that ends within a character as one Latin-1 character for each byte.
#[test]
fn tokens_within_a_character_may_be_echoed_as_their_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/tolerant/tokenizer.json");
    let definition: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let id = |token: &str| definition["model"]["vocab"][token].as_u64().unwrap() as u32;
    let bytes = [(id("\u{c3}"), "\u{c3}"), (id("\u{b7}"), "\u{b7}")];
    let echoing = move |mock: Mock, is_right: bool| {
        let answers = mock.clone();
        mock.with_fault(move |request: &Request| {
            let is_unknown = request.path.contains("chat") && BOOK.asked(request).is_none();
            if is_unknown {
                return Some(Reply::Json(200, completed("?", true, 9)));
            }
            request.body.get("echo")?;
            let Reply::Json(200, mut reply) = answers.reply(request) else {
                return None;
            };
            let tokens = &mut reply["choices"][0]["logprobs"]["tokens"];
            for (at, asked) in ids(request)?.into_iter().enumerate() {
                if let Some((_, text)) = bytes.iter().find(|(id, _)| *id == asked) {
                    tokens[at] = json!(if is_right { text } else { "\u{c4}" });
                }
            }
            Some(Reply::Json(200, reply))
        })
    };
    for (is_right, code) in [(true, 0), (false, 3)] {
        let candidate = echoing(Mock::candidate(Shape::Plain), is_right).start();
        let control = echoing(Mock::new(Shape::Plain), is_right).start();
        let world = World::new();
        let text = PROTOCOL.replace("retrieval = 0.9", "retrieval = 0.5");
        fs::write(world.path("small.toml"), text).unwrap();
        model_of_parts(&world);
        qualify(&world, &candidate.url(), &control.url())
            .assert()
            .code(code);
        let probe = &world.certificate()["servers"]["servers"][0]["probe"];
        assert_eq!(probe["likelihood"].is_object(), is_right);
        if is_right {
            assert_eq!(world.records("SF", "nll-256").len(), 33);
        }
    }
}

#[test]
fn targets_of_which_a_server_tells_nothing_make_the_panel_unsupported() {
    let brief = |mock: Mock| {
        mock.with_fault(|request: &Request| {
            let listed = request.body["n_probs"].as_u64()?;
            (listed > 1).then(|| Reply::Json(400, json!({"error": "one probability, no more"})))
        })
    };
    let candidate = brief(Mock::candidate(Shape::Llama)).start();
    let control = brief(Mock::new(Shape::Llama)).start();
    let world = World::new();
    model_of_parts(&world);
    qualify(&world, &candidate.url(), &control.url())
        .assert()
        .code(3);
    let found = &world.certificate()["objectives"]["preservation"];
    assert_eq!(found["reason"], "panel_unsupported");
    let detail = found["detail"].as_str().unwrap();
    assert!(
        detail.contains("targets that end within a character")
            && detail.contains("one probability, no more"),
        "{detail}"
    );
    assert!(!world.path("run/arms/SF/nll-256.jsonl").exists());
    assert_eq!(world.records("SF", "math").len(), 60);
}

#[test]
fn a_server_without_chat_leaves_its_chats_out() {
    let mute = |mock: Mock| {
        mock.with_fault(|request: &Request| {
            let is_chat = request.path == "/v1/chat/completions";
            is_chat.then(|| Reply::Json(404, json!({"error": "no such endpoint"})))
        })
    };
    let candidate = mute(Mock::candidate(Shape::Vllm)).start();
    let control = Mock::new(Shape::Vllm).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(3);
    let certificate = world.certificate();
    let found = &certificate["objectives"]["preservation"];
    assert_eq!(found["reason"], "panel_unsupported");
    let detail = found["detail"].as_str().unwrap();
    assert!(
        detail.contains("the server of candidate answers no chat messages")
            && detail.contains("no such endpoint"),
        "{detail}"
    );
    assert!(!world.path("run/arms/SF/math.jsonl").exists());
    assert_eq!(world.records("SF", "nll-256").len(), 33);
    let probe = &certificate["servers"]["servers"][0]["probe"];
    assert!(probe["chat_refused"].is_string());
}

#[test]
fn a_form_of_likelihoods_at_which_a_server_breaks_is_not_its_only_one() {
    let broken = |mock: Mock| {
        mock.with_fault(|request: &Request| {
            request.body.get("prompt_logprobs")?;
            Some(Reply::Json(500, json!({"error": "out of memory"})))
        })
    };
    let candidate = broken(Mock::candidate(Shape::Vllm)).start();
    let control = broken(Mock::new(Shape::Vllm)).start();
    let world = World::new();
    let mut command = world.qualify(&candidate.url(), &control.url());
    command.assert().code(0);
    let probe = &world.certificate()["servers"]["servers"][0]["probe"];
    assert_eq!(probe["likelihood"]["dialect"], "echo_logprobs");
}
