use super::*;
use crate::schema::{ObjectiveName, RuleName};
use serde_json::Value;

#[test]
fn every_builtin_file_is_valid_and_named_as_listed() {
    for (name, text) in BUILTIN {
        let protocol = Protocol::from_toml(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(protocol.name, name);
        let json = serde_json::to_string(&protocol).unwrap();
        assert_eq!(Protocol::from_json(&json).unwrap(), protocol);
        assert_eq!(builtin_protocol(name), Some(protocol));
    }
    assert_eq!(builtin_protocols().len(), BUILTIN.len());
    assert_eq!(builtin_protocol("Reference"), None);
}

/// Upper Clopper-Pearson bound of 0 of `n`, in closed form.
fn bound_of_none(n: u32, alpha: f64) -> f64 {
    -(alpha.ln() / f64::from(n)).exp_m1()
}

#[test]
fn only_smoke_is_too_small_to_pass() {
    for protocol in builtin_protocols() {
        for rule in [RuleName::GrossLoss, RuleName::Retrieval] {
            for panel in protocol.panels_of(rule) {
                let bound = bound_of_none(panel.case_count(), protocol.alpha(rule));
                let can_pass = bound <= protocol.limit(rule);
                assert_eq!(
                    can_pass,
                    protocol.name != "smoke",
                    "{} {rule:?}",
                    protocol.name
                );
            }
        }
    }
}

#[test]
fn published_alphas() {
    let alpha = |name: &str, rule| builtin_protocol(name).unwrap().alpha(rule);
    for rule in RuleName::ALL {
        assert_eq!(alpha("reference", rule), 0.05 / 12.0);
        assert_eq!(alpha("study-two-models", rule), 0.05 / 24.0);
        assert_eq!(alpha("study-workers", rule), 0.05 / 8.0);
        assert_eq!(alpha("study-recent-models", rule), 0.05 / 4.0);
    }
    let recent = builtin_protocol("study-recent-models").unwrap();
    assert_eq!(recent.objectives, [ObjectiveName::Preservation]);
}

#[test]
fn what_is_no_protocol_is_said_in_one_line_with_its_place() {
    let sound = builtin_protocol("smoke").unwrap().to_toml().unwrap();
    for (from, to, place) in [
        ("seed = ", "sed = ", "unknown field `sed`, expected one of"),
        ("seed = ", "seed = -", "at line "),
        (
            "kind = \"math\"",
            "kind = \"maths\"",
            "unknown variant `maths`",
        ),
        ("[[panels]]", "[[panels]", "at line "),
    ] {
        assert!(sound.contains(from), "{from}");
        let text = sound.replacen(from, to, 1);
        let error = Protocol::from_toml(&text).unwrap_err().to_string();
        assert!(
            error.contains(place) && error.contains(" column "),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
    }
    let error = Protocol::from_toml("name = \"é\" x\n")
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("at line 1 column 12"), "{error}");
}

#[test]
fn other_schemas_are_refused_by_name_before_their_fields() {
    let cases = [
        (r#"{"schema":"kvassay.protocol/2","novel":1}"#, "newer"),
        (r#"{"schema":"kvassay.run/1"}"#, "found `kvassay.run/1`"),
        (
            r#"{"schema":"kvassay.protocol/0"}"#,
            "found `kvassay.protocol/0`",
        ),
        (r#"{"name":"x"}"#, "no schema field"),
        ("{", "no readable JSON"),
        ("[]", "no schema field"),
        ("7", "no readable JSON"),
    ];
    for (text, expected) in cases {
        let message = Protocol::from_json(text).unwrap_err().to_string();
        assert!(message.contains(expected), "{text}: {message}");
    }
    let newer = Protocol::from_toml("schema = \"kvassay.protocol/12\"\nnovel = 1").unwrap_err();
    assert!(
        matches!(newer, ProtocolError::NewerSchema { .. }),
        "{newer}"
    );
    let unknown = BUILTIN[0]
        .1
        .replace("seed = 20240607\n\n[[models]]", "sead = 1\n\n[[models]]");
    let message = Protocol::from_toml(&unknown).unwrap_err().to_string();
    assert!(message.contains("sead"), "{message}");
}

#[test]
fn the_digest_ignores_spelling_and_sees_content() {
    let protocol = builtin_protocol("reference").unwrap();
    let json = serde_json::to_string_pretty(&protocol).unwrap();
    let again = Protocol::from_json(&json).unwrap();
    assert_eq!(again.sha256().unwrap(), protocol.sha256().unwrap());
    let mut other = protocol.clone();
    other.seed += 1;
    assert_ne!(other.sha256().unwrap(), protocol.sha256().unwrap());
}

#[test]
fn unknown_keys_are_named_with_their_line() {
    let text = BUILTIN[0].1;
    let headers = text
        .lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with('['));
    let mut tried = 0;
    for (at, header) in headers {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.insert(at + 1, "novel = 1");
        let message = Protocol::from_toml(&lines.join("\n"))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("unknown field `novel`"),
            "{header}: {message}"
        );
        assert!(
            message.contains(&format!("at line {} column", at + 2)),
            "{header}: {message}"
        );
        tried += 1;
    }
    assert_eq!(tried, 1 + 6 + 1 + 5 + 4 + 1);
    let json = serde_json::to_string_pretty(&builtin_protocol("reference").unwrap()).unwrap();
    let line = 1 + json
        .lines()
        .position(|line| line.contains("\"limit\""))
        .unwrap();
    let message = Protocol::from_json(&json.replacen("\"limit\"", "\"limits\"", 1)).unwrap_err();
    assert!(
        message.to_string().contains("unknown field `limits`"),
        "{message}"
    );
    assert!(
        message.to_string().contains(&format!("at line {line} ")),
        "{message}"
    );
}

#[test]
fn doubled_keys_are_refused() {
    for (format, message) in [
        (
            BUILTIN[0]
                .1
                .replace("[[models]]\n", "[[models]]\nname = \"*\"\n"),
            "duplicate key",
        ),
        (
            BUILTIN[0]
                .1
                .replace("kind = \"math\"\n", "kind = \"math\"\ncases = 1\n"),
            "duplicate key",
        ),
    ] {
        let error = Protocol::from_toml(&format).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let json = serde_json::to_string(&builtin_protocol("reference").unwrap()).unwrap();
    for key in ["name", "limit", "cases", "kind", "divisor", "seed"] {
        let member = format!("\"{key}\":");
        let at = json.find(&member).unwrap();
        let end = at + json[at..].find([',', '}']).unwrap();
        let doubled = format!("{},{}", &json[..end], &json[at..]);
        let error = Protocol::from_json(&doubled).unwrap_err().to_string();
        assert!(
            error.contains(&format!("duplicate field `{key}`")),
            "{key}: {error}"
        );
    }
}

/// Every value inside `value`, by its pointer.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            pointers(value, &format!("{at}/{key}"), found);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(key, value)| {
            pointers(value, &format!("{at}/{key}"), found);
        }),
        _ => {}
    }
}

/// Each value replaced by others of every type: what is read is valid, and TOML agrees with JSON.
#[test]
fn any_value_in_any_place_is_read_or_refused() {
    let whole = serde_json::to_value(builtin_protocol("reference").unwrap()).unwrap();
    let mut places = Vec::new();
    pointers(&whole, "", &mut places);
    let values = [
        "null",
        "true",
        "-1",
        "0",
        "1",
        "2.5",
        "-0.0",
        "1e308",
        "18446744073709551615",
        "\"\"",
        "\"AF\"",
        "\"native\"",
        "[]",
        "{}",
        "[[]]",
        "[\"a\",\"a\"]",
    ];
    let (mut read, mut refused) = (0, 0);
    for place in &places {
        for value in values {
            let mut changed = whole.clone();
            *changed.pointer_mut(place).unwrap() = serde_json::from_str(value).unwrap();
            let json = Protocol::from_json(&changed.to_string());
            if let Ok(protocol) = &json {
                assert!(protocol.validate().is_ok());
                if let Ok(text) = protocol.to_toml() {
                    assert_eq!(&Protocol::from_toml(&text).unwrap(), protocol);
                }
                read += 1;
            } else {
                refused += 1;
            }
            // TOML has no null and no number above 64 bits with sign.
            if let Ok(text) = toml::to_string(&changed) {
                assert_eq!(
                    Protocol::from_toml(&text).ok(),
                    json.ok(),
                    "{place} {value}"
                );
            }
        }
    }
    assert!(
        read > 30 && refused > 1000,
        "{read} read, {refused} refused"
    );
}

#[test]
fn numbers_and_nesting_beyond_measure_are_refused() {
    let json = serde_json::to_string(&builtin_protocol("reference").unwrap()).unwrap();
    for number in ["1e999", "99999999999999999999", "NaN", "-1", "4294967296"] {
        let text = json.replacen("\"cases\":1319", &format!("\"cases\":{number}"), 1);
        assert!(Protocol::from_json(&text).is_err(), "{number}");
    }
    for number in [
        "inf",
        "nan",
        "-nan",
        "1e999",
        "99999999999999999999",
        "0x1_0000_0000",
    ] {
        for line in ["seed = 20240607\n\n[[models]]", "family_alpha = 0.05"] {
            let key = line.split(' ').next().unwrap();
            let changed =
                line.replacen(["20240607", "0.05"][usize::from(key != "seed")], number, 1);
            let text = BUILTIN[0].1.replacen(line, &changed, 1);
            assert_ne!(text, BUILTIN[0].1);
            let read = Protocol::from_toml(&text);
            assert!(
                read.is_err() || (key == "seed" && number.starts_with("0x")),
                "{number}"
            );
        }
    }
    for open in ["[", "{\"a\":"] {
        assert!(Protocol::from_json(&open.repeat(100_000)).is_err());
    }
    for text in [
        "a = ".to_owned() + &"[".repeat(100_000),
        "[a".to_owned() + &".a".repeat(50_000),
    ] {
        assert!(Protocol::from_toml(&text).is_err());
    }
}

#[test]
fn written_toml_reads_back_to_the_same_digest() {
    for mut protocol in builtin_protocols() {
        let text = protocol.to_toml().unwrap();
        assert!(
            text.starts_with("# The digest of this protocol is the SHA-256"),
            "{text}"
        );
        assert!(text.ends_with('\n'));
        let again = Protocol::from_toml(&text).unwrap();
        assert_eq!(again, protocol);
        assert_eq!(again.sha256().unwrap(), protocol.sha256().unwrap());
        protocol.rules.nll.seed = u64::MAX;
        let error = protocol.to_toml().unwrap_err().to_string();
        assert!(error.contains("rules.nll.seed"), "{error}");
    }
}

#[test]
fn layout_marks_and_line_ends_are_outside_of_the_digest() {
    let text = BUILTIN[0].1;
    let protocol = builtin_protocol("reference").unwrap();
    let digest = protocol.sha256().unwrap();
    let tomls = [
        text.replace('\n', "\r\n"),
        format!("\u{feff}{text}"),
        format!("{text}\n\n# more\n"),
        text.replace(" = ", "="),
        text.replace("limit = 0.05", "limit = 5e-2"),
        toml::to_string(&protocol).unwrap(),
        toml::to_string_pretty(&serde_json::to_value(&protocol).unwrap()).unwrap(),
    ];
    for text in tomls {
        assert_eq!(
            Protocol::from_toml(&text).unwrap().sha256().unwrap(),
            digest,
            "{text}"
        );
    }
    let json = serde_json::to_string_pretty(&protocol).unwrap();
    for text in [json.replace('\n', "\r\n"), format!("\u{feff}{json}")] {
        assert_eq!(
            Protocol::from_json(&text).unwrap().sha256().unwrap(),
            digest
        );
    }
}

mod properties;
