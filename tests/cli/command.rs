//! The binary, and what it says.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;

use crate::tiny::Tiny;

/// `kvassay ARGS`, from the crate's folder.
pub fn kvassay(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("kvassay").expect("the binary is built beside the tests");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(args);
    command
}

/// What a command prints that succeeds.
pub fn stdout(args: &[&str]) -> String {
    let output = kvassay(args).assert().success().get_output().clone();
    assert!(output.stderr.is_empty(), "data goes to stdout alone");
    String::from_utf8(output.stdout).expect("stdout is UTF-8")
}

/// What a command says that is refused with exit code 2.
pub fn stderr(args: &[&str]) -> String {
    let output = kvassay(args).assert().code(2).get_output().clone();
    assert!(output.stdout.is_empty(), "errors go to stderr alone");
    String::from_utf8(output.stderr).expect("stderr is UTF-8")
}

/// `kvassay ARGS` in the tiny world: exit code, stdout, stderr.
pub fn in_tiny_world(tiny: &Tiny, args: &[&str]) -> (i32, String, String) {
    let output = tiny.kvassay().args(args).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// What a file holds.
pub fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
