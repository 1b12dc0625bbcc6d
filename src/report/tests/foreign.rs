//! What servers report, and text that certificates, models and servers bring along.

use super::*;

fn reporting(
    spec: &str,
    cache: Option<[&str; 2]>,
    proof: EngagementProof,
    beyond_noise: u64,
) -> Certificate {
    let mut found = certificate("AD", true);
    found.recipe.spec = spec.to_owned();
    found.worker.kind = HTTP_WORKER.to_owned();
    found.server_engagement = Some(ServerEngagement {
        proof,
        reported: cache.map(|[k, v]| ReportedCache {
            k: k.to_owned(),
            v: v.to_owned(),
            source: "/props".to_owned(),
        }),
        differences: BTreeMap::from([(
            "native".to_owned(),
            RecordDifferences {
                records: 30,
                differing: 9,
                beyond_noise,
                ..RecordDifferences::default()
            },
        )]),
    });
    found
}

fn server_run() -> ServerRun {
    let server = |name: &str| {
        serde_json::json!({
            "name": name, "arms": [name],
            "identity": {"url": "http://127.0.0.1:8080", "engine": "llama.cpp", "model": "tiny"},
            "probe": {"thinking_switch": false, "reasoning": false, "prompt_cache_off": true},
        })
    };
    serde_json::from_value(serde_json::json!({
        "settings": {"template": "server", "concurrency": 1, "seed": 0},
        "servers": [server("candidate"), server("native")],
    }))
    .unwrap()
}

fn explained(certificate: &Certificate) -> String {
    let mut out = Vec::new();
    let explanation = Explanation::of("AD.json", certificate);
    explanation.write_text(100_000, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn line(certificate: &Certificate) -> String {
    let mut found = certificate.clone();
    found.servers = Some(server_run());
    text_of(|into| *into = found)
}

#[test]
fn a_server_is_said_to_report_the_recipe_only_where_it_does() {
    use EngagementProof::{None as Unproved, ObservedDifference, Reported, ReportedAndObserved};
    let q8 = "k=q8_0,v=q8_0";
    let counts = "9 of 30 records differ from native";
    for (cache, proof, beyond, sentence, short) in [
        (
            Some(["q8_0", "q8_0"]),
            ReportedAndObserved,
            8,
            format!(
                "The server reports the recipe's formats; records differ from every control by \
                 more than noise: {counts}, 8 of them beyond noise.\n"
            ),
            "engagement reported by the server and observed; 9 of 30",
        ),
        (
            Some(["q8_0", "q8_0"]),
            Reported,
            0,
            format!(
                "The server reports the recipe's formats; records were compared: {counts}, 0 of \
                 them beyond noise.\n- It is not shown that records differ from every control by \
                 more than noise.\n"
            ),
            "engagement reported by the server, not observed; 9 of 30",
        ),
        (
            Some(["f16", "q8_0"]),
            ReportedAndObserved,
            8,
            "The server reports keys in f16 and values in q8_0 (/props), the recipe stores q8_0 \
             and q8_0; records differ"
                .to_owned(),
            "engagement contradicted, the server reports keys in f16",
        ),
        (
            Some(["auto", "q8_0"]),
            ObservedDifference,
            8,
            "The server reports no format that we know (keys in auto and values in q8_0); records \
             differ"
                .to_owned(),
            "engagement observed_difference, the server reports no format that we know",
        ),
        (
            None,
            ObservedDifference,
            8,
            "The server reports no cache format; records differ".to_owned(),
            "engagement observed_difference, the server reports no cache format; 9 of 30",
        ),
        (
            None,
            Unproved,
            0,
            format!(
                "The server reports no cache format; records were compared: {counts}, 0 of them \
                 beyond noise.\n- That proves nothing: a control's server says the same of its \
                 cache, or it is not shown that records differ by more than noise.\n"
            ),
            "engagement unproved, the server reports no cache format; 9 of 30",
        ),
    ] {
        let found = reporting(q8, cache, proof, beyond);
        let text = explained(&found);
        assert!(text.contains(&sentence), "{text}");
        let other = cache == Some(["f16", "q8_0"]);
        let is_named = text.contains("is not the one that the server reports");
        assert_eq!(is_named, other, "{text}");
        let text = line(&found);
        assert!(text.contains(short), "{text}");
    }
}

/// Forged lines, terminal escapes, commands of a CI runner and turned writing.
const HOSTILE: &str =
    "m\u{1b}[2J\n::error title=x::forged\r\nAD pass \u{202e}dne ::warning::y ##[error]z";

fn assert_harmless(text: &str) {
    let unseen = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    assert!(!text.contains(unseen), "{text:?}");
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("::"), "{line}");
        assert!(!line.contains("##["), "{line}");
    }
    assert!(text.contains("\u{27e8}U+001B\u{27e9}"), "{text}");
    assert!(text.contains("\u{27e8}U+202E\u{27e9}"), "{text}");
}

#[test]
fn no_foreign_text_makes_lines_escapes_or_commands() {
    let mut servers = server_run();
    servers.servers[0].identity.version = Some(HOSTILE.to_owned());
    let protocol = protocol(1319);
    for width in [20, TEXT_WIDTH, 10_000] {
        let mut found = certificate("AD", false);
        found.servers = Some(servers.clone());
        found.caveats.push(HOSTILE.to_owned());
        let lines = |certificate: &Certificate| {
            let summary = Summary {
                run: "runs/a",
                stored: None,
                protocol: &protocol,
                required: &[],
                exit: 0,
                certificates: std::slice::from_ref(certificate),
                baselines: &[],
            };
            let mut out = Vec::new();
            write_text(&summary, width, false, &mut out).unwrap();
            let explanation = Explanation::of("AD.json", certificate);
            explanation.write_text(width, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_harmless(&lines(&found));
        for place in 0..3 {
            let mut found = found.clone();
            let text = match place {
                0 => &mut found.model.name,
                1 => &mut found.recipe.name,
                _ => found.objectives.preservation.detail.as_mut().unwrap(),
            };
            HOSTILE.clone_into(text);
            assert_harmless(&lines(&found));
        }
    }
}
