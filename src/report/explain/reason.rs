//! What each verdict and reason means, and what would be needed. Matches are exhaustive: a new
//! verdict or reason does not compile without its words.

use crate::certify::Reason;
use crate::schema::Verdict;

/// What a verdict means.
pub(super) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => {
            "every rule holds against every control: within its limits, and at its error \
             probabilities, the recipe keeps what the native cache answers"
        }
        Verdict::NotEstablished => {
            "the evidence does not show that the limits are kept. That alone is no proof of harm, which is \
             tested apart, under degradation"
        }
        Verdict::Incomplete => "evidence is missing or unfit, so that no verdict is possible",
        Verdict::Unsupported => {
            "this could not be run, so that nothing is said about quality, good or bad"
        }
        Verdict::Descriptive => {
            "the figures are shown, and nothing is certified: rules prove something only where \
             they stood before the answers"
        }
    }
}

/// What a reason means.
pub(super) fn meaning(reason: Reason) -> &'static str {
    match reason {
        Reason::ArmUnsupported => "the worker cannot run this recipe, or a control, on this model",
        Reason::PanelUnsupported => {
            "a panel does not fit the model: it is longer than the context, or needs a chat \
             template or likelihoods that there are none of"
        }
        Reason::ProtocolChanged => {
            "the protocol is not the one that stood before the first record: it was changed \
             during the run"
        }
        Reason::ProtocolUnproved => "nothing shows which protocol stood before the first record",
        Reason::ProtocolAfterRecords => {
            "the records were judged under a protocol that was given after them"
        }
        Reason::ModelUndeclared => "the protocol does not declare this model",
        Reason::RecipeUndeclared => "the protocol does not declare this recipe",
        Reason::PostHoc => {
            "the imported records do not carry the protocol's digest, so that the protocol may \
             have been chosen after the answers were seen"
        }
        Reason::PanelUndeclared => "the records hold cases that the protocol's panel cannot have",
        Reason::ObjectiveUndeclared => {
            "the protocol's family of tests does not include this objective"
        }
        Reason::ErroredRecords => {
            "a case failed in the candidate's or in a control's arm. It is not counted as right or \
             wrong, because either may be false"
        }
        Reason::DuplicateRecords => "a case has several records, and nothing says which one counts",
        Reason::NonFiniteRecords => "a likelihood is missing or not a finite number",
        Reason::UnknownRecords => "there are records of cases that the panel does not have",
        Reason::MissingRecords => "a case, a panel or a whole control has no record",
        Reason::FewerCases => "the panel has fewer cases than the protocol names",
        Reason::Limit => "--limit cut the panels short",
        Reason::NoPanel => "the protocol has no panel of a kind that the objective rests on",
        Reason::ResourceLimit => "an arm took more of the machine than the protocol allows",
        Reason::ResourcesUnknown => {
            "the protocol limits what an arm may take of the machine, and nothing says what it took"
        }
        Reason::MissingFiles => {
            "a file that every arm leaves behind is absent, and what it proved is not known"
        }
        Reason::EngagementUnproved => {
            "nothing proves that the recipe was in use: a server that ignores the setting would \
             give the same answers as native"
        }
        Reason::ControlTooWeak => {
            "native itself answers too little: who has little right has little to lose, and a \
             recipe would pass without having been tried"
        }
        Reason::ControlNoise => {
            "native differs from native as much as a candidate may differ from it"
        }
        Reason::BoundUndefined => "a bound is not defined on this evidence",
        Reason::BoundExceedsLimit => "a bound crosses its limit",
    }
}

/// What would be needed for a verdict that counts.
pub(super) fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::ArmUnsupported => {
            "a worker, GPU or server that runs the recipe on this model (`kvassay doctor` says \
             what this machine has)"
        }
        Reason::PanelUnsupported => {
            "a protocol whose panels fit the model: shorter lengths, or a plain task for models \
             without a template (`kvassay protocol new`)"
        }
        Reason::ProtocolChanged | Reason::ProtocolUnproved | Reason::ProtocolAfterRecords => {
            "a new run, in a new directory, under a protocol that is not touched afterwards"
        }
        Reason::ModelUndeclared => {
            "a protocol that declares this model (`kvassay protocol new --model`), and then a new \
             run"
        }
        Reason::RecipeUndeclared => {
            "a protocol that declares this recipe (`kvassay protocol new`), and then a new run; \
             its alpha is shared by every recipe that it declares"
        }
        Reason::PostHoc => {
            "records that carry the digest of a protocol frozen before they were made \
             (docs/import.md), or a run by kvassay itself"
        }
        Reason::PanelUndeclared => "records of the protocol's own cases and no others",
        Reason::ObjectiveUndeclared => {
            "a protocol whose objectives include it, and then a new run: it takes its share of \
             alpha"
        }
        Reason::ErroredRecords => {
            "the cause of the failed cases removed, and the run repeated: a recorded failure stays \
             one, so that nobody retries until the answer suits"
        }
        Reason::DuplicateRecords | Reason::UnknownRecords => {
            "records of one run alone: files that were put together or edited are no evidence"
        }
        Reason::NonFiniteRecords => {
            "finite likelihoods in both arms; NaN or infinity points to arithmetic that overflows \
             under this recipe or in the worker"
        }
        Reason::MissingRecords => "the rest of the run (the same command with `--resume`)",
        Reason::FewerCases => "source texts that yield as many cases as the protocol names",
        Reason::Limit => "a run without --limit",
        Reason::NoPanel => {
            "a protocol with math, likelihood and retrieval panels (`kvassay protocol new`)"
        }
        Reason::ResourceLimit => {
            "a run within the limits: a device with more memory, or nothing else on it"
        }
        Reason::ResourcesUnknown => {
            "a run by a built-in worker of this version, which samples its memory"
        }
        Reason::MissingFiles => {
            "the file as the run wrote it, from a copy of the run directory, or a new run"
        }
        Reason::EngagementUnproved => {
            "a worker that says what it stored, or that shows at least one difference from native"
        }
        Reason::ControlTooWeak => {
            "a model or task on which native answers enough, or a protocol that declares a lower \
             least accuracy before the run"
        }
        Reason::ControlNoise => {
            "a worker whose native answers repeat: fixed batch sizes, no speculative decoding, \
             greedy sampling, or a built-in worker"
        }
        Reason::BoundUndefined => {
            "panels with at least two cases or documents, and a native mean that is not 0"
        }
        Reason::BoundExceedsLimit => {
            "more cases where the rates would allow it, else a recipe that changes less"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_has_words_of_its_own() {
        let meanings: BTreeSet<&str> = Reason::ALL.into_iter().map(meaning).collect();
        assert_eq!(meanings.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            for text in [meaning(reason), remedy(reason), verdict(reason.verdict())] {
                assert!(
                    text.len() > 15 && !text.contains("  "),
                    "{reason:?}: {text}"
                );
                assert!(
                    !text.ends_with('.'),
                    "{reason:?}: the caller ends the sentence: {text}"
                );
            }
        }
    }
}
