//! A certificate that was changed, against its run.

use std::fs;

use serde_json::{Value, json};

use crate::edits::edits;
use crate::synthetic::{Synthetic, usual};
use crate::{Outcome, verify};

fn tree(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Edits that change nothing that a certificate says.
fn is_irrelevant(pointer: &str, name: &str, before: &Value) -> bool {
    // Who issued it is no figure: it is noted, and anyone may check with another version.
    let tool = pointer.starts_with("/tool/");
    // A field that is absent reads as `null`.
    let absent = name
        .strip_prefix(&format!("{pointer}: without "))
        .is_some_and(|key| before.pointer(&format!("{pointer}/{key}")) == Some(&Value::Null));
    tool || absent
}

#[test]
fn an_honest_certificate_is_verified() {
    for controls in [&["native"][..], &["one", "two"]] {
        let synthetic = Synthetic::with(controls, &usual);
        for (recipe, verdict) in [("AD", "pass"), ("SF", "not_established")] {
            let kept = synthetic.kept(recipe);
            let found = tree(&kept);
            assert_eq!(
                found["objectives"]["preservation"]["verdict"], verdict,
                "{found:#}"
            );
            let outcome = verify(&kept, &synthetic.run());
            assert!(matches!(outcome, Outcome::Verified), "{}", outcome.text());
        }
    }
}

#[test]
fn every_edit_of_a_certificate_is_caught() {
    let synthetic = Synthetic::new();
    for recipe in ["AD", "SF"] {
        let path = synthetic.kept(recipe);
        let before = tree(&path);
        let (mut caught, mut irrelevant) = (0, 0);
        for edit in edits(&before) {
            fs::write(&path, edit.tree.to_string()).unwrap();
            let outcome = verify(&path, &synthetic.run());
            if is_irrelevant(&edit.pointer, &edit.name, &before) {
                // Values of another kind are refused even there.
                let refused = matches!(outcome, Outcome::Refused(_));
                assert!(
                    refused || !outcome.is_caught(),
                    "{}: {}",
                    edit.name,
                    outcome.text()
                );
                irrelevant += 1;
            } else {
                assert!(outcome.is_caught(), "{} went unseen", edit.name);
                caught += 1;
            }
        }
        println!("{recipe}: {caught} edits caught, {irrelevant} without meaning");
        assert!(caught > 800, "{caught}");
        assert!(irrelevant < 25, "{irrelevant}");
    }
}

#[test]
fn mismatches_name_field_and_both_values() {
    let synthetic = Synthetic::new();
    let path = synthetic.kept("AD");
    let mut found = tree(&path);
    let bound = found["objectives"]["preservation"]["rules"][1]["bound"].clone();
    found["objectives"]["preservation"]["rules"][1]["bound"] = json!(0.5);
    found["memory"]["saved"] = json!(0.9);
    found["caveats"].as_array_mut().unwrap().pop();
    let caveats = found["caveats"].as_array().unwrap().len();
    let stranger = json!({"path": "../outside", "sha256": "0".repeat(64)});
    found["evidence"]
        .as_array_mut()
        .unwrap()
        .insert(0, stranger);
    fs::write(&path, found.to_string()).unwrap();
    let text = verify(&path, &synthetic.run()).text();
    for expected in [
        format!(
            "objectives.preservation.rules[1].bound: certificate says 0.5, evidence gives {bound}"
        ),
        "memory.saved: certificate says 0.9, evidence gives 0.1875".to_owned(),
        format!("caveats[{caveats}]: certificate says nothing, evidence gives "),
        "evidence[../outside].sha256: certificate says 000".to_owned(),
        "no such file in the run".to_owned(),
        "evidence[../outside]: certificate says the file, evidence gives not to be listed"
            .to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}\n{text}");
    }
}

#[test]
fn another_recipe_of_the_run_does_not_lend_its_figures() {
    let synthetic = Synthetic::new();
    let path = synthetic.kept("SF");
    let mut found = tree(&path);
    found["objectives"] = tree(&synthetic.kept("AD"))["objectives"].clone();
    fs::write(&path, found.to_string()).unwrap();
    let text = verify(&path, &synthetic.run()).text();
    assert!(
        text.contains(
            "objectives.preservation.verdict: certificate says pass, evidence gives not_established"
        ),
        "{text}"
    );
    found["recipe"]["name"] = json!("XX");
    fs::write(&path, found.to_string()).unwrap();
    let text = verify(&path, &synthetic.run()).text();
    assert!(
        text.contains("recipe.name: certificate says XX, evidence gives one of: AD, SF"),
        "{text}"
    );
}

#[test]
fn what_is_no_certificate_is_refused_with_its_place() {
    let synthetic = Synthetic::new();
    let path = synthetic.kept("AD");
    let text = fs::read_to_string(&path).unwrap();
    let refusals = [
        (
            text.replacen("\"bound\"", "\"bound\": 0.1, \"bound\"", 1),
            "`bound` a second time",
        ),
        (
            text.replacen("{", "{\"schema\": \"kvassay.certificate/1\",", 1),
            "`schema` a second",
        ),
        (
            text.replacen("\"native\": {", "\"native\": {}, \"native\": {", 1),
            "`native` a second",
        ),
        (
            text.replacen("certificate/1", "certificate/2", 1),
            "newer than",
        ),
        (
            text.replacen("certificate/1", "run/1", 1),
            "found schema kvassay.run/1",
        ),
        (
            text.replacen("\"pairs\"", "\"couples\"", 1),
            "unknown field `couples`",
        ),
        (
            text.replacen("\"limit\": 0.8", "\"limit\": 1e999", 1),
            "out of range",
        ),
        (
            text.replacen("\"limit\": 0.8", "\"limit\": NaN", 1),
            "expected value",
        ),
        (text[..text.len() / 2].to_owned(), "EOF"),
        (String::new(), "an empty file"),
        ("[".repeat(200_000), "recursion limit"),
    ];
    for (text, message) in refusals {
        fs::write(&path, text).unwrap();
        match verify(&path, &synthetic.run()) {
            Outcome::Refused(why) => assert!(
                why.contains(message) && why.contains("AD.json"),
                "{message}: {why}"
            ),
            other => panic!("{message}: {other:?}"),
        }
    }
    fs::File::create(&path)
        .unwrap()
        .set_len((64 << 20) + 1)
        .unwrap();
    let outcome = verify(&path, &synthetic.run()).text();
    assert!(outcome.contains("more than 67108864 bytes"), "{outcome}");
}
