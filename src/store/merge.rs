//! A run that was split over several jobs, put together again.

mod place;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::StoreError;
use super::manifest::{Difference, differences};
use super::record::whole_lines;
use super::run::{
    CALIBRATION_FILE, MANIFEST_FILE, RunDir, check_vacant, engagement_path, record_path, start_path,
};
pub use place::Merged;

use crate::schema::{Engagement, FileDigest, Manifest, ManifestArm, Resources, Shard};

/// Why parts make no run.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A run directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A run that is whole.
    #[error("{}: shard: found none, expected a part of a run (`kvassay qualify --shard I/N`)", .path.display())]
    Whole {
        /// Its manifest.
        path: PathBuf,
    },
    /// Parts of runs that were split otherwise, or one part twice.
    #[error("{}: shard: found {found}, {}: {expected}", .path.display(), .other.display())]
    Shards {
        /// A manifest.
        path: PathBuf,
        /// Which part it is.
        found: Shard,
        /// Another manifest.
        other: PathBuf,
        /// What it is, and what was expected.
        expected: String,
    },
    /// Not all parts are there.
    #[error("found parts {found} of {of}, expected {missing} as well")]
    Missing {
        /// Numbers that are there.
        found: String,
        /// Number of parts.
        of: u32,
        /// Numbers that are not.
        missing: String,
    },
    /// Parts of different runs.
    #[error("{} differs from {}: {}", .path.display(), .other.display(), list(.differences))]
    OtherRun {
        /// A manifest.
        path: PathBuf,
        /// The first part's.
        other: PathBuf,
        /// Every field that differs.
        differences: Vec<Difference>,
    },
    /// A file that all parts have in common differs.
    #[error("{} differs from {}: expected the same {what}", .path.display(), .other.display())]
    OtherFile {
        /// A file.
        path: PathBuf,
        /// The first part's.
        other: PathBuf,
        /// What it holds.
        what: &'static str,
    },
    /// A panel file is not the one that the manifest names.
    #[error("{}: sha256: found {found}, expected {expected}", .path.display())]
    Panel {
        /// The file.
        path: PathBuf,
        /// Its digest.
        found: String,
        /// That of the manifest.
        expected: String,
    },
    /// A part has not run to its end.
    #[error(
        "{}: found {found} of {expected}: continue it with the same `kvassay qualify` and --resume",
        .path.display()
    )]
    Unfinished {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What a finished part holds.
        expected: String,
    },
}

impl MergeError {
    /// Whether evidence is missing that a part still can give (exit code 3).
    pub fn is_incomplete(&self) -> bool {
        matches!(
            self,
            MergeError::Missing { .. } | MergeError::Unfinished { .. }
        )
    }
}

fn list(differences: &[Difference]) -> String {
    let lines: Vec<String> = differences.iter().map(Difference::to_string).collect();
    lines.join("; ")
}

/// A part with its place.
struct Part {
    dir: RunDir,
    shard: Shard,
}

impl Part {
    fn open(path: &Path) -> Result<Self, MergeError> {
        let dir = RunDir::open(path)?;
        match dir.manifest().shard {
            Some(shard) => Ok(Part { dir, shard }),
            None => Err(MergeError::Whole {
                path: path.join(MANIFEST_FILE),
            }),
        }
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }
}

/// Puts the parts of a run into the new directory `out`: as if the run had never been split, but for
/// what each part took of the machine. `out` appears when it is whole.
///
/// # Errors
/// [`MergeError`]; there is no `out` then.
pub fn merge(parts: &[PathBuf], out: &Path) -> Result<Merged, MergeError> {
    check_vacant(out)?;
    let mut parts: Vec<Part> = parts
        .iter()
        .map(|path| Part::open(path))
        .collect::<Result<_, _>>()?;
    parts.sort_by_key(|part| part.shard);
    check_shards(&parts)?;
    let manifest = common_manifest(&parts)?;
    for part in &parts {
        check_finished(part)?;
    }
    let merged = Merged::at(out);
    let unfinished = merged.unfinished();
    let written = RunDir::create(&unfinished, &manifest)
        .map_err(MergeError::from)
        .and_then(|run| write(&run, &parts));
    let moved = written.and_then(|()| {
        let moved = merged.take_in(&unfinished);
        moved.map_err(|error| StoreError::io(out, "create")(error).into())
    });
    let Err(error) = moved else {
        return Ok(merged);
    };
    // Best effort: what is left has a name that no run has.
    let _ = fs::remove_dir_all(&unfinished);
    merged.give_up();
    Err(error)
}

/// Checks that `parts`, in order, are all parts of one run.
fn check_shards(parts: &[Part]) -> Result<(), MergeError> {
    let Some(first) = parts.first() else {
        return Ok(());
    };
    let of = first.shard.of();
    for pair in parts.windows(2) {
        let (one, other) = (&pair[0], &pair[1]);
        let expected = if other.shard.of() != of {
            format!("found {}, expected parts of {of}", other.shard)
        } else if other.shard == one.shard {
            "found the same, expected every part once".to_owned()
        } else {
            continue;
        };
        return Err(MergeError::Shards {
            path: one.path(MANIFEST_FILE),
            found: one.shard,
            other: other.path(MANIFEST_FILE),
            expected,
        });
    }
    let found: BTreeSet<u32> = parts.iter().map(|part| part.shard.index()).collect();
    let numbers = |wanted: bool| -> String {
        let numbers = (1..=of).filter(|index| found.contains(index) == wanted);
        let numbers: Vec<String> = numbers.map(|index| index.to_string()).collect();
        numbers.join(", ")
    };
    if found.len() < of as usize {
        return Err(MergeError::Missing {
            found: numbers(true),
            of,
            missing: numbers(false),
        });
    }
    Ok(())
}

/// The manifest of the whole run.
fn common_manifest(parts: &[Part]) -> Result<Manifest, MergeError> {
    let whole = |part: &Part| Manifest {
        shard: None,
        ..part.dir.manifest().clone()
    };
    let manifest = whole(&parts[0]);
    for part in &parts[1..] {
        let differences = differences(&whole(part), &manifest);
        if !differences.is_empty() {
            return Err(MergeError::OtherRun {
                path: part.path(MANIFEST_FILE),
                other: parts[0].path(MANIFEST_FILE),
                differences,
            });
        }
    }
    Ok(manifest)
}

/// Arms that were run, with the panels that they were run on.
fn run_on(manifest: &Manifest) -> impl Iterator<Item = (&ManifestArm, &str, usize)> {
    let arms = manifest.arms.iter().filter(|arm| arm.unsupported.is_none());
    arms.flat_map(move |arm| {
        let panels = manifest.panels.iter();
        let supported = panels.filter(|panel| panel.file.is_some());
        supported.map(move |panel| {
            let cases = manifest.extent().of(panel.cases as usize).len();
            (arm, panel.panel.as_str(), cases)
        })
    })
}

/// Checks that every arm of a part has all of its records, and says so.
fn check_finished(part: &Part) -> Result<(), MergeError> {
    let manifest = part.dir.manifest();
    let mut storing = BTreeSet::new();
    for (arm, panel, cases) in run_on(manifest) {
        let stored = part.dir.stored_records(&arm.arm, panel)?;
        let records = stored.map_or_else(Vec::new, |stored| stored.records);
        if records.iter().any(|record| record.kv.is_some()) {
            storing.insert(arm.arm.as_str());
        }
        let found = records.len();
        // Of records that stand twice the certificates say so.
        if found < cases {
            return Err(MergeError::Unfinished {
                path: part.path(&record_path(&arm.arm, panel)?),
                found: found.to_string(),
                expected: format!("{cases} records"),
            });
        }
    }
    for arm in manifest.arms.iter().filter(|arm| arm.unsupported.is_none()) {
        let engagement = part.dir.engagement(&arm.arm)?;
        // Totals are written when an arm has ended, of what its cases stored.
        let stores = storing.contains(arm.arm.as_str());
        if engagement.is_none_or(|found| stores && found.totals.is_none()) {
            return Err(MergeError::Unfinished {
                path: part.path(&engagement_path(&arm.arm)),
                found: "no totals".to_owned(),
                expected: "those of a finished arm".to_owned(),
            });
        }
    }
    Ok(())
}

/// Writes everything but the manifest.
fn write(run: &RunDir, parts: &[Part]) -> Result<(), MergeError> {
    let first = &parts[0];
    for panel in &run.manifest().panels {
        if let Some(file) = &panel.file {
            let bytes = panel_bytes(first, file)?;
            run.write_panel(&panel.panel, &bytes)?;
        }
    }
    let calibration = common(parts, CALIBRATION_FILE, "calibration", RunDir::calibration)?;
    if let Some(calibration) = &calibration {
        run.write_calibration(calibration)?;
    }
    for arm in &run.manifest().arms {
        if arm.unsupported.is_none() {
            write_arm(run, parts, &arm.arm)?;
        }
    }
    Ok(())
}

fn panel_bytes(part: &Part, file: &FileDigest) -> Result<Vec<u8>, MergeError> {
    let (bytes, found) = part.dir.file_bytes(&file.path)?;
    if found.sha256 != file.sha256 {
        return Err(MergeError::Panel {
            path: part.path(&file.path),
            found: found.sha256,
            expected: file.sha256.clone(),
        });
    }
    Ok(bytes)
}

/// What all parts hold alike.
fn common<T: PartialEq>(
    parts: &[Part],
    relative: &str,
    what: &'static str,
    read: impl Fn(&RunDir) -> Result<T, StoreError>,
) -> Result<T, MergeError> {
    let expected = read(&parts[0].dir)?;
    for part in &parts[1..] {
        if read(&part.dir)? != expected {
            return Err(MergeError::OtherFile {
                path: part.path(relative),
                other: parts[0].path(relative),
                what,
            });
        }
    }
    Ok(expected)
}

fn write_arm(run: &RunDir, parts: &[Part], arm: &str) -> Result<(), MergeError> {
    let start = common(parts, &start_path(arm), "beginning", |dir| {
        dir.arm_start(arm)
    })?;
    if let Some(answers) = start.and_then(|start| start.answers) {
        run.start_arm(arm, answers)?;
    }
    for name in logs(parts, arm)? {
        let mut bytes = Vec::new();
        for part in parts {
            let path = part.path(&format!("arms/{arm}/{name}"));
            match fs::read(&path) {
                // A torn line is none, and would be taken for the beginning of the next part's first.
                Ok(found) => bytes.extend(&found[..whole_lines(&found)]),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io(&path, "read")(error).into()),
            }
        }
        run.write_bytes(&["arms", arm], &name, &bytes)?;
    }
    if let Some(engagement) = engagement(parts, arm)? {
        run.write_engagement(arm, &engagement)?;
    }
    let mut resources = Resources::empty();
    for part in parts {
        let found = part.dir.resources(arm)?;
        resources
            .parts
            .extend(found.into_iter().flat_map(|found| found.parts));
    }
    if !resources.parts.is_empty() {
        run.write_resources(arm, &resources)?;
    }
    Ok(())
}

/// Names of the record files and lists of attempts of an arm, of whichever part.
fn logs(parts: &[Part], arm: &str) -> Result<BTreeSet<String>, MergeError> {
    let mut names = BTreeSet::new();
    for part in parts {
        let folder = part.path(&format!("arms/{arm}"));
        let entries = fs::read_dir(&folder).map_err(StoreError::io(&folder, "list"))?;
        for entry in entries {
            let name = entry.map_err(StoreError::io(&folder, "list"))?.file_name();
            let name = name.to_string_lossy().into_owned();
            if name.ends_with(".jsonl") && !name.starts_with('.') {
                names.insert(name);
            }
        }
    }
    Ok(names)
}

/// The same probe everywhere, and the sum of what all parts stored.
fn engagement(parts: &[Part], arm: &str) -> Result<Option<Engagement>, MergeError> {
    let probe = |dir: &RunDir| {
        let found = dir.engagement(arm)?;
        Ok(found.map(|found| Engagement {
            totals: None,
            ..found
        }))
    };
    let mut whole = common(parts, &engagement_path(arm), "probe", probe)?;
    for part in parts {
        let totals = part.dir.engagement(arm)?.and_then(|found| found.totals);
        if let (Some(whole), Some(totals)) = (&mut whole, totals) {
            whole.totals.get_or_insert_default().merge(&totals);
        }
    }
    Ok(whole)
}
