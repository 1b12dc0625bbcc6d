//! Explanations of made-up certificates, for every verdict and reason.

use crate::certify::Reason;

use super::*;

fn words(certificate: &Certificate) -> String {
    let mut out = Vec::new();
    let explanation = Explanation::of("AD.json", certificate);
    explanation.write_text(100_000, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_reason_is_explained_with_what_would_be_needed() {
    for reason in Reason::ALL {
        let mut found = certificate("AD", false);
        for result in [
            &mut found.objectives.preservation,
            &mut found.objectives.aggregate,
        ] {
            result.verdict = reason.verdict();
            result.reason = Some(reason.name().to_owned());
            result.rules[1].pass = reason != Reason::BoundExceedsLimit;
        }
        let text = words(&found);
        let named = format!("({}).", reason.name());
        assert!(text.contains(&named), "{reason:?}: {text}");
        let needed = format!("\nWhat would be needed\n- For {}: ", reason.name());
        assert!(text.contains(&needed), "{reason:?}: {text}");
        let undecided = text.contains("No verdict rests on these rules");
        assert_eq!(
            undecided,
            reason != Reason::BoundExceedsLimit,
            "{reason:?}: {text}"
        );
        assert!(!text.contains(": pass\n"), "{reason:?}: {text}");
    }
}

#[test]
fn a_pass_needs_nothing() {
    let text = words(&certificate("AD", true));
    assert!(!text.contains("What would be needed"), "{text}");
    for expected in [
        "\nPreservation (answers are kept one by one): pass\n",
        "of 1319 cases native answered 1232, of which the recipe lost 6; it gained 10 others. The \
         upper bound (one-sided, alpha 0.00417) of the share lost is 1.28%; the limit is 2.00%: \
         holds.",
        "it gained 10 others. The lower bound (one-sided, alpha 0.00417) of the change in the share \
         of right answers is -0.58 pp; the limit is +2.00 pp: holds.",
        "The upper bound (one-sided, alpha 0.00417) of its relative increase is +0.12%; the limit \
         is +2.00%: holds.",
        "- Its other 4 rules are those of preservation: they hold.\n",
        "Its alpha is 0.00417: if the truth lay on the limit, at most one run in 240 would still \
         pass.",
        "Nothing in this certificate proves it",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn rules_that_cannot_pass_say_how_many_pairs_could() {
    let mut found = certificate("AD", false);
    let result = &mut found.objectives.preservation;
    result.reason = Some(Reason::BoundExceedsLimit.name().to_owned());
    let rule = &mut result.rules[0];
    (rule.pairs, rule.pass) = (100, false);
    // ln(0.05 / 12) / ln(1 - 0.02) is 271.3.
    let text = words(&found);
    let expected = "gross_loss on math against native: 100 pairs cannot pass, even with nothing \
                    lost; with nothing lost 272 would.";
    assert!(text.contains(expected), "{text}");
    let mut found = certificate("AD", false);
    let result = &mut found.objectives.aggregate;
    result.reason = Some(Reason::BoundExceedsLimit.name().to_owned());
    let rule = &mut result.rules[0];
    (rule.pairs, rule.pass, rule.limit) = (2, false, -0.01);
    let text = words(&found);
    // With something gained the net change may pass at fewer pairs.
    let expected = "net_change on math against native: with nothing lost and nothing gained 2 \
                    pairs do not pass; ";
    assert!(text.contains(expected), "{text}");
    assert!(!text.contains("2 pairs cannot pass"), "{text}");
}

#[test]
fn degradation_and_noise_are_told() {
    let mut found = certificate("AD", false);
    found.aa = Some(AaResult {
        lost: 3,
        gained: 2,
        records: 1847,
        identical_bits: false,
    });
    let text = words(&found);
    assert!(
        text.contains("- Established on nll-8k (+1.56%): "),
        "{text}"
    );
    assert!(
        text.contains("lost 3 and gained 2 answers in 1847 records"),
        "{text}"
    );
    found.aa = None;
    assert!(words(&found).contains("the noise of the worker is not known"));
    found.degradation[0].endpoint = "nll-1k".to_owned();
    for result in [
        &mut found.objectives.preservation,
        &mut found.objectives.aggregate,
    ] {
        result.rules[1].estimate = 0.000_012;
    }
    assert!(words(&found).contains("- Established on nll-1k (+0.001%): "));
}

#[test]
fn degradation_stands_beside_a_pass_only_where_there_is_one() {
    let mut found = certificate("AD", false);
    assert!(!words(&found).contains("That stands beside a pass"));
    found.objectives.aggregate.verdict = Verdict::Pass;
    assert!(words(&found).contains("That stands beside a pass"));
}

#[test]
fn differences_are_the_recipes_only_where_everything_was_repeated() {
    let said = |change: fn(&mut Certificate)| {
        let mut found = certificate("AD", true);
        change(&mut found);
        words(&found)
    };
    let causal = "every difference is the recipe's";
    assert!(said(|_| ()).contains("the same bits in 1847 records: every difference"));
    let fewer = said(|found| found.aa.as_mut().unwrap().records = 1846);
    assert!(
        !fewer.contains(causal) && fewer.contains("These are not all records"),
        "{fewer}"
    );
    let partial = said(|found| found.objectives.aggregate.verdict = Verdict::Incomplete);
    assert!(!partial.contains(causal), "{partial}");
    let none = said(|found| found.aa.as_mut().unwrap().records = 0);
    assert!(
        !none.contains(causal) && none.contains("nothing was compared"),
        "{none}"
    );
    let http = said(|found| found.worker.kind = HTTP_WORKER.to_owned());
    assert!(
        !http.contains(causal) && http.contains("may still come from the other server"),
        "{http}"
    );
    let text = text_of(|found| found.aa.as_mut().unwrap().records = 0);
    assert!(
        text.contains("A/A (native against native): run, but nothing was compared\n"),
        "{text}"
    );
}

#[test]
fn counts_name_their_arm() {
    let mut found = certificate("AD", true);
    (found.counts.truncated, found.counts.empty) = (7, 2);
    let text = words(&found);
    for expected in [
        "\n- In the arm of AD 7 answers were cut at their allowance, 0 held no number, 2 had no \
         text, 0 cases failed.\n",
        "\n- In the arm of native 3 answers were cut at their allowance, 1 held no number, 0 cases \
         failed.\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn what_was_checked_depends_on_the_rules() {
    let said = |keep: fn(&RuleResult) -> bool| {
        let mut found = certificate("AD", true);
        found.objectives.preservation.rules.retain(keep);
        found.objectives.aggregate.rules.retain(keep);
        words(&found)
    };
    let counts = "- Bounds on counts follow from the counts, verdicts from the bounds: checked \
                  just now.";
    let both = format!("{counts} Likelihood bounds were not: they need the run.\n");
    assert!(said(|_| true).contains(&both));
    assert!(said(|rule| rule.rule != "nll").contains(&format!("{counts}\n")));
    let likelihoods = said(|rule| rule.rule == "nll");
    assert!(
        likelihoods.contains("- Verdicts follow from the bounds: checked just now. Likelihood")
    );
    assert!(said(|_| false).contains("- It holds no bounds."));
}

#[test]
fn what_windows_keep_is_told_from_what_is_stored() {
    let mut found = certificate("AD", true);
    let explained = |found: &Certificate| {
        let mut out = Vec::new();
        let explanation = Explanation::of("AD.json", found);
        explanation.write_text(100_000, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(!explained(&found).contains("window"));
    found.memory.kept = Some(KeptFigures {
        bytes_per_token: 104,
        native_bytes_per_token: 128,
        window_bytes: 10_400,
        native_window_bytes: 12_800,
    });
    let text = explained(&found);
    let expected = "a token takes 104 bytes more instead of 128, and the windows hold 10400 bytes \
                    instead of 12800.";
    assert!(text.contains(expected), "{text}");
}
