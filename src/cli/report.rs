//! `kvassay report`: the certificates of runs as one HTML file.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;

use crate::certify::verify::{self, Disagreement};
use crate::certify::{
    self, CertifyError, Comparison, ContrastError, Evidence, GivenRun, PairedPanel,
};
use crate::report::{self, HtmlCertificate, HtmlReport, HtmlRun, Questions};
use crate::schema::{ArmRole, Certificate, FileDigest};
use crate::store::{MANIFEST_FILE, RunDir, StoreError, write_atomic};

use super::issue::certify_failure;
use super::output::{Kind, Output};
use super::{Exit, Failure, qualify};

/// Arguments of `kvassay report`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Run directories with certificates.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Where the page is written; an older page is replaced, any other file is kept.
    #[arg(long, value_name = "FILE.html")]
    out: PathBuf,
    /// Most lost and most gained cases that are shown per recipe, panel and control.
    #[arg(long, value_name = "N", default_value_t = 20)]
    flips: usize,
}

/// A certificate of a run, and what its check found.
struct Held {
    certificate: Certificate,
    file: FileDigest,
    mismatches: Vec<Disagreement>,
}

/// A run with everything that its part of the page rests on.
struct Loaded {
    dir: RunDir,
    held: Vec<Held>,
    missing: Vec<String>,
    /// The run's evidence, or why it contradicts itself: certificates are shown all the same.
    evidence: Result<Evidence, String>,
}

/// Checks every certificate of the runs against its records and writes the page. It exits 0 where
/// all of them follow from the records; the page is written either way and says what does not.
///
/// # Errors
/// [`Failure`]: no run, two of one model, no certificates, a file that cannot be read as what it is, or one in the
/// page's place that is no page (2), a page that cannot be written (4).
pub fn run(args: &Args, out: &mut dyn Write) -> Result<Exit, Failure> {
    let output = Output {
        option: "--out",
        path: &args.out,
        kind: Kind::Page,
    };
    output.check(&[])?;
    let loaded = args.runs.iter().map(|run| load(run, &args.out));
    let runs = loaded.collect::<Result<Vec<Loaded>, Failure>>()?;
    check_models(&args.runs, &runs)?;
    let page = page(&runs, args.flips)?;
    write_atomic(&args.out, page.as_bytes()).map_err(store_failure)?;
    let held: Vec<&Held> = runs.iter().flat_map(|run| &run.held).collect();
    let (shown, count) = (args.out.display(), held.len());
    let noun = if count == 1 {
        "certificate"
    } else {
        "certificates"
    };
    writeln!(out, "{shown}: {count} {noun}, {} bytes", page.len())?;
    let failed = held.iter().filter(|held| !held.mismatches.is_empty());
    let failed: Vec<&str> = failed
        .map(|held| held.certificate.recipe.name.as_str())
        .collect();
    if failed.is_empty() {
        return Ok(Exit::Holds);
    }
    writeln!(
        out,
        "MISMATCH: the records do not give the certificates of {}: the page says where",
        failed.join(", ")
    )?;
    Ok(Exit::Mismatch)
}

/// A page compares models: two runs of one would stand there as two.
fn check_models(paths: &[PathBuf], runs: &[Loaded]) -> Result<(), Failure> {
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let named = names.iter().zip(runs);
    let manifests: Vec<_> = named
        .map(|(name, run)| (name.as_str(), run.dir.manifest()))
        .collect();
    certify::check_models(&manifests).map_err(Failure::input)
}

/// Reads a run and checks its certificates.
fn load(run: &Path, out: &Path) -> Result<Loaded, Failure> {
    let dir = RunDir::open(run).map_err(store_failure)?;
    refuse_in_run(out, &dir)?;
    let (held, missing) = certificates(&dir)?;
    if held.is_empty() {
        if let Some(shard) = dir.manifest().shard {
            let path = run.join(MANIFEST_FILE);
            return Err(certify_failure(CertifyError::Shard { path, shard }));
        }
        let shown = run.display();
        return Err(Failure::input(anyhow!(
            "no certificates in {}; run `kvassay certify {shown}`",
            run.join("certificates").display()
        )));
    }
    Ok(Loaded {
        evidence: evidence(&dir)?,
        dir,
        held,
        missing,
    })
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
        let mismatches = verify::against_run(&certificate, dir, None).map_err(certify_failure)?;
        held.push(Held {
            certificate,
            file,
            mismatches,
        });
    }
    Ok((held, missing))
}

fn page(runs: &[Loaded], flips: usize) -> Result<String, Failure> {
    let cases: Vec<Vec<Cases<'_>>> = runs
        .iter()
        .map(|run| run.held.iter().map(|held| cases(held, run)).collect())
        .collect();
    let mut questions = Vec::new();
    for (run, cases) in runs.iter().zip(&cases) {
        questions.push(questions_of(run, cases, flips)?);
    }
    let certificates: Vec<Vec<HtmlCertificate<'_>>> = runs
        .iter()
        .zip(&cases)
        .map(|(run, cases)| run.held.iter().zip(cases).map(shown).collect())
        .collect();
    let parts = runs.iter().zip(&certificates).zip(&questions);
    let parts: Vec<HtmlRun<'_>> = parts
        .map(|((run, certificates), questions)| HtmlRun {
            manifest: run.dir.manifest(),
            import: run.evidence.as_ref().ok().and_then(|it| it.import.as_ref()),
            certificates,
            missing: &run.missing,
            questions,
            flips,
        })
        .collect();
    let contrasts = contrasts(runs);
    let page = HtmlReport {
        runs: &parts,
        contrasts: contrasts.as_ref().map_err(Clone::clone),
    };
    report::render_html(&page).map_err(Failure::worker)
}

/// The cases that a certificate counts, or why they cannot be shown.
type Cases<'a> = Result<Vec<PairedPanel<'a>>, String>;

fn shown<'a>((held, cases): (&'a Held, &'a Cases<'_>)) -> HtmlCertificate<'a> {
    HtmlCertificate {
        certificate: &held.certificate,
        file: held.file.clone(),
        mismatches: &held.mismatches,
        cases: cases.as_deref().map_err(Clone::clone),
    }
}

/// What was asked in the cases that the page shows.
fn questions_of(run: &Loaded, cases: &[Cases<'_>], flips: usize) -> Result<Questions, Failure> {
    let mut questions = Questions::new();
    for paired in cases.iter().flatten() {
        for (panel, cases) in report::shown_flips(paired, flips) {
            let asked = certify::questions(&run.dir, panel, &cases).map_err(certify_failure)?;
            questions.entry(panel.to_owned()).or_default().extend(asked);
        }
    }
    Ok(questions)
}

/// Contrasts between the recipes of the runs, or why there are none. Records that are not those of
/// the certificates on the page are compared with nothing.
fn contrasts(runs: &[Loaded]) -> Result<Comparison, String> {
    let mut given = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let name = format!("run {} ({})", at + 1, run.dir.manifest().model.name);
        let evidence = run.evidence.as_ref().map_err(Clone::clone)?;
        if let Some(found) = run.held.iter().find_map(changed_record) {
            return Err(format!("{name}: {found}"));
        }
        given.push((name, evidence));
    }
    let given: Vec<GivenRun<'_>> = given
        .iter()
        .map(|(run, evidence)| GivenRun { run, evidence })
        .collect();
    certify::contrasts(&given, &[]).map_err(|error| match error {
        // The page has no option that could name some.
        ContrastError::NothingDeclared { protocol, .. } => {
            format!("protocol {protocol} declares no contrasts")
        }
        other => other.to_string(),
    })
}

fn evidence(dir: &RunDir) -> Result<Result<Evidence, String>, Failure> {
    match certify::load(dir) {
        Ok(evidence) => Ok(Ok(evidence)),
        Err(error) if error.is_system() => Err(certify_failure(error)),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Records that are not the ones which a certificate names are not shown beside it.
fn cases<'a>(held: &Held, run: &'a Loaded) -> Cases<'a> {
    let evidence = run.evidence.as_ref().map_err(Clone::clone)?;
    if let Some(found) = changed_record(held) {
        return Err(found);
    }
    certify::paired_cases(&held.certificate.recipe.name, evidence)
        .map_err(|error| error.to_string())
}

/// The first file of the run that is not the one which the certificate names.
fn changed_record(held: &Held) -> Option<String> {
    let mut found = held.mismatches.iter();
    let other = found.find(|found| found.path.starts_with("evidence"))?;
    Some(format!(
        "the run's files are not the ones that the certificate names ({other})"
    ))
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
