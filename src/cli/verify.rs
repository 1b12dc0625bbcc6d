//! `kvassay verify`: a certificate against its run, by its own figures, or a file against its JSON
//! Schema.

mod document;
mod schema;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args as ClapArgs;

use crate::certify::verify::{self, Disagreement};
use crate::schema::{Certificate, Statement, ToolIdentity};
use crate::store::{self, RunDir, StoreError};

use super::output::{Kind, Output, SummaryFormat};
use super::{Exit, Failure, issue, protocol, qualify};

use document::{Check, Document};

/// Arguments of `kvassay verify`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Certificate; with --schema-only any stored document.
    #[arg(value_name = "CERT.json")]
    certificate: PathBuf,
    /// Run directory from which the certificate is computed again; without it, only what follows
    /// from the certificate's own figures is checked.
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// The protocol of a certificate that `certify --protocol` issued, as it was named there.
    #[arg(long, value_name = "NAME|PATH", requires = "run")]
    protocol: Option<String>,
    /// Validate the file against the JSON Schema of its kind and nothing else.
    #[arg(long, conflicts_with_all = ["run", "statement"])]
    schema_only: bool,
    /// Write the certificate as an in-toto Statement once it is verified against its run; an earlier
    /// Statement is removed first.
    #[arg(long, value_name = "OUT.json", requires = "run")]
    statement: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: SummaryFormat,
}

/// Runs the command.
///
/// # Errors
/// Exit 2 for a certificate or run that cannot be read and for a file in the Statement's place that
/// is none, 4 where the system failed.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.schema_only {
        return schema::run(&args.certificate, args.format, out);
    }
    if let Some(path) = &args.statement {
        let output = Output {
            option: "--statement",
            path,
            kind: Kind::Statement,
        };
        output.check(std::slice::from_ref(&args.certificate))?;
        // One of an earlier certificate would pass for this one's where this one fails.
        output.remove_stale()?;
    }
    let certificate = store::read_certificate(&args.certificate).map_err(store_failure)?;
    let mut notes = Vec::new();
    let mismatches = match &args.run {
        Some(run) => against_run(&certificate, run, args, &mut notes)?,
        None => alone(&certificate, &mut notes),
    };
    if let Some(path) = &args.statement {
        notes.push(statement(&certificate, mismatches.is_empty(), path)?);
    }
    let check = match &args.run {
        Some(run) => Check::Run {
            run,
            files: certificate.evidence.len(),
        },
        None => Check::Alone,
    };
    let document = Document {
        certificate: &args.certificate,
        check,
        mismatches: &mismatches,
        notes: &notes,
    };
    document.write(args.format, out)?;
    Ok(if mismatches.is_empty() {
        Exit::Holds
    } else {
        Exit::Mismatch
    })
}

fn against_run(
    certificate: &Certificate,
    run: &Path,
    args: &Args,
    notes: &mut Vec<String>,
) -> Result<Vec<Disagreement>, Failure> {
    let dir = RunDir::open(run).map_err(store_failure)?;
    if args.protocol.is_none() && verify::is_judged_after(certificate) {
        return Err(Failure::input(anyhow!(
            "{}: found a certificate under protocol {} that was given after the records of {}, expected \
             --protocol with that protocol",
            args.certificate.display(),
            certificate.protocol.name,
            run.display()
        )));
    }
    let protocol = args.protocol.as_deref().map(protocol::load).transpose();
    let protocol = protocol.map_err(Failure::input)?;
    let found = verify::against_run(certificate, &dir, protocol.as_ref())
        .map_err(issue::certify_failure)?;
    notes.push(
        "A consistent rewrite of run and certificate together cannot be seen, unless the \
         certificate was kept elsewhere or signed."
            .to_owned(),
    );
    notes
        .push("Files of the run that the certificate does not name were not looked at.".to_owned());
    let (issued, current) = (&certificate.tool, ToolIdentity::current());
    if *issued != current {
        notes.push(format!(
            "Issued by {}, checked by {}: the figures are compared all the same. Sentences that \
             another version words differently count as mismatches.",
            tool(issued),
            tool(&current)
        ));
    }
    Ok(found)
}

fn tool(tool: &ToolIdentity) -> String {
    let sources: String = tool.source_sha256.chars().take(12).collect();
    format!("kvassay {} (sources {sources})", tool.version)
}

fn alone(certificate: &Certificate, notes: &mut Vec<String>) -> Vec<Disagreement> {
    let files = certificate.evidence.len();
    notes.push(format!(
        "Not checked without --run: the digests of {files} evidence files, the records and counts \
         themselves, the nll bounds, the model and its weights, texts."
    ));
    if !verify::is_builtin(certificate) {
        notes.push(format!(
            "Protocol {} is not a built-in one: nobody checked its limits, alphas and panels, nor \
             what it declares.",
            certificate.protocol.name
        ));
    }
    verify::alone(certificate)
}

/// Writes the statement of a verified certificate and says so.
fn statement(certificate: &Certificate, verified: bool, path: &Path) -> Result<String, Failure> {
    if !verified {
        return Ok(format!("No statement was written to {}.", path.display()));
    }
    store::write_json_atomic(path, &Statement::of(certificate)).map_err(store_failure)?;
    Ok(format!("Wrote an in-toto Statement to {}.", path.display()))
}

fn store_failure(error: StoreError) -> Failure {
    qualify::failure(error.into())
}
