//! The binary under fire: killed at random moments, out of space, beyond a file-size limit, beside
//! another writer, on a read-only folder. It says what happened in one line with the right exit
//! code, and a resumed run ends with the bytes of an uninterrupted one.

#![cfg(unix)]
#![allow(clippy::print_stdout, clippy::unwrap_used)] // Helpers outside of test functions.

mod tiny;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tiny::{Tiny, files, outcome};

/// What is run, but for `--out`, and the exit code of a complete run.
const ARGS: [&str; 12] = [
    "qualify",
    "AF",
    "SD",
    "--model",
    "tiny-llama",
    "--protocol",
    "tiny.json",
    "--data",
    "data",
    "--worker",
    "cpu",
    "--resume",
];
const COMPLETE: i32 = 1;

/// The same for a demo model on a few of its panels' cases.
const DEMO_ARGS: [&str; 10] = [
    "qualify",
    "AF",
    "SD",
    "--model",
    "demo-sensitive",
    "--protocol",
    "demo-small.json",
    "--worker",
    "cpu",
    "--resume",
];

/// Kills at random moments, of each model.
const KILLS: usize = 20;

const BINARY: &str = env!("CARGO_BIN_EXE_kvassay");

fn command(tiny: &Tiny, out: &str) -> Command {
    command_with(&ARGS, tiny, out)
}

fn command_with(args: &[&str], tiny: &Tiny, out: &str) -> Command {
    let mut command = Command::new(BINARY);
    command
        .current_dir(tiny.path("."))
        .args(args)
        .args(["--out", out]);
    command
}

fn complete(tiny: &Tiny, out: &str) -> BTreeMap<String, Vec<u8>> {
    complete_with(&ARGS, tiny, out)
}

fn complete_with(args: &[&str], tiny: &Tiny, out: &str) -> BTreeMap<String, Vec<u8>> {
    let output = command_with(args, tiny, out).output().unwrap();
    assert_eq!(output.status.code(), Some(COMPLETE), "{}", stderr(&output));
    outcome(&tiny.path(out))
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The last line on stderr, which progress may precede, and nothing on stdout.
fn refusal(output: &Output, code: i32) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(output.stdout.is_empty());
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("kvassay: error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

/// What a killed run left behind: prefixes of the whole run's record files, whole documents.
fn assert_beginning(found: &BTreeMap<String, Vec<u8>>, whole: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in found.iter().filter(|(name, _)| !name.ends_with(".tmp")) {
        if name.starts_with("arms") && name.ends_with(".jsonl") {
            assert!(whole[name].starts_with(bytes), "{name} is no prefix");
        } else if name.ends_with("engagement.json") {
            // Without its totals as long as the arm is not finished.
            assert!(serde_json::from_slice::<serde_json::Value>(bytes).is_ok());
        } else {
            assert!(*bytes == whole[name], "{name} has other bytes");
        }
    }
}

fn start(args: &[&str], tiny: &Tiny, out: &str) -> Child {
    command_with(args, tiny, out)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Up to `span`.
fn random(state: &mut u64, span: Duration) -> Duration {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    span.mul_f64((*state >> 11) as f64 / (1u64 << 53) as f64)
}

#[test]
fn killed_at_random_moments_it_ends_with_the_same_bytes() {
    kill(&ARGS, &[]);
}

#[test]
fn killed_with_arms_side_by_side_it_ends_with_the_bytes_of_a_serial_run() {
    kill(&ARGS, &["--jobs", "3"]);
}

#[test]
fn killed_with_a_demo_model_it_ends_with_the_same_bytes() {
    kill(&DEMO_ARGS, &[]);
}

/// Kills runs with `more` arguments, and compares them with a whole run without.
fn kill(args: &[&str], more: &[&str]) {
    let tiny = Tiny::new();
    tiny.write_small_demo();
    let started = Instant::now();
    let whole = complete_with(args, &tiny, "whole");
    let killed = [args, more].concat();
    let span = started.elapsed() / 3;
    let (mut state, mut kills, mut runs, mut inside) = (8_128, 0, 0, 0);
    while kills < KILLS {
        let name = format!("killed-{runs}");
        runs += 1;
        let mut tries = 0;
        loop {
            let mut child = start(&killed, &tiny, &name);
            // Ever longer, so that a busy machine comes to the end of the run as well.
            let patience = span.mul_f64(1.0 + tries as f64 / 8.0);
            tries += 1;
            if kills < KILLS {
                std::thread::sleep(random(&mut state, patience));
                child.kill().unwrap();
            }
            if let Some(code) = child.wait().unwrap().code() {
                assert_eq!(code, COMPLETE);
                break;
            }
            kills += 1;
            if tiny.path(&name).exists() {
                inside += 1;
                assert_beginning(&outcome(&tiny.path(&name)), &whole);
            }
        }
        let found = outcome(&tiny.path(&name));
        let is_other = |file: &&String| found.get(*file) != whole.get(*file);
        let others: Vec<&String> = found.keys().chain(whole.keys()).filter(is_other).collect();
        assert!(others.is_empty(), "{name}: other bytes in {others:?}");
    }
    assert!(inside > KILLS / 8, "{inside} kills hit a run directory");
    println!("{kills} kills in {runs} runs, {inside} of them with a run directory");
}

/// `sh` counts in blocks of 512 bytes or of 1024, so limits are tried from small to large.
#[test]
fn a_file_size_limit_is_an_error_and_no_obstacle_to_a_resume() {
    let tiny = Tiny::new();
    let whole = complete(&tiny, "whole");
    let mut refused = 0;
    for blocks in [0, 1, 2, 3, 4, 6] {
        let out = format!("limit-{blocks}");
        let script = format!("ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &script, BINARY])
            .args(ARGS)
            .args(["--out", &out])
            .current_dir(tiny.path("."))
            .output()
            .unwrap();
        if output.status.code() == Some(COMPLETE) {
            continue;
        }
        refused += 1;
        let error = refusal(&output, 4);
        assert!(
            error.contains(&out) && error.contains("too large"),
            "{error}"
        );
        assert_beginning(&outcome(&tiny.path(&out)), &whole);
        assert!(complete(&tiny, &out) == whole, "{out}: other bytes");
    }
    assert!(refused >= 4, "{refused} limits were felt");
}

/// A file system of its own that is full, which takes a mount namespace without privileges.
#[test]
fn a_full_file_system_is_an_error_and_no_obstacle_to_a_resume() {
    let tiny = Tiny::new();
    let whole = complete(&tiny, "whole");
    let script = "mkdir run copy && mount -t tmpfs -o size=\"$1\" kvassay-test run || exit 77; \
                  shift; \"$@\" --out run 2>first; echo $? >first.code; \
                  mount -o remount,size=16m run; \"$@\" --out run >second 2>&1; \
                  echo $? >second.code; cp -r run/. copy";
    for size in ["20k", "32k", "48k"] {
        let namespace = ["--user", "--map-root-user", "--mount", "sh", "-c"];
        let status = Command::new("unshare")
            .args(namespace)
            .args([script, "sh", size, BINARY])
            .args(ARGS)
            .current_dir(tiny.path("."))
            .stdout(Stdio::null())
            .status();
        let Some(0) = status.ok().and_then(|status| status.code()) else {
            writeln!(std::io::stdout(), "skipped: no mount namespaces here").unwrap();
            return;
        };
        let read = |name: &str| fs::read_to_string(tiny.path(name)).unwrap();
        assert_eq!(read("first.code").trim(), "4", "{size}: {}", read("first"));
        assert!(
            read("first").contains("kvassay: error: run/") && read("first").contains("No space"),
            "{}",
            read("first")
        );
        assert_eq!(
            read("second.code").trim(),
            COMPLETE.to_string(),
            "{}",
            read("second")
        );
        assert!(outcome(&tiny.path("copy")) == whole, "{size}: other bytes");
        fs::remove_dir_all(tiny.path("copy")).unwrap();
        fs::remove_dir(tiny.path("run")).unwrap();
    }
}

#[test]
fn a_second_writer_is_refused_and_the_first_is_not_disturbed() {
    let tiny = Tiny::new();
    let whole = complete(&tiny, "whole");
    // Long answers, so that the first writer is still at it.
    let mut protocol = tiny::protocol();
    protocol["panels"][0]["max_new_tokens"] = 600.into();
    fs::write(tiny.protocol(), protocol.to_string()).unwrap();
    let mut first = start(&ARGS, &tiny, "run");
    while !tiny.path("run/arms/native/math.jsonl").exists() {
        assert!(first.try_wait().unwrap().is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(1));
    }
    let second = command(&tiny, "run").output().unwrap();
    assert!(
        first.try_wait().unwrap().is_none(),
        "ended before the second writer"
    );
    let error = refusal(&second, 2);
    assert!(
        error.contains("run/run.lock: held by another process"),
        "{error}"
    );
    // Without --resume too.
    let args: Vec<&str> = ARGS.into_iter().filter(|arg| *arg != "--resume").collect();
    let third = Command::new(BINARY)
        .current_dir(tiny.path("."))
        .args(args)
        .args(["--out", "run"])
        .output()
        .unwrap();
    assert!(refusal(&third, 2).contains("run/run.json: found a run"));
    first.kill().unwrap();
    first.wait().unwrap();
    // A killed process holds no lock.
    assert!(tiny.path("run/run.lock").exists());
    fs::remove_dir_all(tiny.path("run")).unwrap();
    fs::create_dir(tiny.path("run")).unwrap();
    fs::write(tiny.path("run/run.lock"), "").unwrap();
    fs::write(tiny.protocol(), tiny::protocol().to_string()).unwrap();
    assert!(complete(&tiny, "run") == whole);
}

#[test]
fn a_run_of_a_newer_version_is_left_alone() {
    let tiny = Tiny::new();
    complete(&tiny, "run");
    for (file, found) in [
        ("run.json", "kvassay.run/2"),
        ("calibration.json", "kvassay.calibration/2"),
        ("arms/AF/engagement.json", "kvassay.engagement/7"),
        ("certificates/SD.json", "kvassay.certificate/3"),
    ] {
        let path = tiny.path("run").join(file);
        let sound = fs::read_to_string(&path).unwrap();
        let (name, _) = found.rsplit_once('/').unwrap();
        let newer = sound.replacen(&format!("{name}/1"), found, 1);
        assert_ne!(newer, sound);
        fs::write(&path, &newer).unwrap();
        let before = files(&tiny.path("run"));
        let error = refusal(&command(&tiny, "run").output().unwrap(), 2);
        assert!(error.contains(file) && error.contains(found), "{error}");
        assert!(error.contains("not overwritten"), "{error}");
        let certify = Command::new(BINARY)
            .current_dir(tiny.path("."))
            .args(["certify", "run"])
            .output()
            .unwrap();
        assert!(refusal(&certify, 2).contains(found));
        assert!(
            files(&tiny.path("run")) == before,
            "{file}: something was written"
        );
        fs::write(&path, sound).unwrap();
    }
}

#[test]
fn a_read_only_folder_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let tiny = Tiny::new();
    let folder = tiny.path("closed");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(folder.join("probe"), "").is_ok() {
        writeln!(std::io::stdout(), "skipped: this user may write anywhere").unwrap();
        return;
    }
    for out in ["closed", "closed/run"] {
        let error = refusal(&command(&tiny, out).output().unwrap(), 4);
        assert!(
            error.contains("closed") && error.contains("ermission"),
            "{error}"
        );
    }
}
