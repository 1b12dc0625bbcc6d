//! What was not established, in plain sentences.

use crate::schema::{Protocol, Record, RuleName, stored_tokens};

mod checkpoint;

use super::aa::Aa;
use super::arms::Trial;
use super::attainable::{Unattainable, unattainable};
use super::compare::{PairValues, PanelResult, with_unit};
use super::imported;
use super::measured::bootstrap_errors;
use super::server::{self, Engaged};

/// Documents below which percentile-bootstrap bounds and bootstrap tests are called out.
pub const FEW_DOCUMENTS: u32 = 32;

/// Documents below which no degradation of likelihoods is claimed: the percentile bootstrap of a
/// handful of documents is no bound.
pub(super) const LEAST_DOCUMENTS_OF_HARM: u32 = FEW_DOCUMENTS;

const GENERAL: [&str; 3] = [
    "The Tango bounds of net_change and the bootstrap bounds of nll are approximate: \
     docs/statistics.md gives their measured coverage. At 1,319 pairs Tango's true error is at \
     most 1.09 alpha where the truth lies on a limit of 0.5 to 3 points, up to 3.3 alpha where \
     there is a true gain. Clopper-Pearson bounds are exact.",
    "The order of protocol and records is known only within this run: earlier looks at these \
     models and recipes elsewhere cannot be seen.",
    "Digests show changes to single files. A consistent rewrite of run and certificate together \
     is out of reach of verification, unless the certificate was kept elsewhere or signed.",
];

/// Caveats of a certificate, the general ones first.
pub(super) fn caveats(
    trial: &Trial<'_>,
    panels: &[PanelResult<'_>],
    aa: &Aa,
    engaged: &Engaged,
) -> Vec<String> {
    let protocol = &trial.evidence.manifest.protocol;
    let mut list: Vec<String> = GENERAL.map(str::to_owned).to_vec();
    list.extend(imported::caveats(trial));
    list.extend(server::caveats(trial, engaged));
    list.extend(aa_caveat(trial, aa));
    list.extend(model_caveat(trial));
    list.extend(unit_scales(trial));
    list.extend(within_sink(trial));
    list.extend(checkpoint::caveats(trial));
    let compared = compared_documents(panels);
    list.extend(bootstrap_errors(&compared, protocol.alpha(RuleName::Nll)));
    list.extend(compared.iter().filter_map(few_documents));
    list.extend(sizes(protocol));
    for panel in panels {
        list.extend(no_variation(panel));
    }
    list
}

fn aa_caveat(trial: &Trial<'_>, aa: &Aa) -> Option<String> {
    let Some(result) = &aa.result else {
        // A built-in worker's certificate is incomplete then.
        if trial.evidence.is_built_in() {
            return None;
        }
        let text = "Native was not run a second time: the noise of the worker is not known.";
        return Some(text.to_owned());
    };
    (!trial.evidence.is_built_in()).then(|| {
        format!(
            "Run a second time, native lost {} and gained {} answers in {} records: so much of \
             what a recipe loses or gains may be noise of the worker.",
            result.lost, result.gained, result.records
        )
    })
}

fn model_caveat(trial: &Trial<'_>) -> Option<String> {
    let manifest = &trial.evidence.manifest;
    let named = |model: &crate::schema::ProtocolModel| model.sha256.is_some();
    let imported = trial.evidence.is_imported();
    (!imported && !manifest.protocol.models.iter().any(named)).then(|| {
        "The protocol does not name the weights: which model was tested was frozen by the run's \
         manifest."
            .to_owned()
    })
}

fn unit_scales(trial: &Trial<'_>) -> Option<String> {
    let engagement = trial.evidence_of(&trial.arm.arm)?.engagement.as_ref()?;
    engagement.unit_scales.then(|| {
        "Unit scales: every scale of a quantised component is exactly 1.0, as where calibration \
         was left out."
            .to_owned()
    })
}

fn within_sink(trial: &Trial<'_>) -> Option<String> {
    let sink = trial.recipe.as_ref()?.sink;
    let records = &trial.evidence_of(&trial.arm.arm)?.records;
    cases_within(u64::from(sink), records.values().flatten())
}

/// Cases of which a cache with a sink of so many tokens stores none otherwise than the native one.
fn cases_within<'a>(sink: u64, records: impl Iterator<Item = &'a Record>) -> Option<String> {
    let (mut all, mut within) = (0, 0);
    for tokens in records.map(stored_tokens).filter(|tokens| *tokens > 0) {
        all += 1;
        within += u64::from(tokens <= sink);
    }
    (within > 0).then(|| {
        format!(
            "{within} of {all} cases end within the first {sink} tokens, which are stored natively: they \
             say nothing of the recipe."
        )
    })
}

/// Likelihood panels of which documents were compared, each with the fewest over the controls.
fn compared_documents(panels: &[PanelResult<'_>]) -> Vec<(String, u32)> {
    let of_panel = |panel: &PanelResult<'_>| {
        let documents = panel.pairs.iter().filter_map(|pairs| match &pairs.values {
            PairValues::Nll(pairs) => u32::try_from(pairs.control.len()).ok(),
            PairValues::Answers(_) => None,
        });
        let fewest = documents.min().filter(|documents| *documents > 0)?;
        Some((panel.name.clone(), fewest))
    };
    panels.iter().filter_map(of_panel).collect()
}

fn few_documents((panel, documents): &(String, u32)) -> Option<String> {
    (*documents < FEW_DOCUMENTS).then(|| {
        format!(
            "{panel} rests on {documents} documents: percentile-bootstrap bounds are unreliable at \
             small numbers, and no degradation is claimed from fewer than \
             {LEAST_DOCUMENTS_OF_HARM}."
        )
    })
}

/// Says so where a rule fails at the protocol's sizes even with nothing lost and nothing gained.
fn sizes(protocol: &Protocol) -> Vec<String> {
    // The protocol is valid, so its alphas and sizes are in range.
    let found = unattainable(protocol).unwrap_or_default();
    let sentence = |found: &Unattainable| {
        // Gains may make up for few cases in a net change.
        let how = match found.rule {
            RuleName::NetChange => "does not pass with nothing lost and nothing gained",
            _ => "cannot pass, even with nothing lost",
        };
        format!(
            "At {} cases {} on {} {how}: its bound is then {}, the limit {}.",
            found.cases,
            found.rule.name(),
            found.panel,
            with_unit(found.rule.name(), found.bound),
            with_unit(found.rule.name(), found.limit)
        )
    };
    found.iter().map(sentence).collect()
}

fn no_variation(panel: &PanelResult<'_>) -> Vec<String> {
    panel
        .rules
        .iter()
        .filter(|(rule, result)| {
            *rule == RuleName::Nll
                && result.bound == result.estimate
                && result.monte_carlo_se == Some(0.0)
        })
        .map(|(_, result)| {
            format!(
                "nll on {} against {} has no sampling variation: its bound is the estimate and \
                 shows no precision.",
                result.panel, result.control
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_that_end_within_a_sink_are_counted() {
        let record = |prompt_tokens, output_tokens| Record {
            prompt_tokens,
            output_tokens: Some(output_tokens),
            ..Record::default()
        };
        // The last token is not stored; what was not run has none.
        let records = [record(4, 3), record(5, 3), record(90, 1), record(3, 0)];
        assert_eq!(cases_within(0, records.iter()), None);
        assert_eq!(cases_within(5, records.iter()), None);
        let said = cases_within(6, records.iter()).unwrap();
        assert!(
            said.starts_with("1 of 3 cases end within the first 6 tokens"),
            "{said}"
        );
        let said = cases_within(100, records.iter()).unwrap();
        assert!(said.starts_with("3 of 3 cases"), "{said}");
    }
}
