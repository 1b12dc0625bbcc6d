//! The binary, and what it says.

use assert_cmd::Command;

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
