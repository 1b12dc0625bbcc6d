//! JSON as Python writes it: with bare `NaN` and `Infinity`, and whole numbers of any length.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::schema::parse_strict;

use super::ImportError;

/// Digits from which a whole number may be longer than 64 bits.
const LONG: usize = 19;

/// Words that stand for numbers in Python's JSON and are no JSON, the longest first.
const NOT_FINITE: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses JSON in which numbers may be `NaN`, `Infinity` and `-Infinity`; each of them becomes
/// the string of that name, so that it is named and never taken for a number. So does a whole number
/// that 64 bits cannot hold: as a float it would be the same as its neighbours.
///
/// # Errors
/// [`ImportError::Input`] with what the parser found, a key that is there twice among it.
pub(super) fn parse<T: DeserializeOwned>(
    place: &str,
    bytes: &[u8],
    expected: &str,
) -> Result<T, ImportError> {
    let text = quoted(bytes);
    parse_strict(&text)
        .and_then(|_| serde_json::from_slice(&text))
        .map_err(|error| ImportError::input(place, error.to_string(), expected))
}

/// `bytes` with the bare words of [`NOT_FINITE`] and whole numbers beyond 64 bits in quotes.
fn quoted(bytes: &[u8]) -> Cow<'_, [u8]> {
    let is_long = |run: &[u8]| run.len() >= LONG;
    let mut digits = bytes.split(|byte| !byte.is_ascii_digit());
    if !holds(bytes, b"NaN") && !holds(bytes, b"Infinity") && !digits.any(is_long) {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len() + 16);
    let (mut at, mut in_string) = (0, false);
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let number = if in_string { &[] } else { number(rest) };
        let bare = match in_string {
            true => None,
            false if is_too_long(number) => Some(number),
            false => bare_word(rest).map(str::as_bytes),
        };
        if let Some(bare) = bare {
            out.push(b'"');
            out.extend_from_slice(bare);
            out.push(b'"');
            at += bare.len();
            continue;
        }
        if !number.is_empty() {
            out.extend_from_slice(number);
            at += number.len();
            continue;
        }
        if in_string && byte == b'\\' {
            // The escaped byte is no quote that ends the string.
            out.extend_from_slice(&rest[..rest.len().min(2)]);
            at += 2;
            continue;
        }
        in_string ^= byte == b'"';
        out.push(byte);
        at += 1;
    }
    Cow::Owned(out)
}

/// The number that `rest` starts with, right or not; empty where there is none.
fn number(rest: &[u8]) -> &[u8] {
    if !rest
        .strip_prefix(b"-")
        .unwrap_or(rest)
        .first()
        .is_some_and(u8::is_ascii_digit)
    {
        return &[];
    }
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let end = rest.iter().position(|byte| !is_part(byte));
    &rest[..end.unwrap_or(rest.len())]
}

/// Whether it is a whole number that 64 bits cannot hold.
fn is_too_long(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    let is_whole = digits.len() >= LONG && digits.iter().all(u8::is_ascii_digit);
    // JSON has no leading zeros: the parser refuses them by itself.
    is_whole
        && digits[0] != b'0'
        && std::str::from_utf8(number)
            .is_ok_and(|text| text.parse::<u64>().is_err() && text.parse::<i64>().is_err())
}

/// The word of [`NOT_FINITE`] that `rest` starts with, unless more letters follow it.
fn bare_word(rest: &[u8]) -> Option<&'static str> {
    let starts = |word: &&str| rest.starts_with(word.as_bytes());
    let word = NOT_FINITE.into_iter().find(starts)?;
    let next = rest.get(word.len());
    next.is_none_or(|byte| !byte.is_ascii_alphanumeric())
        .then_some(word)
}

fn holds(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

/// What a JSON value says about an answer.
pub(super) enum Reading {
    /// Right or wrong.
    Binary(bool),
    /// A number, or none at all, that is neither.
    Other(String),
    /// No number.
    NoNumber,
}

/// Reads a metric: 1 and `true` are right, 0 and `false` wrong. Null, numbers that are not
/// finite and other numbers are neither.
pub(super) fn metric(value: &Value) -> Reading {
    match value {
        Value::Bool(right) => Reading::Binary(*right),
        Value::Null => Reading::Other("null".to_owned()),
        Value::Number(number) => match number.as_f64() {
            Some(1.0) => Reading::Binary(true),
            Some(0.0) => Reading::Binary(false),
            _ => Reading::Other(number.to_string()),
        },
        Value::String(word) if NOT_FINITE.contains(&word.as_str()) => Reading::Other(word.clone()),
        _ => Reading::NoNumber,
    }
}

/// What a value is, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A text or number as text: ids come as either.
pub(super) fn id_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The first text of nested lists of responses.
pub(super) fn first_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => items.first().and_then(first_text),
        _ => None,
    }
}

/// Fields under which data carries the digest of a protocol.
pub(super) const PROTOCOL_FIELDS: [&str; 2] = ["kvassay_protocol_sha256", "protocol_sha256"];

/// The protocol digest that the first of `places` with one carries.
pub(super) fn protocol_digest<'a>(
    places: impl IntoIterator<Item = Option<&'a Value>>,
) -> Option<String> {
    places
        .into_iter()
        .flatten()
        .find_map(|place| protocol_field(place.as_object()?))
}

/// The protocol digest in one object.
pub(super) fn protocol_field(fields: &Map<String, Value>) -> Option<String> {
    PROTOCOL_FIELDS
        .iter()
        .find_map(|field| Some(fields.get(*field)?.as_str()?.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Value {
        parse("x:1", text.as_bytes(), "JSON").unwrap()
    }

    #[test]
    fn bare_words_are_quoted_outside_of_strings_only() {
        let value = read(r#"{"a": NaN,"b":[-Infinity, Infinity],"c":"say \"NaN, Infinity","d":1}"#);
        assert_eq!(value["a"], "NaN");
        assert_eq!(value["b"], serde_json::json!(["-Infinity", "Infinity"]));
        assert_eq!(value["c"], "say \"NaN, Infinity");
        for bad in [
            "{\"a\": NaNs}",
            "{\"a\": -NaN}",
            "NaN NaN",
            "{\"a\\",
            "\"NaN",
        ] {
            let error = parse::<Value>("x:1", bad.as_bytes(), "JSON").unwrap_err();
            assert!(error.to_string().starts_with("x:1: found "), "{error}");
        }
    }

    #[test]
    fn whole_numbers_beyond_64_bits_keep_their_digits() {
        let value = read(
            r#"[18446744073709551615, 18446744073709551616, -9223372036854775809,
                {"100000000000000000000": "100000000000000000007"}, 100000000000000000007,
                1e30, 0.10000000000000000000, -9223372036854775808]"#,
        );
        assert_eq!(value[0], u64::MAX);
        assert_eq!(value[1], "18446744073709551616");
        assert_eq!(value[2], "-9223372036854775809");
        assert_eq!(value[3]["100000000000000000000"], "100000000000000000007");
        assert_eq!(value[4], "100000000000000000007");
        assert_eq!((&value[5], &value[6]), (&1e30.into(), &0.1.into()));
        assert_eq!(value[7], i64::MIN);
        for bad in ["00000000000000000000001", "1000000000000000000000-1"] {
            assert!(
                parse::<Value>("x:1", bad.as_bytes(), "JSON").is_err(),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let line = br#"{"exact_match": 1.0, "doc": {}, "exact_match": 0.0}"#;
        let error = parse::<Value>("x:4", line, "a sample").unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("x:4: found ") && text.contains("exact_match"),
            "{text}"
        );
    }

    #[test]
    fn metrics_are_binary_or_named() {
        let say = |text: &str| match metric(&read(text)) {
            Reading::Binary(right) => right.to_string(),
            Reading::Other(found) => found,
            Reading::NoNumber => "no number".to_owned(),
        };
        let table = [
            ("1", "true"),
            ("1.0", "true"),
            ("true", "true"),
            ("0.0", "false"),
            ("-0.0", "false"),
            ("false", "false"),
            ("0.5", "0.5"),
            ("2", "2"),
            ("null", "null"),
            ("NaN", "NaN"),
            ("-Infinity", "-Infinity"),
            ("\"1\"", "no number"),
            ("[1]", "no number"),
        ];
        for (text, expected) in table {
            assert_eq!(say(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn json_without_bare_words_reads_as_ever(text in "\\PC{0,40}") {
            let json = serde_json::to_string(&serde_json::json!({"NaN": text, "b": ["Infinity"]}));
            let json = json.unwrap();
            let expected: Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(read(&json), expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut bytes = bytes;
            bytes.extend_from_slice(b"NaN");
            let _ = parse::<Value>("x", &bytes, "JSON");
        }
    }
}
