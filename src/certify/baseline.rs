//! A certificate against an earlier one of the same recipe: which objectives it no longer holds.
//!
//! Verdicts and bounds are taken as both certificates state them; nothing is estimated here.

use thiserror::Error;

use crate::schema::{
    ArmRole, AttentionLayers, Certificate, Geometry, Manifest, ModelIdentity, ObjectiveName,
    ObjectiveResult, RuleResult, ToolIdentity, Verdict,
};

/// Why an earlier certificate says nothing about a run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Incomparable {
    /// The run has no candidate of this recipe.
    #[error("found a certificate of recipe {found}, expected one of: {expected}")]
    Recipe {
        /// The baseline's recipe.
        found: String,
        /// The run's candidates.
        expected: String,
    },
    /// Other rules, panels or limits.
    #[error(
        "found a certificate under protocol {found}, expected {expected}: bounds under other \
         rules do not compare"
    )]
    Protocol {
        /// Name and digest of the baseline's protocol.
        found: String,
        /// Name and digest of the run's protocol.
        expected: String,
    },
    /// Another family or shape, or another name where no shape is known.
    #[error("found a certificate of model {found}, expected {expected}")]
    Model {
        /// The baseline's model.
        found: String,
        /// The run's model.
        expected: String,
    },
}

/// What an earlier certificate held, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct BaselineComparison {
    /// Recipe name in the run.
    pub recipe: String,
    /// Preservation, then aggregate.
    pub objectives: Vec<ObjectiveChange>,
}

impl BaselineComparison {
    /// Objectives that were held and no longer are.
    pub fn lost(&self) -> impl Iterator<Item = &ObjectiveChange> {
        self.objectives.iter().filter(|change| change.is_lost())
    }
}

/// One objective then and now.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectiveChange {
    /// Objective.
    pub objective: ObjectiveName,
    /// The baseline's verdict.
    pub then: Verdict,
    /// The new verdict.
    pub now: Verdict,
    /// The new evidence is incomplete, whatever the verdict.
    pub is_incomplete: bool,
    /// The new reason; absent for a pass.
    pub reason: Option<String>,
    /// Rules of the baseline in its order, then rules that it does not have.
    pub rules: Vec<RuleChange>,
}

impl ObjectiveChange {
    /// Held then, not held now.
    pub fn is_lost(&self) -> bool {
        self.then == Verdict::Pass && self.now != Verdict::Pass
    }
}

/// The bound of one rule then and now, proportions; absent where it was not evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleChange {
    /// Rule.
    pub rule: String,
    /// Panel name.
    pub panel: String,
    /// Control arm.
    pub control: String,
    /// Limit; the protocols are the same, and so are the limits.
    pub limit: f64,
    /// The baseline's bound.
    pub then: Option<f64>,
    /// The new bound.
    pub now: Option<f64>,
}

/// Whether `baseline` can be compared with what the run of `manifest` will hold. Recipe and
/// protocol must be the same, and the model of one family and shape. Returns what else differs,
/// one sentence each: other weights, tokenizer, worker or tool are what a baseline is there to
/// watch.
///
/// # Errors
/// [`Incomparable`].
pub fn comparable(
    baseline: &Certificate,
    manifest: &Manifest,
) -> Result<Vec<String>, Incomparable> {
    let candidates = manifest.arms.iter();
    let candidates: Vec<_> = candidates
        .filter(|arm| arm.role == ArmRole::Candidate)
        .collect();
    if !candidates
        .iter()
        .any(|arm| arm.recipe == baseline.recipe.spec)
    {
        let names: Vec<String> = candidates
            .iter()
            .map(|arm| named(&arm.arm, &arm.recipe))
            .collect();
        return Err(Incomparable::Recipe {
            found: named(&baseline.recipe.name, &baseline.recipe.spec),
            expected: names.join(", "),
        });
    }
    if baseline.protocol.sha256 != manifest.protocol_sha256 {
        return Err(Incomparable::Protocol {
            found: with_digest(&baseline.protocol.name, &baseline.protocol.sha256),
            expected: with_digest(&manifest.protocol.name, &manifest.protocol_sha256),
        });
    }
    let (then, now) = (&baseline.model, &manifest.model);
    if !same_kind(then, now) {
        return Err(Incomparable::Model {
            found: shape(then),
            expected: shape(now),
        });
    }
    Ok(differences(baseline, manifest))
}

/// Both objectives of `current` against those of `baseline`. The two must be [`comparable`].
pub fn against_baseline(baseline: &Certificate, current: &Certificate) -> BaselineComparison {
    let change = |objective: ObjectiveName| {
        let (then, now) = (
            baseline.objectives.get(objective),
            current.objectives.get(objective),
        );
        ObjectiveChange {
            objective,
            then: then.verdict,
            now: now.verdict,
            is_incomplete: now.judged() == Verdict::Incomplete,
            reason: now.reason.clone(),
            rules: rules(then, now),
        }
    };
    BaselineComparison {
        recipe: current.recipe.name.clone(),
        objectives: vec![
            change(ObjectiveName::Preservation),
            change(ObjectiveName::Aggregate),
        ],
    }
}

fn rules(then: &ObjectiveResult, now: &ObjectiveResult) -> Vec<RuleChange> {
    let same = |one: &RuleResult, other: &RuleResult| {
        (&one.rule, &one.panel, &one.control) == (&other.rule, &other.panel, &other.control)
    };
    let change = |rule: &RuleResult, then: Option<f64>, now: Option<f64>| RuleChange {
        rule: rule.rule.clone(),
        panel: rule.panel.clone(),
        control: rule.control.clone(),
        limit: rule.limit,
        then,
        now,
    };
    let bound_in = |list: &[RuleResult], rule: &RuleResult| {
        list.iter()
            .find(|found| same(found, rule))
            .map(|found| found.bound)
    };
    let mut changes: Vec<RuleChange> = then
        .rules
        .iter()
        .map(|rule| change(rule, Some(rule.bound), bound_in(&now.rules, rule)))
        .collect();
    let new = now
        .rules
        .iter()
        .filter(|rule| bound_in(&then.rules, rule).is_none());
    changes.extend(new.map(|rule| change(rule, None, Some(rule.bound))));
    changes
}

/// Family and shape decide; a name only where a shape is not known.
fn same_kind(then: &ModelIdentity, now: &ModelIdentity) -> bool {
    let unknown = Geometry::unknown();
    if then.geometry == unknown || now.geometry == unknown {
        return then.name == now.name;
    }
    then.family == now.family && then.geometry == now.geometry
}

fn differences(baseline: &Certificate, manifest: &Manifest) -> Vec<String> {
    let (then, now) = (&baseline.model, &manifest.model);
    let mut found = Vec::new();
    let mut differs = |what: &str, then: String, now: String| {
        if then != now {
            found.push(format!("{what}: {then} then, {now} now"));
        }
    };
    differs("model", then.name.clone(), now.name.clone());
    let digest = |digest: &str| short(digest).to_owned();
    differs(
        "weights",
        digest(&then.weights_sha256),
        digest(&now.weights_sha256),
    );
    differs(
        "tokenizer",
        digest(&then.tokenizer_sha256),
        digest(&now.tokenizer_sha256),
    );
    let worker = |worker: &crate::schema::WorkerIdentity| {
        format!("{}: {}, {}", worker.kind, worker.device, worker.arithmetic)
    };
    differs("worker", worker(&baseline.worker), worker(&manifest.worker));
    let tool = |tool: &ToolIdentity| with_digest(&tool.version, &tool.source_sha256);
    differs("tool", tool(&baseline.tool), tool(&ToolIdentity::current()));
    found
}

fn shape(model: &ModelIdentity) -> String {
    let geometry = &model.geometry;
    if *geometry == Geometry::unknown() {
        return format!("{} (shape not known)", model.name);
    }
    let of_kind = |kind: &AttentionLayers| {
        let window = match kind.window {
            Some(window) => format!("the last {window} tokens"),
            None => "all tokens".to_owned(),
        };
        let (layers, heads) = (kind.layers.len(), kind.kv_heads);
        format!(", {layers} with {heads} x {} of {window}", kind.head_dim)
    };
    let kinds: String = geometry.attention_layers.iter().map(of_kind).collect();
    let recurrent = match geometry.recurrent_layers.len() {
        0 => String::new(),
        some => format!(", {some} recurrent"),
    };
    format!(
        "{} ({}, {} layers of {} KV heads x {}{kinds}{recurrent}, hidden size {}, vocabulary {}, native {})",
        model.name,
        model.family,
        geometry.layers,
        geometry.kv_heads,
        geometry.head_dim,
        geometry.hidden_size,
        geometry.vocab_size,
        geometry.native_dtype
    )
}

fn named(name: &str, spec: &str) -> String {
    if name == spec {
        return name.to_owned();
    }
    format!("{name} ({spec})")
}

fn with_digest(name: &str, digest: &str) -> String {
    format!("{name} {}", short(digest))
}

/// Enough of a digest to recognise it.
fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}
