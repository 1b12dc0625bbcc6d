//! A certificate under a built-in protocol against that protocol.

use crate::schema::{
    Certificate, Degradation, IMPORT_WORKER, ObjectiveName, PanelPlan, Protocol, RuleName,
    RuleResult, Verdict, builtin_protocol, locked_digest,
};

use super::super::super::arms::declares;
use super::super::Disagreement;
use super::rules::{name_of, path};

/// Nothing where the protocol is not built in: only the run holds it.
pub(super) fn check(certificate: &Certificate) -> Vec<Disagreement> {
    let Some(protocol) = protocol_of(certificate) else {
        return Vec::new();
    };
    let mut list = Vec::new();
    for name in [ObjectiveName::Preservation, ObjectiveName::Aggregate] {
        let result = certificate.objectives.get(name);
        for (at, rule) in result.rules.iter().enumerate() {
            list.extend(check_rule(&protocol, &path(name, at), rule));
            // An import may bring more cases, and is descriptive then.
            if certificate.worker.kind != IMPORT_WORKER {
                list.extend(check_size(&protocol, &path(name, at), rule));
            }
        }
        if result.verdict == Verdict::Pass {
            let lack = lack(&protocol, name, &result.rules);
            list.extend(lack.map(|why| {
                let path = format!("objectives.{}.verdict", name.name());
                Disagreement::claim(&path, "pass", format!("no pass: {why}"))
            }));
        }
    }
    for (at, found) in certificate.degradation.iter().enumerate() {
        list.extend(check_endpoint(&protocol, at, found));
    }
    if is_declared(certificate) {
        list.extend(undeclared(&protocol, certificate));
        list.extend(frozen(&protocol, certificate));
    }
    list
}

/// The built-in protocol that the certificate names with its digest.
pub(in crate::certify::verify) fn protocol_of(certificate: &Certificate) -> Option<Protocol> {
    let found = &certificate.protocol;
    let locked = locked_digest(&found.name) == Some(found.sha256.as_str());
    builtin_protocol(&found.name).filter(|_| locked)
}

/// Whether a verdict says that model and recipe were declared before the run.
fn is_declared(certificate: &Certificate) -> bool {
    let objectives = &certificate.objectives;
    [&objectives.preservation, &objectives.aggregate]
        .iter()
        .any(|result| match result.verdict {
            Verdict::Pass | Verdict::NotEstablished | Verdict::Incomplete => true,
            Verdict::Unsupported | Verdict::Descriptive => false,
        })
}

/// Limit, alpha, panel, control and size are the protocol's.
fn check_rule(protocol: &Protocol, path: &str, rule: &RuleResult) -> Vec<Disagreement> {
    let Some(name) = name_of(rule) else {
        return Vec::new();
    };
    let mut list = Vec::new();
    let of = |expected: String| format!("{expected} of protocol {}", protocol.name);
    for (field, found, expected) in [
        ("limit", rule.limit, protocol.limit(name)),
        ("alpha", rule.alpha, protocol.alpha(name)),
    ] {
        if found != expected {
            let path = format!("{path}.{field}");
            list.push(Disagreement::claim(&path, found, of(expected.to_string())));
        }
    }
    if !protocol.controls.contains(&rule.control) {
        let path = format!("{path}.control");
        let expected = of(protocol.controls.join(", "));
        list.push(Disagreement::claim(&path, rule.control.as_str(), expected));
    }
    if plan(protocol, name, &rule.panel).is_none() {
        let names: Vec<String> = protocol
            .panels_of(name)
            .map(PanelPlan::panel_name)
            .collect();
        let path = format!("{path}.panel");
        let expected = of(names.join(", "));
        list.push(Disagreement::claim(&path, rule.panel.as_str(), expected));
    }
    list
}

/// No more pairs than the panel has cases.
fn check_size(protocol: &Protocol, path: &str, rule: &RuleResult) -> Option<Disagreement> {
    let plan = plan(protocol, name_of(rule)?, &rule.panel)?;
    let most = plan.case_count();
    (rule.pairs > u64::from(most)).then(|| {
        let path = format!("{path}.pairs");
        let expected = format!("at most the {most} cases of protocol {}", protocol.name);
        Disagreement::claim(&path, rule.pairs, expected)
    })
}

fn plan<'a>(protocol: &'a Protocol, rule: RuleName, panel: &str) -> Option<&'a PanelPlan> {
    let mut plans = protocol.panels_of(rule);
    plans.find(|plan| plan.panel_name() == panel)
}

/// Why an objective cannot pass: it is not declared, a rule stands on too few cases or on too few
/// panels, or a control answers too little.
fn lack(protocol: &Protocol, objective: ObjectiveName, rules: &[RuleResult]) -> Option<String> {
    let name = &protocol.name;
    if !protocol.objectives.contains(&objective) {
        return Some(format!("protocol {name} does not declare it"));
    }
    let serving = RuleName::ALL
        .into_iter()
        .filter(|rule| rule.serves(objective));
    for rule in serving {
        for plan in protocol.panels_of(rule) {
            let panel = plan.panel_name();
            let of_panel =
                |found: &&RuleResult| name_of(found) == Some(rule) && found.panel == panel;
            let mut found = rules.iter().filter(of_panel).peekable();
            if found.peek().is_none() {
                return Some(format!("there is no rule {} on {panel}", rule.name()));
            }
            if let Some(why) = found.find_map(|found| shortfall(protocol, plan, found)) {
                return Some(format!("{} on {panel} {why}", rule.name()));
            }
        }
    }
    None
}

fn shortfall(protocol: &Protocol, plan: &PanelPlan, rule: &RuleResult) -> Option<String> {
    let named = u64::from(plan.case_count());
    if rule.pairs < named {
        return Some(format!(
            "has {} pairs, protocol {} names {named}",
            rule.pairs, protocol.name
        ));
    }
    let assay = &protocol.assay_sensitivity;
    let least = match plan {
        PanelPlan::Math { .. } => assay.math,
        PanelPlan::Retrieval { .. } => assay.retrieval,
        PanelPlan::Nll { .. } => return None,
    };
    let accuracy = rule.control_correct? as f64 / rule.pairs as f64;
    (accuracy < least).then(|| {
        format!(
            "has a control that answers {accuracy}, protocol {} asks for {least}",
            protocol.name
        )
    })
}

fn check_endpoint(protocol: &Protocol, at: usize, found: &Degradation) -> Vec<Disagreement> {
    let mut list = Vec::new();
    let alpha = protocol.degradation_alpha();
    if found.alpha != alpha {
        let path = format!("degradation[{at}].alpha");
        let expected = format!("{alpha} of protocol {}", protocol.name);
        list.push(Disagreement::claim(&path, found.alpha, expected));
    }
    let mut panels = protocol.panels.iter().map(PanelPlan::panel_name);
    if !panels.any(|panel| panel == found.endpoint) {
        let path = format!("degradation[{at}].endpoint");
        let expected = format!("a panel of protocol {}", protocol.name);
        list.push(Disagreement::claim(
            &path,
            found.endpoint.as_str(),
            expected,
        ));
    }
    list
}

/// What was not declared before the run has no verdict but `descriptive`.
fn undeclared(protocol: &Protocol, certificate: &Certificate) -> Vec<Disagreement> {
    let mut list = Vec::new();
    let (recipe, model) = (&certificate.recipe, &certificate.model);
    let mut candidates = protocol.candidates.iter();
    if !candidates.any(|candidate| candidate.spec == recipe.spec) {
        let expected = format!("a recipe that protocol {} declares", protocol.name);
        list.push(Disagreement::claim(
            "recipe.spec",
            recipe.spec.as_str(),
            expected,
        ));
    }
    if !protocol.models.iter().any(|named| declares(named, model)) {
        let expected = format!("a model that protocol {} declares", protocol.name);
        list.push(Disagreement::claim(
            "model.name",
            model.name.as_str(),
            expected,
        ));
    }
    list
}

/// Panels that the protocol froze for this tokenizer are those that it froze.
fn frozen(protocol: &Protocol, certificate: &Certificate) -> Vec<Disagreement> {
    let tokenizer = &certificate.model.tokenizer_sha256;
    let mut list = Vec::new();
    for (at, file) in certificate.evidence.iter().enumerate() {
        let name = file.path.strip_prefix("panels/");
        let name = name.and_then(|name| name.strip_suffix(".jsonl"));
        let frozen = name.and_then(|name| protocol.frozen_sha256(name, tokenizer));
        if let Some(expected) = frozen.filter(|frozen| *frozen != file.sha256) {
            let path = format!("evidence[{at}].sha256");
            let expected = format!("{expected}, which protocol {} froze", protocol.name);
            list.push(Disagreement::claim(&path, file.sha256.as_str(), expected));
        }
    }
    list
}
