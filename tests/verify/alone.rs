//! A certificate by its own figures.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use kvassay::certify::verify::{Disagreement, alone};
use kvassay::schema::Certificate;
use kvassay::store::read_certificate;
use serde_json::{Value, json};

use crate::edits::{absurd_values, edits, edits_with};
use crate::synthetic::{Synthetic, usual};

fn read(path: &Path) -> (Certificate, Value) {
    let tree = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    (read_certificate(path).unwrap(), tree)
}

fn lines(found: &[Disagreement]) -> String {
    let lines: Vec<String> = found.iter().map(Disagreement::to_string).collect();
    lines.join("\n")
}

#[test]
fn every_certificate_that_was_issued_is_consistent() {
    for controls in [&["native"][..], &["one", "two"]] {
        for seed in 0..12u32 {
            // Some worlds lose nothing, some answer nothing, most are mixed.
            let mixed = move |arm: &str, panel: &str, case: u32| {
                let mut hash = seed.wrapping_mul(2_654_435_761) ^ case.wrapping_mul(40_503);
                let name = if arm.starts_with("control") || arm == "native-aa" {
                    if arm == "control-two" {
                        "two"
                    } else {
                        "native"
                    }
                } else {
                    arm
                };
                for byte in name.bytes().chain(panel.bytes()) {
                    hash = (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
                }
                (hash >> 16) % 12 < seed
            };
            let synthetic = Synthetic::with(controls, &mixed);
            for recipe in ["AD", "SF"] {
                let (certificate, _) = read(&synthetic.kept(recipe));
                let found = alone(&certificate);
                assert!(found.is_empty(), "seed {seed}, {recipe}: {}", lines(&found));
            }
        }
    }
}

/// Fields that nothing else in a certificate determines, by the beginning of their pointers. The
/// limits are those of rules that stand once.
const FREE: [&str; 22] = [
    "/objectives/preservation/rules/0/limit",
    "/objectives/aggregate/rules/0/limit",
    "/tool",
    "/protocol",
    "/model",
    "/worker",
    "/caveats",
    "/evidence",
    "/counts/truncated",
    "/counts/unparsed",
    "/counts/controls/native/truncated",
    "/counts/controls/native/unparsed",
    "/aa",
    "/engagement/layers",
    "/engagement/totals",
    "/engagement/probe_tokens",
    "/engagement/unit_scales",
    "/recipe/name",
    "/resources",
    "/degradation/1/bound",
    "/objectives/preservation/detail",
    "/objectives/aggregate/detail",
];

/// Fields of one rule that the rule alone does not determine.
fn is_free(pointer: &str, name: &str) -> bool {
    let field = pointer.rsplit('/').next().unwrap_or_default();
    let in_rule = pointer.starts_with("/objectives/") && pointer.contains("/rules/");

    let of_means = [
        "bound",
        "monte_carlo_se",
        "control_mean",
        "candidate_mean",
        "document_sd",
        "influence",
        "case",
        "share",
        "bound_without",
        "pairs",
    ];
    let of_nll = in_rule && of_means.contains(&field);
    FREE.iter().any(|free| pointer.starts_with(free))
        || of_nll
        || name.contains("without")
        || name.ends_with(" last")
}

#[test]
fn edits_of_what_follows_from_other_figures_are_caught() {
    let synthetic = Synthetic::new();
    for recipe in ["AD", "SF"] {
        let path = synthetic.kept(recipe);
        let (_, before) = read(&path);
        let (mut caught, mut refused, mut unseen) = (0, 0, 0);
        for edit in edits(&before) {
            fs::write(&path, edit.tree.to_string()).unwrap();
            match read_certificate(&path) {
                Err(_) => refused += 1,
                Ok(certificate) if alone(&certificate).is_empty() => {
                    assert!(
                        is_free(&edit.pointer, &edit.name),
                        "{} went unseen",
                        edit.name
                    );
                    unseen += 1;
                }
                Ok(_) => caught += 1,
            }
        }
        println!("{recipe}: {caught} caught, {refused} refused, {unseen} need the run");
        assert!(caught > 400, "{caught}");
    }
}

#[test]
fn absurd_values_are_listed_or_harmless_and_never_a_panic() {
    let synthetic = Synthetic::new();
    let path = synthetic.kept("AD");
    let (_, before) = read(&path);
    let mut judged = 0;
    for edit in edits_with(&before, &absurd_values) {
        let Ok(certificate) = serde_json::from_value::<Certificate>(edit.tree) else {
            continue;
        };
        let found = catch_unwind(AssertUnwindSafe(|| alone(&certificate)));
        assert!(found.is_ok(), "{} panicked", edit.name);
        judged += 1;
    }
    assert!(judged > 400, "{judged}");
    // Numbers that JSON cannot hold but a program can.
    let mut certificate: Certificate = serde_json::from_value(before).unwrap();
    for rule in &mut certificate.objectives.preservation.rules {
        (rule.bound, rule.alpha, rule.limit) = (f64::NAN, f64::INFINITY, f64::NAN);
    }
    assert!(!alone(&certificate).is_empty());
}

#[test]
fn a_pass_that_its_figures_do_not_allow() {
    type Forge = fn(&mut Value);
    let forgeries: [(&str, Forge, &str); 9] = [
        (
            "SF",
            |c| {
                c["objectives"]["preservation"]["verdict"] = json!("pass");
                c["objectives"]["preservation"]["reason"] = Value::Null;
                c["objectives"]["preservation"]["detail"] = Value::Null;
            },
            "certificate says pass, its own figures give no pass: gross_loss on math against \
             native fails",
        ),
        (
            "SF",
            |c| c["objectives"]["preservation"]["rules"][0]["pass"] = json!(true),
            "objectives.preservation.rules[0].pass: certificate says true, its own figures give \
             false",
        ),
        (
            "SF",
            |c| c["objectives"]["preservation"]["rules"][0]["lost"] = json!(0),
            "objectives.preservation.rules[0].candidate_correct: certificate says 1, its own",
        ),
        (
            "AD",
            |c| {
                let rules = &mut c["objectives"]["preservation"]["rules"];
                rules
                    .as_array_mut()
                    .unwrap()
                    .retain(|rule| rule["rule"] != "retrieval");
            },
            "no pass: there is no rule retrieval",
        ),
        (
            "AD",
            |c| c["engagement"]["differs_from_native"] = json!(false),
            "no pass: the arm stored nothing that differs from native",
        ),
        (
            "AD",
            |c| c["engagement"] = Value::Null,
            "no pass: nothing proves",
        ),
        (
            "AD",
            |c| c["counts"]["errors"] = json!(1),
            "no pass: there are errored cases",
        ),
        (
            "AD",
            |c| c["objectives"]["aggregate"]["rules"][0]["limit"] = json!(-0.95),
            "",
        ),
        (
            "AD",
            |c| c["recipe"]["spec"] = json!("k=e4m3:dynamic,v=e4m3:dynamic"),
            "recipe.bytes_per_token: certificate says 208, its own figures give 160",
        ),
    ];
    let synthetic = Synthetic::with(&["native"], &usual);
    for (recipe, forge, message) in forgeries {
        let (_, mut tree) = read(&synthetic.kept(recipe));
        forge(&mut tree);
        let text = lines(&alone(&serde_json::from_value(tree).unwrap()));
        if message.is_empty() {
            // The only rule of its kind may have any limit: the protocol's digest speaks of it.
            assert_eq!(text, "");
        } else {
            assert!(text.contains(message), "{message}\n{text}");
        }
    }
}
