//! Fields of certificates that no other part of the page shows: nothing that a certificate says is
//! left out because a page does not know it.

use serde_json::Value;

use crate::schema::Certificate;

use super::text::excerpt;

/// Fields that have a place of their own.
const SHOWN: [&str; 15] = [
    "schema",
    "tool",
    "protocol",
    "model",
    "worker",
    "recipe",
    "objectives",
    "degradation",
    "aa",
    "answers",
    "engagement",
    "memory",
    "resources",
    "evidence",
    "caveats",
];
/// Counts that have a place of their own, of the candidate and of each control.
const COUNTS: [&str; 3] = ["truncated", "unparsed", "errors"];
/// Most values of one certificate.
const MOST: usize = 200;
/// Most characters of one value.
const LONGEST: usize = 300;

/// The other fields, one line per value: `field.part: value`.
pub(super) fn lines(certificate: &Certificate) -> Vec<String> {
    // A certificate was read from JSON: it can be written as JSON.
    let tree = serde_json::to_value(certificate).unwrap_or(Value::Null);
    of_tree(&tree)
}

fn of_tree(tree: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    for (field, value) in tree.as_object().into_iter().flatten() {
        if !SHOWN.contains(&field.as_str()) {
            flatten(field, value, &mut lines);
        }
    }
    let left_out = lines.len().saturating_sub(MOST);
    if left_out > 0 {
        lines.truncate(MOST);
        lines.push(format!("{left_out} more values stand in the certificate"));
    }
    lines
}

fn flatten(path: &str, value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let is_shown = |field: &str| path.starts_with("counts") && COUNTS.contains(&field);
            for (field, value) in fields.iter().filter(|(field, _)| !is_shown(field)) {
                flatten(&format!("{path}.{field}"), value, lines);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                flatten(&format!("{path}[{at}]"), item, lines);
            }
        }
        Value::String(text) => push(path, text, lines),
        other => push(path, &other.to_string(), lines),
    }
}

fn push(path: &str, text: &str, lines: &mut Vec<String>) {
    let shown = excerpt(text, LONGEST);
    let more = match shown.left_out {
        0 => String::new(),
        more => format!(" \u{2026} ({more} more characters)"),
    };
    lines.push(format!("{path}: {}{more}", shown.text));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_shown_elsewhere_is_listed() {
        let tree = json!({
            "schema": "x", "caveats": ["known"],
            "counts": {"errors": 1, "empty": 2, "controls": {"a": {"unparsed": 3, "empty": 4}}},
            "servers": {"url": "http://127.0.0.1", "probe": [{"same": true}, null]},
        });
        assert_eq!(
            of_tree(&tree),
            [
                "counts.empty: 2",
                "counts.controls.a.empty: 4",
                "servers.url: http://127.0.0.1",
                "servers.probe[0].same: true",
                "servers.probe[1]: null"
            ]
        );
        let long = json!({"values": vec![1; MOST + 7], "text": "x".repeat(LONGEST + 5)});
        let lines = of_tree(&long);
        assert_eq!(lines.len(), MOST + 1);
        assert_eq!(lines[MOST], "8 more values stand in the certificate");
        let text = of_tree(&json!({"text": "x".repeat(LONGEST + 5)}));
        assert!(text[0].ends_with("(5 more characters)"), "{text:?}");
    }
}
