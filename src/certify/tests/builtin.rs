//! Certificates under a built-in protocol by their own figures.

use crate::schema::*;

use super::super::verify::{alone, is_builtin};
use super::world::*;

/// A certificate of `demo` that passes.
fn demo() -> Certificate {
    let evidence = world(builtin_protocol("demo").unwrap(), 1180);
    let name = evidence.manifest.protocol.candidates[0].name.clone();
    certificate(&evidence, &name)
}

/// What contradicts the certificate, but for files that a hand-made run does not have.
fn text(certificate: &Certificate) -> String {
    let lines = alone(certificate).into_iter().map(|line| line.to_string());
    let absent = |line: &String| line.starts_with("evidence: certificate says a list without it");
    let lines: Vec<String> = lines.filter(|line| !absent(line)).collect();
    lines.join("\n")
}

#[test]
fn figures_of_a_builtin_protocol_are_compared_with_it() {
    let sound = demo();
    assert_eq!(verdicts(&sound), [(Verdict::Pass, None); 2]);
    assert_eq!(text(&sound), "");
    assert!(is_builtin(&sound));
    type Change = fn(&mut Certificate);
    fn rules(c: &mut Certificate) -> &mut Vec<RuleResult> {
        &mut c.objectives.preservation.rules
    }
    let changes: [(Change, &str); 15] = [
        (
            |c| rules(c)[0].limit = 0.9,
            "rules[0].limit: certificate says 0.9, its own figures give 0.02 of protocol demo",
        ),
        (
            |c| rules(c)[0].limit = 99.0,
            "rules[0].limit: certificate says 99.0, its own figures give 0 < limit < 1",
        ),
        (
            |c| c.objectives.aggregate.rules[0].limit = -1.0,
            "rules[0].limit: certificate says -1.0, its own figures give -1 < limit <= 0",
        ),
        (
            |c| rules(c)[1].alpha = 0.7,
            "rules[1].alpha: certificate says 0.7, its own figures give 0 < alpha <= 0.5",
        ),
        (|c| rules(c)[1].alpha = 0.25, "of protocol demo"),
        (
            |c| rules(c)[1].panel = "nll-8k".to_owned(),
            "rules[1].panel: certificate says nll-8k, its own figures give nll-256, nll-1k of",
        ),
        (
            |c| rules(c)[1].control = "other".to_owned(),
            "rules[1].control: certificate says other, its own figures give native of protocol",
        ),
        (
            |c| rules(c)[1].pairs = 65,
            "rules[1].pairs: certificate says 65, its own figures give at most the 64 cases",
        ),
        (
            |c| rules(c)[1].pairs = 63,
            "no pass: nll on nll-256 has 63 pairs, protocol demo names 64",
        ),
        (
            |c| drop(rules(c).remove(2)),
            "no pass: there is no rule nll on nll-1k",
        ),
        (
            |c| c.degradation[0].alpha = 0.05,
            "degradation[0].alpha: certificate says 0.05, its own figures give ",
        ),
        (
            |c| c.recipe.spec = "k=e5m2:dynamic,v=e5m2:dynamic".to_owned(),
            "recipe.spec: certificate says k=e5m2:dynamic,v=e5m2:dynamic, its own figures give a \
             recipe that protocol demo declares",
        ),
        (
            |c| c.protocol.sha256 = "0".repeat(64),
            "protocol.sha256: certificate says 0000",
        ),
        (
            |c| c.protocol.name = "own".to_owned(),
            "protocol.name: certificate says own, its own figures give demo, the built-in",
        ),
        (
            |c| c.protocol.name = "reference".to_owned(),
            "of the built-in protocol reference",
        ),
    ];
    for (change, message) in changes {
        let mut changed = sound.clone();
        change(&mut changed);
        let found = text(&changed);
        assert!(found.contains(message), "{message}\n{found}");
    }
}

#[test]
fn a_frozen_panel_is_in_the_evidence_with_its_digest() {
    let mut found = demo();
    let protocol = builtin_protocol("demo").unwrap();
    let frozen = protocol.frozen_panels[0].clone();
    found.model.tokenizer_sha256 = frozen.tokenizer_sha256;
    let listed = text(&found);
    assert!(
        listed.contains(&format!(
            "its own figures give {}, which protocol demo froze",
            frozen.sha256
        )),
        "{listed}"
    );
    for file in &mut found.evidence {
        let name = file
            .path
            .trim_start_matches("panels/")
            .trim_end_matches(".jsonl");
        let tokenizer = &found.model.tokenizer_sha256;
        if let Some(frozen) = protocol.frozen_sha256(name, tokenizer) {
            file.sha256 = frozen.to_owned();
        }
    }
    assert_eq!(text(&found), "");
}

#[test]
fn identities_of_a_certificate_contradict_each_other() {
    let evidence = world(protocol(), 1231);
    let sound = certificate(&evidence, "AD");
    assert_eq!(text(&sound), "");
    assert!(!is_builtin(&sound));
    type Change = fn(&mut Certificate);
    let changes: [(Change, &str); 7] = [
        (
            |c| c.model.weights_sha256 = "0".repeat(64),
            "model.weights_sha256: certificate says 0000",
        ),
        (
            |c| c.model.files.clear(),
            "model.files: certificate says no weight file",
        ),
        (
            |c| c.worker.kind = "gpu".to_owned(),
            "worker.kind: certificate says `gpu`, its own figures give cpu, cuda, http or import",
        ),
        (
            |c| c.worker.kind = "http".to_owned(),
            "servers: certificate says none",
        ),
        (|c| c.aa = None, "no pass: native was not run a second time"),
        (
            |c| c.answers = None,
            "no pass: nothing says how its answers came about",
        ),
        (
            |c| {
                c.resources = [("AD".to_owned(), peak_above_total())].into();
            },
            "resources.AD.sampled.peak_bytes: certificate says 9, its own figures give at most",
        ),
    ];
    for (change, message) in changes {
        let mut changed = sound.clone();
        change(&mut changed);
        let found = text(&changed);
        assert!(found.contains(message), "{message}\n{found}");
    }
}

/// Parts of one arm on machines of different sizes.
#[test]
fn a_peak_of_one_machine_may_exceed_the_memory_of_another() {
    let mut found = demo();
    let parts = peak_above_total();
    found
        .resources
        .insert("AD".to_owned(), ResourceSummary { parts: 2, ..parts });
    assert!(!text(&found).contains("peak_bytes"), "{}", text(&found));
}

/// A bound of a ratio lies on its own side of the estimate.
#[test]
fn bootstrap_bounds_on_the_wrong_side_of_their_estimates() {
    let mut found = demo();
    let rules = &mut found.objectives.preservation.rules;
    let rule = rules.iter_mut().find(|rule| rule.rule == "nll").unwrap();
    let panel = rule.panel.clone();
    rule.bound = rule.estimate - 1e-4;
    let mut endpoints = found.degradation.iter_mut();
    let endpoint = endpoints.find(|entry| entry.endpoint == panel).unwrap();
    (endpoint.bound, endpoint.established) = (Some(0.5), true);
    let said = text(&found);
    for message in ["an upper bound", "a lower bound"] {
        assert!(said.contains(message), "{message}\n{said}");
    }
}

fn peak_above_total() -> ResourceSummary {
    let mut resources = Resources::unknown();
    resources.parts[0].total_bytes = Some(8);
    resources.parts[0].sampled = Some(MemorySamples {
        scope: SampleScope::Process,
        peak_bytes: 9,
        samples: 1,
        largest_gap_ms: 1,
    });
    resources.summary().unwrap()
}
