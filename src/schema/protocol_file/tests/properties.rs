//! Foreign text, damaged files, and other orders of keys.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::super::*;

/// A change of a file: a place, how many characters go there, and what comes in their stead.
fn damage() -> impl Strategy<Value = (usize, usize, String)> {
    (
        0usize..4000,
        0usize..12,
        "[\\PC\n]{0,3}|[-0-9.e\\[\\]{}\"',=:#]{0,4}",
    )
}

fn damaged(text: &str, (at, length, insert): &(usize, usize, String)) -> String {
    let characters: Vec<char> = text.chars().collect();
    let at = at % characters.len();
    let end = (at + length).min(characters.len());
    let before = characters[..at].iter();
    before
        .copied()
        .chain(insert.chars())
        .chain(characters[end..].iter().copied())
        .collect()
}

/// Objects with their keys in an order that `keys` decides.
fn shuffled(value: &Value, keys: &mut impl Iterator<Item = u64>) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(u64, &String, Value)> = map
                .iter()
                .map(|(key, value)| (keys.next().unwrap_or(0), key, shuffled(value, keys)))
                .collect();
            entries.sort_by_key(|(order, ..)| *order);
            let entries = entries.into_iter();
            Value::Object(Map::from_iter(
                entries.map(|(_, key, value)| (key.clone(), value)),
            ))
        }
        Value::Array(list) => list.iter().map(|value| shuffled(value, keys)).collect(),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn foreign_text_never_panics(text in "\\PC{0,80}") {
        let _ = Protocol::from_json(&text).map_err(|error| error.to_string());
        let _ = Protocol::from_toml(&text).map_err(|error| error.to_string());
    }

    #[test]
    fn damaged_files_are_read_as_valid_protocols_or_refused(
        which in 0..BUILTIN.len(),
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let (name, text) = BUILTIN[which];
        let json = serde_json::to_string_pretty(&builtin_protocol(name).unwrap()).unwrap();
        let spoil = |text: &str| damages.iter().fold(text.to_owned(), |text, d| damaged(&text, d));
        for read in [Protocol::from_toml(&spoil(text)), Protocol::from_json(&spoil(&json))] {
            match read {
                Ok(protocol) => {
                    prop_assert!(protocol.validate().is_ok());
                    let again = Protocol::from_json(&serde_json::to_string(&protocol).unwrap());
                    prop_assert_eq!(again.unwrap().sha256().unwrap(), protocol.sha256().unwrap());
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn the_order_of_keys_is_outside_of_the_digest(
        which in 0..BUILTIN.len(),
        keys in prop::collection::vec(any::<u64>(), 120),
    ) {
        let protocol = builtin_protocol(BUILTIN[which].0).unwrap();
        let tree = serde_json::to_value(&protocol).unwrap();
        let other = shuffled(&tree, &mut keys.into_iter());
        let digest = protocol.sha256().unwrap();
        for text in [other.to_string(), serde_json::to_string_pretty(&other).unwrap()] {
            prop_assert_eq!(&Protocol::from_json(&text).unwrap().sha256().unwrap(), &digest);
        }
        let text = toml::to_string(&other).unwrap();
        prop_assert_eq!(&Protocol::from_toml(&text).unwrap().sha256().unwrap(), &digest);
    }
}
