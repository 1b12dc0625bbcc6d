//! The API key: sent, and shown to nobody.

use std::fmt;

use reqwest::header::HeaderValue;

/// What stands in the key's place wherever a server repeats it.
const REDACTED: &str = "[API key]";

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

    /// `text` without the key.
    pub(super) fn scrub(&self, text: &str) -> String {
        text.replace(&self.text, REDACTED)
    }

    /// Whether `text` holds the key.
    pub(super) fn is_in(&self, text: &str) -> bool {
        text.contains(&self.text)
    }
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
