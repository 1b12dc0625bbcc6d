//! `kvassay protocol`: the frozen protocols, their rules, alphas and digests, and new ones.

mod new;
mod show;
mod spec;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use clap::{Args as ClapArgs, Subcommand};
use serde::Serialize;

use crate::schema::{
    Protocol, builtin_protocol, builtin_protocols, locked_digest, locked_otherwise,
};

pub(super) use show::percent;

use super::output::{self, Format};
use super::{Exit, Failure};

/// Schema name of the JSON document of `protocol list`.
const LIST_SCHEMA: &str = "kvassay.protocol-list/1";
/// Largest protocol file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Arguments of `kvassay protocol`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the built-in protocols.
    List {
        /// Output format.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Show a protocol's family, panels, rules, alphas, digest and what its sizes can pass.
    Show {
        /// Built-in protocol, or a TOML or JSON file.
        #[arg(value_name = "NAME|PATH")]
        protocol: String,
        /// Output format.
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// Declare a protocol before a run and write it to a file.
    New(Box<new::Args>),
}

/// Runs the command.
///
/// # Errors
/// Exit 2 for a protocol that is absent or refused.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.command {
        Command::List { format } => list(*format, out)?,
        Command::Show { protocol, format } => {
            let protocol = load(protocol).map_err(Failure::input)?;
            show::show(&protocol, None, *format, out)?;
        }
        Command::New(args) => new::run(args, out)?,
    }
    Ok(Exit::Holds)
}

/// A built-in protocol by name, or one read from a TOML or JSON file (by its extension).
///
/// # Errors
/// Names the path, and the built-in protocols where the text is neither. A file that has the name
/// of a built-in protocol and other rules is refused with both digests.
pub(super) fn load(text: &str) -> anyhow::Result<Protocol> {
    if let Some(protocol) = builtin_protocol(text) {
        return Ok(protocol);
    }
    let path = Path::new(text);
    if !path.is_file() {
        let names: Vec<String> = builtin_protocols().into_iter().map(|p| p.name).collect();
        bail!(
            "protocol `{text}`: found neither a file nor a built-in protocol, expected a path or one of {}",
            names.join(", ")
        );
    }
    let read = || format!("cannot read {text}");
    let bytes = std::fs::metadata(path).with_context(read)?.len();
    if bytes > MAX_BYTES {
        bail!("{text}: found {bytes} bytes, expected a protocol file of at most {MAX_BYTES}");
    }
    let content = std::fs::read_to_string(path).with_context(read)?;
    let protocol = match Kind::of(path)? {
        Kind::Toml => Protocol::from_toml(&content),
        Kind::Json => Protocol::from_json(&content),
    };
    let protocol = protocol.with_context(|| text.to_owned())?;
    check_lock(&protocol).with_context(|| text.to_owned())?;
    Ok(protocol)
}

/// How a protocol file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Toml,
    Json,
}

impl Kind {
    fn of(path: &Path) -> anyhow::Result<Kind> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Ok(Kind::Toml),
            Some("json") => Ok(Kind::Json),
            _ => bail!(
                "{}: expected a protocol file whose name ends in .toml or .json",
                path.display()
            ),
        }
    }
}

/// Refuses other rules under the name of a built-in protocol.
fn check_lock(protocol: &Protocol) -> anyhow::Result<()> {
    let found = protocol.sha256()?;
    if let Some(locked) = locked_otherwise(&protocol.name, &found) {
        bail!(
            "same name, other rules: found protocol {} with SHA-256 {found}, expected {locked} of the built-in protocol or a name of its own",
            protocol.name
        );
    }
    Ok(())
}

#[derive(Serialize)]
struct ListDocument {
    schema: &'static str,
    protocols: Vec<ListEntry>,
}

#[derive(Serialize)]
struct ListEntry {
    name: String,
    sha256: String,
    /// The digest is the one in the lock file.
    locked: bool,
    description: String,
}

fn list(format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    let protocols = builtin_protocols()
        .into_iter()
        .map(|protocol| {
            let sha256 = protocol.sha256().map_err(Failure::worker)?;
            Ok(ListEntry {
                locked: locked_digest(&protocol.name) == Some(sha256.as_str()),
                sha256,
                name: protocol.name,
                description: protocol.description,
            })
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    if format == Format::Json {
        let schema = LIST_SCHEMA;
        return output::write_json(out, &ListDocument { schema, protocols });
    }
    for entry in &protocols {
        writeln!(
            out,
            "{:<20} {}  {}  {}",
            entry.name,
            &entry.sha256[..12],
            if entry.locked { "locked" } else { "not locked" },
            entry.description
        )?;
    }
    Ok(())
}
