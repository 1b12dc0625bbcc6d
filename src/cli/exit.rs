//! Exit codes and the one place where errors become messages.

use std::io::Write;
use std::process::ExitCode;

/// Outcome of a command that ran to its end. DESIGN.md section 5: when several apply, the
/// precedence is 2, 4, 3, 1, 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: what was required holds.
    Holds,
    /// 1: a required objective does not hold.
    DoesNotHold,
    /// 2: bad command line, configuration or input file.
    BadInput,
    /// 3: evidence incomplete, or recipe unsupported.
    Incomplete,
    /// 4: worker or system failure.
    Worker,
    /// 5: verification mismatch.
    Mismatch,
}

impl Exit {
    /// The process exit code.
    pub fn code(self) -> u8 {
        match self {
            Exit::Holds => 0,
            Exit::DoesNotHold => 1,
            Exit::BadInput => 2,
            Exit::Incomplete => 3,
            Exit::Worker => 4,
            Exit::Mismatch => 5,
        }
    }
}

/// A command that could not run to its end: one message and an exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// The error with its context.
    pub error: anyhow::Error,
}

impl Failure {
    /// Bad command line, configuration or input file (exit 2).
    pub fn input(error: impl Into<anyhow::Error>) -> Self {
        Failure {
            exit: Exit::BadInput,
            error: error.into(),
        }
    }

    /// The model or layout cannot run this (exit 3).
    pub fn unsupported(error: impl Into<anyhow::Error>) -> Self {
        Failure {
            exit: Exit::Incomplete,
            error: error.into(),
        }
    }

    /// Worker or system failure (exit 4).
    pub fn worker(error: impl Into<anyhow::Error>) -> Self {
        Failure {
            exit: Exit::Worker,
            error: error.into(),
        }
    }
}

/// Output that cannot be written is a system failure.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::worker(anyhow::Error::new(error).context("cannot write output"))
    }
}

/// Prints clap's help to stdout (0) or its error to stderr (2).
pub(super) fn clap_exit(error: &clap::Error) -> ExitCode {
    // Nothing is left to report to where printing fails.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() {
        Exit::BadInput.code()
    } else {
        0
    })
}

/// Reports a failure as one line with its causes and turns the outcome into the exit code.
pub(super) fn finish(
    outcome: Result<Exit, Failure>,
    out: &mut dyn Write,
    err: &mut dyn Write,
    color: bool,
) -> ExitCode {
    let outcome = outcome.and_then(|exit| out.flush().map(|()| exit).map_err(Failure::from));
    let exit = match outcome {
        Ok(exit) => exit,
        Err(failure) => {
            let (red, plain) = if color {
                ("\x1b[1;31m", "\x1b[0m")
            } else {
                ("", "")
            };
            // Nothing is left to report to where stderr fails.
            let _ = writeln!(err, "kvassay: {red}error{plain}: {:#}", failure.error);
            failure.exit
        }
    };
    ExitCode::from(exit.code())
}
