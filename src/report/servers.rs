//! Sentences about the servers of a run over HTTP.

use crate::recipe::{Recipe, format_of_server};
use crate::schema::{Certificate, EngagementProof, ReportedCache, Server, ServerEngagement};

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
            notes.push(engagement(certificate, found));
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

fn engagement(certificate: &Certificate, found: &ServerEngagement) -> String {
    let reported = Reported::of(&certificate.recipe.spec, found);
    let proof = match found.proof {
        _ if reported.contradicts() => format!("contradicted, {}", reported.clause()),
        EngagementProof::ReportedAndObserved => "reported by the server and observed".to_owned(),
        EngagementProof::Reported => "reported by the server, not observed".to_owned(),
        EngagementProof::ObservedDifference => {
            format!("observed_difference, {}", reported.clause())
        }
        EngagementProof::None => format!("unproved, {}", reported.clause()),
    };
    let name = &certificate.recipe.name;
    let counts = differing(found);
    match counts.is_empty() {
        true => format!("{name}: engagement {proof}"),
        false => format!("{name}: engagement {proof}; {counts}"),
    }
}

/// How many records differ, control by control; empty where there are none to compare.
pub(super) fn differing(found: &ServerEngagement) -> String {
    let counts = found.differences.iter().map(|(control, counts)| {
        format!(
            "{} of {} records differ from {control}, {} of them beyond noise",
            counts.differing, counts.records, counts.beyond_noise
        )
    });
    let counts: Vec<String> = counts.collect();
    counts.join("; ")
}

/// What a candidate's server says of its cache, held against the recipe.
pub(super) enum Reported<'a> {
    /// Nothing.
    Nothing,
    /// Words that no format is known for.
    Unknown(&'a ReportedCache),
    /// The recipe's formats.
    Recipe,
    /// Formats that are not the recipe's.
    Other(&'a ReportedCache, Option<Recipe>),
}

impl<'a> Reported<'a> {
    pub(super) fn of(spec: &str, found: &'a ServerEngagement) -> Self {
        let Some(cache) = &found.reported else {
            return Reported::Nothing;
        };
        let (Some(k), Some(v)) = (format_of_server(&cache.k), format_of_server(&cache.v)) else {
            return Reported::Unknown(cache);
        };
        match Recipe::parse(spec).ok() {
            Some(recipe) if (recipe.k.format, recipe.v.format) == (k, v) => Reported::Recipe,
            recipe => Reported::Other(cache, recipe),
        }
    }

    /// Whether the recipe cannot be what the server stores.
    pub(super) fn contradicts(&self) -> bool {
        matches!(self, Reported::Other(..))
    }

    /// One clause about the server.
    pub(super) fn clause(&self) -> String {
        let words =
            |cache: &ReportedCache| format!("keys in {} and values in {}", cache.k, cache.v);
        match self {
            Reported::Nothing => "the server reports no cache format".to_owned(),
            Reported::Unknown(cache) => {
                format!(
                    "the server reports no format that we know ({})",
                    words(cache)
                )
            }
            Reported::Recipe => "the server reports the recipe's formats".to_owned(),
            Reported::Other(cache, Some(recipe)) => format!(
                "the server reports {} ({}), the recipe stores {} and {}",
                words(cache),
                cache.source,
                recipe.k.format,
                recipe.v.format
            ),
            Reported::Other(cache, None) => format!(
                "the server reports {} ({}), the recipe is not known",
                words(cache),
                cache.source
            ),
        }
    }
}
