//! What a reader of a run on servers must know.

use crate::schema::{
    EngagementProof, ParallelProbe, RepetitionPenalty, Server, ServerEngagement, ServerProbe,
};

use super::super::arms::Trial;
use super::Engaged;

/// What the probe found that a reader must know, server by server.
pub(in crate::certify) fn caveats(trial: &Trial<'_>, engaged: &Engaged) -> Vec<String> {
    let Some(servers) = &trial.evidence.manifest.servers else {
        return Vec::new();
    };
    let mut list = vec![
        "Servers ran the model: its weights were not seen, and what a server says of its model and \
         cache was taken as it is."
            .to_owned(),
        "Of a server's cache at most the formats of keys and values can be read. Its scales (a \
         vLLM cache in fp8 takes those of the checkpoint, or 1.0), and that no layer and no query is \
         stored otherwise than the recipe says, are the operator's word."
            .to_owned(),
    ];
    if trial.controls.len() > 1 {
        list.push(
            "The first control alone was asked twice: how often it differs from itself stands for \
             the noise of the others too."
                .to_owned(),
        );
    }
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
            "observed_difference: the candidate's server reports no cache format that is known. That \
             the recipe was engaged rests on records that differ, {counts}, which another cause may have too."
        )),
        EngagementProof::Reported => Some(
            "The candidate's server reports the recipe's formats, but against some control it is not \
             shown that records differ by more than noise: a quantised cache rarely leaves no trace."
                .to_owned(),
        ),
        EngagementProof::ReportedAndObserved | EngagementProof::None => None,
    }
}

fn probe_caveats(server: &Server) -> Vec<String> {
    let ServerProbe {
        thinking_switch,
        repetition_penalty,
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
    let is_known = server.identity.heeds_repetition_penalty();
    match repetition_penalty {
        Some(RepetitionPenalty::Refused) => say(
            "it takes no repetition_penalty: its own default holds, which may penalise repeated \
             tokens."
                .to_owned(),
        ),
        Some(RepetitionPenalty::Sent) if !is_known => say(
            "whether it heeds repetition_penalty is not known: where it does not, its own default \
             holds, which may penalise repeated tokens."
                .to_owned(),
        ),
        Some(RepetitionPenalty::Sent) | None => {}
    }
    if prompts.iter().any(|form| form.words().starts_with("text")) {
        say(
            "it takes prompts as text: how it tokenises them shows in their number alone."
                .to_owned(),
        );
    }
    list
}
