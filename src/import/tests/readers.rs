//! Readers: the fixtures of each harness, and what is refused.

use serde_json::{Value, json};

use super::super::*;
use super::*;

/// Every sample log of the fixtures loses question 1 and gains question 4.
#[test]
fn every_harness_gives_the_same_pairs() {
    let arms = |stem: &str, end: &str| {
        ["native", "candidate"].map(|arm| vec![fixture(&format!("{stem}-{arm}.{end}"))])
    };
    let filter = Some("flexible-extract".to_owned());
    let [native, candidate] = arms("lm-eval", "jsonl");
    let options = lm_eval::Options {
        metric: None,
        filter,
    };
    let mut all = vec![lm_eval::read(&native, &candidate, &options).unwrap()];
    let [native, candidate] = arms("inspect", "json");
    all.push(inspect::read(&native, &candidate, &inspect::Options::default()).unwrap());
    for (stem, metric) in [
        ("lighteval-newer", Some("extractive_match".to_owned())),
        ("lighteval-older", None),
    ] {
        let [native, candidate] = arms(stem, "parquet");
        let options = lighteval::Options { metric };
        all.push(lighteval::read(&native, &candidate, &options).unwrap());
    }
    for logs in &all {
        let paired = pair(logs).unwrap();
        assert_eq!(paired.faults, [], "{}", logs.harness);
        assert_eq!(counts(&paired), (1, 1), "{}", logs.harness);
        assert_eq!(paired.cases.len(), 6);
        assert_eq!(paired.pairing, Pairing::Content);
        let outputs = logs.native.samples.iter().map(|sample| &sample.output);
        assert!(outputs.clone().all(Option::is_some), "{}", logs.harness);
    }
    assert_eq!(all[1].native.model.as_deref(), Some("org/model"));
}

#[test]
fn choices_that_the_files_leave_open_are_named() {
    let paths = ["native", "candidate"].map(|arm| vec![fixture(&format!("lm-eval-{arm}.jsonl"))]);
    let [native, candidate] = &paths;
    let error = lm_eval::read(native, candidate, &lm_eval::Options::default());
    assert_eq!(
        error.unwrap_err().to_string(),
        "--filter: found nothing chosen, expected one of: flexible-extract, strict-match"
    );
    let options = lm_eval::Options {
        metric: Some("acc".to_owned()),
        filter: Some("strict-match".to_owned()),
    };
    let error = lm_eval::read(native, candidate, &options)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("native.jsonl:1: found no metric `acc`"),
        "{error}"
    );
    assert!(error.contains("numeric fields: exact_match"), "{error}");
    let paths =
        ["native", "candidate"].map(|arm| vec![fixture(&format!("lighteval-newer-{arm}.parquet"))]);
    let error = lighteval::read(&paths[0], &paths[1], &lighteval::Options::default());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("expected one of: extractive_match, length"),
        "{error}"
    );
}

#[test]
fn refusals_name_place_found_and_expected() {
    let folder = Folder::new();
    let csv = |text: &str| {
        let error = folder
            .csv(text, "case,correct\na,1\n")
            .and_then(|logs| pair(&logs));
        error.unwrap_err().to_string()
    };
    for (text, found, expected) in [
        (
            "",
            "native.csv:1: found no names of columns",
            "column correct or native",
        ),
        (
            "case,right\na,1\n",
            "found columns case, right",
            "--native-column",
        ),
        (
            "id,correct\na,1\n",
            "found columns id, correct",
            "column case",
        ),
        (
            "case,correct,correct\na,1,1\n",
            "column correct twice",
            "each column once",
        ),
        (
            "case,correct\na,1\nb,maybe\n",
            "native.csv:3: found outcome `maybe`",
            "0, 1, true",
        ),
        (
            "case,correct\na\n",
            "native.csv:2: found 1 fields",
            "comma-separated",
        ),
        (
            "case,correct\n,1\n",
            "native.csv:2: found a row without a case",
            "its id",
        ),
        (
            "case,correct\n",
            "native.csv: found no samples",
            "at least one",
        ),
        (
            "case,correct,content\na,1,\"to be\nb,0,or not\n",
            "native.csv:2: found a quoted field without an end",
            "a closing quote",
        ),
        (
            "case,correct,content\n\na,1,\"to be\nb,0,or \"not\"\n",
            "native.csv:3: found text behind the closing quote",
            "is doubled",
        ),
        (
            "case,correct\na,1\n\n\nb,maybe\n",
            "native.csv:5: found outcome `maybe`",
            "0, 1, true",
        ),
        (
            "case,correct,content\na,1,\n",
            "native.csv:2: found a row without content",
            "SHA-256",
        ),
    ] {
        let error = csv(text);
        assert!(
            error.contains(found) && error.contains(expected),
            "{text:?}: {error}"
        );
    }
    let log = |text: &str| {
        let good = lines(&[line(0, "a", json!(1))]);
        folder
            .lm_eval(text.as_bytes(), good.as_bytes())
            .unwrap_err()
            .to_string()
    };
    let good = lines(&[line(0, "a", json!(1))]);
    for (text, found) in [
        (
            format!("{good}[]\n"),
            "native.jsonl:2: found invalid type: sequence",
        ),
        (
            good.replace("\"doc_id\":0", "\"doc_id\":[]"),
            "native.jsonl:1: found doc_id: a list",
        ),
        (
            good.replace("doc_id", "id"),
            "native.jsonl:1: found no doc_id",
        ),
        (
            good.replace("question", "answers"),
            "neither a doc with a question nor a doc_hash",
        ),
        (good.replace("\"none\"", "3"), "filter: a number"),
    ] {
        assert!(log(&text).contains(found), "{}", log(&text));
    }
    let missing = csv::read(
        &[folder.0.path().join("no.csv")],
        &[],
        &csv::Options::default(),
    );
    assert!(
        missing
            .unwrap_err()
            .to_string()
            .contains("no.csv: cannot read")
    );
}

#[test]
fn inspect_logs_that_cannot_be_read_say_what_to_do() {
    let folder = Folder::new();
    let read = |text: &[u8]| {
        let files = folder.file("log.json", text);
        inspect::read(&files, &files, &inspect::Options::default())
    };
    let error = read(b"PK\x03\x04...").unwrap_err().to_string();
    assert!(
        error.contains("inspect log convert") && error.contains("--to json"),
        "{error}"
    );
    let sample = |epoch: u32, value: Value| {
        json!({"id": "a", "epoch": epoch, "input": "q", "target": ["7", "8"],
               "scores": {"match": {"value": value}}})
    };
    let log = |status: &str, samples: &[Value]| {
        json!({"status": status, "eval": {}, "samples": samples})
            .to_string()
            .into_bytes()
    };
    let error = read(&log(
        "success",
        &[sample(1, json!("C")), sample(2, json!("C"))],
    ));
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("--epoch: found nothing chosen, expected one of: 1, 2"),
        "{error}"
    );
    let error = read(&log("success", &[sample(1, json!({"a": 1}))]))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("samples[0]: found metric `match`: an object, expected a number"),
        "{error}"
    );
    // Another scorer that gives no number stands in nobody's way.
    let mut both = sample(1, json!("C"));
    both["scores"]["style"] = json!({"value": {"clear": 1}});
    let files = folder.file("log.json", log("success", &[both]));
    let chosen = |metric: &str| {
        let options = inspect::Options {
            metric: Some(metric.to_owned()),
            ..inspect::Options::default()
        };
        inspect::read(&files, &files, &options)
    };
    let logs = chosen("match").unwrap();
    assert_eq!(logs.native.samples[0].score, Score::Correct(true));
    let error = chosen("style").unwrap_err().to_string();
    assert!(error.contains("metric `style`: an object"), "{error}");
    let logs = read(&log("cancelled", &[sample(1, json!("P"))])).unwrap();
    assert!(logs.native.unfinished[0].contains("status cancelled, expected success"));
    assert_eq!(
        logs.native.samples[0].score,
        Score::Unscored("P".to_owned())
    );
    let mut failed = sample(1, json!("I"));
    failed["scores"] = Value::Null;
    failed["error"] = json!({"message": "timeout"});
    let logs = read(&log("success", &[sample(1, json!("N")), failed])).unwrap();
    assert_eq!(logs.native.samples[0].score, Score::Correct(false));
    assert_eq!(
        logs.native.samples[1].score,
        Score::Errored("timeout".to_owned())
    );
}

#[test]
fn protocol_digests_are_found_where_each_harness_keeps_them() {
    let folder = Folder::new();
    let digest = "AB".repeat(32);
    let found = |logs: Result<Logs, ImportError>| {
        let samples = logs.unwrap().native.samples;
        samples.into_iter().next().unwrap().protocol_sha256
    };
    let expected = Some(digest.to_lowercase());
    for at in ["", "metadata", "doc"] {
        let mut line = line(0, "a", json!(1));
        let place = if at.is_empty() {
            &mut line
        } else {
            &mut line[at]
        };
        place["kvassay_protocol_sha256"] = json!(digest);
        let text = lines(&[line]);
        let logs = folder.lm_eval(text.as_bytes(), text.as_bytes());
        assert_eq!(found(logs), expected, "{at}");
    }
    let sample = json!({"id": 1, "input": "q", "scores": {"match": {"value": 1}}});
    for at in ["metadata", "task_args"] {
        let eval = json!({at: {"kvassay_protocol_sha256": digest}});
        let log = json!({"status": "success", "eval": eval, "samples": [sample]});
        let files = folder.file("log.json", log.to_string());
        let logs = inspect::read(&files, &files, &inspect::Options::default());
        assert_eq!(found(logs), expected, "{at}");
    }
    let table = format!("case,correct,protocol_sha256\na,1,{digest}\n");
    assert_eq!(found(folder.csv(&table, &table)), expected);
    let none = lines(&[line(0, "a", json!(1))]);
    assert_eq!(
        found(folder.lm_eval(none.as_bytes(), none.as_bytes())),
        None
    );
}

/// Whatever else the document holds is part of the question; its answers and numbers are not.
#[test]
fn the_question_of_a_document_is_all_but_its_answers() {
    let folder = Folder::new();
    let question = |doc: Value| {
        let mut line = line(0, "a", json!(1));
        line["doc"] = doc;
        let text = lines(&[line]);
        let logs = folder.lm_eval(text.as_bytes(), text.as_bytes()).unwrap();
        logs.native.samples[0].content.clone().unwrap().question
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        question(json!({"question": "q ", "answer": "1", "idx": 3})),
        text("q")
    );
    assert_eq!(
        question(json!({"question": "q", "context": "c"})),
        text("{\"context\":\"c\",\"question\":\"q\"}")
    );
    let mut hashed = line(0, "a", json!(1));
    hashed["doc"] = Value::Null;
    hashed["doc_hash"] = json!("0".repeat(64));
    let hashed = lines(&[hashed]);
    let logs = folder
        .lm_eval(hashed.as_bytes(), hashed.as_bytes())
        .unwrap();
    let content = logs.native.samples[0].content.clone().unwrap();
    assert_eq!(
        (content.question, content.question_sha256),
        (None, "0".repeat(64))
    );
}

#[test]
fn a_byte_order_mark_is_no_part_of_any_text() {
    let folder = Folder::new();
    let marked = |text: &[u8]| [b"\xef\xbb\xbf", text].concat();
    let text = lines(&[line(0, "a", json!(1)), line(1, "b", json!(0))]);
    let plain = folder.lm_eval(text.as_bytes(), text.as_bytes()).unwrap();
    let found = folder.lm_eval(&marked(text.as_bytes()), text.as_bytes());
    assert_eq!(found.unwrap().native.samples, plain.native.samples);
    // At the start of a file only.
    let second = marked(lines(&[line(2, "c", json!(1))]).as_bytes());
    let error = folder.lm_eval(&[text.as_bytes(), &second].concat(), text.as_bytes());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("native.jsonl:3: found "), "{error}");
    let sample = json!({"id": "a", "epoch": 1, "input": "q", "target": "7",
                        "scores": {"match": {"value": "C"}}});
    let log = json!({"status": "success", "eval": {}, "samples": [sample]}).to_string();
    let files = folder.file("log.json", marked(log.as_bytes()));
    let logs = inspect::read(&files, &files, &inspect::Options::default()).unwrap();
    assert_eq!(logs.native.samples.len(), 1);
    let table = "\u{feff}case,correct\na,1\n";
    let logs = folder.csv(table, "case,correct\na,1\n").unwrap();
    assert_eq!(logs.native.samples.len(), 1);
}

#[test]
fn a_metric_that_is_no_number_is_called_what_it_is() {
    let folder = Folder::new();
    let good = lines(&[line(0, "a", json!(1))]);
    for (value, found) in [
        (json!("1"), "metric `exact_match`: text"),
        (json!([1]), "metric `exact_match`: a list"),
    ] {
        let text = lines(&[line(0, "a", value)]);
        let error = folder.lm_eval(text.as_bytes(), good.as_bytes());
        let error = error.unwrap_err().to_string();
        let expected = format!("native.jsonl:1: found {found}, expected a number, true or false");
        assert!(error.ends_with(&expected), "{error}");
    }
    let text = good.replace(",\"exact_match\":1", "");
    let error = folder.lm_eval(text.as_bytes(), good.as_bytes());
    let error = error.unwrap_err().to_string();
    assert!(
        error.ends_with(
            "native.jsonl:1: found no metric `exact_match`; numeric fields: none, expected the \
             metric that --metric names"
        ),
        "{error}"
    );
}
