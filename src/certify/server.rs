//! Runs over HTTP: whether the candidate's recipe shows, and what the conformance probe leaves open.

use std::collections::BTreeMap;

use crate::recipe::{Format, Recipe, format_of_server};
use crate::schema::{
    ArmRole, EngagementProof, LikelihoodDialect, ParallelProbe, Record, RecordDifferences,
    ReportedCache, Server, ServerEngagement, ServerProbe, ServerRun,
};

use super::Reason;
use super::aa::difference;
use super::arms::{Control, Trial};
use super::findings::Finding;

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
    findings.extend(
        trial
            .controls
            .iter()
            .filter_map(|control| not_native(servers, control)),
    );
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
        (true, true) => EngagementProof::ReportedAndObserved,
        (true, false) => EngagementProof::Reported,
        (false, true) => EngagementProof::ObservedDifference,
        (false, false) => EngagementProof::None,
    };
    if proof == EngagementProof::None && trial.arm.unsupported.is_none() {
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

/// What a certificate by itself lacks of a proof; the same rules on its own figures.
pub(super) fn lack(recipe: &Recipe, found: &ServerEngagement) -> Option<String> {
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

fn differs_from_all(differences: &BTreeMap<String, RecordDifferences>) -> bool {
    !differences.is_empty() && differences.values().all(|found| found.beyond_noise > 0)
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

fn not_native(servers: &ServerRun, control: &Control<'_>) -> Option<Finding> {
    let server = servers.of_arm(&control.arm?.arm)?;
    let cache = server.identity.cache.as_ref()?;
    let native = |word: &str| format_of_server(word).is_none_or(|found| found == Format::Native);
    (!native(&cache.k) || !native(&cache.v)).then(|| {
        let detail = format!(
            "control {}: the server reports keys in {} and values in {} ({}), expected native storage",
            control.name, cache.k, cache.v, cache.source
        );
        Finding::new(Reason::EngagementUnproved, detail)
    })
}

fn unproved(arm: &str, differences: &BTreeMap<String, RecordDifferences>) -> String {
    let same: Vec<String> = differences
        .iter()
        .filter(|(_, found)| found.beyond_noise == 0)
        .map(|(control, found)| {
            let noise = match found.differing {
                0 => String::new(),
                differing => format!(
                    ", but for {differing} in which the control differs from itself as well"
                ),
            };
            format!(
                "none of {} records differs from {control}{noise}",
                found.records
            )
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
fn differences(
    trial: &Trial<'_>,
    servers: &ServerRun,
    control: &Control<'_>,
) -> Option<RecordDifferences> {
    let arm = &control.arm?.arm;
    let mut arms = trial.evidence.manifest.arms.iter();
    let again = arms.find(|arm| arm.role == ArmRole::Aa);
    // Only the first control is asked twice.
    let is_first = trial.controls.first().and_then(|first| first.arm) == control.arm;
    let again = again.filter(|_| is_first);
    let mut counts = RecordDifferences::default();
    let comparable = same_dialect(servers, &trial.arm.arm, arm);
    for (panel, gold) in &trial.evidence.panels {
        let of = |arm: &str| by_case(trial, arm, panel);
        let (candidate, first) = (of(&trial.arm.arm), of(arm));
        let second = again.map(|arm| of(&arm.arm));
        for case in &gold.cases {
            let key = case.case_sha256.as_str();
            let (Some(a), Some(b)) = (candidate.get(key), first.get(key)) else {
                continue;
            };
            let is_likelihood = a.nll_sum.is_some() && b.nll_sum.is_some();
            if a.error.is_some() || b.error.is_some() || is_likelihood && !comparable {
                continue;
            }
            counts.records += 1;
            if difference(a, b).is_none() {
                continue;
            }
            counts.differing += 1;
            let agrees = second.as_ref().is_none_or(|second| {
                let other = second.get(key);
                other.is_some_and(|other| other.error.is_none() && difference(b, other).is_none())
            });
            counts.beyond_noise += u64::from(agrees);
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

fn by_case<'a>(trial: &Trial<'a>, arm: &str, panel: &str) -> BTreeMap<&'a str, &'a Record> {
    let records = trial
        .evidence_of(arm)
        .map_or(&[][..], |found| found.on(panel));
    records
        .iter()
        .map(|record| (record.case_sha256.as_str(), record))
        .collect()
}

/// What the probe found that a reader must know, server by server.
pub(super) fn caveats(trial: &Trial<'_>, engaged: &Engaged) -> Vec<String> {
    let Some(servers) = &trial.evidence.manifest.servers else {
        return Vec::new();
    };
    let mut list = vec![
        "Servers ran the model: its weights were not seen, and what a server says of its model and \
         cache was taken as it is."
            .to_owned(),
    ];
    list.extend(engaged.result.as_ref().and_then(proof_caveat));
    let mut engines: Vec<String> = Vec::new();
    for server in &servers.servers {
        let version = server
            .identity
            .version
            .as_deref()
            .unwrap_or("of unknown version");
        let engine = format!("{} {version}", server.identity.engine);
        if !engines.contains(&engine) {
            engines.push(engine);
        }
        list.extend(probe_caveats(server));
    }
    if engines.len() > 1 {
        list.push(format!(
            "The servers are not of one engine and version ({}): what differs may be the engine's \
             and not the recipe's.",
            engines.join(", ")
        ));
    }
    list
}

fn proof_caveat(found: &ServerEngagement) -> Option<String> {
    let counts: Vec<String> = found
        .differences
        .iter()
        .map(|(control, found)| {
            format!(
                "{} of {} from {control}'s",
                found.beyond_noise, found.records
            )
        })
        .collect();
    let counts = counts.join(", ");
    match found.proof {
        EngagementProof::ObservedDifference => Some(format!(
            "observed_difference: the candidate's server reports no cache format. That the recipe \
             was engaged rests on records that differ, {counts}, which another cause may have too."
        )),
        EngagementProof::Reported => Some(
            "The candidate's server reports the recipe's formats, but against some control not one \
             record differs: a quantised cache rarely leaves no trace."
                .to_owned(),
        ),
        EngagementProof::ReportedAndObserved | EngagementProof::None => None,
    }
}

fn probe_caveats(server: &Server) -> Vec<String> {
    let ServerProbe {
        thinking_switch,
        reasoning,
        repeatable,
        parallel,
        stop,
        tokens,
        likelihood,
        prompts,
        ..
    } = &server.probe;
    let mut list = Vec::new();
    let mut say = |what: String| list.push(format!("Server of {}: {what}", server.name));
    if *repeatable == Some(false) {
        say("the same prompt twice gave different answers: it is not deterministic.".to_owned());
    }
    if let Some(ParallelProbe {
        prompts,
        differing,
        differing_tokens,
        tokens,
        ..
    }) = parallel
        && *differing > 0
    {
        say(format!(
            "{differing} of {prompts} prompts were answered otherwise side by side than one by one, \
             in {differing_tokens} of {tokens} tokens."
        ));
    }
    if let Some(found) = likelihood
        && !found.repeatable
    {
        say(format!(
            "the same text twice had different log-probabilities, by {:.2e} nats per target, as \
             with prefix caching.",
            found.difference
        ));
    }
    if let Some(found) = tokens {
        if let Some(theirs) = found.servers.filter(|&theirs| theirs != found.ours) {
            say(format!(
                "it makes {theirs} tokens of a prompt of which --model's template and tokenizer \
                 make {}.",
                found.ours
            ));
        }
        if let Some(bos) = found.bos_servers.filter(|&bos| bos > 1) {
            say(format!(
                "its tokenizer begins a rendered prompt with {bos} beginning-of-sequence tokens."
            ));
        }
    }
    if let Some(found) = stop.as_ref().filter(|found| found.leaked > 0) {
        say(format!(
            "{} answers of the probe hold a token that ends a turn: it does not stop there.",
            found.leaked
        ));
    }
    if *reasoning {
        let switch = match thinking_switch {
            true => "although thinking was switched off",
            false => "and takes no switch that turns thinking off",
        };
        say(format!(
            "it reasons beside its answers, {switch}; reasoning is not scored."
        ));
    }
    if prompts.iter().any(|form| form.words().starts_with("text")) {
        say(
            "it takes prompts as text: how it tokenises them shows in their number alone."
                .to_owned(),
        );
    }
    list
}
