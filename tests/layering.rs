//! The layer table of the design and the limits on file length, enforced.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders of `src/` from the bottom up: a folder may use only those before it.
const LAYERS: [&str; 13] = [
    "stats", "recipe", "score", "schema", "store", "certify", "backend", "model", "engine",
    "panel", "import", "report", "cli",
];

/// Longest allowed source file, tests included.
const MAX_LINES: usize = 400;

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Layers that a source text names through `crate::`, grouped imports included.
fn named_layers(text: &str) -> Vec<&'static str> {
    let mut named = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let scope = if rest.starts_with('{') {
            &rest[..rest.find(';').unwrap_or(rest.len())]
        } else {
            &rest[..rest
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(rest.len())]
        };
        for layer in LAYERS {
            let mentioned = scope
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == layer);
            if mentioned {
                named.push(layer);
            }
        }
    }
    named
}

#[test]
fn every_folder_uses_only_folders_before_it() {
    let mut violations = Vec::new();
    for (level, layer) in LAYERS.iter().enumerate() {
        for file in sources(&src().join(layer)) {
            for used in named_layers(&fs::read_to_string(&file).unwrap()) {
                if LAYERS.iter().position(|other| *other == used).unwrap() > level {
                    violations.push(format!("{} uses {used}", file.display()));
                }
            }
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn every_folder_is_a_layer() {
    for entry in fs::read_dir(src()).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_dir() {
            let name = entry.file_name().into_string().unwrap();
            assert!(
                LAYERS.contains(&name.as_str()),
                "src/{name} is not in the layer table"
            );
        }
    }
}

#[test]
fn no_source_file_is_longer_than_the_limit() {
    let mut long = Vec::new();
    for file in sources(&src()) {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        if lines > MAX_LINES {
            long.push(format!("{}: {lines} lines", file.display()));
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn unsafe_stands_only_where_the_design_allows_it() {
    let mut found = Vec::new();
    for file in sources(&src()) {
        let allowed = file.starts_with(src().join("backend/cuda"))
            || file.starts_with(src().join("model/file_bytes.rs"));
        let text = fs::read_to_string(&file).unwrap();
        let used = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "unsafe")
        });
        if used && !allowed {
            found.push(file.display().to_string());
        }
    }
    assert!(found.is_empty(), "unsafe in {found:#?}");
}

#[test]
fn the_checks_see_what_they_look_for() {
    assert_eq!(
        named_layers("use crate::{panel::Case, stats};"),
        ["stats", "panel"]
    );
    assert_eq!(named_layers("let x = crate::cli::main();"), ["cli"]);
    assert!(named_layers("use crate::stats_of_something;").is_empty());
}
