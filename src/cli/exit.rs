//! Exit codes and the one place where errors become messages.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use crate::report::visible;

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

/// Output that whoever reads it may stop reading, as `head` does: the rest is dropped, and the exit code is
/// what it would have been.
pub(super) struct UntilClosed<W> {
    out: W,
    is_closed: bool,
}

impl<W: Write> UntilClosed<W> {
    pub fn new(out: W) -> Self {
        UntilClosed {
            out,
            is_closed: false,
        }
    }

    /// Whether nobody reads any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn unless_closed<T>(&mut self, done: std::io::Result<T>, dropped: T) -> std::io::Result<T> {
        match done {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(dropped)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for UntilClosed<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.is_closed {
            return Ok(bytes.len());
        }
        let done = self.out.write(bytes);
        self.unless_closed(done, bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let done = self.out.flush();
        self.unless_closed(done, ())
    }
}

/// Prints clap's help to stdout (0) or its error to stderr (2).
pub(super) fn clap_exit(error: &clap::Error, color: bool) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        // Nothing is left to report to where printing fails.
        return ExitCode::from(Exit::BadInput.code());
    }
    let printed = printed.and_then(|()| std::io::stdout().flush());
    let outcome = match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::from(error)),
        _ => Ok(Exit::Holds),
    };
    finish(outcome, &mut std::io::sink(), &mut std::io::stderr(), color)
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
            let _ = writeln!(
                err,
                "kvassay: {red}error{plain}: {}",
                message(&failure.error)
            );
            failure.exit
        }
    };
    ExitCode::from(exit.code())
}

/// The error with its causes, on one line unless it has more of its own. A cause that the text
/// before it ends with is not said twice; names from files cannot act on the terminal.
pub(super) fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    visible(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("a.json: cannot read: {source}")]
    struct Outer {
        source: std::io::Error,
    }

    #[test]
    fn causes_are_said_once_and_cannot_act() {
        let source = std::io::Error::other("entity not found");
        let error = anyhow::Error::new(Outer { source });
        assert_eq!(message(&error), "a.json: cannot read: entity not found");
        let error = anyhow::anyhow!("cause\u{1b}[31m").context("what");
        assert_eq!(message(&error), "what: cause\u{27e8}U+001B\u{27e9}[31m");
        let same: Result<(), _> = Err(anyhow::anyhow!("x"));
        let error = same.context("y").context("z").unwrap_err();
        assert_eq!(message(&error), "z: y: x");
    }
}
