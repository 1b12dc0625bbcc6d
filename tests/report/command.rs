//! The command: help, refusals, exit codes.

use std::fs;

use super::synthetic::Synthetic;
use super::{certify, change_document, change_records, kvassay, page, report};

#[test]
fn help() {
    insta::assert_snapshot!("help_report", kvassay(&["report", "--help"]).out);
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let synthetic = Synthetic::new();
    let run = synthetic.run();
    let out = synthetic.root().join("page.html");
    let (run_text, out_text) = (run.to_str().unwrap(), out.to_str().unwrap());
    let nowhere = synthetic.root().join("nowhere");

    let done = kvassay(&["report", nowhere.to_str().unwrap(), "--out", out_text]);
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(done.err.contains("nowhere"), "{}", done.err);

    let inside = run.join("run.json");
    let done = kvassay(&["report", run_text, "--out", inside.to_str().unwrap()]);
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(done.err.contains("run.json"), "{}", done.err);
    assert!(
        fs::read_to_string(&inside)
            .unwrap()
            .contains("kvassay.run/1")
    );

    let absent = nowhere.join("page.html");
    let done = kvassay(&["report", run_text, "--out", absent.to_str().unwrap()]);
    assert_eq!(done.code, 2, "{}", done.err);
    assert!(
        done.err
            .contains("nowhere/page.html: found no folder to hold it"),
        "{}",
        done.err
    );

    fs::remove_dir_all(run.join("certificates")).unwrap();
    let done = kvassay(&["report", run_text, "--out", out_text]);
    assert_eq!(done.code, 2);
    let expected = format!(
        "kvassay: error: no certificates in {run_text}/certificates; run `kvassay certify {run_text}`\n"
    );
    assert_eq!(done.err, expected);
    assert!(!out.exists());
}

#[test]
fn records_that_do_not_give_the_certificate_are_named_and_not_shown() {
    let synthetic = Synthetic::new();
    let honest = page(&synthetic.run());
    assert!(honest.contains("Checked against the run"));
    assert!(honest.contains("<b><bdi>SF</bdi></b> on <bdi>math</bdi>"));
    change_records(&synthetic, "SF", "math", |at, record| {
        if at == 3 {
            let output = record["output"].as_str().unwrap();
            record["output"] = output.replace("Let me see", "Let me look").into();
        }
    });
    let (done, page) = report(&synthetic.run(), &[]);
    assert_eq!(done.code, 5, "{}", done.err);
    assert!(done.out.contains("MISMATCH"), "{}", done.out);
    let top = page
        .find("Mismatch: the certificate of <bdi>SF</bdi>")
        .unwrap();
    assert!(top < page.find("id=\"verdicts\"").unwrap());
    assert!(!page.contains("the certificate of <bdi>AD</bdi> does not follow"));
    assert!(!page.contains("<b><bdi>SF</bdi></b> on <bdi>math</bdi>"));
    assert!(page.contains("<b><bdi>AD</bdi></b> on <bdi>math</bdi>"));
    assert!(page.contains("<bdi>SF</bdi></b>: no cases are shown: "));
    assert!(page.contains("the run&#x27;s files are not the ones that the certificate names"));
    // Certificates that are issued again are those of the records as they are now.
    certify(&synthetic.run());
    assert_eq!(report(&synthetic.run(), &[]).0.code, 0);
}

#[test]
fn an_edited_certificate_is_shown_as_it_is_and_called_out() {
    let synthetic = Synthetic::new();
    change_document(synthetic.run().join("certificates/SF.json"), |it| {
        it["objectives"]["preservation"]["verdict"] = "pass".into();
    });
    let (done, page) = report(&synthetic.run(), &[]);
    assert_eq!(done.code, 5, "{}", done.err);
    assert!(page.contains("objectives.preservation.verdict: certificate says pass"));
    // The records are the ones that it names, so its cases are shown.
    assert!(page.contains("<b><bdi>SF</bdi></b> on <bdi>math</bdi>"));
}

#[test]
fn a_recipe_without_certificate_is_named() {
    let synthetic = Synthetic::new();
    fs::remove_file(synthetic.run().join("certificates/SF.json")).unwrap();
    let page = page(&synthetic.run());
    assert!(page.contains("No certificate in this run: <b><bdi>SF</bdi></b>"));
    assert!(page.contains("Of 1 recipe, 1 passed preservation"));
}

#[test]
fn lists_are_as_long_as_asked_and_say_what_is_missing() {
    let synthetic = Synthetic::new();
    let (_, whole) = report(&synthetic.run(), &[]);
    assert!(!whole.contains("Not shown:"));
    let (_, one) = report(&synthetic.run(), &["--flips", "1"]);
    assert!(one.contains("Not shown: 3 more lost and 0 more gained."));
    let (_, none) = report(&synthetic.run(), &["--flips", "0"]);
    assert!(none.contains("4 lost, 0 gained, none shown"));
    assert!(none.len() < one.len() && one.len() < whole.len());
}
