//! Protocols as files: TOML and JSON, and the ones that are built in.

use super::protocol_check::require;
use super::{PROTOCOL_SCHEMA, Protocol, ProtocolError};

/// Built-in protocols, in the order in which they are listed.
const BUILTIN: [(&str, &str); 7] = [
    ("reference", include_str!("../../protocols/reference.toml")),
    (
        "study-two-models",
        include_str!("../../protocols/study-two-models.toml"),
    ),
    (
        "study-workers",
        include_str!("../../protocols/study-workers.toml"),
    ),
    (
        "study-recent-models",
        include_str!("../../protocols/study-recent-models.toml"),
    ),
    (
        "reference-wikitext",
        include_str!("../../protocols/reference-wikitext.toml"),
    ),
    ("demo", include_str!("../../protocols/demo.toml")),
    ("smoke", include_str!("../../protocols/smoke.toml")),
];

/// Every built-in protocol.
pub fn builtin_protocols() -> Vec<Protocol> {
    BUILTIN
        .iter()
        .filter_map(|(name, _)| builtin_protocol(name))
        .collect()
}

/// The built-in protocol of this name.
pub fn builtin_protocol(name: &str) -> Option<Protocol> {
    let (_, text) = BUILTIN.iter().find(|(builtin, _)| *builtin == name)?;
    // A test reads and validates each of the embedded files.
    Protocol::from_toml(text).ok()
}

/// The one field that is read before anything else, so that a document of another version is
/// refused by its version and not by a field that this version does not know.
#[derive(serde::Deserialize)]
struct Head {
    #[serde(default)]
    schema: Option<String>,
}

impl Protocol {
    /// Reads and validates a TOML protocol.
    ///
    /// # Errors
    /// [`ProtocolError::Syntax`] with the line, [`ProtocolError::Schema`] or
    /// [`ProtocolError::NewerSchema`] for another document or version, and whatever
    /// [`Protocol::validate`] finds.
    pub fn from_toml(text: &str) -> Result<Protocol, ProtocolError> {
        let text = without_mark(text);
        let syntax = |error: toml::de::Error| ProtocolError::Syntax {
            format: "TOML",
            message: in_one_line(text, &error),
        };
        let head: Head = toml::from_str(text).map_err(syntax)?;
        check_schema(head.schema.as_deref())?;
        let protocol: Protocol = toml::from_str(text).map_err(syntax)?;
        protocol.validate()?;
        Ok(protocol)
    }

    /// Reads and validates a JSON protocol.
    ///
    /// # Errors
    /// As [`Protocol::from_toml`].
    pub fn from_json(text: &str) -> Result<Protocol, ProtocolError> {
        let text = without_mark(text);
        let syntax = |error: serde_json::Error| ProtocolError::Syntax {
            format: "JSON",
            message: error.to_string(),
        };
        let head: Head = serde_json::from_str(text).map_err(syntax)?;
        check_schema(head.schema.as_deref())?;
        let protocol: Protocol = serde_json::from_str(text).map_err(syntax)?;
        protocol.validate()?;
        Ok(protocol)
    }

    /// The protocol as a TOML file with a comment that says what its digest covers. It reads back
    /// to the same protocol.
    ///
    /// # Errors
    /// [`ProtocolError::Field`] for a seed that TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, ProtocolError> {
        let most = i64::MAX as u64;
        for (field, seed) in [("seed", self.seed), ("rules.nll.seed", self.rules.nll.seed)] {
            let expected = format!("at most {most} in TOML");
            require(seed <= most, field, seed, expected)?;
        }
        let body = toml::to_string(self).map_err(|error| ProtocolError::Syntax {
            format: "TOML",
            message: error.to_string(),
        })?;
        Ok(format!("{DIGEST_COMMENT}{body}"))
    }
}

/// What is wrong, with its place; the library draws the line instead.
fn in_one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().trim_end().replace('\n', ", ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return message;
    };
    let line = 1 + before.matches('\n').count();
    let column = 1 + before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count();
    format!("{message} at line {line} column {column}")
}

/// Head of every TOML protocol that is written.
const DIGEST_COMMENT: &str = "\
# The digest of this protocol is the SHA-256 of its canonical JSON: every field below, name,
# description and seeds included, with sorted keys and without white space. Comments, the order of
# keys, layout and the choice of TOML or JSON are outside of it: `kvassay protocol show` prints it.
";

/// The text behind a byte order mark, which some editors put before everything else.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Accepts exactly the schema and version that this crate knows.
pub(super) fn check_schema(found: Option<&str>) -> Result<(), ProtocolError> {
    if found == Some(PROTOCOL_SCHEMA) {
        return Ok(());
    }
    let version = |text: &str| -> Option<u64> {
        let (name, version) = text.split_once('/')?;
        (name == "kvassay.protocol").then(|| version.parse().ok())?
    };
    match found {
        Some(name) if version(name) > version(PROTOCOL_SCHEMA) => Err(ProtocolError::NewerSchema {
            found: name.to_owned(),
        }),
        _ => Err(ProtocolError::Schema {
            found: found.map_or("no schema field".to_owned(), |name| format!("`{name}`")),
        }),
    }
}

#[cfg(test)]
mod tests;
