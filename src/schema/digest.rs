//! SHA-256 digests and the canonical JSON form they are taken over.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A file and the SHA-256 of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileDigest {
    /// Path relative to the run directory or to the model's folder, with `/` separators.
    pub path: String,
    /// Lower-case hexadecimal SHA-256 of the file's bytes.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub sha256: String,
}

/// Lower-case hexadecimal SHA-256 of `bytes`.
pub fn sha256_hex(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// Whether `text` has the form of a digest: 64 lower-case hexadecimal digits.
pub fn is_sha256(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == 64 && text.bytes().all(hex)
}

/// Lower-case hexadecimal of a finished digest.
pub fn to_hex(digest: &[u8]) -> String {
    use std::fmt::Write;
    digest
        .iter()
        .fold(String::with_capacity(2 * digest.len()), |mut out, byte| {
            // Writing to a String cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
}

/// Canonical JSON: object keys sorted by code point, no white space, numbers as `serde_json`
/// prints them (shortest form that reads back to the same value).
///
/// # Errors
/// Only where `value` cannot be JSON at all (a non-string map key, say).
pub fn canonical_json<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let mut tree = serde_json::to_value(value)?;
    tree.sort_all_objects();
    serde_json::to_string(&tree)
}

/// SHA-256 of [`canonical_json`].
///
/// # Errors
/// As [`canonical_json`].
pub fn canonical_sha256<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    Ok(sha256_hex(canonical_json(value)?.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest_and_key_order() {
        assert_eq!(
            sha256_hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        let value = serde_json::json!({"b": {"z": 1, "a": 0.1}, "a": [2, 1]});
        assert_eq!(
            canonical_json(&value).unwrap(),
            r#"{"a":[2,1],"b":{"a":0.1,"z":1}}"#
        );
    }
}
