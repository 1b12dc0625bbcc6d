//! Evidence that contradicts itself: no certificate is issued from it.

use crate::schema::*;

use super::super::*;
use super::served::serve;
use super::world::*;

type Change = fn(&mut Evidence);

fn refusal(change: Change) -> CertifyError {
    let mut evidence = world(protocol(), 1231);
    change(&mut evidence);
    certify_with("AD", &evidence, &ByText).unwrap_err()
}

/// Each change with the beginning of what is said, and whether it is a mismatch (exit 5).
fn refused(changes: &[(Change, &str)], is_mismatch: bool) {
    for (change, message) in changes {
        let error = refusal(*change);
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.is_mismatch(), is_mismatch, "{error}");
        assert!(!error.is_system());
    }
}

fn freeze(evidence: &mut Evidence, sha256: Option<&str>, tokenizer: &str) {
    let file = evidence.manifest.panels[0].file.clone().unwrap();
    let frozen = FrozenPanel {
        panel: "math".to_owned(),
        tokenizer_sha256: sha256_hex(tokenizer.as_bytes()),
        sha256: sha256.map_or(file.sha256, str::to_owned),
    };
    change_protocol(evidence, |protocol| protocol.frozen_panels = vec![frozen]);
}

#[test]
fn a_frozen_panel_is_the_only_one_of_its_tokenizer() {
    let other = "0".repeat(64);
    let mut evidence = world(protocol(), 1231);
    for (sha256, tokenizer) in [(None, "tokenizer"), (Some(other.as_str()), "another")] {
        freeze(&mut evidence, sha256, tokenizer);
        certify_with("AD", &evidence, &ByText).unwrap();
    }
    freeze(&mut evidence, Some(&other), "tokenizer");
    let error = certify_with("AD", &evidence, &ByText).unwrap_err();
    let digest = sha256_hex(b"panels/math.jsonl");
    let expected = format!(
        "panels/math.jsonl: found SHA-256 {digest}, expected {other}, which protocol sample-cheaper froze"
    );
    assert_eq!(error.to_string(), expected);
    let given = GivenRun {
        run: "run",
        evidence: &evidence,
    };
    let asked = ["AD-SD".to_owned()];
    let error = contrasts_with(&[given], &asked, &ByText).unwrap_err();
    assert_eq!(error.to_string(), format!("run: {expected}"));
}

/// Under another protocol that froze another panel, the run has none of that protocol.
#[test]
fn a_panel_that_another_protocol_froze_otherwise_is_not_judged_under_it() {
    let evidence = world(protocol(), 1231);
    let mut other = protocol();
    other.frozen_panels = vec![FrozenPanel {
        panel: "math".to_owned(),
        tokenizer_sha256: sha256_hex(b"tokenizer"),
        sha256: "0".repeat(64),
    }];
    let judged = judge_under(evidence, other).unwrap();
    assert!(!judged.panels.contains_key("math"));
    assert!(judged.panels.contains_key("nll-1k"));
    certify_with("AD", &judged, &ByText).unwrap();
}

#[test]
fn a_builtin_name_stands_for_the_builtin_rules() {
    let error = refusal(|e| change_protocol(e, |protocol| protocol.name = "demo".to_owned()));
    let text = error.to_string();
    let locked = locked_digest("demo").unwrap();
    for part in [
        "run.json: protocol: same name, other rules: found protocol demo with SHA-256 ",
        locked,
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(error.is_mismatch());
}

#[test]
fn headers_are_those_of_the_protocols_tasks() {
    fn header(e: &mut Evidence) -> &mut PanelHeader {
        &mut e.panels.get_mut("math").unwrap().header
    }
    let changes: [(Change, &str); 9] = [
        (
            |e| header(e).task = "demo-math/1".to_owned(),
            "panels/math.jsonl:1: task: found demo-math/1, expected gsm8k/1, the protocol's",
        ),
        (
            |e| header(e).task = "gsm8k/2".to_owned(),
            "panels/math.jsonl:1: task: found gsm8k/2",
        ),
        (
            |e| header(e).parser = "needle/1".to_owned(),
            "panels/math.jsonl:1: parser: found `needle/1`, expected `gsm8k/1` of task gsm8k/1",
        ),
        (
            |e| header(e).tokenizer_sha256 = "0".repeat(64),
            "panels/math.jsonl:1: tokenizer_sha256: found 000",
        ),
        (
            |e| e.manifest.model.tokenizer_sha256 = "0".repeat(64),
            "panels/math.jsonl:1: tokenizer_sha256: found ",
        ),
        (
            |e| header(e).sources.clear(),
            "panels/math.jsonl:1: sources: found none, expected those of task gsm8k/1",
        ),
        (
            |e| header(e).sources[0].sha256 = "0".repeat(64),
            "panels/math.jsonl:1: sources: found gsm8k/test.jsonl with SHA-256 000",
        ),
        (
            |e| header(e).sources[0].path = "demo/problems.jsonl".to_owned(),
            "panels/math.jsonl:1: sources: found demo/problems.jsonl, expected a source file of",
        ),
        (
            |e| {
                change_protocol(e, |protocol| {
                    if let PanelPlan::Math { task, .. } = &mut protocol.panels[0] {
                        *task = "needle".to_owned();
                    }
                });
            },
            "run.json: protocol.panels.math.task: found `needle`, expected a task of kind math",
        ),
    ];
    refused(&changes, false);
    // Another file of the folder is not pinned.
    let mut evidence = world(protocol(), 1231);
    header(&mut evidence).sources[0].path = "gsm8k/own.jsonl".to_owned();
    header(&mut evidence).sources[0].sha256 = "0".repeat(64);
    certify_with("AD", &evidence, &ByText).unwrap();
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let changes: [(Change, &str); 10] = [
        (
            |e| e.manifest.model.weights_sha256 = "0".repeat(64),
            "run.json: model.weights_sha256: found 000",
        ),
        (
            |e| e.manifest.model.files[0].sha256 = "0".repeat(64),
            "run.json: model.weights_sha256: found ",
        ),
        (
            |e| e.manifest.model.files.clear(),
            "run.json: model.files: found no weight file, expected those of weights",
        ),
        (
            |e| e.manifest.worker.kind = "gpu".to_owned(),
            "run.json: worker.kind: found `gpu`, expected cpu, cuda, http or import",
        ),
        (
            |e| e.manifest.worker.kind = "http".to_owned(),
            "run.json: servers: found none, expected the servers of a run over http",
        ),
        (
            |e| {
                serve(e, "AD", ["f16", "fp8"]);
                e.manifest.worker.kind = "cuda".to_owned();
            },
            "run.json: servers: found servers, expected none beside worker cuda",
        ),
        (
            |e| e.manifest.arms.push(e.manifest.arms[2].clone()),
            "run.json: arms: found AD twice, expected each once",
        ),
        (
            |e| e.manifest.panels.push(e.manifest.panels[0].clone()),
            "run.json: panels: found math twice, expected each once",
        ),
        (
            |e| e.manifest.panels[0].cases = 100,
            "run.json: panels[0].cases: found 100, expected 1319 from panel math",
        ),
        (
            |e| arm_mut(e, "AD").start.as_mut().unwrap().protocol = "x".to_owned(),
            "arms/AD/start.json: protocol: found x, expected sample-cheaper",
        ),
    ];
    refused(&changes, true);
    let verified: Change = |e| {
        let start = arm_mut(e, "native-aa").start.as_mut().unwrap();
        start.answers = Some(AnswerMode::Verified);
    };
    let message = "arms/native-aa/start.json: answers: found verified, expected plain";
    refused(&[(verified, message)], true);
}

#[test]
fn no_more_memory_is_in_use_than_there_is() {
    fn with_peak(evidence: &mut Evidence, peak_bytes: u64) {
        let mut resources = Resources::unknown();
        resources.parts[0].total_bytes = Some(1 << 30);
        resources.parts[0].sampled = Some(MemorySamples {
            scope: SampleScope::Device,
            peak_bytes,
            samples: 9,
            largest_gap_ms: 30,
        });
        arm_mut(evidence, "AD").resources = Some(resources);
    }
    let mut evidence = world(protocol(), 1231);
    with_peak(&mut evidence, 1 << 30);
    certify_with("AD", &evidence, &ByText).unwrap();
    let message = "arms/AD/resources.json: parts[0].sampled.peak_bytes: found 1073741825, \
                   expected at most total_bytes, 1073741824";
    refused(&[(|e| with_peak(e, (1 << 30) + 1), message)], true);
}

#[test]
fn tokens_of_a_builtin_worker_fit_case_and_model() {
    fn first(e: &mut Evidence) -> &mut Record {
        &mut records_mut(e, "AD", "math")[0]
    }
    fn with_ids(e: &mut Evidence, ids: Vec<u32>) {
        first(e).output_tokens = Some(ids.len() as u32);
        first(e).output_ids = Some(ids);
    }
    let changes: [(Change, &str); 9] = [
        (
            |e| first(e).prompt_tokens = 10,
            "prompt_tokens: found 10, expected 9",
        ),
        (
            |e| first(e).output_ids = None,
            "output_ids: found none, expected the generated",
        ),
        (
            |e| first(e).output_tokens = None,
            "output_tokens: found none, expected 1",
        ),
        (
            |e| with_ids(e, vec![256, 1]),
            "output_ids: found 256, expected ids below the vocabulary of 256",
        ),
        (
            |e| with_ids(e, vec![1, 1]),
            "output_ids: found 1 tokens behind stop token 1, expected none",
        ),
        (
            |e| {
                with_ids(e, vec![7; 9]);
                first(e).finish = Some(Finish::Length);
                first(e).correct = Some(false);
            },
            "finish: found length, expected stop: 9 of 512 tokens were generated",
        ),
        (
            |e| {
                let ids = (0..512).map(|at| if at < 511 { 7 } else { 1 });
                with_ids(e, ids.collect());
                first(e).finish = Some(Finish::Length);
                first(e).correct = Some(false);
            },
            "finish: found length, expected stop: the answer ends with stop token 1",
        ),
        (
            |e| e.manifest.model.geometry.context = 9,
            "prompt_tokens: found 10 tokens, prompt and answer, expected at most the model's",
        ),
        (
            |e| records_mut(e, "AD", "math").swap(0, 1),
            "place: found line 1, expected a line after 2",
        ),
    ];
    for (change, message) in changes {
        let error = refusal(change).to_string();
        assert!(error.contains(&format!(": {message}")), "{error}");
        assert!(error.starts_with("arm "), "{error}");
    }
    // Servers count in their own way, and keep their ids; only the order is ours.
    for (change, _) in &changes[..5] {
        let mut evidence = world(protocol(), 1231);
        serve(&mut evidence, "AD", ["f16", "fp8"]);
        change(&mut evidence);
        certify_with("AD", &evidence, &ByText).unwrap();
    }
    // An answer that used up its allowance is truncated, and counts as wrong.
    let mut evidence = world(protocol(), 1231);
    with_ids(&mut evidence, vec![7; 512]);
    let record = first(&mut evidence);
    (record.finish, record.correct) = (Some(Finish::Length), Some(false));
    certify_with("AD", &evidence, &ByText).unwrap();
}
