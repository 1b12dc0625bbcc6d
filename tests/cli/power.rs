//! `kvassay power` through the binary.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::tiny::Tiny;

fn output(args: &str, code: i32) -> (String, String) {
    let mut kvassay = Command::cargo_bin("kvassay").unwrap();
    let args = ["power"].into_iter().chain(args.split(' '));
    let output = kvassay.args(args).assert().code(code).get_output().clone();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

fn stdout(args: &str) -> String {
    let (out, err) = output(args, 0);
    assert!(err.is_empty(), "{err}");
    out
}

fn document(args: &str) -> Value {
    let document: Value = serde_json::from_str(&stdout(args)).unwrap();
    assert_eq!(document["schema"], "kvassay.power/1");
    document
}

#[test]
fn help() {
    insta::assert_snapshot!("power_help", stdout("--help"));
}

#[test]
fn before_a_run_as_text() {
    let commands = [
        "--protocol reference",
        "--protocol reference --loss 0.5% --gain 0.5% --retrieval-loss 0.2%",
        "--protocol reference --pairs 5000 --loss 1% --gain 0.8% --control-accuracy 52% \
         --retrieval-accuracy 95%",
        "--protocol study-workers --loss 0.1%",
    ];
    let mut shown = String::new();
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        let command = words.join(" ");
        shown += &format!("$ kvassay power {command}\n{}\n", stdout(&command));
    }
    insta::assert_snapshot!("power_before", shown);
}

#[test]
fn before_a_run_as_json() {
    let found = document(
        "--protocol reference --loss 0.005 --gain 0.5% --retrieval-loss 0.2% --format json",
    );
    assert_eq!(found["mode"], "before");
    assert_eq!(found["protocol"]["name"], "reference");
    let assumed = &found["assumed"];
    assert_eq!(
        (&assumed["loss"], &assumed["gain"]),
        (&json!(0.005), &json!(0.005))
    );
    assert_eq!(assumed["nll_sd"], Value::Null);
    let rules = found["rules"].as_array().unwrap();
    let probability = |rule: &str, panel: &str| {
        let same = |found: &&Value| found["rule"] == rule && found["panel"] == panel;
        let found = rules.iter().find(same).unwrap();
        found["probability"]["value"].as_f64()
    };
    assert_eq!(probability("nll", "nll-1k"), None);
    // The largest number of lost that passes on 1,319 is 13: P(Bin(1319, 0.005) <= 13), by the
    // recurrence of binomial masses.
    assert_eq!(rules[0]["largest_lost"], 13);
    let below = |most: u32, n: f64, p: f64| {
        let mut mass = (1.0 - p).powf(n);
        let mut sum = mass;
        for k in 1..=most {
            mass *= (n - f64::from(k) + 1.0) / f64::from(k) * p / (1.0 - p);
            sum += mass;
        }
        sum
    };
    let gross = probability("gross_loss", "math").unwrap();
    assert!(
        (gross / below(13, 1319.0, 0.005) - 1.0).abs() < 1e-11,
        "{gross}"
    );
    let retrieval = probability("retrieval", "retrieval-8k").unwrap();
    let most = rules[4]["largest_lost"].as_u64().unwrap() as u32;
    assert!((retrieval / below(most, 200.0, 0.002) - 1.0).abs() < 1e-11);
    let preservation = &found["objectives"][0];
    assert_eq!(
        preservation["not_modelled"],
        json!(["nll on nll-1k", "nll on nll-8k"])
    );
    let product = preservation["probability"]["value"].as_f64().unwrap();
    assert!((product / (gross * retrieval * retrieval) - 1.0).abs() < 1e-12);
    let net = &rules[1]["probability"];
    assert!(net["left_out"].as_f64().unwrap() < 1e-12);
    assert_eq!(found["objectives"][1]["objective"], "aggregate");
}

#[test]
fn likelihoods_are_simulated_with_their_error() {
    let tiny = Tiny::new();
    let protocol = tiny.protocol().display().to_string();
    let command = format!(
        "--protocol {protocol} --loss 0 --retrieval-loss 0 --nll-increase 0.4% --nll-sd 0.5% \
         --format json"
    );
    let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = document(&command);
    assert_eq!(found, document(&command));
    let nll = &found["rules"][2];
    assert_eq!(
        (&nll["rule"], &nll["largest_lost"]),
        (&json!("nll"), &Value::Null)
    );
    let value = nll["probability"]["value"].as_f64().unwrap();
    let error = nll["probability"]["monte_carlo_se"].as_f64().unwrap();
    assert!(
        0.5 < value && value < 1.0 && error > 0.001 && error < 0.02,
        "{nll}"
    );
    // Four questions pass nothing, and say so.
    assert_eq!(found["rules"][0]["largest_lost"], Value::Null);
    assert_eq!(found["rules"][0]["probability"]["value"], 0.0);
    assert_eq!(found["objectives"][0]["probability"]["value"], 0.0);
    assert_eq!(found["objectives"][0]["not_modelled"], json!([]));
}

#[test]
fn refusals() {
    let commands = [
        "--loss 1%",
        "--protocol nowhere",
        "--protocol reference --run runs/a",
        "--protocol reference --loss -0.5%",
        "--protocol reference --loss nan",
        "--protocol reference --loss %",
        "--protocol reference --loss 101%",
        "--protocol reference --loss 60% --gain 50%",
        "--protocol reference --gain 1%",
        "--protocol reference --pairs 0",
        "--protocol reference --nll-increase 0.1%",
        "--protocol reference --nll-increase 0.1% --nll-sd -1%",
        "--protocol reference --loss 2% --control-accuracy 1%",
        "--protocol reference --loss 1% --gain 20% --control-accuracy 90%",
        "--protocol reference --retrieval-loss 20% --retrieval-accuracy 10%",
        "--run nowhere",
        "--run nowhere --loss 1%",
        "--certificate nowhere.json",
    ];
    let mut shown = String::new();
    for command in commands {
        let (out, err) = output(command, 2);
        assert!(out.is_empty(), "{out}");
        shown += &format!("$ kvassay power {command}\n{err}\n");
    }
    insta::assert_snapshot!("power_refusals", shown);
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn after_a_run_and_from_a_certificate() {
    let tiny = Tiny::new();
    tiny.command("qualify")
        .args(["--out", "run"])
        .assert()
        .code(0);
    let run = tiny.path("run");
    let stored = fs::read(run.join("certificates/SD.json")).unwrap();
    fs::remove_dir_all(run.join("certificates")).unwrap();
    let found = document(&format!("--run {} --format json", run.display()));
    assert!(!run.join("certificates").exists(), "nothing is stored");
    assert_eq!(found["mode"], "after");
    let recipes: Vec<&Value> = found["certificates"].as_array().unwrap().iter().collect();
    assert_eq!(
        recipes
            .iter()
            .map(|entry| &entry["recipe"])
            .collect::<Vec<_>>(),
        ["AF", "SD"]
    );
    // A model that answers nothing loses nothing: four questions are too few all the same.
    let gross = &recipes[1]["rules"][0];
    assert_eq!(
        (&gross["rule"], &gross["lost"]),
        (&json!("gross_loss"), &json!(0))
    );
    // ln(0.05 / 4) / ln(0.98) = 216.9.
    assert_eq!(
        (&gross["needed_80"], &gross["needed_95"]),
        (&json!(217), &json!(217))
    );

    let path = tiny.path("SD.json");
    fs::write(&path, stored).unwrap();
    let of_one = document(&format!("--certificate {} --format json", path.display()));
    assert_eq!(of_one["certificates"], json!([recipes[1]]));

    let text = stdout(&format!("--certificate {}", path.display()));
    insta::assert_snapshot!("power_after", text);
    let (out, err) = output(&format!("--certificate {}", figures(&path).display()), 5);
    assert_eq!(out, "");
    assert!(err.contains("contradicts itself: objectives."), "{err}");
}

/// The certificate with figures of a larger run, which do not follow from each other.
fn figures(path: &Path) -> &Path {
    let mut certificate = read(path);
    for (objective, rule, lost, gained) in [
        ("preservation", "gross_loss", 14, 16),
        ("aggregate", "net_change", 20, 4),
    ] {
        let rules = certificate["objectives"][objective]["rules"]
            .as_array_mut()
            .unwrap();
        rules.retain(|found| found["rule"] == rule || found["rule"] == "nll");
        let math = &mut rules[0];
        math["pairs"] = json!(1319);
        math["lost"] = json!(lost);
        math["gained"] = json!(gained);
        let change = if rule == "gross_loss" {
            lost
        } else {
            gained - lost
        };
        math["estimate"] = json!(f64::from(change) / 1319.0);
        math["bound"] = json!(0.0204);
        let nll = &mut rules[1];
        nll["pairs"] = json!(64);
        nll["estimate"] = json!(0.004);
        nll["bound"] = json!(0.012);
        nll["document_sd"] = json!(0.02);
        nll["pass"] = json!(false);
    }
    fs::write(path, certificate.to_string()).unwrap();
    path
}
