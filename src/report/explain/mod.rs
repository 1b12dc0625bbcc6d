//! A certificate in plain words: what passed, what did not, why, and what would be needed.

mod reason;
mod rule;

use std::io::{self, Write};

use serde::Serialize;

use crate::certify::Reason;
use crate::recipe::{Component, Format, Recipe, ScalePolicy};
use crate::schema::{AnswerMode, Certificate, ComponentTotals, ObjectiveName, RuleResult, Verdict};

use super::figure::{OBJECTIVES, verdict_words};
use super::notes::degraded_endpoints;
use super::outlook::{influences, outlooks};
use super::text::{short, write_wrapped};

/// Schema name of the JSON document.
pub const EXPLAIN_SCHEMA: &str = "kvassay.explain/1";

/// A certificate in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// File of the certificate, as the user named it.
    pub certificate: String,
    /// Recipe, model and protocol.
    pub title: String,
    /// In reading order.
    pub sections: Vec<Section>,
}

/// Sentences under one heading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// One sentence or two each.
    pub sentences: Vec<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    explanations: &'a [Explanation],
}

impl Explanation {
    /// Puts a certificate that follows from its own figures into words. Nothing is computed here
    /// but how many pairs a rule would need, which the certificate's own counts, alpha and limit
    /// decide.
    pub fn of(path: &str, certificate: &Certificate) -> Self {
        let mut sections = vec![recipe(certificate), consistency(path)];
        sections.extend(OBJECTIVES.map(|name| objective(certificate, name)));
        sections.extend(needed(certificate));
        sections.push(degradation(certificate));
        sections.push(engagement(certificate));
        sections.push(noise(certificate));
        sections.extend(section(
            "What limits and alphas mean",
            rule::thresholds(certificate),
        ));
        sections.push(beyond(certificate));
        let (model, protocol) = (&certificate.model, &certificate.protocol);
        Explanation {
            certificate: path.to_owned(),
            title: format!(
                "{} on {}, protocol {} {}",
                certificate.recipe.name,
                model.name,
                protocol.name,
                short(&protocol.sha256)
            ),
            sections,
        }
    }

    /// Writes the explanation in lines of at most `width` characters, but for longer words.
    ///
    /// # Errors
    /// Where `out` cannot be written.
    pub fn write_text(&self, width: usize, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.title)?;
        for section in &self.sections {
            writeln!(out, "\n{}", section.title)?;
            for sentence in &section.sentences {
                write_wrapped(&format!("- {sentence}"), width, out)?;
            }
        }
        Ok(())
    }
}

/// Writes explanations as one JSON document.
///
/// # Errors
/// Where `out` cannot be written.
pub fn write_explanations_json(
    explanations: &[Explanation],
    out: &mut dyn Write,
) -> io::Result<()> {
    let schema = EXPLAIN_SCHEMA;
    serde_json::to_writer_pretty(
        &mut *out,
        &Document {
            schema,
            explanations,
        },
    )?;
    writeln!(out)
}

/// A section, where there is anything to say.
fn section(title: &str, sentences: Vec<String>) -> Option<Section> {
    (!sentences.is_empty()).then(|| Section {
        title: title.to_owned(),
        sentences,
    })
}

fn recipe(certificate: &Certificate) -> Section {
    let mut sentences = Vec::new();
    if let Ok(recipe) = Recipe::parse(&certificate.recipe.spec) {
        sentences.push(format!(
            "Keys are stored {}, values {} ({}).",
            stored(&recipe.k),
            stored(&recipe.v),
            certificate.recipe.spec
        ));
    }
    let memory = &certificate.memory;
    if memory.native_bytes_per_token > 0 {
        sentences.push(format!(
            "A token takes {} bytes of cache instead of {}: {:.1}% are saved.",
            memory.bytes_per_token,
            memory.native_bytes_per_token,
            100.0 * memory.saved
        ));
    }
    let worker = &certificate.worker;
    sentences.push(format!(
        "It was run by worker {} ({}, {}).",
        worker.kind, worker.device, worker.arithmetic
    ));
    Section {
        title: "What was tested".to_owned(),
        sentences,
    }
}

fn stored(component: &Component) -> String {
    let format = match component.format {
        Format::Native => return "as the native cache does".to_owned(),
        Format::E4m3 => "in 8 bits (E4M3)",
        Format::E5m2 => "in 8 bits (E5M2)",
        Format::Int8 => "in 8 bits (integers)",
    };
    let scale = match component.scale {
        Some(ScalePolicy::Fixed) => ", with one scale per layer from calibration",
        Some(ScalePolicy::Dynamic) => ", with one scale per token and head",
        None => "",
    };
    format!("{format}{scale}")
}

fn consistency(path: &str) -> Section {
    let sentences = vec![
        "Its bounds follow from its counts, its verdicts from its bounds: checked just now, nothing \
         contradicts itself."
            .to_owned(),
        format!(
            "Whether the counts are those of the run was not checked: `kvassay verify {path} --run \
             RUN` scores every answer again."
        ),
    ];
    Section {
        title: "Is this certificate sound?".to_owned(),
        sentences,
    }
}

fn objective(certificate: &Certificate, name: ObjectiveName) -> Section {
    let result = certificate.objectives.get(name);
    let words = verdict_words(result.verdict);
    let mut sentences = vec![format!("{}.", capital(reason::verdict(result.verdict)))];
    let reason = result.reason.as_deref().and_then(Reason::from_name);
    if let Some(reason) = reason {
        sentences.push(format!(
            "Why: {} ({}).",
            reason::meaning(reason),
            reason.name()
        ));
    }
    // Where bounds decide, the rules say it.
    let detail = result
        .detail
        .as_ref()
        .filter(|_| reason != Some(Reason::BoundExceedsLimit));
    sentences.extend(detail.map(|detail| format!("In figures: {detail}.")));
    sentences.extend(rules(certificate, name));
    let decided =
        matches!(result.verdict, Verdict::Pass) || reason == Some(Reason::BoundExceedsLimit);
    if !decided && !result.rules.is_empty() {
        sentences.push("No verdict rests on these rules, whether they hold or not.".to_owned());
    }
    let about = match name {
        ObjectiveName::Preservation => "answers are kept one by one",
        ObjectiveName::Aggregate => "answers are kept on balance",
    };
    Section {
        title: format!("{} ({about}): {words}", capital(name.name())),
        sentences,
    }
}

/// Rules of an objective; those that it shares with the one before are not told again.
fn rules(certificate: &Certificate, name: ObjectiveName) -> Vec<String> {
    let result = certificate.objectives.get(name);
    let told = match name {
        ObjectiveName::Preservation => &[][..],
        ObjectiveName::Aggregate => &certificate.objectives.preservation.rules,
    };
    let (shared, own): (Vec<&RuleResult>, Vec<&RuleResult>) =
        result.rules.iter().partition(|rule| told.contains(rule));
    let mut sentences: Vec<String> = own.into_iter().map(rule::outcome).collect();
    if !shared.is_empty() {
        let failing = shared.iter().filter(|rule| !rule.pass).count();
        let outcome = match failing {
            0 => "they hold".to_owned(),
            some => format!(
                "{some} of them {}",
                if some == 1 {
                    "does not hold"
                } else {
                    "do not hold"
                }
            ),
        };
        let count = shared.len();
        sentences.push(format!(
            "Its other {count} rules are those of preservation: {outcome}."
        ));
    }
    sentences
}

/// What it would take, for each objective that is not passed.
fn needed(certificate: &Certificate) -> Option<Section> {
    let mut sentences: Vec<String> = Vec::new();
    let mut say = |sentence: String| {
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    };
    for result in OBJECTIVES.map(|name| certificate.objectives.get(name)) {
        let reason = result.reason.as_deref().and_then(Reason::from_name);
        if let Some(reason) = reason {
            say(format!(
                "For {}: {}.",
                reason.name(),
                reason::remedy(reason)
            ));
        }
        if reason == Some(Reason::BoundExceedsLimit) {
            result
                .rules
                .iter()
                .filter_map(rule::least)
                .for_each(&mut say);
        }
    }
    let outlooks = outlooks(&certificate.objectives);
    let any = !outlooks.is_empty();
    outlooks
        .into_iter()
        .for_each(|text| say(format!("{text}.")));
    influences(&certificate.objectives)
        .into_iter()
        .for_each(|text| say(format!("{text}.")));
    if any {
        say(
            "`kvassay power` says how likely a protocol of your own would pass. More cases need a \
             new protocol and a new run: adding cases until a rule holds would make its alpha void."
                .to_owned(),
        );
    }
    section("What would be needed", sentences)
}

fn degradation(certificate: &Certificate) -> Section {
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

fn engagement(certificate: &Certificate) -> Section {
    let mut sentences = Vec::new();
    match &certificate.engagement {
        None => sentences.push(
            "Nothing in this certificate proves it: what was stored is not known.".to_owned(),
        ),
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

fn noise(certificate: &Certificate) -> Section {
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
        "{} answers were cut at their allowance, {} held no number, {} cases failed.",
        counts.truncated, counts.unparsed, counts.errors
    ));
    Section {
        title: "How much of it is noise?".to_owned(),
        sentences,
    }
}

fn beyond(certificate: &Certificate) -> Section {
    let mut sentences = vec![
        "It is about this model, this recipe, this worker and these panels. Other tasks, longer \
         texts, another engine with a recipe of the same name, and speed are not covered."
            .to_owned(),
    ];
    sentences.extend(certificate.caveats.iter().cloned());
    Section {
        title: "What it does not establish".to_owned(),
        sentences,
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}
