//! `--shard`: a part of a run has records and no certificates.

use std::io::Write;

use anyhow::anyhow;
use clap::ValueEnum;
use serde::Serialize;

use super::super::output::{self, SummaryFormat};
use super::{Args, Exit, Failure, failure};
use crate::schema::Shard;
use crate::store::RunDir;

/// Schema name of the JSON document.
const SHARD_SCHEMA: &str = "kvassay.shard/1";

/// Refuses what only certificates could answer.
///
/// # Errors
/// Exit 2.
pub fn check(args: &Args) -> Result<(), Failure> {
    let Some(shard) = args.shard else {
        return Ok(());
    };
    let refuse = |what: &str| {
        Err(Failure::input(anyhow!(
            "--shard {shard}: found {what}, expected it of the whole run: a part has no \
             certificates (`kvassay merge`, `kvassay certify`)"
        )))
    };
    match args.summary.format {
        SummaryFormat::Text | SummaryFormat::Json => {}
        other => {
            let name = other.to_possible_value();
            let name = name.as_ref().map_or("another", |value| value.get_name());
            return refuse(&format!("--format {name}"));
        }
    }
    if !args.summary.write.is_empty() {
        return refuse("--write");
    }
    if args.require.is_some() {
        return refuse("--require");
    }
    if !args.baselines.paths().is_empty() {
        return refuse("--baseline");
    }
    Ok(())
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    run: String,
    shard: Shard,
    arms: Vec<&'a str>,
    /// Records of all arms.
    records: usize,
    /// How many of them are errors.
    errors: usize,
}

/// Says what the part holds. Records that are errors make the whole run incomplete: exit 3.
///
/// # Errors
/// Exit 4 where the records cannot be read or the output cannot be written.
pub fn conclude(
    dir: &RunDir,
    shard: Shard,
    format: SummaryFormat,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let manifest = dir.manifest();
    let arms = manifest.arms.iter().filter(|arm| arm.unsupported.is_none());
    let arms: Vec<&str> = arms.map(|arm| arm.arm.as_str()).collect();
    let (mut records, mut errors) = (0, 0);
    for arm in &arms {
        for panel in manifest.panels.iter().filter(|panel| panel.file.is_some()) {
            let found = dir
                .records(arm, &panel.panel)
                .map_err(|error| failure(error.into()))?;
            records += found.len();
            errors += found.iter().filter(|record| record.error.is_some()).count();
        }
    }
    let run = dir.path().display().to_string();
    let exit = if errors > 0 {
        Exit::Incomplete
    } else {
        Exit::Holds
    };
    if format == SummaryFormat::Json {
        let document = Document {
            schema: SHARD_SCHEMA,
            run,
            shard,
            arms,
            records,
            errors,
        };
        output::write_json(out, &document)?;
        return Ok(exit);
    }
    writeln!(
        out,
        "{run}: part {shard} of a run, {records} records in {} arms ({}), {errors} of them errors",
        arms.len(),
        arms.join(", ")
    )?;
    writeln!(
        out,
        "a part has no certificates: `kvassay merge` joins all {}",
        shard.of()
    )?;
    Ok(exit)
}
