//! Tests that must be alone in their process: what others do there changes what they see.

use std::process::Command;

/// Set in the process of such a test.
const ALONE: &str = "KVASSAY_TEST_ALONE";

/// Whether this process was started for the test `name` of `module` alone. Elsewhere it is started
/// here, and has to pass.
pub fn is_alone(module: &str, name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let (_, within_crate) = module.split_once("::").unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{within_crate}::{name}")])
        .env(ALONE, "")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains("test result: ok. 1 passed"), "{said}");
    false
}
