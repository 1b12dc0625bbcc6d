//! `--baseline`: earlier certificates, and what they held is required.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;

use crate::certify::{self, verify};
use crate::report::Against;
use crate::schema::{Certificate, Manifest};
use crate::store;

use super::certify::lies_in;
use super::{Exit, Failure, qualify};

/// Most contradictions of a certificate that are listed.
const MOST_LISTED: usize = 3;

/// `--baseline` of `qualify` and `certify`.
#[derive(Debug, ClapArgs)]
pub struct BaselineArgs {
    /// Certificate of an earlier run under the same protocol; objectives that it holds are required
    /// of its recipe. May be repeated.
    #[arg(long, value_name = "CERT.json")]
    baseline: Vec<PathBuf>,
}

/// Earlier certificates that follow from their own figures.
#[derive(Debug, Default)]
pub(super) struct Baselines {
    all: Vec<(PathBuf, Certificate)>,
}

/// Reads a certificate and checks it by its own figures, as `verify` without `--run` does.
///
/// # Errors
/// Exit 2 where it cannot be read, 5 where it contradicts itself.
pub(super) fn read_consistent(path: &Path) -> Result<Certificate, Failure> {
    let certificate =
        store::read_certificate(path).map_err(|error| qualify::failure(error.into()))?;
    let found = verify::alone(&certificate);
    if found.is_empty() {
        return Ok(certificate);
    }
    let listed = found.iter().take(MOST_LISTED).map(ToString::to_string);
    let listed: Vec<String> = listed.collect();
    let more = match found.len() - listed.len() {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    Err(Failure {
        exit: Exit::Mismatch,
        error: anyhow!(
            "{}: a certificate that contradicts itself: {}{more}",
            path.display(),
            listed.join("; ")
        ),
    })
}

impl BaselineArgs {
    /// Files that are read.
    pub fn paths(&self) -> &[PathBuf] {
        &self.baseline
    }

    /// Reads every baseline, before anything runs. `run` is where new certificates will stand.
    ///
    /// # Errors
    /// Exit 2 where one cannot be read or lies in the run itself, 5 where one contradicts itself.
    pub fn read(&self) -> Result<Baselines, Failure> {
        let read = |path: &PathBuf| Ok((path.clone(), read_consistent(path)?));
        let all = self
            .baseline
            .iter()
            .map(read)
            .collect::<Result<_, Failure>>()?;
        Ok(Baselines { all })
    }
}

impl Baselines {
    /// Refuses baselines that say nothing about the run of `manifest` in `run`.
    ///
    /// # Errors
    /// Exit 2.
    pub fn check(&self, manifest: &Manifest, run: &Path) -> Result<(), Failure> {
        for (path, certificate) in &self.all {
            let context = format!("--baseline {}", path.display());
            let inside = lies_in(path, run).with_context(|| context.clone());
            if inside.map_err(Failure::input)? {
                return Err(Failure::input(anyhow!(
                    "{context}: found a certificate of this run, which is written anew, expected \
                     one that is kept elsewhere"
                )));
            }
            certify::comparable(certificate, manifest)
                .map_err(|error| Failure::input(anyhow::Error::new(error).context(context)))?;
        }
        Ok(())
    }

    /// Every baseline against the certificate of its recipe. They were checked.
    ///
    /// # Errors
    /// Exit 2 as [`Baselines::check`].
    pub fn compare(
        &self,
        manifest: &Manifest,
        certificates: &[Certificate],
    ) -> Result<Vec<Against>, Failure> {
        let mut all = Vec::new();
        for (path, baseline) in &self.all {
            let differences = certify::comparable(baseline, manifest).map_err(Failure::input)?;
            let current = certificates
                .iter()
                .filter(|current| current.recipe.spec == baseline.recipe.spec);
            all.extend(current.map(|current| Against {
                path: path.display().to_string(),
                differences: differences.clone(),
                comparison: certify::against_baseline(baseline, current),
            }));
        }
        Ok(all)
    }
}
