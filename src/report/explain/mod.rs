//! A certificate in plain words: what passed, what did not, why, and what would be needed.

mod evidence;
mod reason;
mod rule;

use std::io::{self, Write};

use serde::Serialize;

use crate::certify::Reason;
use crate::recipe::{Component, Format, Recipe, ScalePolicy};
use crate::schema::{Certificate, ObjectiveName, RuleName, RuleResult, Verdict};

use super::figure::{OBJECTIVES, rule_name, verdict_words};
use super::notes;
use super::outlook::{influences, outlooks};
use super::text::{short, write_wrapped};
use super::visible::one_line;

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
        let mut sections = vec![recipe(certificate), consistency(path, certificate)];
        sections.extend(OBJECTIVES.map(|name| objective(certificate, name)));
        sections.extend(needed(certificate));
        sections.push(evidence::degradation(certificate));
        sections.push(evidence::engagement(certificate));
        sections.push(evidence::noise(certificate));
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
        writeln!(out, "{}", one_line(&self.title))?;
        for section in &self.sections {
            writeln!(out, "\n{}", one_line(&section.title))?;
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
        if recipe.q != Format::Native {
            sentences.push(format!(
                "Queries pass through {} with one scale per token and head before attention reads \
                 them.",
                recipe.q
            ));
        }
        if recipe.sink > 0 {
            sentences.push(format!(
                "The first {} tokens of every sequence are stored as the native cache does.",
                recipe.sink
            ));
        }
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
    if memory.sink_bytes > 0 {
        sentences.push(format!(
            "Every sequence takes {} bytes beside that, for its first tokens.",
            memory.sink_bytes
        ));
    }
    if let Some(kept) = &memory.kept {
        sentences.push(format!(
            "Layers with a window keep their last tokens only: once these are full, a token takes {} \
             bytes more instead of {}, and the windows hold {} bytes instead of {}.",
            kept.bytes_per_token,
            kept.native_bytes_per_token,
            kept.window_bytes,
            kept.native_window_bytes
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
        Format::Int4(size) => {
            return format!(
                "in 4 bits (integers), with a scale and a minimum per group of {} elements",
                size.elements()
            );
        }
        Format::Block(block) => {
            return format!(
                "in blocks of 32 elements with a scale each ({})",
                block.name()
            );
        }
    };
    let scale = match component.scale {
        Some(ScalePolicy::Fixed) => ", with one scale per layer from calibration",
        Some(ScalePolicy::Dynamic) => ", with one scale per token and head",
        None => "",
    };
    format!("{format}{scale}")
}

fn consistency(path: &str, certificate: &Certificate) -> Section {
    let has = |on_counts: bool| {
        let mut rules = notes::rules(&certificate.objectives);
        rules.any(|rule| (rule_name(&rule.rule) != Some(RuleName::Nll)) == on_counts)
    };
    let checked = match (has(true), has(false)) {
        (true, false) => {
            "Bounds on counts follow from the counts, verdicts from the bounds: checked just now."
        }
        (true, true) => {
            "Bounds on counts follow from the counts, verdicts from the bounds: checked just now. \
             Likelihood bounds were not: they need the run."
        }
        (false, true) => {
            "Verdicts follow from the bounds: checked just now. Likelihood bounds themselves were \
             not: they need the run."
        }
        (false, false) => {
            "It holds no bounds. That its fields do not contradict one another was checked just now."
        }
    };
    let sentences = vec![
        checked.to_owned(),
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
    let lacks = result.incomplete.as_deref().and_then(Reason::from_name);
    sentences.extend(lacks.map(|why| {
        let (meaning, name) = (reason::meaning(why), why.name());
        format!("The evidence is incomplete as well: {meaning} ({name}).")
    }));
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
        let lacks = result.incomplete.as_deref().and_then(Reason::from_name);
        for reason in reason.into_iter().chain(lacks) {
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
