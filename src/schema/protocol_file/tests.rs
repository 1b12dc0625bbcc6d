use super::*;
use crate::schema::{ObjectiveName, RuleName};

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

mod properties {
    use super::super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn foreign_text_never_panics(text in "\\PC{0,80}") {
            let _ = Protocol::from_json(&text).map_err(|error| error.to_string());
            let _ = Protocol::from_toml(&text).map_err(|error| error.to_string());
        }

        #[test]
        fn damaged_files_are_read_or_refused(at in 0usize..2000, byte in 0u8..128) {
            let mut bytes = BUILTIN[0].1.as_bytes().to_vec();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(protocol) = Protocol::from_toml(&String::from_utf8(bytes).unwrap()) {
                prop_assert!(protocol.validate().is_ok());
            }
        }
    }
}
