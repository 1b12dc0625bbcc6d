//! What makes two cases the same: the question and its gold answer, whatever their ids.

use serde_json::Value;

use crate::schema::{canonical_json, sha256_hex};

/// Content of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Canonical question text; absent where the file gives its digest alone.
    pub question: Option<String>,
    /// SHA-256 of the canonical question text.
    pub question_sha256: String,
    /// Canonical gold answer.
    pub gold: Option<String>,
}

impl Content {
    /// Content with the question's text.
    pub fn of_text(question: &str, gold: Option<&str>) -> Self {
        let question = canonical_text(question);
        Content {
            question_sha256: sha256_hex(question.as_bytes()),
            question: Some(question),
            gold: gold.map(canonical_text),
        }
    }

    /// Content whose question is known by its digest alone.
    pub fn of_digest(question_sha256: &str, gold: Option<&str>) -> Self {
        Content {
            question: None,
            question_sha256: question_sha256.to_ascii_lowercase(),
            gold: gold.map(canonical_text),
        }
    }

    /// SHA-256 of the question's digest, a line feed and the gold answer (nothing after the
    /// digest where there is no gold answer).
    pub fn sha256(&self) -> String {
        match &self.gold {
            None => sha256_hex(self.question_sha256.as_bytes()),
            Some(gold) => sha256_hex(format!("{}\n{gold}", self.question_sha256).as_bytes()),
        }
    }
}

/// The same text with line ends as line feeds, and without blanks at the ends of lines or empty
/// lines at its end. Nothing else is changed.
pub(super) fn canonical_text(text: &str) -> String {
    let unix = text.replace("\r\n", "\n").replace('\r', "\n");
    let lines: Vec<&str> = unix
        .split('\n')
        .map(|line| line.trim_end_matches([' ', '\t']))
        .collect();
    lines.join("\n").trim_end_matches('\n').to_owned()
}

/// A JSON value as text: a string is its canonical text, anything else canonical JSON whose
/// strings are canonical. `None` for null.
pub(super) fn value_text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(canonical_text(text)),
        // A list of one answer is that answer.
        Value::Array(items) if items.len() == 1 => items.first().and_then(value_text),
        // Any value can be written as JSON.
        other => canonical_json(&canonical_value(other)).ok(),
    }
}

fn canonical_value(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(canonical_text(text)),
        Value::Array(items) => Value::Array(items.iter().map(canonical_value).collect()),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), canonical_value(value)))
            .collect(),
        other => other.clone(),
    }
}

/// Whether a text is a SHA-256 in hexadecimal.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_line_ends_and_trailing_blanks_are_normalised() {
        let same = ["a\nb", "a\r\nb\r\n", "a \t\nb\n\n", "a\rb  "];
        for text in same {
            assert_eq!(canonical_text(text), "a\nb", "{text:?}");
        }
        for other in [" a\nb", "A\nb", "a\n\nb", "a b", "a\nb."] {
            assert_ne!(canonical_text(other), "a\nb", "{other:?}");
        }
    }

    #[test]
    fn text_and_digest_of_a_question_are_the_same_content() {
        let text = Content::of_text("How many?\r\n", Some("4 "));
        let digest = Content::of_digest(&sha256_hex(b"How many?").to_uppercase(), Some("4"));
        assert_eq!(text.sha256(), digest.sha256());
        assert_ne!(
            text.sha256(),
            Content::of_text("How many?", None).sha256(),
            "the gold answer is part of the content"
        );
    }

    #[test]
    fn values_become_text() {
        let text = |json: &str| value_text(&serde_json::from_str(json).unwrap());
        assert_eq!(text("null"), None);
        assert_eq!(text("\"18 \""), Some("18".to_owned()));
        assert_eq!(text("[\"18\"]"), Some("18".to_owned()));
        assert_eq!(text("18"), Some("18".to_owned()));
        assert_eq!(
            text("{\"b\":[\"x\\r\\n\",1],\"a\":null}"),
            Some("{\"a\":null,\"b\":[\"x\",1]}".to_owned())
        );
    }
}
