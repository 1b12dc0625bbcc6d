//! Manifests compared field by field.

use std::fmt;

use serde_json::Value;

use crate::schema::Manifest;

/// One field in which two manifests differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Field, e.g. `arms[2].recipe`.
    pub field: String,
    /// Stored value as JSON, or `nothing`.
    pub found: String,
    /// Value of the run at hand as JSON, or `nothing`.
    pub expected: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference {
            field,
            found,
            expected,
        } = self;
        write!(f, "{field}: found {found}, expected {expected}")
    }
}

/// Every field in which the stored manifest differs from the one at hand, in the order of the
/// fields; empty exactly where they are equal.
pub fn differences(found: &Manifest, expected: &Manifest) -> Vec<Difference> {
    let tree = |manifest| serde_json::to_value(manifest).unwrap_or(Value::Null);
    let mut list = Vec::new();
    compare("", Some(&tree(found)), Some(&tree(expected)), &mut list);
    // Numbers that JSON cannot hold would look alike in both trees.
    if list.is_empty() && found != expected {
        push("manifest", None, None, &mut list);
    }
    list
}

fn compare(
    field: &str,
    found: Option<&Value>,
    expected: Option<&Value>,
    list: &mut Vec<Difference>,
) {
    match (found, expected) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let later = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(later) {
                let name = if field.is_empty() {
                    key.clone()
                } else {
                    format!("{field}.{key}")
                };
                compare(&name, a.get(key), b.get(key), list);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                compare(&format!("{field}[{at}]"), a.get(at), b.get(at), list);
            }
        }
        (a, b) if a == b => {}
        (a, b) => push(field, a, b, list),
    }
}

fn push(field: &str, found: Option<&Value>, expected: Option<&Value>, list: &mut Vec<Difference>) {
    let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    list.push(Difference {
        field: field.to_owned(),
        found: text(found),
        expected: text(expected),
    });
}
