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
        "of 1319 cases native answered 1232, of which the recipe lost 6; it gained 10 others. At \
         most 1.28% of cases are lost; the limit is 2.00%: holds.",
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
}
