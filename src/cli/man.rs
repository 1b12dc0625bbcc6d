//! `kvassay man`: manual pages, one for the program and one per command.

use std::io::Write;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::{Args as ClapArgs, Command, CommandFactory};
use clap_mangen::Man;

use crate::store;

use super::output::make_folder;
use super::{Cli, Exit, Failure, qualify};

/// Arguments of `kvassay man`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Command whose page is printed, e.g. `protocol new` [default: the program's own].
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Vec<String>,
    /// Write every page into this folder instead.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints one page or writes all of them.
///
/// # Errors
/// Exit 2 for a command that does not exist or a file where the folder is to be, 4 where folder or
/// pages cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let pages = pages()?;
    if let Some(folder) = &args.out {
        make_folder("--out", folder)?;
        for page in &pages {
            store::write_atomic(&folder.join(format!("{}.1", page.name)), &page.roff)
                .map_err(|error| qualify::failure(error.into()))?;
        }
        writeln!(out, "{}: {} pages", folder.display(), pages.len())?;
        return Ok(Exit::Holds);
    }
    let name = [&["kvassay".to_owned()][..], &args.command]
        .concat()
        .join("-");
    let page = pages.iter().find(|page| page.name == name);
    let page = page.ok_or_else(|| {
        let names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        Failure::input(anyhow!(
            "man: found no page {name}, expected one of: {}",
            names.join(", ")
        ))
    })?;
    out.write_all(&page.roff)?;
    Ok(Exit::Holds)
}

/// One manual page.
struct Page {
    /// `kvassay`, `kvassay-qualify`, `kvassay-protocol-new`.
    name: String,
    roff: Vec<u8>,
}

fn pages() -> Result<Vec<Page>, Failure> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let mut pages = Vec::new();
    add(program, &mut pages)?;
    Ok(pages)
}

fn add(command: Command, pages: &mut Vec<Page>) -> Result<(), Failure> {
    let below: Vec<Command> = command.get_subcommands().cloned().collect();
    let name = command.get_display_name().unwrap_or(command.get_name());
    let name = name.to_owned();
    let mut roff = Vec::new();
    Man::new(command)
        .title(name.to_uppercase())
        .source(concat!("kvassay ", env!("CARGO_PKG_VERSION")))
        .manual("kvassay")
        .render(&mut roff)?;
    pages.push(Page { name, roff });
    below
        .into_iter()
        .try_for_each(|command| add(command, pages))
}
