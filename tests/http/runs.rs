//! What runs on servers must keep: the key to themselves, one answer per case, servers apart.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::mock::{BOOK, MODEL, Mock, PROTOCOL, Shape, World, counts};
use crate::server::{Reply, Request};

const KEY: &str = "sk-very-secret-1234567890";

/// Every file below `path` that holds `text`.
fn holding(path: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else {
            let bytes = fs::read(&path).unwrap();
            if bytes
                .windows(text.len())
                .any(|window| window == text.as_bytes())
            {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// A server that wants the key and repeats it wherever it can.
fn gossip(mock: Mock) -> Mock {
    let answers = mock.clone();
    mock.with_fault(move |request: &Request| {
        if request.header("authorization") != Some(&format!("Bearer {KEY}")) {
            return Some(Reply::Json(401, json!({"error": "no key"})));
        }
        let known = BOOK.asked(request).filter(|_| counts(request))?;
        if known.panel != "math" {
            return None;
        }
        match known.index {
            1 => Some(Reply::Json(400, json!({"error": format!("bad {KEY}")}))),
            // The key lies across the cut of the message, and is escaped as JSON may be.
            3 => {
                let error = format!("{}{KEY}", "x".repeat(300 - 10 - KEY.len() / 2));
                Some(Reply::Json(400, json!({"error": error})))
            }
            4 => {
                let body = format!("{{\"error\":\"bad {}\"}}", KEY.replace('-', "\\u002d"));
                Some(Reply::Raw(400, Vec::new(), body.into_bytes()))
            }
            2 => {
                let Reply::Json(200, mut reply) = answers.reply(request) else {
                    return None;
                };
                reply["choices"][0]["message"]["content"] = json!(format!("{KEY} #### 1"));
                Some(Reply::Json(200, reply))
            }
            _ => None,
        }
    })
}

#[test]
fn the_key_is_sent_and_shown_nowhere() {
    let candidate = gossip(Mock::candidate(Shape::Vllm)).start();
    let control = gossip(Mock::new(Shape::Vllm)).start();
    for from_file in [false, true] {
        let world = World::new();
        let mut command = world.qualify(&candidate.url(), &control.url());
        if from_file {
            fs::write(world.path("key"), format!("{KEY}\n")).unwrap();
            command.args(["--api-key-file", "key"]);
        } else {
            command.env("OPENAI_API_KEY", KEY);
        }
        let output = command.assert().code(3).get_output().clone();
        for stream in [&output.stdout, &output.stderr] {
            assert!(!String::from_utf8_lossy(stream).contains(KEY));
        }
        assert!(holding(&world.path("run"), KEY).is_empty());
        let records = world.records("SF", "math");
        let error = |at: usize| records[at]["error"].as_str().unwrap().to_owned();
        assert!(error(1).contains("bad [API key]"), "{}", error(1));
        assert!(
            error(3).ends_with("xx[API key]\"}") || error(3).ends_with("xx[API key"),
            "{}",
            error(3)
        );
        assert!(error(4).contains("bad [API key]"), "{}", error(4));
        assert!(holding(&world.path("run"), &KEY[..8]).is_empty());
        assert!(
            error(2).contains("the reply repeats the API key"),
            "{}",
            error(2)
        );
    }
    // A wrong key ends the run and is not shown either.
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .env("OPENAI_API_KEY", "sk-wrong-key")
        .assert()
        .code(4)
        .stderr(contains("status 401").and(contains("sk-wrong-key").not()));
}

#[test]
fn a_server_is_not_compared_with_itself() {
    let server = Mock::candidate(Shape::Vllm).start();
    let port = server.url().rsplit_once(':').unwrap().1.to_owned();
    for control in [
        server.url(),
        format!("{}/v1/", server.url()),
        format!("http://localhost:{port}"),
    ] {
        let world = World::new();
        world
            .qualify(&server.url(), &control)
            .assert()
            .code(2)
            .stderr(contains("a server compared with itself shows nothing"));
        assert!(!world.path("run").exists());
    }
    // Another address of the same process, as its metrics say.
    let same = |mock: Mock| {
        mock.with_fault(|request: &Request| {
            let text = b"vllm:x 1\nprocess_start_time_seconds 1.76e9\n".to_vec();
            (request.path == "/metrics").then(|| Reply::Raw(200, Vec::new(), text))
        })
    };
    let (one, other) = (
        same(Mock::candidate(Shape::Vllm)).start(),
        same(Mock::new(Shape::Vllm)).start(),
    );
    World::new()
        .qualify(&one.url(), &other.url())
        .assert()
        .code(2)
        .stderr(contains("both metrics say that the process began at"));
}

/// The proof, the verdict of preservation and its reason.
fn engaged(candidate: Mock, control: Mock) -> (String, Value, String) {
    let (candidate, control) = (candidate.start(), control.start());
    let world = World::new();
    let _ = world.qualify(&candidate.url(), &control.url()).assert();
    let found = world.certificate();
    let preservation = &found["objectives"]["preservation"];
    assert_eq!(
        found["objectives"]["aggregate"]["verdict"],
        preservation["verdict"]
    );
    (
        found["server_engagement"]["proof"]
            .as_str()
            .unwrap()
            .to_owned(),
        json!([preservation["verdict"], preservation["reason"]]),
        preservation["detail"].to_string() + &found["caveats"].to_string(),
    )
}

#[test]
fn engagement_is_reported_observed_or_unproved() {
    let (pass, unproved) = (
        json!(["pass", null]),
        json!(["not_established", "engagement_unproved"]),
    );
    let (proof, verdict, text) = engaged(Mock::new(Shape::Plain), Mock::new(Shape::Plain));
    assert_eq!((proof.as_str(), &verdict), ("none", &unproved));
    assert!(
        text.contains("none of 113 records differs from native"),
        "{text}"
    );

    let (proof, verdict, text) = engaged(Mock::candidate(Shape::Plain), Mock::new(Shape::Plain));
    assert_eq!((proof.as_str(), &verdict), ("observed_difference", &pass));
    assert!(text.contains("observed_difference"), "{text}");

    let silent = Mock {
        shift: 0.0,
        ..Mock::candidate(Shape::Vllm)
    };
    let (proof, verdict, text) = engaged(silent, Mock::new(Shape::Vllm));
    assert_eq!((proof.as_str(), &verdict), ("reported", &pass));
    assert!(
        text.contains("not shown that records differ by more than noise"),
        "{text}"
    );

    // Whatever differs: servers that say the same of their caches store the same.
    let same = Mock {
        cache: "auto",
        ..Mock::candidate(Shape::Vllm)
    };
    let (proof, verdict, text) = engaged(same, Mock::new(Shape::Vllm));
    assert_eq!((proof.as_str(), &verdict), ("none", &unproved));
    assert!(
        text.contains("keys in auto and values in auto")
            && text.contains("as does that of control native"),
        "{text}"
    );

    let other = Mock {
        cache: "fp8_e5m2",
        ..Mock::candidate(Shape::Vllm)
    };
    let (_, verdict, text) = engaged(other, Mock::new(Shape::Vllm));
    assert_eq!(verdict, unproved);
    assert!(text.contains("reports keys in fp8_e5m2"), "{text}");

    let quantised = Mock {
        cache: "fp8",
        ..Mock::new(Shape::Vllm)
    };
    let (_, verdict, text) = engaged(Mock::candidate(Shape::Vllm), quantised);
    assert_eq!(verdict, unproved);
    assert!(
        text.contains("control native: the server reports keys in fp8"),
        "{text}"
    );
}

/// A control that answers some questions otherwise when it is asked again.
fn noisy(mock: Mock, differing: usize) -> Mock {
    let asked = Mutex::new(HashMap::<usize, u32>::new());
    let answers = mock.clone();
    mock.with_fault(move |request: &Request| {
        let known = BOOK.asked(request).filter(|_| counts(request))?;
        let mut asked = asked.lock().unwrap();
        let count = asked.entry(known.index).or_insert(0);
        *count += u32::from(known.panel == "math");
        let again = known.panel == "math" && *count == 2 && known.index < differing;
        let text = format!("Well: {}", answers.text(known));
        again.then(|| Reply::Json(200, crate::mock::completed(&text, true, 9)))
    })
}

#[test]
fn a_difference_within_the_noise_proves_nothing() {
    // 33 windows of the candidate differ, and so many answers of the control from itself.
    let (proof, verdict, text) = engaged(
        Mock::candidate(Shape::Plain),
        noisy(Mock::new(Shape::Plain), 30),
    );
    assert_eq!(proof, "none");
    assert_eq!(verdict, json!(["not_established", "engagement_unproved"]));
    assert!(
        text.contains(
            "33 of 113 records differ from native where the first control agreed with itself and 30"
        ),
        "{text}"
    );
    let (proof, verdict, text) = engaged(
        Mock::candidate(Shape::Plain),
        noisy(Mock::new(Shape::Plain), 9),
    );
    assert_eq!(proof, "observed_difference", "{text}");
    assert_eq!(verdict, json!(["pass", null]));
}

/// The same rules hold for a certificate alone.
#[test]
fn a_certificate_of_servers_that_say_the_same_is_refused() {
    let (candidate, control) = (
        Mock::candidate(Shape::Vllm).start(),
        Mock::new(Shape::Vllm).start(),
    );
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(0);
    let certificate = world.certificate();
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 3] = [
        (
            |found| {
                let (mine, theirs) = (&mut found["servers"]["servers"], json!("auto"));
                mine[0]["identity"]["cache"]["k"] = theirs.clone();
                mine[0]["identity"]["cache"]["v"] = theirs;
            },
            "the same words are not the recipe",
        ),
        (
            |found| found["servers"]["servers"][1]["identity"]["cache"]["k"] = json!("q8_0"),
            "expected native storage",
        ),
        (
            |found| {
                let counts = &mut found["server_engagement"]["differences"]["native"];
                counts["noise_alone"] = json!(30);
            },
            "shows neither a reported format nor a difference from every control",
        ),
    ];
    for (change, words) in changes {
        let mut forged = certificate.clone();
        change(&mut forged);
        fs::write(world.path("forged.json"), forged.to_string()).unwrap();
        let output = world
            .kvassay()
            .args(["verify", "forged.json"])
            .assert()
            .code(5)
            .get_output()
            .clone();
        let text =
            String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn recipes_of_which_no_server_tells_are_refused() {
    for (recipe, words) in [
        ("k=e4m3:fixed,v=e4m3:fixed,q=e4m3", "a format of queries"),
        (
            "k=e4m3:fixed,v=e4m3:fixed,skip-layers=0",
            "layers that stay native",
        ),
    ] {
        let world = World::new();
        world
            .kvassay()
            .args([
                "qualify",
                recipe,
                "--protocol",
                "small.toml",
                "--out",
                "run",
            ])
            .args([
                "--worker",
                "http://127.0.0.1:1",
                "--control",
                "http://127.0.0.1:2",
            ])
            .assert()
            .code(2)
            .stderr(contains(words));
        assert!(!world.path("run").exists());
    }
}

/// A run that is killed has lost no answer that was there a moment before.
#[test]
fn records_are_written_while_later_answers_are_awaited() {
    let candidate = Mock::candidate(Shape::Vllm);
    let answers = candidate.clone();
    let candidate = candidate
        .with_fault(move |request: &Request| {
            let known = BOOK.asked(request).filter(|_| counts(request))?;
            if known.panel != "math" || known.index < 3 {
                return None;
            }
            match answers.reply(request) {
                Reply::Json(200, reply) => Some(Reply::After(Duration::from_secs(15), reply)),
                other => Some(other),
            }
        })
        .start();
    let control = Mock::new(Shape::Vllm).start();
    let world = World::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvassay"))
        .current_dir(world.dir.path())
        .env_remove("OPENAI_API_KEY")
        .args(["qualify", "SF", "--model", "demo-tolerant", "--out", "run"])
        .args(["--protocol", "small.toml", "--worker", &candidate.url()])
        .args(["--control", &control.url(), "--concurrency", "8"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let wait_for = |most: Duration, done: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !done() && began.elapsed() < most {
            std::thread::sleep(Duration::from_millis(20));
        }
        done()
    };
    let asked = || {
        let posts = candidate.posts();
        posts.iter().filter(|post| counts(post)).count() >= 8
    };
    let path = world.path("run/arms/SF/math.jsonl");
    let lines = || {
        fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .count()
    };
    let was_asked = wait_for(Duration::from_secs(60), &asked);
    let is_written = wait_for(Duration::from_secs(5), &|| lines() == 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(was_asked && is_written, "{was_asked} {}", lines());
}

#[test]
fn a_candidate_must_hold_against_each_control() {
    const LOST: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
    let candidate = Mock {
        wrong: LOST,
        ..Mock::candidate(Shape::Vllm)
    };
    let alike = Mock {
        wrong: LOST,
        ..Mock::new(Shape::Vllm)
    };
    let (candidate, alike) = (candidate.start(), alike.start());
    let better = Mock::new(Shape::Vllm).start();
    let world = World::new();
    let text = PROTOCOL.replace("[\"native\"]", "[\"alike\", \"better\"]");
    fs::write(world.path("small.toml"), text).unwrap();
    let alike_url = format!("alike={}", alike.url());
    world
        .qualify(&candidate.url(), &alike_url)
        .assert()
        .code(2)
        .stderr(contains("found none for control better"));
    world
        .qualify(&candidate.url(), &alike_url)
        .args(["--control", &format!("better={}", better.url())])
        .assert()
        .code(1)
        .stdout(contains("control better: correct math 60/60"));
    for arm in ["control-alike", "control-better", "native-aa", "SF"] {
        assert_eq!(world.records(arm, "math").len(), 60, "{arm}");
    }
    let certificate = world.certificate();
    let found = &certificate["objectives"]["preservation"];
    assert_eq!(found["reason"], "bound_exceeds_limit");
    let detail = found["detail"].as_str().unwrap();
    assert!(
        detail.contains("gross_loss on math against better"),
        "{detail}"
    );
    assert!(!detail.contains("against alike"), "{detail}");
    let held = |control: &str| {
        let rules = found["rules"].as_array().unwrap().iter();
        let of = rules.filter(|rule| rule["control"] == control);
        of.map(|rule| rule["pass"] == true).collect::<Vec<_>>()
    };
    assert_eq!(
        (held("alike"), held("better").contains(&false)),
        (vec![true; 3], true)
    );
    for args in [&["--run", "run"][..], &[]] {
        let mut command = world.kvassay();
        command
            .args(["verify", "run/certificates/SF.json"])
            .args(args);
        command.assert().code(0);
    }
}

#[test]
fn a_control_that_loses_to_itself_is_noise() {
    let asked = Mutex::new(HashMap::<usize, u32>::new());
    let noisy = Mock::new(Shape::Vllm).with_fault(move |request: &Request| {
        let known = BOOK.asked(request).filter(|_| counts(request))?;
        let mut asked = asked.lock().unwrap();
        let count = asked.entry(known.index).or_insert(0);
        *count += u32::from(known.panel == "math");
        let again = known.panel == "math" && *count == 2 && known.index < 15;
        again.then(|| Reply::Json(200, crate::mock::completed("?", true, 9)))
    });
    let (candidate, control) = (Mock::candidate(Shape::Vllm).start(), noisy.start());
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(1)
        .stdout(contains(
            "A/A (native against native): 15 lost, 0 gained, bits differ",
        ));
    let found = &world.certificate()["objectives"];
    assert_eq!(found["preservation"]["reason"], "control_noise");
    assert_eq!(found["aggregate"]["verdict"], "pass");
}

#[test]
fn a_model_that_changes_half_way_ends_the_run_and_what_is_stored_stays() {
    let changed = Arc::new(AtomicBool::new(true));
    let (flag, count) = (Arc::clone(&changed), Mutex::new(0));
    let candidate = Mock::candidate(Shape::Vllm);
    let answers = candidate.clone();
    let world = World::new();
    let records = world.path("run/arms/SF/math.jsonl");
    let candidate = candidate
        .with_fault(move |request: &Request| {
            counts(request).then_some(())?;
            let number = {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count
            };
            if number < 40 || !flag.load(Ordering::SeqCst) {
                return None;
            }
            // Not before something is stored, which a busy machine may take its time for.
            let until = Instant::now() + Duration::from_secs(20);
            let is_stored = || fs::metadata(&records).is_ok_and(|found| found.len() > 0);
            while !is_stored() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let Reply::Json(200, mut reply) = answers.reply(request) else {
                return None;
            };
            reply["model"] = json!("another");
            Some(Reply::Json(200, reply))
        })
        .start();
    let control = Mock::new(Shape::Vllm).start();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(4)
        .stderr(contains("the reply is of model another, expected demo"));
    let before = world.records("SF", "math");
    assert!((1..60).contains(&before.len()), "{}", before.len());
    assert!(!world.path("run/certificates").exists());
    let asked = candidate.posts().len();
    changed.store(false, Ordering::SeqCst);
    world
        .qualify(&candidate.url(), &control.url())
        .arg("--resume")
        .assert()
        .code(0);
    assert_eq!(world.records("SF", "math")[..before.len()], before[..]);
    assert_not_asked_again(&candidate.posts()[asked..], &before);
}

fn assert_not_asked_again(posts: &[Request], recorded: &[Value]) {
    for post in posts.iter().filter(|post| counts(post)) {
        let known = BOOK.asked(post).unwrap();
        let again = recorded
            .iter()
            .any(|record| record["case"] == known.case.as_str());
        assert!(!again, "{} was asked again", known.case);
    }
}

#[test]
fn a_killed_run_asks_no_recorded_case_again_and_ends_with_the_same_bytes() {
    let slow = |mock: Mock| {
        let answers = mock.clone();
        mock.with_fault(move |request: &Request| {
            counts(request).then_some(())?;
            match answers.reply(request) {
                Reply::Json(200, reply) => Some(Reply::After(Duration::from_millis(40), reply)),
                other => Some(other),
            }
        })
    };
    let candidate = slow(Mock::candidate(Shape::Vllm)).start();
    let control = slow(Mock::new(Shape::Vllm)).start();
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .args(["--concurrency", "4"])
        .assert()
        .code(0);
    let whole = fs::read(world.path("run/certificates/SF.json")).unwrap();
    fs::rename(world.path("run"), world.path("whole")).unwrap();

    let arguments = [
        "qualify",
        "SF",
        "--model",
        "demo-tolerant",
        "--out",
        "run",
        "--protocol",
        "small.toml",
        "--worker",
        &candidate.url(),
        "--control",
        &control.url(),
        "--retries",
        "3",
        "--concurrency",
        "4",
    ];
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvassay"))
        .current_dir(world.dir.path())
        .env_remove("OPENAI_API_KEY")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let path = world.path("run/arms/SF/math.jsonl");
    let began = Instant::now();
    while fs::metadata(&path).map_or(0, |found| found.len()) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let asked = candidate.posts().len();
    let text = fs::read_to_string(&path).unwrap();
    let recorded: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    assert!((1..60).contains(&recorded.len()), "{}", recorded.len());
    world
        .qualify(&candidate.url(), &control.url())
        .args(["--concurrency", "4", "--resume"])
        .assert()
        .code(0);
    assert_not_asked_again(&candidate.posts()[asked..], &recorded);
    let resumed = fs::read(world.path("run/certificates/SF.json")).unwrap();
    assert!(whole == resumed, "the certificates differ");
}

/// Parts on servers make the run that was never split.
#[test]
fn parts_on_servers_make_the_whole_run() {
    let (candidate, control) = (
        Mock::candidate(Shape::Vllm).start(),
        Mock::new(Shape::Vllm).start(),
    );
    let world = World::new();
    let qualify = || world.qualify(&candidate.url(), &control.url());
    qualify().assert().code(0);
    let certificate = |run: &str| fs::read(world.path(run).join("certificates/SF.json")).unwrap();
    let whole = certificate("run");
    for part in 1..=2 {
        fs::rename(world.path("run"), world.path(&format!("run-{}", part - 1))).unwrap();
        let shard = format!("{part}/2");
        qualify().args(["--shard", &shard]).assert().code(0);
    }
    let assert = world
        .kvassay()
        .args(["merge", "run", "run-1", "--out", "merged"])
        .assert();
    assert.code(0).stdout(contains("survey, nothing required"));
    assert!(whole == certificate("merged"), "the certificates differ");
}

#[test]
fn requests_are_greedy_and_alike() {
    let (candidate, control) = (
        Mock::candidate(Shape::Llama).start(),
        Mock::new(Shape::Llama).start(),
    );
    let world = World::new();
    world
        .qualify(&candidate.url(), &control.url())
        .assert()
        .code(0);
    for post in candidate.posts() {
        if post.path != "/tokenize" {
            assert_eq!(post.body["model"], MODEL, "{}", post.path);
            assert_eq!(post.body["temperature"], 0, "{}", post.path);
            assert_eq!(post.body["seed"], 0, "{}", post.path);
            assert_eq!(post.body["stream"], false, "{}", post.path);
            assert_eq!(post.body["cache_prompt"], post.path == "/completion");
        }
        if post.path.contains("chat") {
            assert_eq!(
                post.body["chat_template_kwargs"],
                json!({"enable_thinking": false})
            );
        }
    }
    let probe = &world.certificate()["servers"]["servers"][0]["probe"];
    assert_eq!(probe["prompt_cache_off"], true);
    assert_eq!(probe["likelihood"]["dialect"], "forced_tokens");
    assert_eq!(probe["parallel"]["prompts"], 16);
    assert_eq!(probe["repeatable"], true);
}
