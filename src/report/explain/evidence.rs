//! What the evidence itself is worth: degradation, engagement, noise.

use crate::schema::{AnswerMode, Certificate, ComponentTotals, EngagementProof};

use super::super::notes::degraded_endpoints;
use super::super::servers;
use super::Section;

pub(super) fn degradation(certificate: &Certificate) -> Section {
    let sentence = match degraded_endpoints(certificate) {
        Some(endpoints) => format!(
            "Established on {endpoints}: there the recipe is worse than native beyond chance, \
             however little. That stands beside a pass, which says that the loss is within limits."
        ),
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
        None => sentences.push(on_server(certificate)),
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
fn on_server(certificate: &Certificate) -> String {
    let Some(found) = &certificate.server_engagement else {
        return "Nothing in this certificate proves it: what was stored is not known.".to_owned();
    };
    let differing: Vec<String> = found
        .differences
        .iter()
        .map(|(control, counts)| {
            format!(
                "{} of {} records differ from {control}",
                counts.differing, counts.records
            )
        })
        .collect();
    let sentence = match found.proof {
        EngagementProof::ReportedAndObserved => {
            "The server reports the recipe's formats, and its answers differ from the controls'"
        }
        EngagementProof::Reported => {
            "The server reports the recipe's formats; nothing differs from some control"
        }
        EngagementProof::ObservedDifference => {
            "The server does not report how it stores keys and values; something differs from the \
             controls, which need not be the cache"
        }
        EngagementProof::None => "Nothing proves it: the server reports nothing, nothing differs",
    };
    format!("{sentence}: {}.", differing.join(", "))
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
    let mut sentences = vec![match &certificate.aa {
        None => {
            "Native was not run a second time: the noise of the worker is not known.".to_owned()
        }
        Some(aa) if aa.identical_bits => format!(
            "Native was run twice and gave the same bits in {} records: every difference is the \
             recipe's.",
            aa.records
        ),
        Some(aa) => format!(
            "Native was run twice and lost {} and gained {} answers in {} records against itself: \
             so much of what the recipe loses may be noise.",
            aa.lost, aa.gained, aa.records
        ),
    }];
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
    sentences.push(format!(
        "{} answers were cut at their allowance, {} held no number, {}{} cases failed.",
        counts.truncated,
        counts.unparsed,
        servers::empty(counts.empty).replace(" empty", " had no text"),
        counts.errors
    ));
    Section {
        title: "How much of it is noise?".to_owned(),
        sentences,
    }
}
