//! What the evidence itself is worth: degradation, engagement, noise.

use crate::schema::{AnswerMode, Certificate, ComponentTotals, EngagementProof, Verdict};

use super::super::figure::OBJECTIVES;
use super::super::notes::degraded_endpoints;
use super::super::repeat;
use super::super::servers::{self, Reported};
use super::{Section, capital};

pub(super) fn degradation(certificate: &Certificate) -> Section {
    let sentence = match degraded_endpoints(certificate) {
        Some(endpoints) => {
            let passes = OBJECTIVES
                .iter()
                .any(|&name| certificate.objectives.get(name).verdict == Verdict::Pass);
            let beside = match passes {
                true => " That stands beside a pass, which says that the loss is within limits.",
                false => "",
            };
            format!(
                "Established on {endpoints}: there the recipe is worse than native beyond chance, \
                 however little.{beside}"
            )
        }
        None if certificate.degradation.is_empty() => "Not tested.".to_owned(),
        None => {
            let endpoints = certificate.degradation.iter();
            let names: Vec<&str> = endpoints.map(|found| found.endpoint.as_str()).collect();
            format!(
                "Not established on any of {}: that is no proof that there is none.",
                names.join(", ")
            )
        }
    };
    Section {
        title: "Is it worse than native?".to_owned(),
        sentences: vec![sentence],
    }
}

pub(super) fn engagement(certificate: &Certificate) -> Section {
    let mut sentences = Vec::new();
    match &certificate.engagement {
        None => sentences.extend(on_server(certificate)),
        Some(found) => {
            sentences.push(format!(
                "Stored bytes were read back in {} layers of a probe of {} tokens, and they {} from \
                 native.",
                found.layers.len(),
                found.probe_tokens,
                match found.differs_from_native {
                    true => "differ",
                    false => "do not differ",
                }
            ));
            if let Some(totals) = &found.totals {
                let parts = [("keys", &totals.k), ("values", &totals.v)];
                sentences.push(format!(
                    "Over all cases, {}.",
                    parts.map(changed).join("; ")
                ));
            }
            if found.unit_scales {
                sentences.push(
                    "Every scale is exactly 1.0, as where calibration was left out.".to_owned(),
                );
            }
        }
    }
    Section {
        title: "Was the recipe in use?".to_owned(),
        sentences,
    }
}

/// What is known of a cache that lies in a server.
fn on_server(certificate: &Certificate) -> Vec<String> {
    let Some(found) = &certificate.server_engagement else {
        return vec![
            "Nothing in this certificate proves it: what was stored is not known.".to_owned(),
        ];
    };
    let reported = Reported::of(&certificate.recipe.spec, found);
    let observed = match found.proof {
        EngagementProof::ReportedAndObserved | EngagementProof::ObservedDifference => {
            "records differ from every control by more than noise"
        }
        _ if found.differences.is_empty() => "no records were compared",
        EngagementProof::Reported | EngagementProof::None => "records were compared",
    };
    let counts = servers::differing(found);
    let counts = match counts.is_empty() {
        true => counts,
        false => format!(": {counts}"),
    };
    let mut sentences = vec![format!(
        "{}; {observed}{counts}.",
        capital(&reported.clause())
    )];
    let conclusion = match (reported.contradicts(), found.proof) {
        (true, _) => Some("The recipe that is certified is not the one that the server reports."),
        (false, EngagementProof::ObservedDifference) => Some("What differs need not be the cache."),
        (false, EngagementProof::None) => Some(
            "That proves nothing: a control's server says the same of its cache, or it is not shown \
             that records differ by more than noise.",
        ),
        (false, EngagementProof::Reported) => {
            Some("It is not shown that records differ from every control by more than noise.")
        }
        (false, EngagementProof::ReportedAndObserved) => None,
    };
    sentences.extend(conclusion.map(str::to_owned));
    sentences
}

fn changed((name, totals): (&str, &ComponentTotals)) -> String {
    let share = |count: u64| 100.0 * count as f64 / (totals.elements.max(1)) as f64;
    match totals.changed {
        0 => format!("{name} are as native stores them"),
        count => {
            let overflowed = match totals.saturated {
                0 => "none overflowed its scale".to_owned(),
                count => format!("{:.4}% overflowed their scale", share(count)),
            };
            format!(
                "{:.1}% of elements of {name} differ from native, {overflowed}",
                share(count)
            )
        }
    }
}

pub(super) fn noise(certificate: &Certificate) -> Section {
    let mut sentences = vec![repeat::sentence(certificate)];
    if let Some(answers) = &certificate.answers {
        sentences.push(match answers.mode {
            AnswerMode::Plain => "Every answer was generated token by token.".to_owned(),
            AnswerMode::Verified => format!(
                "Answers were taken over from native as far as the recipe agrees with them; {} were \
                 generated token by token as well, {} of them differ.",
                answers.regenerated, answers.mismatches
            ),
        });
    }
    let counts = &certificate.counts;
    sentences.push(set_apart(
        &certificate.recipe.name,
        [
            counts.truncated,
            counts.unparsed,
            counts.empty,
            counts.errors,
        ],
    ));
    for (control, counts) in &counts.controls {
        sentences.push(set_apart(
            control,
            [
                counts.truncated,
                counts.unparsed,
                counts.empty,
                counts.errors,
            ],
        ));
    }
    Section {
        title: "How much of it is noise?".to_owned(),
        sentences,
    }
}

/// What is counted apart in one arm.
fn set_apart(arm: &str, [truncated, unparsed, empty, errors]: [u64; 4]) -> String {
    format!(
        "In the arm of {arm} {truncated} answers were cut at their allowance, {unparsed} held no \
         number, {}{errors} cases failed.",
        servers::empty(empty).replace(" empty", " had no text")
    )
}
