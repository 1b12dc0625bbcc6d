//! Signals. The first that asks the process to end (Ctrl-C, SIGTERM, SIGHUP) asks for a stop at the
//! next forward pass, the second ends the process. SIGXFSZ: writing beyond a file-size limit is an
//! error that is reported, not a sudden end.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Failure;

/// Number of the signal that Ctrl-C sends.
const SIGINT: i32 = 2;
/// Added to a signal's number in the exit code of a process that it ended.
const KILLED: i32 = 128;

static STOP: AtomicBool = AtomicBool::new(false);
static HANDLER: OnceLock<Result<(), String>> = OnceLock::new();

/// The flag that a signal sets; installs the handler on first use.
pub(super) fn stop_flag() -> Result<&'static AtomicBool, Failure> {
    let installed = HANDLER.get_or_init(|| handle().map_err(|error| error.to_string()));
    match installed {
        Ok(()) => Ok(&STOP),
        Err(error) => Err(Failure::worker(anyhow::anyhow!(
            "cannot handle Ctrl-C: {error}"
        ))),
    }
}

/// Handles the signals in a thread of their own.
#[cfg(unix)]
fn handle() -> std::io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    use signal_hook::iterator::Signals;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    // `nohup` has it ignored, and a run is to outlive its terminal then.
    if !is_ignored(SIGHUP) {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || signals.forever().for_each(on_signal))?;
    Ok(())
}

/// Ctrl-C is all there is.
#[cfg(not(unix))]
fn handle() -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| on_signal(SIGINT))
}

/// Whether the process was started with `signal` ignored. Where the system does not say, it counts
/// as ignored and is left as it is.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
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

fn on_signal(signal: i32) {
    if STOP.swap(true, Ordering::Relaxed) {
        std::process::exit(KILLED + signal);
    }
    let again = match signal {
        SIGINT => "Ctrl-C again",
        _ => "a second signal",
    };
    // Nothing is left to report to where stderr fails.
    let _ = writeln!(
        std::io::stderr(),
        "kvassay: stopping after this forward pass; {again} ends at once"
    );
}
