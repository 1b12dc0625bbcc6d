//! `kvassay verify --schema-only`: a file against the JSON Schema of its kind.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde_json::Value;

use crate::certify::verify::{Between, Disagreement};
use crate::schema::{PANEL_SCHEMA, STORED_DOCUMENTS, StoredDocument, parse_strict};
use crate::store;

use super::super::output::SummaryFormat;
use super::super::{Exit, Failure};
use super::document::{Check, Document};
use super::store_failure;

/// Longest offending value that is shown whole.
const LONGEST: usize = 80;

/// Validates the file at `path`; what violates its schema is bad input.
pub(super) fn run(
    path: &Path,
    format: SummaryFormat,
    out: &mut dyn Write,
) -> Result<Exit, Failure> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let (name, mismatches) = match extension {
        Some("jsonl") => lines(path)?,
        Some("toml") => whole(path, toml(path)?)?,
        _ => whole(path, store::read_tree(path).map_err(store_failure)?)?,
    };
    let notes = ["Only the form was checked: what the fields say was not.".to_owned()];
    let document = Document {
        certificate: path,
        check: Check::Schema { name },
        mismatches: &mismatches,
        notes: &notes,
    };
    document.write(format, out)?;
    Ok(if mismatches.is_empty() {
        Exit::Holds
    } else {
        Exit::BadInput
    })
}

fn toml(path: &Path) -> Result<Value, Failure> {
    let bytes = store::read_limited(path).map_err(store_failure)?;
    let place = || path.display().to_string();
    let text = std::str::from_utf8(&bytes)
        .with_context(place)
        .map_err(Failure::input)?;
    toml::from_str(text)
        .with_context(place)
        .map_err(Failure::input)
}

/// A whole document, whose `schema` field says what it is.
fn whole(path: &Path, tree: Value) -> Result<(&'static str, Vec<Disagreement>), Failure> {
    let declared = tree.get("schema").and_then(Value::as_str);
    let kind = declared
        .and_then(StoredDocument::of_schema)
        .ok_or_else(|| {
            let known: Vec<&str> = STORED_DOCUMENTS
                .iter()
                .filter_map(|document| document.schema)
                .collect();
            let found = declared.map_or("none".to_owned(), |schema| format!("`{schema}`"));
            Failure::input(anyhow!(
                "{}: schema: found {found}, expected one of {}",
                path.display(),
                known.join(", ")
            ))
        })?;
    Ok((kind.name, violations(kind, "", &tree)?))
}

/// A JSONL file: a panel, whose first line says so, or records.
fn lines(path: &Path) -> Result<(&'static str, Vec<Disagreement>), Failure> {
    let bytes = store::read_limited(path).map_err(store_failure)?;
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let kind = |name| StoredDocument::named(name).ok_or_else(|| Failure::input(anyhow!("{name}")));
    let (header, case, record) = (kind("panel-header")?, kind("panel-case")?, kind("record")?);
    let mut is_panel = false;
    let mut found = Vec::new();
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let place = format!("line {}: ", at + 1);
        match parse_strict(line) {
            Err(error) => {
                let line = String::from_utf8_lossy(line).into_owned().into();
                found.push(violation(place + "#", line, error.to_string()));
            }
            Ok(value) if at == 0 && value.get("schema").is_some() => {
                is_panel = true;
                found.extend(violations(header, &place, &value)?);
                if value["schema"] != PANEL_SCHEMA {
                    break;
                }
            }
            Ok(value) if is_panel => found.extend(violations(case, &place, &value)?),
            Ok(value) => found.extend(violations(record, &place, &value)?),
        }
    }
    let name = if is_panel { case.name } else { record.name };
    Ok((name, found))
}

fn violations(
    kind: &StoredDocument,
    place: &str,
    value: &Value,
) -> Result<Vec<Disagreement>, Failure> {
    let found = kind.violations(value).map_err(Failure::worker)?;
    let listed = found.into_iter().map(|found| {
        // As URI fragments, in which the whole document has a name too.
        let path = format!("{place}#{}", found.pointer);
        violation(path, found.found, found.message)
    });
    Ok(listed.collect())
}

fn violation(path: String, found: Value, message: String) -> Disagreement {
    let text = found.to_string();
    let found = if text.chars().count() > LONGEST {
        let beginning: String = text.chars().take(LONGEST).collect();
        Value::String(format!("{beginning}…"))
    } else {
        found
    };
    Disagreement {
        path,
        found: Some(found),
        expected: Some(Value::String(message)),
        between: Between::FileAndSchema,
    }
}
