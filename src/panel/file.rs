//! Panel files: one header line, then one line per case.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::PanelError;
use crate::schema::{PANEL_SCHEMA, PanelCase, PanelHeader, sha256_hex};
use crate::store::write_atomic;

/// A materialised panel.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// First line.
    pub header: PanelHeader,
    /// Cases in plan order.
    pub cases: Vec<PanelCase>,
    /// SHA-256 of each case's line, without the line feed.
    pub case_sha256s: Vec<String>,
    /// SHA-256 of the file.
    pub sha256: String,
}

impl Panel {
    /// The panel that [`write_panel`] would write.
    ///
    /// # Errors
    /// [`PanelError::File`] where a value cannot be JSON.
    pub fn new(header: PanelHeader, cases: Vec<PanelCase>) -> Result<Panel, PanelError> {
        let lines = Lines::of(Path::new(&header.panel), &header, &cases)?;
        Ok(Panel {
            header,
            cases,
            case_sha256s: lines.case_sha256s,
            sha256: sha256_hex(&lines.bytes),
        })
    }

    /// The bytes of the panel's file.
    ///
    /// # Errors
    /// [`PanelError::File`] where a value cannot be JSON.
    pub fn bytes(&self) -> Result<Vec<u8>, PanelError> {
        let lines = Lines::of(Path::new(&self.header.panel), &self.header, &self.cases)?;
        Ok(lines.bytes)
    }
}

/// The bytes of a panel file. The same panel always gives the same bytes.
struct Lines {
    bytes: Vec<u8>,
    case_sha256s: Vec<String>,
}

impl Lines {
    fn of(path: &Path, header: &PanelHeader, cases: &[PanelCase]) -> Result<Lines, PanelError> {
        let mut bytes = json(path, header)?;
        let mut case_sha256s = Vec::with_capacity(cases.len());
        bytes.push(b'\n');
        for case in cases {
            let line = json(path, case)?;
            case_sha256s.push(sha256_hex(&line));
            bytes.extend(line);
            bytes.push(b'\n');
        }
        Ok(Lines {
            bytes,
            case_sha256s,
        })
    }
}

fn json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, PanelError> {
    serde_json::to_vec(value).map_err(|error| PanelError::File {
        path: path.to_owned(),
        found: error.to_string(),
        expected: "a value that JSON can hold".to_owned(),
    })
}

/// Writes a panel file, folders above it included, and returns its SHA-256. The file is there whole
/// or not at all: it is written beside its place, synced and renamed.
///
/// # Errors
/// [`PanelError::Io`], [`PanelError::Store`].
pub fn write_panel(
    path: &Path,
    header: &PanelHeader,
    cases: &[PanelCase],
) -> Result<String, PanelError> {
    let lines = Lines::of(path, header, cases)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).map_err(PanelError::io(folder))?;
    write_atomic(path, &lines.bytes)?;
    Ok(sha256_hex(&lines.bytes))
}

/// Reads a panel file whose digest is known.
///
/// # Errors
/// [`PanelError::Digest`] where the file has other bytes, [`PanelError::Line`] where a line is no
/// case, the schema is another one, the number of cases differs from the header's or a case name
/// comes twice, [`PanelError::Io`].
pub fn read_panel(path: &Path, expected_sha256: &str) -> Result<Panel, PanelError> {
    let bytes = fs::read(path).map_err(PanelError::io(path))?;
    let sha256 = sha256_hex(&bytes);
    if sha256 != expected_sha256 {
        return Err(PanelError::Digest {
            path: path.to_owned(),
            found: sha256,
            expected: expected_sha256.to_owned(),
        });
    }
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let header = header(path, lines.next().unwrap_or_default())?;
    let mut panel = Panel {
        header,
        cases: Vec::new(),
        case_sha256s: Vec::new(),
        sha256,
    };
    let mut names = HashSet::new();
    for (index, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let case: PanelCase = parse(path, index + 2, line, "a panel case")?;
        if !names.insert(case.case.clone()) {
            let found = format!("case {} again", case.case);
            return Err(wrong(path, index + 2, found, "each case once"));
        }
        panel.case_sha256s.push(sha256_hex(line));
        panel.cases.push(case);
    }
    if panel.cases.len() != panel.header.cases as usize {
        return Err(PanelError::File {
            path: path.to_owned(),
            found: format!("{} cases", panel.cases.len()),
            expected: format!("{}, as its header says", panel.header.cases),
        });
    }
    Ok(panel)
}

fn header(path: &Path, line: &[u8]) -> Result<PanelHeader, PanelError> {
    #[derive(serde::Deserialize)]
    struct Schema {
        schema: String,
    }
    // Before the other fields, which another version may not share.
    let Schema { schema } = parse(path, 1, line, "a panel header")?;
    if schema != PANEL_SCHEMA {
        let found = format!("schema {schema}");
        return Err(wrong(path, 1, found, &format!("schema {PANEL_SCHEMA}")));
    }
    parse(path, 1, line, "a panel header")
}

fn parse<T: DeserializeOwned>(
    path: &Path,
    number: usize,
    line: &[u8],
    expected: &str,
) -> Result<T, PanelError> {
    serde_json::from_slice(line).map_err(|error| wrong(path, number, error.to_string(), expected))
}

fn wrong(path: &Path, line: usize, found: String, expected: &str) -> PanelError {
    PanelError::Line {
        path: path.to_owned(),
        line,
        found,
        expected: expected.to_owned(),
    }
}
