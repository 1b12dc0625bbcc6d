//! Verification through the public interface: an honest run is verified, and nothing that was
//! changed in its certificate or in the evidence below it goes unseen.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

mod alone;
mod binary;
mod certificates;
mod edits;
mod evidence;
mod flips;
mod forged;
mod schemas;
mod synthetic;

use std::fs;
use std::path::Path;

use kvassay::certify::verify::{Disagreement, against_run};
use kvassay::store::{RunDir, read_certificate};

/// How a verification ends: the exit codes 0, 5 and 2.
#[derive(Debug)]
enum Outcome {
    Verified,
    Mismatch(Vec<Disagreement>),
    Refused(String),
}

impl Outcome {
    fn is_caught(&self) -> bool {
        !matches!(self, Outcome::Verified)
    }

    /// Everything that was said, one line each.
    fn text(&self) -> String {
        match self {
            Outcome::Verified => "verified".to_owned(),
            Outcome::Refused(why) => why.clone(),
            Outcome::Mismatch(list) => {
                let lines: Vec<String> = list.iter().map(Disagreement::to_string).collect();
                lines.join("\n")
            }
        }
    }
}

/// What the command does with `--run`, within this process.
fn verify(certificate: &Path, run: &Path) -> Outcome {
    let certificate = match read_certificate(certificate) {
        Ok(certificate) => certificate,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let dir = match RunDir::open(run) {
        Ok(dir) => dir,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    let found = against_run(&certificate, &dir, None).unwrap();
    if found.is_empty() {
        Outcome::Verified
    } else {
        Outcome::Mismatch(found)
    }
}

/// Every file below `root`, by its relative path.
fn files(root: &Path) -> Vec<String> {
    fn collect(root: &Path, dir: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(root, &path, found);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    let mut found = Vec::new();
    collect(root, root, &mut found);
    found.sort();
    found
}

/// Runs `judge` while the file at `path` holds `bytes`; `None` takes the file away.
fn with_file<T>(path: &Path, bytes: Option<&[u8]>, judge: impl FnOnce() -> T) -> T {
    let before = fs::read(path).unwrap();
    match bytes {
        Some(bytes) => fs::write(path, bytes).unwrap(),
        None => fs::remove_file(path).unwrap(),
    }
    let found = judge();
    fs::write(path, before).unwrap();
    found
}
