//! JSON trees compared field by field.

use serde_json::Value;

/// One place in which two trees differ.
#[derive(Clone, Debug, PartialEq)]
pub struct TreeDifference {
    /// Field, e.g. `arms[2].recipe`; empty for the whole tree.
    pub path: String,
    /// Value of the first tree; `None` where it has nothing there.
    pub found: Option<Value>,
    /// Value of the second tree; `None` where it has nothing there.
    pub expected: Option<Value>,
}

/// Every place in which `found` differs from `expected`, in the order of the fields; empty exactly
/// where they are equal. Objects are compared key by key whatever their order, arrays item by item.
pub fn tree_differences(found: &Value, expected: &Value) -> Vec<TreeDifference> {
    let mut list = Vec::new();
    compare("", Some(found), Some(expected), &mut list);
    list
}

fn compare(
    path: &str,
    found: Option<&Value>,
    expected: Option<&Value>,
    list: &mut Vec<TreeDifference>,
) {
    match (found, expected) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let later = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(later) {
                let name = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                compare(&name, a.get(key), b.get(key), list);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                compare(&format!("{path}[{at}]"), a.get(at), b.get(at), list);
            }
        }
        (a, b) if a == b => {}
        (a, b) => list.push(TreeDifference {
            path: path.to_owned(),
            found: a.cloned(),
            expected: b.cloned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_difference_has_its_path() {
        let found = json!({"a": [1, 2, {"b": null}], "c": "x", "only": 0, "z": -0.0});
        let expected = json!({"c": "y", "a": [1, 3, {"b": 1}, 4], "more": true, "z": 0.0});
        let list = tree_differences(&found, &expected);
        let paths: Vec<&str> = list.iter().map(|found| found.path.as_str()).collect();
        assert_eq!(paths, ["a[1]", "a[2].b", "a[3]", "c", "only", "more"]);
        assert_eq!(list[2].found, None);
        assert_eq!(list[2].expected, Some(json!(4)));
        assert_eq!(list[4].expected, None);
        assert_eq!(tree_differences(&found, &found), []);
        let whole = tree_differences(&json!(1), &json!([]));
        assert_eq!(whole[0].path, "");
    }
}
