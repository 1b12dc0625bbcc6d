//! The evidence list, file by file.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::schema::{Certificate, FileDigest, TreeDifference};
use crate::store::{RunDir, StoreError};

use super::{CertifyError, Disagreement};

/// Files of the certificate's evidence list that the run does not hold, or holds with other bytes.
///
/// # Errors
/// [`CertifyError::Store`] where the system failed to read a file.
pub(super) fn changed(
    certificate: &Certificate,
    dir: &RunDir,
) -> Result<Vec<Disagreement>, CertifyError> {
    let mut list = Vec::new();
    for (at, file) in certificate.evidence.iter().enumerate() {
        let held = match dir.file_digest(&file.path) {
            Ok(held) => Some(held.sha256),
            Err(error) if error.is_system() => return Err(error.into()),
            // A path that leads out of the run is no file of the run.
            Err(StoreError::Io { .. } | StoreError::Name { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if held.as_ref() != Some(&file.sha256) {
            list.push(entry(at, file, held.map(Value::String)));
        }
    }
    Ok(list)
}

/// Where the list is not the one that the evidence gives: files left out, added, doubled or in
/// another order.
pub(super) fn unlisted(certificate: &Certificate, expected: &Certificate) -> Vec<Disagreement> {
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    for file in &certificate.evidence {
        *listed.entry(&file.path).or_default() += 1;
    }
    let mut list = Vec::new();
    for file in &expected.evidence {
        match listed.remove(file.path.as_str()) {
            Some(1) => {}
            Some(times) => list.push(count(&file.path, times, "once")),
            None => list.push(Disagreement::with_evidence(TreeDifference {
                path: path(&file.path),
                found: None,
                expected: Some(file.sha256.clone().into()),
            })),
        }
    }
    list.extend(
        listed
            .into_iter()
            .map(|(path, times)| count(path, times, "not to be listed")),
    );
    if list.is_empty() && !certificate.evidence.is_sorted_by(|a, b| a.path < b.path) {
        let order = |certificate: &Certificate| {
            let paths = certificate.evidence.iter().map(|file| file.path.clone());
            Some(paths.collect::<Vec<_>>().into())
        };
        list.push(Disagreement::with_evidence(TreeDifference {
            path: "evidence".to_owned(),
            found: order(certificate),
            expected: order(expected),
        }));
    }
    list
}

/// How a file is named in the evidence list.
fn path(file: &str) -> String {
    format!("evidence[{file}]")
}

fn entry(at: usize, file: &FileDigest, held: Option<Value>) -> Disagreement {
    let name = if file.path.is_empty() {
        format!("evidence[{at}]")
    } else {
        path(&file.path)
    };
    Disagreement::with_evidence(TreeDifference {
        path: format!("{name}.sha256"),
        found: Some(file.sha256.clone().into()),
        expected: Some(held.unwrap_or_else(|| "no such file in the run".into())),
    })
}

fn count(file: &str, times: usize, expected: &str) -> Disagreement {
    Disagreement::with_evidence(TreeDifference {
        path: path(file),
        found: Some(match times {
            1 => "the file".into(),
            more => format!("the file {more} times").into(),
        }),
        expected: Some(expected.into()),
    })
}
