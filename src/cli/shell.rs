//! What every command takes: how much is said on stderr, and colour.

use std::ffi::OsString;
use std::io;

use anstream::{AutoStream, ColorChoice};
use clap::{Args as ClapArgs, ValueEnum};

/// Options of every command.
#[derive(Clone, Copy, Debug, ClapArgs)]
#[command(next_help_heading = "Global options")]
pub struct ShellArgs {
    /// No progress on stderr: errors and warnings only. Results on stdout stay.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Colour; auto means on terminals, and follows NO_COLOR and CLICOLOR_FORCE.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: Color,
}

/// Values of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    #[default]
    #[allow(missing_docs, reason = "the names say it, and help stays short")]
    Auto,
    #[allow(missing_docs, reason = "the names say it, and help stays short")]
    Always,
    #[allow(missing_docs, reason = "the names say it, and help stays short")]
    Never,
}

impl Color {
    /// The last `--color` that was typed, right or wrong: messages about arguments follow it too.
    pub(super) fn typed(arguments: impl Iterator<Item = OsString>) -> Color {
        let mut found = Color::Auto;
        let mut value_is_next = false;
        for argument in arguments.map_while(|argument| argument.into_string().ok()) {
            let value = match argument.strip_prefix("--color=") {
                Some(value) => Some(value.to_owned()),
                None if value_is_next => Some(argument.clone()),
                None => None,
            };
            found = value
                .and_then(|value| Color::from_str(&value, false).ok())
                .unwrap_or(found);
            value_is_next = argument == "--color";
        }
        found
    }

    /// For what clap prints.
    pub(super) fn of_help(self) -> clap::ColorChoice {
        match self {
            Color::Auto => clap::ColorChoice::Auto,
            Color::Always => clap::ColorChoice::Always,
            Color::Never => clap::ColorChoice::Never,
        }
    }

    /// Makes it the choice of this process, which [`stdout`] and [`stderr`] follow.
    pub(super) fn choose(self) {
        match self {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        }
        .write_global();
    }
}

/// Whether text on stdout is coloured.
pub(super) fn stdout() -> bool {
    AutoStream::choice(&io::stdout()) != ColorChoice::Never
}

/// Whether text on stderr is coloured.
pub(super) fn stderr() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_color_that_was_typed_counts() {
        let typed = |text: &str| Color::typed(text.split(' ').map(OsString::from));
        assert_eq!(typed("kvassay qualify"), Color::Auto);
        assert_eq!(typed("kvassay --color never qualify"), Color::Never);
        assert_eq!(typed("kvassay qualify --color=always --x"), Color::Always);
        assert_eq!(typed("kvassay --color always --color=never"), Color::Never);
        assert_eq!(typed("kvassay --color purple"), Color::Auto);
        assert_eq!(typed("kvassay --color"), Color::Auto);
    }
}
