//! Built-in protocols and `kvassay protocol`.

use kvassay::schema::{Protocol, RuleName, builtin_protocol, builtin_protocols};
use serde_json::Value;

use crate::command::{stderr, stdout};

#[test]
fn reference_declares_the_published_sizes() {
    let protocol = builtin_protocol("reference").unwrap();
    let sizes: Vec<(String, u32)> = protocol
        .panels
        .iter()
        .map(|panel| (panel.panel_name(), panel.case_count()))
        .collect();
    let expected = [
        ("math", 1319),
        ("nll-1k", 64),
        ("nll-8k", 64),
        ("retrieval-1k", 200),
        ("retrieval-8k", 200),
    ];
    assert_eq!(
        sizes,
        expected.map(|(name, cases)| (name.to_owned(), cases))
    );
    let limits = RuleName::ALL.map(|rule| protocol.limit(rule));
    assert_eq!(limits, [0.02, -0.01, 0.01, 0.05]);
}

#[test]
fn list_and_show() {
    insta::assert_snapshot!("protocol_list", stdout(&["protocol", "list"]));
    let list = ["protocol", "list", "--format", "json"];
    insta::assert_snapshot!("protocol_list_json", stdout(&list));
    insta::assert_snapshot!(
        "protocol_show_reference",
        stdout(&["protocol", "show", "reference"])
    );
    let workers = ["protocol", "show", "study-workers"];
    insta::assert_snapshot!("protocol_show_workers", stdout(&workers));
    let json = [
        "protocol",
        "show",
        "study-recent-models",
        "--format",
        "json",
    ];
    insta::assert_snapshot!("protocol_show_json", stdout(&json));
    insta::assert_snapshot!("protocol_help", stdout(&["protocol", "show", "--help"]));
}

#[test]
fn a_shown_protocol_reads_back_with_the_same_digest() {
    for protocol in builtin_protocols() {
        let text = stdout(&["protocol", "show", &protocol.name, "--format", "json"]);
        let document: Value = serde_json::from_str(&text).unwrap();
        let again = Protocol::from_json(&document["protocol"].to_string()).unwrap();
        assert_eq!(again, protocol);
        assert_eq!(document["sha256"], again.sha256().unwrap());
    }
    let list: Value =
        serde_json::from_str(&stdout(&["protocol", "list", "--format", "json"])).unwrap();
    assert_eq!(
        list["protocols"].as_array().unwrap().len(),
        builtin_protocols().len()
    );
}

#[test]
fn a_protocol_without_retrieval_says_that_it_cannot_pass() {
    let mut protocol = builtin_protocol("reference").unwrap();
    protocol.name = "short".to_owned();
    protocol.panels.truncate(3);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("short.json");
    std::fs::write(&path, serde_json::to_string(&protocol).unwrap()).unwrap();
    let text = stdout(&["protocol", "show", path.to_str().unwrap()]);
    let said = "preservation: all of gross_loss, nll; cannot pass: the protocol has no panel for retrieval";
    assert!(text.contains(said), "{text}");
}

#[test]
fn files_are_refused_by_what_is_wrong_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let message = stderr(&["protocol", "show", path.to_str().unwrap()]);
        message.replace(dir.path().to_str().unwrap(), "DIR")
    };
    let mut small = builtin_protocol("study-two-models").unwrap();
    small.rules.gross_loss.divisor = 12;
    let messages = [
        stderr(&["protocol", "show", "refrence"]),
        refusal("p.yaml", "schema: x"),
        refusal("p.toml", "schema = 'kvassay.protocol/2'\nnovel = true"),
        refusal("p.json", "{\"schema\": \"kvassay.run/1\"}"),
        refusal(
            "q.json",
            "{\"schema\": \"kvassay.protocol/1\",\n \"novel\": 1}",
        ),
        refusal("q.toml", "schema = 'kvassay.protocol/1'\nseed = 'x'"),
        refusal("r.json", &serde_json::to_string(&small).unwrap()),
    ];
    insta::assert_snapshot!("protocol_refusals", messages.join("\n"));
}
