//! What the page says of runs of every kind.

use std::fs;
use std::path::Path;

use kvassay::schema::{Protocol, sha256_hex};

use super::synthetic::{Synthetic, usual};
use super::{certify, change_document, kvassay, page, report};

/// Digests change with sources; what stands around them must not.
fn without_digests(page: &str) -> String {
    let style = page.find("<style>").unwrap()..page.find("</style>").unwrap();
    let mut text = page.to_owned();
    text.replace_range(style, "<style>");
    let digest = regex::Regex::new(r"\b([0-9a-f]{64}|[0-9a-f]{12})\b|sha256-[^']+").unwrap();
    digest.replace_all(&text, "[digest]").into_owned()
}

#[test]
fn a_small_run() {
    let synthetic = Synthetic::new();
    let page = page(&synthetic.run());
    insta::assert_snapshot!("page", without_digests(&page));
}

#[test]
fn the_same_run_gives_the_same_bytes_wherever_it_lies() {
    let (one, other) = (Synthetic::new(), Synthetic::new());
    let first = page(&one.run());
    assert_eq!(first, page(&one.run()));
    assert_eq!(first, page(&other.run()));
    assert!(!first.contains(one.root().to_str().unwrap()));
}

#[test]
fn the_page_asks_for_nothing_and_runs_nothing() {
    let page = page(&Synthetic::new().run());
    assert!(page.contains("default-src &#x27;none&#x27;") || page.contains("default-src 'none'"));
    let targets = regex::Regex::new(r#"(?:href|src|action)="([^"]*)""#).unwrap();
    for target in targets.captures_iter(&page) {
        let target = &target[1];
        assert!(target.starts_with('#') || target == "data:,", "{target}");
    }
    for word in [
        "<script", "<iframe", "<object", "@import", "url(", " style=", " on",
    ] {
        let found = page.to_lowercase().matches(word).count();
        let text = if word == " on" {
            page.matches(" on=").count()
        } else {
            found
        };
        assert_eq!(text, 0, "{word}");
    }
    let anchors = regex::Regex::new(r##"href="#([^"]+)""##).unwrap();
    for anchor in anchors.captures_iter(&page) {
        assert!(
            page.contains(&format!("id=\"{}\"", &anchor[1])),
            "{}",
            &anchor[1]
        );
    }
}

#[test]
fn tables_and_plots_have_names() {
    let page = page(&Synthetic::new().run());
    for plot in page.split("role=\"img\"").skip(1) {
        let head: String = plot.chars().take(80).collect();
        assert!(head.contains("<title>"), "{head}");
    }
    for table in page.split("<table").skip(1) {
        assert!(table.contains("scope=\"col\"") && table.contains("scope=\"row\""));
    }
    assert!(page.contains("<html lang=\"en\">"));
}

#[test]
fn each_control_has_its_rows() {
    let synthetic = Synthetic::with(&["vllm", "other"], &usual);
    let page = page(&synthetic.run());
    for control in ["vllm", "other"] {
        let cell = format!("data-label=\"control\"><bdi>{control}</bdi>");
        assert!(page.contains(&cell), "{control}");
        assert!(page.contains(&format!("<small>against <bdi>{control}</bdi></small>")));
        assert!(page.contains(&format!("on <bdi>math against {control}</bdi>")));
        assert!(page.contains(&format!("retrieval-512 against <bdi>{control}</bdi>")));
    }
}

#[test]
fn several_runs_share_a_page_and_contrasts() {
    let (one, other) = (Synthetic::new(), Synthetic::new());
    let declare = |synthetic: &Synthetic, model: &str| {
        let weights = sha256_hex(format!("{}\n", sha256_hex(model.as_bytes())).as_bytes());
        change_document(synthetic.run().join("run.json"), |manifest| {
            manifest["model"]["name"] = model.into();
            manifest["model"]["files"][0]["sha256"] = sha256_hex(model.as_bytes()).into();
            manifest["model"]["weights_sha256"] = weights.clone().into();
            manifest["protocol"]["contrasts"] = vec!["AD-SF"].into();
            let protocol: Protocol = serde_json::from_value(manifest["protocol"].clone()).unwrap();
            manifest["protocol_sha256"] = protocol.sha256().unwrap().into();
        });
        change_document(synthetic.run().join("calibration.json"), |calibration| {
            calibration["model"] = model.into();
            calibration["weights_sha256"] = weights.clone().into();
        });
        assert_eq!(certify(&synthetic.run()).code, 0);
    };
    declare(&one, "first-model");
    declare(&other, "second-model");
    let second = other.run();
    let (done, page) = report(&one.run(), &[second.to_str().unwrap()]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    for model in ["first-model", "second-model"] {
        assert!(page.contains(&format!("<h1>KV-cache recipes of <bdi>{model}</bdi></h1>")));
        assert!(page.contains(&format!("data-label=\"model\"><bdi>{model}</bdi>")));
    }
    // The protocol's digest is not the one that stood before the first record.
    assert!(page.contains("badge descriptive"));
    assert!(page.contains("href=\"#run-2-flips\"") && page.contains("id=\"run-2-flips\""));
    let anchors = regex::Regex::new("id=\"([^\"]+)\"").unwrap();
    let mut ids: Vec<&str> = anchors
        .captures_iter(&page)
        .map(|found| found.get(1).unwrap().as_str())
        .collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "every anchor stands once");

    let (done, before) = report(&one.run(), &[one.run().to_str().unwrap()]);
    assert_eq!(done.code, 2, "{}", done.out);
    assert!(
        done.err.contains("model first-model is given twice"),
        "{}",
        done.err
    );
    assert!(before == page, "the page that was there stays");
    change_document(other.run().join("run.json"), |manifest| {
        manifest["protocol"]["seed"] = 99.into();
        let protocol: Protocol = serde_json::from_value(manifest["protocol"].clone()).unwrap();
        manifest["protocol_sha256"] = protocol.sha256().unwrap().into();
    });
    certify(&second);
    let (_, page) = report(&one.run(), &[second.to_str().unwrap()]);
    assert!(page.contains("<p>None: <bdi>run 1 (first-model)&#x2f;run.json"));
    let single = super::page(&Synthetic::new().run());
    assert!(single.contains("protocol synthetic declares no contrasts"));
}

#[test]
fn unsupported_arms_and_incomplete_evidence_are_shown() {
    let synthetic = Synthetic::new();
    let run = synthetic.run();
    change_document(run.join("run.json"), |manifest| {
        let arms = manifest["arms"].as_array_mut().unwrap();
        let arm = arms.iter_mut().find(|arm| arm["arm"] == "SF").unwrap();
        arm["unsupported"] = "no kernel for this format".into();
    });
    fs::remove_file(run.join("arms/AD/nll-256.jsonl")).unwrap();
    assert_eq!(certify(&run).code, 3);
    let page = page(&run);
    assert!(page.contains("badge unsupported"));
    assert!(page.contains("no kernel for this format"));
    assert!(page.contains("badge incomplete"));
    assert!(page.contains("missing_records"));
    // What AD answered on the other panels is there.
    assert!(page.contains("<b><bdi>AD</bdi></b> on <bdi>math</bdi>: 1 lost"));
}

#[test]
fn imported_outcomes_are_descriptive_and_have_no_cache() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = folder.path().join("pairs.csv");
    fs::write(&pairs, "case,old,new\na,1,1\nb,1,0\nc,0,1\nd,1,1\n").unwrap();
    let run = folder.path().join("run");
    let import = |run: &Path| {
        kvassay(&[
            "import",
            "csv",
            "--pairs",
            pairs.to_str().unwrap(),
            "--native-column",
            "old",
            "--candidate-column",
            "new",
            "--out",
            run.to_str().unwrap(),
        ])
    };
    let done = import(&run);
    assert!(
        run.join("certificates").exists(),
        "{}{}",
        done.out,
        done.err
    );
    let page = page(&run);
    assert!(page.contains("Nothing is known of the cache"));
    assert!(page.contains("The records hold no text."));
    assert!(page.contains("<dt>harness</dt><dd><bdi>csv</bdi>"));
    assert!(page.contains("Nothing was read back from the cache."));
}
