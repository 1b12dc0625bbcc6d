//! Signals. Ctrl-C: the first asks for a stop at the next forward pass, the second ends the process.
//! SIGXFSZ: writing beyond a file-size limit is an error that is reported, not a sudden end.

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

/// Keeps the process alive where a file grows beyond the limit that the shell set (`ulimit -f`):
/// the write then fails with EFBIG.
#[cfg(unix)]
pub(super) fn survive_file_size_limit() -> Result<(), Failure> {
    use signal_hook::consts::SIGXFSZ;
    // Any handler will do; nobody reads the flag.
    let flag = std::sync::Arc::new(AtomicBool::new(false));
    match signal_hook::flag::register(SIGXFSZ, flag) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::worker(anyhow::anyhow!(
            "cannot handle SIGXFSZ: {error}"
        ))),
    }
}

/// There is no such limit.
#[cfg(not(unix))]
pub(super) fn survive_file_size_limit() -> Result<(), Failure> {
    Ok(())
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
