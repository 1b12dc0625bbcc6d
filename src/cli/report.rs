//! `kvassay report`: the certificates of a run as one HTML file.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;

use crate::certify::verify::{self, Disagreement};
use crate::certify::{self, Evidence, PairedPanel};
use crate::report::{self, HtmlCertificate, HtmlRun, Questions};
use crate::schema::{ArmRole, Certificate, FileDigest};
use crate::store::{RunDir, StoreError, write_atomic};

use super::issue::certify_failure;
use super::{Exit, Failure, qualify};

/// Arguments of `kvassay report`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run directory with certificates.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Where the page is written; an older one is replaced.
    #[arg(long, value_name = "FILE.html")]
    out: PathBuf,
    /// Most lost and most gained cases that are shown per recipe, panel and control.
    #[arg(long, value_name = "N", default_value_t = 20)]
    flips: usize,
}

/// A certificate of the run, and what its check found.
struct Held {
    certificate: Certificate,
    file: FileDigest,
    mismatches: Vec<Disagreement>,
}

/// Checks every certificate of the run against its records and writes the page. It exits 0 where
/// all of them follow from the records; the page is written either way and says what does not.
///
/// # Errors
/// [`Failure`]: no run, no certificates, or a file that cannot be read as what it is (2), a page
/// that cannot be written (4).
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let dir = RunDir::open(&args.run).map_err(store_failure)?;
    refuse_in_run(&args.out, &dir)?;
    let (held, missing) = certificates(&dir)?;
    if held.is_empty() {
        let run = args.run.display();
        return Err(Failure::input(anyhow!(
            "no certificates in {}; run `kvassay certify {run}`",
            args.run.join("certificates").display()
        )));
    }
    let page = page(&dir, &held, &missing, args.flips)?;
    write_atomic(&args.out, page.as_bytes()).map_err(store_failure)?;
    let failed = held.iter().filter(|held| !held.mismatches.is_empty());
    let failed: Vec<&str> = failed
        .map(|it| it.certificate.recipe.name.as_str())
        .collect();
    let shown = args.out.display();
    let count = held.len();
    let noun = if count == 1 {
        "certificate"
    } else {
        "certificates"
    };
    writeln!(out, "{shown}: {count} {noun}, {} bytes", page.len())?;
    if failed.is_empty() {
        return Ok(Exit::Holds);
    }
    writeln!(
        out,
        "MISMATCH: the run's records do not give the certificates of {}: the page says where",
        failed.join(", ")
    )?;
    Ok(Exit::Mismatch)
}

/// The certificates of the candidate arms, checked, and the arms that have none.
fn certificates(dir: &RunDir) -> Result<(Vec<Held>, Vec<String>), Failure> {
    let (mut held, mut missing) = (Vec::new(), Vec::new());
    let arms = dir.manifest().arms.iter();
    for arm in arms.filter(|arm| arm.role == ArmRole::Candidate) {
        let Some(certificate) = dir.certificate(&arm.arm).map_err(store_failure)? else {
            missing.push(arm.arm.clone());
            continue;
        };
        let file = dir
            .file_digest(&format!("certificates/{}.json", arm.arm))
            .map_err(store_failure)?;
        let mismatches = verify::against_run(&certificate, dir).map_err(certify_failure)?;
        held.push(Held {
            certificate,
            file,
            mismatches,
        });
    }
    Ok((held, missing))
}

fn page(dir: &RunDir, held: &[Held], missing: &[String], flips: usize) -> Result<String, Failure> {
    let evidence = evidence(dir)?;
    let cases: Vec<Result<Vec<PairedPanel<'_>>, String>> =
        held.iter().map(|held| cases(held, &evidence)).collect();
    let mut questions = Questions::new();
    for paired in cases.iter().flatten() {
        for (panel, cases) in report::shown_flips(paired, flips) {
            let asked = certify::questions(dir, panel, &cases).map_err(certify_failure)?;
            questions.entry(panel.to_owned()).or_default().extend(asked);
        }
    }
    let certificates: Vec<HtmlCertificate<'_>> = held
        .iter()
        .zip(&cases)
        .map(|(held, cases)| HtmlCertificate {
            certificate: &held.certificate,
            file: held.file.clone(),
            mismatches: &held.mismatches,
            cases: cases.as_deref().map_err(Clone::clone),
        })
        .collect();
    let import = evidence.as_ref().ok().and_then(|it| it.import.as_ref());
    let run = HtmlRun {
        manifest: dir.manifest(),
        import,
        certificates: &certificates,
        missing,
        questions: &questions,
        flips,
    };
    report::render_html(&run).map_err(Failure::worker)
}

/// The run's evidence, or why it contradicts itself: the certificates are shown all the same.
fn evidence(dir: &RunDir) -> Result<Result<Evidence, String>, Failure> {
    match certify::load(dir) {
        Ok(evidence) => Ok(Ok(evidence)),
        Err(error) if error.is_system() => Err(certify_failure(error)),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// The cases that a certificate counts. Records that are not the ones which it names are not shown
/// beside it.
fn cases<'a>(
    held: &Held,
    evidence: &'a Result<Evidence, String>,
) -> Result<Vec<PairedPanel<'a>>, String> {
    let evidence = evidence.as_ref().map_err(Clone::clone)?;
    let is_record = |found: &&Disagreement| found.path.starts_with("evidence");
    if let Some(other) = held.mismatches.iter().find(is_record) {
        return Err(format!(
            "the run's files are not the ones that the certificate names ({other})"
        ));
    }
    certify::paired_cases(&held.certificate.recipe.name, evidence)
        .map_err(|error| error.to_string())
}

/// A page among the run's files would be in the way of what the run writes there.
fn refuse_in_run(out: &Path, dir: &RunDir) -> Result<(), Failure> {
    let name = out.extension().and_then(|extension| extension.to_str());
    let is_page = name.is_some_and(|it| it.eq_ignore_ascii_case("html") || it == "htm");
    let inside = super::certify::lies_in(out, dir.path())
        .with_context(|| format!("--out {}", out.display()))
        .map_err(Failure::input)?;
    if inside && !is_page {
        return Err(Failure::input(anyhow!(
            "--out {}: found a file of the run that is no page, expected a name that ends in .html",
            out.display()
        )));
    }
    Ok(())
}

fn store_failure(error: StoreError) -> Failure {
    qualify::failure(error.into())
}
