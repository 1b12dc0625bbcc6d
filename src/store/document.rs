//! Stored JSON documents: schema names and versions.

use std::fs;
use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::schema::{CERTIFICATE_SCHEMA, Certificate};

use super::StoreError;

/// Reads a document of exactly the schema `expected`; `None` where there is no file.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    expected: &'static str,
) -> Result<Option<(T, Vec<u8>)>, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(path, "read")(error)),
    };
    let tree: Value = serde_json::from_slice(&bytes).map_err(StoreError::json(path))?;
    check(path, &tree, expected)?;
    // Read from the text again: errors in fields then name their line.
    let document = serde_json::from_slice(&bytes).map_err(StoreError::json(path))?;
    Ok(Some((document, bytes)))
}

/// Reads a certificate that may lie anywhere.
///
/// # Errors
/// [`StoreError::Io`] where there is no such file or it cannot be read, [`StoreError::Newer`],
/// [`StoreError::Schema`], [`StoreError::Json`].
pub fn read_certificate(path: &Path) -> Result<Certificate, StoreError> {
    match read(path, CERTIFICATE_SCHEMA)? {
        Some((certificate, _)) => Ok(certificate),
        None => Err(StoreError::io(path, "read")(io::ErrorKind::NotFound.into())),
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
