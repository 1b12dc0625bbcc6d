//! Manifests compared field by field.

use std::fmt;

use serde_json::Value;

use crate::schema::{Manifest, tree_differences};

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
    let mut list: Vec<Difference> = tree_differences(&tree(found), &tree(expected))
        .into_iter()
        .map(|difference| Difference {
            field: difference.path,
            found: text(difference.found.as_ref()),
            expected: text(difference.expected.as_ref()),
        })
        .collect();
    // Numbers that JSON cannot hold would look alike in both trees.
    if list.is_empty() && found != expected {
        list.push(Difference {
            field: "manifest".to_owned(),
            found: text(None),
            expected: text(None),
        });
    }
    list
}

fn text(value: Option<&Value>) -> String {
    value.map_or("nothing".to_owned(), Value::to_string)
}
