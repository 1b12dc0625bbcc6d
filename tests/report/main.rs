//! `kvassay report` through the binary: what the page holds, what it escapes, and how it looks to a
//! browser.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod browser;
mod command;
mod escaping;
mod page;
#[path = "../verify/synthetic.rs"]
mod synthetic;

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

use synthetic::Synthetic;

/// What a command did.
struct Done {
    code: i32,
    out: String,
    err: String,
}

/// Runs `kvassay`.
fn kvassay(args: &[&str]) -> Done {
    let output = Command::cargo_bin("kvassay")
        .unwrap()
        .args(args)
        .output()
        .unwrap();
    Done {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Writes the page of a run beside it.
fn report(run: &Path, more: &[&str]) -> (Done, String) {
    let out = run.with_file_name("page.html");
    let mut args = vec![
        "report",
        run.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    args.extend(more);
    let done = kvassay(&args);
    let page = fs::read_to_string(&out).unwrap();
    (done, page)
}

/// The page of a run that is as it should be.
fn page(run: &Path) -> String {
    let (done, page) = report(run, &[]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    page
}

/// Changes every record of an arm on a panel, and issues the certificates again.
fn change_records(
    synthetic: &Synthetic,
    arm: &str,
    panel: &str,
    change: impl Fn(usize, &mut Value),
) {
    let path = synthetic.run().join(format!("arms/{arm}/{panel}.jsonl"));
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().enumerate().map(|(at, line)| {
        let mut record: Value = serde_json::from_str(line).unwrap();
        change(at, &mut record);
        record.to_string() + "\n"
    });
    fs::write(&path, lines.collect::<String>()).unwrap();
}

/// Issues the certificates of a run again.
fn certify(run: &Path) -> Done {
    kvassay(&["certify", run.to_str().unwrap()])
}

/// Changes a JSON document.
fn change_document(path: PathBuf, change: impl Fn(&mut Value)) {
    let mut document: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut document);
    fs::write(&path, document.to_string()).unwrap();
}
