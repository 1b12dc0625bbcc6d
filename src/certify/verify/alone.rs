//! What a certificate's own figures allow.

mod builtin;
mod degradation;
mod identity;
mod rules;
mod verdicts;

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde_json::json;

use crate::recipe::Recipe;
use crate::schema::{
    AnswerMode, Certificate, ObjectiveResult, ResourceSummary, Verdict, is_sha256, tree_differences,
};
use crate::store::{CALIBRATION_FILE, MANIFEST_FILE, engagement_path, resources_path, start_path};

use super::super::assemble::{certificate_recipe, memory};
use super::super::regenerated::{REGENERATED_CASES, regenerated_name};
use super::Disagreement;

/// Everything in `certificate` that contradicts its own figures: bounds and estimates against
/// counts, `pass` against bounds, verdicts against rules, degradation against counts, bytes
/// against recipe and model, identities against each other, all of it against the protocol where
/// that is a built-in one. NLL bounds and digests of evidence need the run and are not looked at.
pub fn alone(certificate: &Certificate) -> Vec<Disagreement> {
    let mut list = identity::check(certificate);
    list.extend(costs(certificate));
    list.extend(rules::check(certificate));
    list.extend(verdicts::check(certificate));
    list.extend(degradation::check(certificate));
    list.extend(builtin::check(certificate));
    list.extend(aa(certificate));
    list.extend(resources(certificate));
    list.extend(answers(certificate));
    list.extend(evidence(certificate));
    list
}

/// Whether `certificate` names a built-in protocol by name and digest: [`alone`] then knows its
/// limits, alphas and panels.
pub fn is_builtin(certificate: &Certificate) -> bool {
    builtin::protocol_of(certificate).is_some()
}

fn digest(path: &str, found: &str) -> Option<Disagreement> {
    (!is_sha256(found))
        .then(|| Disagreement::claim(path, found, "64 lower-case hexadecimal digits"))
}

/// More layers than any model has: a certificate may say anything.
const MOST_LAYERS: u32 = 10_000;

/// Bytes per token follow from the recipe and the model's shape, memory figures from them.
fn costs(certificate: &Certificate) -> Vec<Disagreement> {
    let (stated, geometry) = (&certificate.recipe, &certificate.model.geometry);
    let spec = stated.spec.as_str();
    if let Some(expected) = geometry.fault() {
        let lists = json!([geometry.attention_layers, geometry.recurrent_layers]);
        let path = "model.geometry.attention_layers";
        return vec![Disagreement::claim(path, lists, expected)];
    }
    let mut head_dims = vec![geometry.head_dim as usize; geometry.layers.min(MOST_LAYERS) as usize];
    for kind in &geometry.attention_layers {
        for number in &kind.layers {
            if let Some(head_dim) = head_dims.get_mut(*number as usize) {
                *head_dim = kind.head_dim as usize;
            }
        }
    }
    for number in &geometry.recurrent_layers {
        if let Some(head_dim) = head_dims.get_mut(*number as usize) {
            *head_dim = 0;
        }
    }
    let parsed = Recipe::parse(spec).and_then(|recipe| {
        recipe
            .check_layers(geometry.layers as usize)
            .and_then(|()| recipe.check_heads(&head_dims))
            .map(|()| recipe)
    });
    let recipe = match parsed {
        Ok(recipe) => Some(recipe),
        Err(_) if is_free_name(certificate) => None,
        Err(error) => return vec![Disagreement::claim("recipe.spec", spec, error.to_string())],
    };
    let mut list = Vec::new();
    if let Some(recipe) = &recipe {
        if recipe.spec() != spec {
            list.push(Disagreement::claim("recipe.spec", spec, recipe.spec()));
        }
        if Recipe::parse(&stated.name).is_ok_and(|other| other != *recipe) {
            let expected = format!("no name of another recipe than {spec}");
            list.push(Disagreement::claim(
                "recipe.name",
                stated.name.as_str(),
                expected,
            ));
        }
    }
    let computed = certificate_recipe((&stated.name, spec), recipe.as_ref(), geometry);
    let found = json!({"recipe": stated, "memory": certificate.memory});
    let figures = memory(
        &computed,
        recipe.as_ref(),
        (geometry, certificate.servers.is_some()),
    );
    let expected = json!({"recipe": computed, "memory": figures});
    let differences = tree_differences(&found, &expected);
    list.extend(differences.into_iter().map(Disagreement::with_itself));
    list
}

/// Records of other harnesses may be of a recipe that only has a name: nothing is known of its
/// cache, and nothing can prove that it was engaged.
fn is_free_name(certificate: &Certificate) -> bool {
    let recipe = &certificate.recipe;
    certificate.worker.kind == "import"
        && recipe.name == recipe.spec
        && !recipe.spec.contains('=')
        && certificate.engagement.is_none()
}

fn aa(certificate: &Certificate) -> Vec<Disagreement> {
    let Some(aa) = &certificate.aa else {
        return Vec::new();
    };
    let mut list = Vec::new();
    if u128::from(aa.lost) + u128::from(aa.gained) > u128::from(aa.records) {
        let expected = format!(
            "no more than lost and gained together in {} records",
            aa.records
        );
        list.push(Disagreement::claim("aa.lost", aa.lost, expected));
    }
    if aa.identical_bits && (aa.lost > 0 || aa.gained > 0) {
        let expected = "false where answers were lost or gained";
        list.push(Disagreement::claim("aa.identical_bits", true, expected));
    }
    if !aa.identical_bits && certificate.worker.kind != "http" {
        let expected = format!("true: worker {} promises it", certificate.worker.kind);
        list.push(Disagreement::claim("aa.identical_bits", false, expected));
    }
    list
}

/// No more memory was in use than there is. Parts may come from machines of different sizes: of several
/// the largest peak and the smallest memory stand side by side.
fn resources(certificate: &Certificate) -> Vec<Disagreement> {
    let of_one_part = |(_, summary): &(&String, &ResourceSummary)| summary.parts == 1;
    let summaries = certificate.resources.iter().filter(of_one_part);
    let beyond = summaries.filter_map(|(arm, summary)| {
        let peak = summary.sampled.as_ref()?.peak_bytes;
        let total = summary.total_bytes.filter(|total| peak > *total)?;
        let path = format!("resources.{arm}.sampled.peak_bytes");
        let expected = format!("at most total_bytes, {total}");
        Some(Disagreement::claim(&path, peak, expected))
    });
    beyond.collect()
}

/// Pairs of every panel whose cases are answered.
pub(super) fn generated_pairs(certificate: &Certificate) -> u64 {
    let objectives = &certificate.objectives;
    let rules = [&objectives.preservation, &objectives.aggregate]
        .into_iter()
        .flat_map(|objective| &objective.rules);
    let panels: BTreeMap<&str, u64> = rules
        .filter(|rule| rule.control_correct.is_some())
        .map(|rule| (rule.panel.as_str(), rule.pairs))
        .collect();
    // Figures of a certificate may be anything.
    let sum = |total: u64, pairs: &u64| total.saturating_add(*pairs);
    panels.values().fold(0, sum)
}

/// Verified answers rest on cases that were generated plainly as well, and did not differ.
fn answers(certificate: &Certificate) -> Vec<Disagreement> {
    let Some(answers) = &certificate.answers else {
        return Vec::new();
    };
    let mut list = Vec::new();
    let most = match answers.mode {
        AnswerMode::Verified => REGENERATED_CASES as u64,
        AnswerMode::Plain => 0,
    };
    if answers.regenerated > most {
        let expected = format!("at most {most} where answers are {}", answers.mode.name());
        list.push(Disagreement::claim(
            "answers.regenerated",
            answers.regenerated,
            expected,
        ));
    }
    if answers.mismatches > 0 {
        let expected = "0: there is no certificate otherwise";
        list.push(Disagreement::claim(
            "answers.mismatches",
            answers.mismatches,
            expected,
        ));
    }
    let objectives = &certificate.objectives;
    let passes = [&objectives.preservation, &objectives.aggregate]
        .iter()
        .any(|result| result.verdict == Verdict::Pass);
    let chosen = generated_pairs(certificate).min(REGENERATED_CASES as u64);
    if answers.mode == AnswerMode::Verified && answers.regenerated < chosen && passes {
        let expected = format!("{chosen} cases that were generated plainly as well");
        list.push(Disagreement::claim(
            "answers.regenerated",
            answers.regenerated,
            expected,
        ));
    }
    list
}

/// The list must be one that a run can have: its digests themselves need the run.
fn evidence(certificate: &Certificate) -> Vec<Disagreement> {
    let mut list = Vec::new();
    for (at, file) in certificate.evidence.iter().enumerate() {
        let parts = Path::new(&file.path).components();
        let inside = parts
            .into_iter()
            .all(|part| matches!(part, Component::Normal(_)));
        if file.path.is_empty() || !inside {
            let field = format!("evidence[{at}].path");
            list.push(Disagreement::claim(
                &field,
                file.path.as_str(),
                "a path below the run",
            ));
        }
        list.extend(digest(&format!("evidence[{at}].sha256"), &file.sha256));
    }
    if !certificate.evidence.is_sorted_by(|a, b| a.path < b.path) {
        let found = "paths out of order or doubled";
        list.push(Disagreement::claim(
            "evidence",
            found,
            "each path once, in order",
        ));
    }
    for path in needed(certificate) {
        if !certificate.evidence.iter().any(|file| file.path == path) {
            list.push(Disagreement::claim("evidence", "a list without it", path));
        }
    }
    list
}

/// Files without which the certificate's figures cannot have come about.
fn needed(certificate: &Certificate) -> Vec<String> {
    let arm = &certificate.recipe.name;
    let mut needed = vec![MANIFEST_FILE.to_owned()];
    if certificate.engagement.is_some() {
        needed.push(engagement_path(arm));
    }
    needed.extend(certificate.resources.keys().map(|arm| resources_path(arm)));
    // An import's records tell by themselves which protocol they carry.
    let is_pass = |result: &ObjectiveResult| result.verdict == Verdict::Pass;
    let objectives = &certificate.objectives;
    if is_pass(&objectives.preservation) || is_pass(&objectives.aggregate) {
        needed.push(start_path(arm));
    }
    let recipe = Recipe::parse(&certificate.recipe.spec);
    let is_fixed = recipe.is_ok_and(|recipe| recipe.needs_calibration());
    // Servers keep their scales to themselves.
    if is_fixed && certificate.worker.kind != "http" && certificate.engagement.is_some() {
        needed.push(CALIBRATION_FILE.to_owned());
    }
    let regenerated = certificate.answers.as_ref();
    if regenerated.is_some_and(|found| found.regenerated > 0) {
        let end = format!("{}.jsonl", regenerated_name(""));
        let begin = format!("arms/{arm}/");
        let mut files = certificate.evidence.iter().map(|file| &file.path);
        if !files.any(|path| path.starts_with(&begin) && path.ends_with(&end)) {
            needed.push(format!("{begin}PANEL{end}"));
        }
    }
    for rule in &certificate.objectives.preservation.rules {
        needed.push(format!("arms/{arm}/{}.jsonl", rule.panel));
    }
    needed.dedup();
    needed
}
