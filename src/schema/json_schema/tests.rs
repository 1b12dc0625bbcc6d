//! The kept JSON Schemas are current and say what the types say.

use std::path::Path;

use serde_json::json;

use super::super::{builtin_protocols, canonical_json};
use super::*;

fn document(name: &str) -> &'static StoredDocument {
    StoredDocument::named(name).unwrap()
}

fn pointers(document: &StoredDocument, value: &Value) -> Vec<String> {
    let violations = document.violations(value).unwrap();
    violations.into_iter().map(|found| found.pointer).collect()
}

#[test]
fn the_kept_files_follow_from_the_types() {
    for document in &STORED_DOCUMENTS {
        assert!(
            document.json_schema == document.generated(),
            "docs/schemas/{}.json is not what the types say; run `cargo run --example schemas`",
            document.name
        );
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemas");
    let kept = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(kept, STORED_DOCUMENTS.len());
}

#[test]
fn each_is_a_schema_with_descriptions_and_no_room_for_unknown_fields() {
    for document in &STORED_DOCUMENTS {
        let strange = document.violations(&json!({"colour": 1})).unwrap();
        assert!(
            strange.iter().any(|found| found.message.contains("colour")),
            "{}: {strange:?}",
            document.name
        );
        let text = document.json_schema;
        assert!(text.contains("\"description\""), "{}", document.name);
        let names_itself = document.schema.is_none_or(|schema| text.contains(schema));
        assert!(names_itself, "{}", document.name);
    }
}

#[test]
fn builtin_protocols_are_valid_and_wrong_ones_are_pointed_at() {
    let protocol = document("protocol");
    for builtin in builtin_protocols() {
        let text = canonical_json(&builtin).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(pointers(protocol, &value), [""; 0], "{}", builtin.name);

        let mut wrong = value.clone();
        wrong["schema"] = json!("kvassay.protocol/2");
        wrong["panels"][0]["colour"] = json!("red");
        wrong["rules"]["nll"]["limit"] = json!("1%");
        wrong["candidates"][0]
            .as_object_mut()
            .unwrap()
            .remove("spec");
        let found = pointers(protocol, &wrong);
        for pointer in ["/schema", "/panels/0", "/rules/nll/limit", "/candidates/0"] {
            assert!(
                found.iter().any(|found| found == pointer),
                "{pointer}: {found:?}"
            );
        }
    }
}

#[test]
fn records_and_cases_of_every_kind() {
    let record = document("record");
    let sound = json!({"case": "c", "case_sha256": "0", "prompt_tokens": 3, "targets": 1,
        "nll_sum": 2.5});
    assert_eq!(pointers(record, &sound), [""; 0]);
    for (field, value) in [
        ("prompt_tokens", json!(-1)),
        ("finish", json!("tired")),
        ("nll_sum", json!("NaN")),
        ("secondary", json!({"gsm8k/1": "yes"})),
    ] {
        let mut wrong = sound.clone();
        wrong[field] = value;
        let found = pointers(record, &wrong);
        assert!(found[0].starts_with(&format!("/{field}")), "{found:?}");
    }
    let case = document("panel-case");
    let sound = json!({"case": "c", "prompt_ids": [1], "kind": "math", "gold": "1",
        "max_new_tokens": 4});
    assert_eq!(pointers(case, &sound), [""; 0]);
    let mut wrong = sound;
    wrong["kind"] = json!("poem");
    assert!(!pointers(case, &wrong).is_empty());
}
