//! Panel files.

use super::*;
use crate::schema::{
    CaseTask, ChatMessage, FileDigest, PANEL_SCHEMA, PanelCase, PanelHeader, sha256_hex,
};

fn panel() -> (PanelHeader, Vec<PanelCase>) {
    let case = |index: u32, task: CaseTask| PanelCase {
        case: format!("case-{index}"),
        messages: vec![ChatMessage {
            role: "user".to_owned(),
            content: "\"a\"\nβ".to_owned(),
        }],
        prompt_ids: vec![index, 2, 3],
        task,
    };
    let cases = vec![
        case(
            0,
            CaseTask::Math {
                gold: "-0.5".to_owned(),
                max_new_tokens: 8,
            },
        ),
        case(
            1,
            CaseTask::Nll {
                targets: 2,
                article: "A".to_owned(),
            },
        ),
        case(
            2,
            CaseTask::Retrieval {
                gold: "1234567".to_owned(),
                depth: 0.1 + 0.2,
                max_new_tokens: 8,
            },
        ),
    ];
    let header = PanelHeader {
        schema: PANEL_SCHEMA.to_owned(),
        panel: "math".to_owned(),
        task: "gsm8k/1".to_owned(),
        tokenizer_sha256: "0".repeat(64),
        sources: vec![FileDigest {
            path: "gsm8k/a".to_owned(),
            sha256: "1".repeat(64),
        }],
        parser: "gsm8k/1".to_owned(),
        cases: 3,
    };
    (header, cases)
}

#[test]
fn what_is_written_reads_back_with_its_digests() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("panels/math.jsonl");
    let (header, cases) = panel();
    let sha256 = write_panel(&path, &header, &cases).unwrap();
    let read = read_panel(&path, &sha256).unwrap();
    assert_eq!(read, Panel::new(header.clone(), cases.clone()).unwrap());
    assert_eq!((&read.header, &read.cases), (&header, &cases));
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(sha256, sha256_hex(text.as_bytes()));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    for (line, digest) in lines[1..].iter().zip(&read.case_sha256s) {
        assert_eq!(&sha256_hex(line.as_bytes()), digest);
    }
    // The form is frozen: digests in protocols and records depend on it.
    assert_eq!(
        lines[1],
        r#"{"case":"case-0","messages":[{"role":"user","content":"\"a\"\nβ"}],"prompt_ids":[0,2,3],"kind":"math","gold":"-0.5","max_new_tokens":8}"#
    );
    assert!(
        lines[3].contains(r#""depth":0.30000000000000004"#),
        "{}",
        lines[3]
    );
    // Written again: the same bytes, and nothing else left in the folder.
    assert_eq!(write_panel(&path, &header, &cases).unwrap(), sha256);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn another_digest_is_refused_with_both() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("math.jsonl");
    let (header, cases) = panel();
    let sha256 = write_panel(&path, &header, &cases).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = read_panel(&path, &sha256).unwrap_err().to_string();
    assert!(error.contains(&format!("expected {sha256}")), "{error}");
    assert!(error.contains("math.jsonl: SHA-256: found "), "{error}");
}

#[test]
fn wrong_panel_files_are_named() {
    let (header, cases) = panel();
    let good = |value: serde_json::Value| value.to_string();
    let header_line = good(serde_json::to_value(&header).unwrap());
    let case = good(serde_json::to_value(&cases[0]).unwrap());
    let newer = header_line.replace("panel/1", "panel/2");
    let files = [
        (String::new(), "math.jsonl:1: found EOF"),
        (
            format!("{newer}\n{case}\n"),
            "found schema kvassay.panel/2, expected schema kvassay.panel/1",
        ),
        (
            format!("{header_line}\n{case}\n{case}\n"),
            "math.jsonl:3: found case case-0 again",
        ),
        (
            format!("{header_line}\n{case}\n"),
            "found 1 cases, expected 3",
        ),
        (
            format!("{header_line}\n{{}}\n"),
            "math.jsonl:2: found missing field",
        ),
        (
            format!("{header_line}\n{}\n", case.replace("math", "maths")),
            "math.jsonl:2: found unknown variant",
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("math.jsonl");
    for (text, expected) in files {
        fs::write(&path, &text).unwrap();
        let error = read_panel(&path, &sha256_hex(text.as_bytes()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let error = read_panel(&dir.path().join("none"), "")
        .unwrap_err()
        .to_string();
    assert!(error.contains("none: "), "{error}");
}
