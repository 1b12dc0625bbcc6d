//! Stored JSON documents: schema names and versions.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use crate::schema::{CERTIFICATE_SCHEMA, Certificate, parse_strict};

use super::StoreError;

/// Most bytes of a document: the largest ones hold a few hundred bytes per layer of a model.
pub(super) const MOST_BYTES: u64 = 64 << 20;

/// Reads a certificate that may lie anywhere and come from anyone: of limited size, without
/// doubled keys and unknown fields.
///
/// # Errors
/// [`StoreError::Nothing`], [`StoreError::Io`], [`StoreError::TooLarge`], [`StoreError::Newer`],
/// [`StoreError::Schema`]; [`StoreError::NoJson`] and [`StoreError::Json`] with line and column.
pub fn read_certificate(path: &Path) -> Result<Certificate, StoreError> {
    match read(path, CERTIFICATE_SCHEMA)? {
        Some((certificate, _)) => Ok(certificate),
        None => Err(StoreError::Nothing {
            path: path.to_owned(),
            expected: "a certificate",
        }),
    }
}

/// Reads a document of any schema as a tree: of limited size and without doubled keys.
///
/// # Errors
/// As [`read_limited`]; [`StoreError::Json`] with line and column.
pub fn read_tree(path: &Path) -> Result<Value, StoreError> {
    parse_strict(&read_limited(path)?).map_err(StoreError::json(path))
}

/// The bytes of a file that is no larger than a document may be.
///
/// # Errors
/// [`StoreError::Io`], [`StoreError::TooLarge`].
pub fn read_limited(path: &Path) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(StoreError::io(path, "read"))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(StoreError::TooLarge {
            path: path.to_owned(),
            most: MOST_BYTES,
        });
    }
    Ok(bytes)
}

/// Reads a document of exactly the schema `expected`; `None` where there is no file.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    expected: &'static str,
) -> Result<Option<(T, Vec<u8>)>, StoreError> {
    let bytes = match read_limited(path) {
        Ok(bytes) => bytes,
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let tree = parse_strict(&bytes).map_err(|error| no_document(path, &bytes, error, expected))?;
    check(path, &tree, expected)?;
    // Read from the text again: errors in fields then name their line.
    let document = serde_json::from_slice(&bytes).map_err(StoreError::json(path))?;
    Ok(Some((document, bytes)))
}

/// What stands where a document of the schema `expected` cannot be read.
fn no_document(
    path: &Path,
    bytes: &[u8],
    error: serde_json::Error,
    expected: &'static str,
) -> StoreError {
    let found = match error.classify() {
        _ if bytes.is_empty() => "an empty file".to_owned(),
        _ if bytes.starts_with(b"\xef\xbb\xbf") => "a byte order mark".to_owned(),
        Category::Eof => format!("the beginning of one ({error})"),
        Category::Syntax => format!("text that is no JSON ({error})"),
        Category::Data | Category::Io => return StoreError::json(path)(error),
    };
    StoreError::NoJson {
        path: path.to_owned(),
        found,
        expected,
    }
}

/// Refuses to overwrite a document of a newer version. What is no document at all may be replaced.
pub(super) fn check_overwrite(path: &Path, expected: &'static str) -> Result<(), StoreError> {
    let Ok(bytes) = fs::read(path) else {
        return Ok(());
    };
    let Ok(tree) = serde_json::from_slice::<Value>(&bytes) else {
        return Ok(());
    };
    match check(path, &tree, expected) {
        Err(newer @ StoreError::Newer { .. }) => Err(newer),
        _ => Ok(()),
    }
}

fn check(path: &Path, tree: &Value, expected: &'static str) -> Result<(), StoreError> {
    let found = match tree.get("schema") {
        Some(Value::String(found)) => found.clone(),
        Some(other) => other.to_string(),
        None => "none".to_owned(),
    };
    if found == expected {
        return Ok(());
    }
    let path = path.to_owned();
    Err(if is_newer(&found, expected) {
        StoreError::Newer {
            path,
            found,
            expected,
        }
    } else {
        StoreError::Schema {
            path,
            found,
            expected,
        }
    })
}

/// The same name with a larger version number.
fn is_newer(found: &str, expected: &str) -> bool {
    let split = |schema: &str| {
        let (name, version) = schema.rsplit_once('/')?;
        Some((name.to_owned(), version.parse::<u64>().ok()?))
    };
    match (split(found), split(expected)) {
        (Some(found), Some(expected)) => found.0 == expected.0 && found.1 > expected.1,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(text: &str) -> Result<(), StoreError> {
        let tree: Value = serde_json::from_str(text).unwrap();
        check(Path::new("x.json"), &tree, "kvassay.run/2")
    }

    #[test]
    fn newer_older_other_and_missing_schemas() {
        assert!(check_text(r#"{"schema":"kvassay.run/2"}"#).is_ok());
        for newer in ["kvassay.run/3", "kvassay.run/10"] {
            let error = check_text(&format!(r#"{{"schema":"{newer}"}}"#)).unwrap_err();
            assert!(matches!(error, StoreError::Newer { .. }), "{error}");
            assert!(error.to_string().contains(newer));
        }
        for other in [
            r#"{"schema":"kvassay.run/1"}"#,
            r#"{"schema":"kvassay.panel/9"}"#,
            r#"{"schema":"kvassay.run/x"}"#,
            r#"{"schema":3}"#,
            "{}",
            "[]",
        ] {
            let error = check_text(other).unwrap_err();
            assert!(
                matches!(error, StoreError::Schema { .. }),
                "{other}: {error}"
            );
        }
    }
}
