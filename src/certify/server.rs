//! Runs over HTTP: whether the candidate's recipe shows, and what the conformance probe leaves open.

mod caveats;

use std::collections::BTreeMap;

use crate::recipe::{Format, Recipe, format_of_server};
use crate::schema::{
    ArmRole, EngagementProof, LikelihoodDialect, RecordDifferences, ReportedCache, Server,
    ServerEngagement, ServerRun,
};
use crate::stats::sign_test;

use super::Reason;
use super::aa::difference;
use super::arms::{Control, Trial};
use super::findings::Finding;

pub(super) use caveats::caveats;

/// Records differ by more than the control's own noise where the sign test's p is below this.
const NOISE_ALPHA: f64 = 0.01;

/// What shows that the candidate's recipe was at work.
#[derive(Default)]
pub(super) struct Engaged {
    /// For the certificate; `None` where the run is not one on servers.
    pub result: Option<ServerEngagement>,
    /// What stands against it.
    pub findings: Vec<Finding>,
}

/// Looks at what servers report of their caches and at what differs between records.
pub(super) fn engagement(trial: &Trial<'_>) -> Engaged {
    let Some(servers) = &trial.evidence.manifest.servers else {
        return Engaged::default();
    };
    let mut findings = Vec::new();
    let reported = servers
        .of_arm(&trial.arm.arm)
        .and_then(|server| server.identity.cache.clone());
    let told = reported.as_ref().and_then(formats);
    if let (Some(recipe), Some(cache)) = (&trial.recipe, &reported)
        && let Some(lack) = reported_lack(recipe, cache)
    {
        let detail = format!("arm {}: {lack}", trial.arm.arm);
        findings.push(Finding::new(Reason::EngagementUnproved, detail));
    }
    let alike = same_words(servers, &trial.arm.arm);
    let lacks = alike.iter().cloned();
    for lack in lacks.chain(not_native(servers, &trial.arm.arm)) {
        findings.push(Finding::new(Reason::EngagementUnproved, lack));
    }
    let differences: BTreeMap<String, RecordDifferences> = trial
        .controls
        .iter()
        .filter_map(|control| {
            let counts = differences(trial, servers, control)?;
            Some((control.name.to_owned(), counts))
        })
        .collect();
    let observed = differs_from_all(&differences);
    let proof = match (told.is_some(), observed) {
        // Servers that say the same store the same.
        _ if alike.is_some() => EngagementProof::None,
        (true, true) => EngagementProof::ReportedAndObserved,
        (true, false) => EngagementProof::Reported,
        (false, true) => EngagementProof::ObservedDifference,
        (false, false) => EngagementProof::None,
    };
    let is_unproved = proof == EngagementProof::None && alike.is_none();
    if is_unproved && trial.arm.unsupported.is_none() {
        findings.push(Finding::new(
            Reason::EngagementUnproved,
            unproved(&trial.arm.arm, &differences),
        ));
    }
    Engaged {
        result: Some(ServerEngagement {
            proof,
            reported,
            differences,
        }),
        findings,
    }
}

/// What a certificate by itself lacks of a proof of `recipe` on `arm`; the same rules on its own
/// figures.
pub(super) fn lack(
    recipe: &Recipe,
    arm: &str,
    found: &ServerEngagement,
    servers: Option<&ServerRun>,
) -> Option<String> {
    let Some(servers) = servers.filter(|servers| servers.of_arm(arm).is_some()) else {
        return Some(format!("names no server of arm {arm}"));
    };
    let lacks = same_words(servers, arm).into_iter();
    if let Some(lack) = lacks.chain(not_native(servers, arm)).next() {
        return Some(lack);
    }
    let impossible = found
        .differences
        .iter()
        .find(|(_, counts)| !is_possible(counts));
    if let Some((control, counts)) = impossible {
        return Some(format!(
            "counts {} of {} records that differ from {control}, {} of them beyond noise, {} in \
             which noise is alone: together they cannot be",
            counts.differing, counts.records, counts.beyond_noise, counts.noise_alone
        ));
    }
    if let Some(cache) = &found.reported
        && let Some(lack) = reported_lack(recipe, cache)
    {
        return Some(lack);
    }
    let told = found.reported.as_ref().and_then(formats).is_some();
    let observed = differs_from_all(&found.differences);
    let holds = match found.proof {
        EngagementProof::ReportedAndObserved => told && observed,
        EngagementProof::Reported => told,
        EngagementProof::ObservedDifference => observed,
        EngagementProof::None => false,
    };
    (!holds)
        .then(|| "shows neither a reported format nor a difference from every control".to_owned())
}

/// Whether these can be counts of one comparison.
fn is_possible(found: &RecordDifferences) -> bool {
    let same = found.records.checked_sub(found.differing);
    found.beyond_noise <= found.differing && same.is_some_and(|same| found.noise_alone <= same)
}

/// Whether records of the candidate differ from the control's by more than the control's differ from
/// themselves.
fn exceeds_noise(found: &RecordDifferences) -> bool {
    let (beyond, alone) = (found.beyond_noise, found.noise_alone);
    let is_quiet = alone == 0 && found.differing == beyond;
    beyond > 0 && (is_quiet || sign_test(beyond, alone).greater.p < NOISE_ALPHA)
}

fn differs_from_all(differences: &BTreeMap<String, RecordDifferences>) -> bool {
    !differences.is_empty() && differences.values().all(exceeds_noise)
}

/// Formats of keys and values, where the server's words say.
fn formats(cache: &ReportedCache) -> Option<(Format, Format)> {
    Some((format_of_server(&cache.k)?, format_of_server(&cache.v)?))
}

/// How a reported format contradicts the recipe. Words that are not known say nothing.
fn reported_lack(recipe: &Recipe, cache: &ReportedCache) -> Option<String> {
    let (k, v) = formats(cache)?;
    ((k, v) != (recipe.k.format, recipe.v.format)).then(|| {
        format!(
            "the server reports keys in {} and values in {} ({}), the recipe stores {} and {}",
            cache.k, cache.v, cache.source, recipe.k.format, recipe.v.format
        )
    })
}

/// A control whose server reports its cache in the candidate's words: whatever they mean, it is not
/// the recipe at one of them alone.
fn same_words(servers: &ServerRun, arm: &str) -> Option<String> {
    let cache = servers.of_arm(arm)?.identity.cache.as_ref()?;
    let words =
        |cache: &ReportedCache| [&cache.k, &cache.v].map(|word| word.trim().to_ascii_lowercase());
    let mut others = others(servers, arm);
    let same = others.find(|server| {
        let other = server.identity.cache.as_ref();
        other.is_some_and(|other| words(other) == words(cache))
    })?;
    Some(format!(
        "arm {arm}: its server reports keys in {} and values in {} ({}), as does that of control {}: \
         the same words are not the recipe",
        cache.k, cache.v, cache.source, same.name
    ))
}

/// Controls whose servers report anything but native storage.
fn not_native<'a>(servers: &'a ServerRun, arm: &'a str) -> impl Iterator<Item = String> + use<'a> {
    others(servers, arm).filter_map(|server| {
        let cache = server.identity.cache.as_ref()?;
        let native =
            |word: &str| format_of_server(word).is_none_or(|found| found == Format::Native);
        (!native(&cache.k) || !native(&cache.v)).then(|| {
            format!(
                "control {}: the server reports keys in {} and values in {} ({}), expected native \
                 storage",
                server.name, cache.k, cache.v, cache.source
            )
        })
    })
}

/// Servers of the controls.
fn others<'a>(servers: &'a ServerRun, arm: &'a str) -> impl Iterator<Item = &'a Server> {
    let answers = move |server: &&Server| server.arms.iter().any(|name| name == arm);
    servers
        .servers
        .iter()
        .filter(move |server| !answers(server))
}

fn unproved(arm: &str, differences: &BTreeMap<String, RecordDifferences>) -> String {
    let same: Vec<String> = differences
        .iter()
        .filter(|(_, found)| !exceeds_noise(found))
        .map(|(control, found)| {
            let RecordDifferences {
                records,
                differing,
                beyond_noise,
                noise_alone,
            } = found;
            match (differing, beyond_noise) {
                (0, _) => format!("none of {records} records differs from {control}"),
                (_, 0) => format!(
                    "none of {records} records differs from {control}, but for {differing} in which \
                     the first control differs from itself as well or was not asked twice"
                ),
                _ => format!(
                    "{beyond_noise} of {records} records differ from {control} where the first \
                     control agreed with itself and {noise_alone} the other way round: p = {:.4} of \
                     the sign test, expected below {NOISE_ALPHA}",
                    sign_test(*beyond_noise, *noise_alone).greater.p
                ),
            }
        })
        .collect();
    let same = if same.is_empty() {
        "there is no record to compare".to_owned()
    } else {
        same.join(", ")
    };
    format!("arm {arm}: its server reports no cache format that is known, and {same}")
}

/// Records of the candidate against a control, case by case; `None` where the run has no such arm.
/// The first control alone is asked twice: its noise stands for that of the others.
fn differences(
    trial: &Trial<'_>,
    servers: &ServerRun,
    control: &Control<'_>,
) -> Option<RecordDifferences> {
    let arm = &control.arm?.arm;
    let mut arms = trial.evidence.manifest.arms.iter();
    let again = arms.find(|arm| arm.role == ArmRole::Aa);
    let once = trial.controls.first().and_then(|first| first.arm);
    let mut counts = RecordDifferences::default();
    let comparable = same_dialect(servers, &trial.arm.arm, arm);
    for (panel, gold) in &trial.evidence.panels {
        let of = |arm: &str| trial.by_case(arm, panel);
        let (candidate, native) = (of(&trial.arm.arm), of(arm));
        let twice = once.zip(again).map(|(a, b)| (of(&a.arm), of(&b.arm)));
        for case in &gold.cases {
            let key = case.case_sha256.as_str();
            let (Some(a), Some(b)) = (candidate.get(key), native.get(key)) else {
                continue;
            };
            let is_likelihood = a.nll_sum.is_some() && b.nll_sum.is_some();
            if a.error.is_some() || b.error.is_some() || is_likelihood && !comparable {
                continue;
            }
            // Not known where the control has no two answers: then it shows nothing.
            let noisy = twice.as_ref().and_then(|(once, again)| {
                let (x, y) = (once.get(key)?, again.get(key)?);
                let answered = x.error.is_none() && y.error.is_none();
                answered.then(|| difference(x, y).is_some())
            });
            let differs = difference(a, b).is_some();
            counts.records += 1;
            counts.differing += u64::from(differs);
            counts.beyond_noise += u64::from(differs && noisy == Some(false));
            counts.noise_alone += u64::from(!differs && noisy == Some(true));
        }
    }
    Some(counts)
}

/// Likelihoods that were asked for in different ways differ by themselves.
fn same_dialect(servers: &ServerRun, one: &str, other: &str) -> bool {
    let dialect = |arm: &str| -> Option<LikelihoodDialect> {
        Some(servers.of_arm(arm)?.probe.likelihood.as_ref()?.dialect)
    };
    dialect(one) == dialect(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_must_exceed_the_noise() {
        for (differing, beyond_noise, noise_alone, expected) in [
            (0, 0, 0, false),
            (1, 1, 0, true),
            // Below, the control differs from itself: 2^-7 and 2^-6, 0.0047 and 0.038.
            (8, 7, 0, true),
            (7, 6, 0, false),
            (20, 20, 6, true),
            (18, 18, 8, false),
            (9, 9, 30, false),
            (5, 0, 0, false),
        ] {
            let found = RecordDifferences {
                records: 100,
                differing,
                beyond_noise,
                noise_alone,
            };
            assert_eq!(exceeds_noise(&found), expected, "{found:?}");
        }
    }
}
