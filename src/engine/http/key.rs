//! The API key: sent, and shown to nobody.

use std::fmt;

use reqwest::header::HeaderValue;
use serde_json::Value;

/// What stands in the key's place wherever a server repeats it.
const REDACTED: &str = "[API key]";
/// Longest run of backslashes that is taken for one escape.
const MOST_ESCAPES: usize = 16;

/// A bearer token. Its text is in no debug output, message or record.
#[derive(Clone)]
pub struct ApiKey {
    text: String,
    header: HeaderValue,
}

/// A text that cannot be a key. The text is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found a key with characters that no HTTP header may hold, expected printable ASCII")]
pub struct KeyError;

impl ApiKey {
    /// Reads a key; white space around it is dropped, and an empty text is no key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(text: &str) -> Result<Option<Self>, KeyError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(KeyError);
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| KeyError)?;
        header.set_sensitive(true);
        Ok(Some(ApiKey {
            text: text.to_owned(),
            header,
        }))
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Whether a string or a field's name holds the key: what could be carried on. Numbers are none.
    pub(super) fn is_in_value(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.is_in(text),
            Value::Array(items) => items.iter().any(|item| self.is_in_value(item)),
            Value::Object(fields) => fields
                .iter()
                .any(|(name, item)| self.is_in(name) || self.is_in_value(item)),
            _ => false,
        }
    }

    /// `text` without the key, as it is or escaped as in JSON.
    pub(super) fn scrub(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((start, end)) = self.find(rest) {
            clean.push_str(&rest[..start]);
            clean.push_str(REDACTED);
            rest = &rest[end..];
        }
        clean + rest
    }

    /// Whether `text` holds the key, as it is or escaped as in JSON.
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.find(text).is_some()
    }

    /// Where the key is first.
    fn find(&self, text: &str) -> Option<(usize, usize)> {
        let starts = text.char_indices().map(|(start, _)| start);
        let mut found = starts.filter_map(|start| Some((start, self.end(text.as_bytes(), start)?)));
        found.next()
    }

    /// Where the key ends that begins at `at`. Any character may be escaped, also several times over:
    /// JSON may hold JSON.
    fn end(&self, text: &[u8], mut at: usize) -> Option<usize> {
        if text[at..].starts_with(self.text.as_bytes()) {
            return Some(at + self.text.len());
        }
        let mut key = self.text.bytes().peekable();
        while let Some(byte) = key.next() {
            let mut escapes = backslashes(&text[at..]);
            at += escapes;
            if byte == b'\\' {
                // How many backslashes stand for how many is not known: any run of them is enough.
                while key.next_if_eq(&b'\\').is_some() {}
                let begun = at;
                while escapes > 0 && code_point(&text[at..]) == Some(u32::from(byte)) {
                    at += 5;
                    escapes = backslashes(&text[at..]);
                    if code_point(&text[at + escapes..]) == Some(u32::from(byte)) {
                        at += escapes;
                    }
                }
                if escapes > 0 || at > begun {
                    continue;
                }
            }
            let rest = &text[at..];
            if escapes > 0 && code_point(rest) == Some(u32::from(byte)) {
                at += 5;
            } else if rest.first() == Some(&byte) {
                at += 1;
            } else {
                return None;
            }
        }
        Some(at)
    }
}

/// Backslashes that `text` begins with.
fn backslashes(text: &[u8]) -> usize {
    let run = text.iter().take(MOST_ESCAPES);
    run.take_while(|&&found| found == b'\\').count()
}

/// The character of `uXXXX`.
fn code_point(text: &[u8]) -> Option<u32> {
    let digits = text.strip_prefix(b"u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_keys_are_found() {
        let key = ApiKey::parse("a/\"\\u<9").unwrap().unwrap();
        for text in [
            r#"a/"\u<9"#,
            r#"a\/\"\\u<9"#,
            r#"\u0061\u002F\u0022\u005c\u0075\u003C\u0039"#,
            r#"a/\\\"\\\\u\\u003c9"#,
        ] {
            assert!(key.is_in(text), "{text}");
            let clean = key.scrub(&format!("\u{e9}{text}, {text}."));
            assert_eq!(clean, "\u{e9}[API key], [API key].");
        }
        let twice = ApiKey::parse(r"x\\y").unwrap().unwrap();
        for text in [r"x\\y", r"x\\\\y", r"\u0078\u005C\u005c\u0079"] {
            assert_eq!(twice.scrub(text), REDACTED, "{text}");
        }
        for text in [
            r#"a/"u<9"#,
            r#"a/"\u<"#,
            r#"\u0062/"\u<9"#,
            r"a\u00",
            "",
            r"\",
        ] {
            assert!(!key.is_in(text), "{text}");
            assert_eq!(key.scrub(text), text);
        }
    }

    #[test]
    fn a_key_shows_nowhere() {
        let key = ApiKey::parse(" sk-12 \n").unwrap().unwrap();
        assert_eq!(format!("{key:?}"), "[API key]");
        assert_eq!(key.scrub("wrong key sk-12!"), "wrong key [API key]!");
        assert!(key.is_in("x sk-12") && !key.is_in("sk-1"));
        assert_eq!(key.header().to_str().unwrap(), "Bearer sk-12");
        assert!(format!("{:?}", key.header()).contains("Sensitive"));
        assert!(ApiKey::parse("\n").unwrap().is_none());
        for wrong in ["sk 12", "sk\u{e9}", "a\nb"] {
            let error = ApiKey::parse(wrong).err().unwrap().to_string();
            assert!(!error.contains(wrong));
        }
    }
}
