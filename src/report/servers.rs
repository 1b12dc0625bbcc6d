//! Sentences about the servers of a run over HTTP.

use crate::schema::{Certificate, EngagementProof, Server, ServerEngagement};

use super::summary::Summary;

/// Who answered, and what shows that the recipe was at work; nothing for built-in workers.
pub(super) fn notes(summary: &Summary<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for certificate in summary.certificates {
        let Some(servers) = &certificate.servers else {
            continue;
        };
        let each: Vec<String> = servers.servers.iter().map(server).collect();
        notes.push(format!("servers: {}", each.join("; ")));
        notes.push(candidate(certificate));
        if let Some(found) = &certificate.server_engagement {
            notes.push(engagement(&certificate.recipe.name, found));
        }
    }
    notes
}

/// Answers without text, where there are any.
pub(super) fn empty(count: u64) -> String {
    match count {
        0 => String::new(),
        count => format!("{count} empty, "),
    }
}

fn server(server: &Server) -> String {
    let identity = &server.identity;
    let version = identity.version.as_ref();
    let version = version.map_or(String::new(), |version| format!(" {version}"));
    let cache = match &identity.cache {
        None => String::new(),
        Some(cache) if cache.k == cache.v => format!(", cache {}", cache.k),
        Some(cache) => format!(", cache {}/{}", cache.k, cache.v),
    };
    format!(
        "{} {} ({}{version}, model {}{cache})",
        server.name, identity.url, identity.engine, identity.model
    )
}

fn candidate(certificate: &Certificate) -> String {
    let counts = &certificate.counts;
    format!(
        "{}: {} truncated, {} unparsed, {}{} errors",
        certificate.recipe.name,
        counts.truncated,
        counts.unparsed,
        empty(counts.empty),
        counts.errors
    )
}

fn engagement(recipe: &str, found: &ServerEngagement) -> String {
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
    let proof = match found.proof {
        EngagementProof::ReportedAndObserved => "reported by the server and observed",
        EngagementProof::Reported => "reported by the server, not observed",
        EngagementProof::ObservedDifference => "observed_difference, not reported by the server",
        EngagementProof::None => "unproved",
    };
    format!("{recipe}: engagement {proof}; {}", differing.join(", "))
}
