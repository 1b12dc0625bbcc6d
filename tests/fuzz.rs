//! Foreign bytes, mutated: whatever is read from files ends in a value or an error, never in a
//! panic, and nothing is allocated because a header claims it. Seeded, so a failure comes again;
//! `KVASSAY_FUZZ=50` tries fifty times as many mutations.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod support;
mod tiny;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use kvassay::certify;
use kvassay::engine::http::reply;
use kvassay::model::{self, GgufWeights, SafetensorsWeights};
use kvassay::panel::read_panel;
use kvassay::schema::{Protocol, builtin_protocols, sha256_hex};
use kvassay::store::RunDir;
use support::models::Noise;
use tiny::Tiny;

/// Virtual memory that no reader of small files comes near.
#[cfg(target_os = "linux")]
const MOST_MEMORY_KIB: u64 = 3 << 20;

/// Sizes and counts that a hostile header claims.
const CLAIMS: [u64; 8] = [
    0,
    1,
    1 << 31,
    1 << 32,
    1 << 60,
    (1 << 61) + 1,
    1 << 63,
    u64::MAX,
];

/// What takes the place of a number in a text.
const NUMBERS: [&str; 10] = [
    "0",
    "-1",
    "1e999",
    "-0.0",
    "1e-400",
    "4294967296",
    "1152921504606846976",
    "18446744073709551616",
    "null",
    "\"1\"",
];

struct Mutator {
    noise: Noise,
    /// Where mutations of binary files start, at most: headers decide more than weights.
    head: usize,
}

impl Mutator {
    fn below(&mut self, n: usize) -> usize {
        (self.noise.bits() % n.max(1) as u64) as usize
    }

    fn place(&mut self, length: usize) -> usize {
        let head = self.head.min(length);
        self.below(head)
    }

    /// One to three mutations.
    fn mutate(&mut self, sound: &[u8]) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        for _ in 0..=self.below(3) {
            self.mutate_once(&mut bytes);
        }
        bytes
    }

    fn mutate_once(&mut self, bytes: &mut Vec<u8>) {
        let at = self.place(bytes.len());
        match self.below(10) {
            0 => bytes.truncate(at),
            1 | 2 => {
                let bit = 1 << self.below(8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bit;
                }
            }
            3 => self.claim::<8>(bytes, at),
            4 => self.claim::<4>(bytes, at),
            5 => {
                let end = (at + 1 + self.below(40)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            6 => {
                let end = (at + 1 + self.below(200)).min(bytes.len());
                let copy = bytes[at.min(end)..end].to_vec();
                bytes.splice(at..at, copy);
            }
            7 | 8 => self.number(bytes, at),
            _ => {
                let open = [b'[', b'{', b'"', 0xff][self.below(4)];
                let count = [1, 40, 20_000][self.below(3)];
                bytes.splice(at..at, std::iter::repeat_n(open, count));
            }
        }
    }

    fn claim<const N: usize>(&mut self, bytes: &mut [u8], at: usize) {
        let claim = CLAIMS[self.below(CLAIMS.len())].to_le_bytes();
        if let Some(place) = bytes.get_mut(at..at + N) {
            place.copy_from_slice(&claim[..N]);
        }
    }

    /// Replaces the next number in a text.
    fn number(&mut self, bytes: &mut Vec<u8>, at: usize) {
        let digit = |byte: &u8| byte.is_ascii_digit();
        let Some(start) = bytes[at..].iter().position(digit).map(|found| at + found) else {
            return;
        };
        let length = bytes[start..].iter().take_while(|byte| digit(byte)).count();
        let number = NUMBERS[self.below(NUMBERS.len())];
        bytes.splice(start..start + length, number.bytes());
    }
}

/// Reads `rounds` mutations of `sound` with `read`, which says whether the bytes were accepted.
/// Mutations that only the unchanged bytes survive would test the digest alone, so some must be
/// refused; how many are accepted depends on the format.
fn fuzz(name: &str, sound: &[u8], head: usize, rounds: u64, mut read: impl FnMut(&[u8]) -> bool) {
    assert!(read(sound), "{name}: the sound bytes are refused");
    let rounds = rounds * times();
    let mut refused = 0;
    for round in 0..rounds {
        let mut mutator = Mutator {
            noise: Noise(round << 8 | 0x5a),
            head,
        };
        let bytes = mutator.mutate(sound);
        match catch_unwind(AssertUnwindSafe(|| read(&bytes))) {
            Ok(accepted) => refused += u64::from(!accepted),
            Err(_) => panic!("{name}: round {round} panicked"),
        }
    }
    assert!(
        refused > rounds / 10,
        "{name}: {refused} of {rounds} refused"
    );
    assert_memory(name);
}

fn times() -> u64 {
    let asked = std::env::var("KVASSAY_FUZZ").ok();
    asked.map_or(1, |times| times.parse().unwrap())
}

/// The largest virtual size so far stays small.
#[cfg(target_os = "linux")]
fn assert_memory(name: &str) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmPeak:"))
        .unwrap();
    let kib: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kib < MOST_MEMORY_KIB, "{name}: {kib} KiB of memory");
}

#[cfg(not(target_os = "linux"))]
fn assert_memory(_: &str) {}

/// An error says something, in one line.
fn accepted<T, E: std::fmt::Display>(outcome: Result<T, E>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// A folder with copies of fixtures, one of which is mutated.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, from) in files {
        fs::copy(fixture(from), root.path().join(name)).unwrap();
    }
    root
}

#[test]
fn gguf_files() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("tiny.gguf");
    let sound = fs::read(fixture("gguf/tiny.gguf")).unwrap();
    fuzz("gguf", &sound, 24_000, 3_000, |bytes| {
        fs::write(&path, bytes).unwrap();
        let weights = accepted(GgufWeights::open(&path));
        // Reads the tokenizer as well.
        let whole = accepted(model::open(&path).map(|files| files.identity()));
        weights && whole
    });
}

#[test]
fn safetensors_files_and_their_index() {
    let root = folder(&[
        ("config.json", "parity/llama/config.json"),
        (
            "model.safetensors.index.json",
            "parity/llama/model.safetensors.index.json",
        ),
        (
            "model-00001-of-00002.safetensors",
            "parity/llama/model-00001-of-00002.safetensors",
        ),
        (
            "model-00002-of-00002.safetensors",
            "parity/llama/model-00002-of-00002.safetensors",
        ),
    ]);
    let config = model::read_config(&root.path().join("config.json")).unwrap();
    for (name, head, rounds) in [
        ("model-00001-of-00002.safetensors", 1_600, 700),
        ("model.safetensors.index.json", usize::MAX, 400),
    ] {
        let path = root.path().join(name);
        let sound = fs::read(&path).unwrap();
        fuzz(name, &sound, head, rounds, |bytes| {
            fs::write(&path, bytes).unwrap();
            accepted(
                SafetensorsWeights::open(root.path()).and_then(|weights| weights.check(&config)),
            )
        });
        fs::write(&path, sound).unwrap();
    }
}

#[test]
fn configs() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("config.json");
    for family in ["llama", "llama-yarn", "llama-llama3", "qwen2", "qwen3"] {
        let sound = fs::read(fixture(&format!("parity/{family}/config.json"))).unwrap();
        fuzz(family, &sound, usize::MAX, 1_500, |bytes| {
            fs::write(&path, bytes).unwrap();
            accepted(model::read_config(&path))
        });
    }
}

#[test]
fn tokenizers() {
    let tiny = Tiny::new();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let path = tiny.model().join(name);
        let sound = fs::read(&path).unwrap();
        fuzz(name, &sound, usize::MAX, 500, |bytes| {
            fs::write(&path, bytes).unwrap();
            let opened = model::open(&tiny.model());
            if let Ok(files) = &opened {
                let tokenizer = &files.tokenizer;
                let ids = tokenizer.encode_text("Ann has 3 pears, \u{e9}\u{1f350}.");
                if let Ok(ids) = ids {
                    tokenizer.decode(&ids);
                }
                tokenizer.decode(&[0, 257, u32::MAX]);
                let _ = tokenizer.render_chat(&[], true);
            }
            accepted(opened.map(|files| files.identity()))
        });
        fs::write(&path, sound).unwrap();
    }
}

#[test]
fn protocols() {
    for protocol in builtin_protocols() {
        let json = serde_json::to_string_pretty(&protocol).unwrap();
        fuzz("protocol JSON", json.as_bytes(), usize::MAX, 300, |bytes| {
            accepted(Protocol::from_json(&String::from_utf8_lossy(bytes)))
        });
    }
    for name in ["reference", "smoke"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("protocols/{name}.toml"));
        let sound = fs::read(path).unwrap();
        fuzz("protocol TOML", &sound, usize::MAX, 600, |bytes| {
            accepted(Protocol::from_toml(&String::from_utf8_lossy(bytes)))
        });
    }
}

/// A finished run of the tiny model, its files mutated one at a time and certified again.
#[test]
fn files_of_a_run() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "run"])
        .assert()
        .code(0);
    let run = tiny.path("run");
    for (name, rounds) in [
        ("run.json", 400),
        ("calibration.json", 100),
        ("arms/AF/engagement.json", 150),
        ("arms/SD/math.jsonl", 200),
        ("arms/native/nll-64.jsonl", 200),
        ("panels/math.jsonl", 100),
    ] {
        let path = run.join(name);
        let sound = fs::read(&path).unwrap();
        fuzz(name, &sound, usize::MAX, rounds, |bytes| {
            fs::write(&path, bytes).unwrap();
            let evidence = match RunDir::open(&run) {
                Ok(dir) => certify::load(&dir),
                Err(error) => return accepted(Err::<(), _>(error)),
            };
            match evidence {
                Ok(evidence) => accepted(certify::certify("AF", &evidence)) && bytes == sound,
                Err(error) => accepted(Err::<(), _>(error)),
            }
        });
        fs::write(&path, sound).unwrap();
    }
}

#[test]
fn panels() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "run", "--limit", "1"])
        .assert()
        .code(3);
    let path = tiny.path("mutated.jsonl");
    for name in ["math", "nll-64", "retrieval-768"] {
        let sound = fs::read(tiny.path(&format!("run/panels/{name}.jsonl"))).unwrap();
        fuzz(name, &sound, usize::MAX, 300, |bytes| {
            fs::write(&path, bytes).unwrap();
            // A digest that fits: the lines themselves are in question.
            accepted(read_panel(&path, &sha256_hex(bytes)))
        });
    }
}

/// What servers send, mutated: an answer, a sum of likelihoods, or an error that names the field.
#[test]
fn replies_of_servers() {
    let chat = r#"{"id":"a","model":"m","choices":[{"index":0,"finish_reason":"stop","message":
        {"role":"assistant","content":"It is 12.","reasoning_content":null}}],
        "usage":{"prompt_tokens":7,"completion_tokens":5}}"#;
    let text = chat.replace("\"message\":", "\"text\":\"x\",\"other\":");
    let prompt = r#"{"choices":[{"finish_reason":"length","text":"","prompt_logprobs":[null,
        {"11":{"logprob":-1.5,"rank":1}},{"12":{"logprob":-0.25},"9":{"logprob":-9}}]}]}"#;
    let echo = r#"{"choices":[{"finish_reason":"length","text":"ab","logprobs":
        {"tokens":["a","b","c"],"token_logprobs":[null,-1.5,-0.25]}}]}"#;
    let forced = r#"{"model":"m","tokens_evaluated":2,"completion_probabilities":
        [{"id":12,"token":"c","logprob":-0.25}]}"#;
    let ids = [10, 11, 12];
    type Read<'a> = &'a dyn Fn(&serde_json::Value) -> Result<f64, String>;
    let finite = |sum: Result<f64, String>| {
        if let Ok(sum) = &sum {
            assert!(sum.is_finite() && *sum > -0.1);
        }
        sum
    };
    let listed = forced.replace(
        "\"logprob\"",
        "\"top_logprobs\":[{\"id\":9,\"logprob\":-0.5},{\"id\":11,\"logprob\":-2}],\"logprob\"",
    );
    let readers: [(&str, &str, Read<'_>); 6] = [
        ("chat", chat, &|reply| reply::chat(reply).map(|_| 0.0)),
        ("completion", &text, &|reply| {
            reply::completion(reply).map(|_| 0.0)
        }),
        ("prompt_logprobs", prompt, &|reply| {
            finite(reply::prompt_logprobs(reply, &ids, 2))
        }),
        ("echo", echo, &|reply| {
            let piece = |id: u32, text: &str| text == ["a", "b", "c"][id as usize - 10];
            finite(reply::echo_logprobs(reply, &ids, 2, piece))
        }),
        ("forced", forced, &|reply| {
            finite(reply::forced_token(reply, 12, 2).map(|logprob| -logprob))
        }),
        ("listed", &listed, &|reply| {
            finite(reply::listed_token(reply, 12, 11, 2).map(|logprob| -logprob))
        }),
    ];
    for (name, sound, read) in readers {
        fuzz(
            name,
            sound.as_bytes(),
            usize::MAX,
            3_000,
            |bytes| match serde_json::from_slice(bytes) {
                Ok(reply) => accepted(read(&reply)),
                Err(error) => accepted(Err::<(), _>(error)),
            },
        );
    }
}
