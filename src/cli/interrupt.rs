//! Ctrl-C: the first asks for a stop at the next forward pass, the second ends the process.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Failure;

/// Exit code of a process ended by SIGINT.
const KILLED: i32 = 130;

static STOP: AtomicBool = AtomicBool::new(false);
static HANDLER: OnceLock<Result<(), String>> = OnceLock::new();

/// The flag that Ctrl-C sets; installs the handler on first use.
pub(super) fn stop_flag() -> Result<&'static AtomicBool, Failure> {
    let installed =
        HANDLER.get_or_init(|| ctrlc::set_handler(on_signal).map_err(|e| e.to_string()));
    match installed {
        Ok(()) => Ok(&STOP),
        Err(error) => Err(Failure::worker(anyhow::anyhow!(
            "cannot handle Ctrl-C: {error}"
        ))),
    }
}

fn on_signal() {
    if STOP.swap(true, Ordering::Relaxed) {
        std::process::exit(KILLED);
    }
    // Nothing is left to report to where stderr fails.
    let _ = writeln!(
        std::io::stderr(),
        "kvassay: stopping after this forward pass; Ctrl-C again ends at once"
    );
}
