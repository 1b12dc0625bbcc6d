//! Contrasts between the arms of runs: paired within a run, adjusted over a protocol.
//!
//! Each endpoint is a Holm family of its own over all declared contrasts of all declared models.
//! What is asked for decides what is shown and never what a family holds; a declared contrast that
//! cannot be computed stays in it as p = 1. Nothing is corrected across endpoints.

mod error;
mod family;
mod paired;
mod reading;
mod result;
mod select;

use crate::certify::Reason;
use crate::certify::evidence::Evidence;
use crate::certify::rescore::{FrozenParsers, Rescore};
use crate::schema::{Manifest, PanelPlan, Protocol};
use crate::stats::PValue;

pub use error::ContrastError;
pub use result::{
    ComparedRun, Comparison, Contrast, ContrastCounts, ContrastMethod, Direction, EndpointFamily,
    Lack, MissingContrast,
};

use family::{Member, Models, adjust, families};
use paired::{Tested, test};
use reading::{Gap, Reading};
use select::{ArmPair, Selection, select};

/// Confidence of the two-sided interval of every contrast.
pub const CONFIDENCE: f64 = 0.95;

/// A run that is to be compared.
#[derive(Clone, Copy, Debug)]
pub struct GivenRun<'a> {
    /// Run directory as the user named it.
    pub run: &'a str,
    /// What it holds.
    pub evidence: &'a Evidence,
}

/// Computes the contrasts of runs of one protocol, one run per model; pure. `asked` names the
/// contrasts to show; empty shows every declared one. Outputs are scored again with the parsers
/// that the panels name.
///
/// # Errors
/// As [`contrasts_with`].
pub fn contrasts(runs: &[GivenRun<'_>], asked: &[String]) -> Result<Comparison, ContrastError> {
    contrasts_with(runs, asked, &FrozenParsers)
}

/// As [`contrasts`], with outputs scored again by `scorer`.
///
/// # Errors
/// [`ContrastError`]: runs of different protocols or of the same model, a contrast that names no
/// two arms, a run from which no certificate could be issued either.
pub fn contrasts_with(
    runs: &[GivenRun<'_>],
    asked: &[String],
    scorer: &dyn Rescore,
) -> Result<Comparison, ContrastError> {
    let first = runs.first().ok_or(ContrastError::NoRun)?;
    check_runs(runs)?;
    let protocol = &first.evidence.manifest.protocol;
    let manifests: Vec<&Manifest> = runs.iter().map(|run| &run.evidence.manifest).collect();
    let selection = select(protocol, &manifests, asked)?;
    let readings = runs
        .iter()
        .map(|given| read(given, scorer))
        .collect::<Result<Vec<_>, _>>()?;
    let frozen: Vec<bool> = readings
        .iter()
        .map(|reading| reading.post_hoc.is_none())
        .collect();
    let families = families(protocol, &manifests, &frozen);
    let mut comparison = heading(protocol, runs, &readings, &families);
    comparison.filtered = !asked.is_empty();
    comparison.reversed.clone_from(&selection.reversed);
    let bench = Bench {
        protocol,
        runs,
        readings: &readings,
        selection: &selection,
    };
    for models in &families {
        for plan in &protocol.panels {
            bench.endpoint(models, plan, &mut comparison)?;
        }
    }
    Ok(comparison)
}

fn read<'a>(given: &GivenRun<'a>, scorer: &dyn Rescore) -> Result<Reading<'a>, ContrastError> {
    Reading::new(given, scorer).map_err(|source| ContrastError::Certify {
        run: given.run.to_owned(),
        source: Box::new(source),
    })
}

/// One protocol, and each model once.
fn check_runs(runs: &[GivenRun<'_>]) -> Result<(), ContrastError> {
    let runs = runs.iter().map(|run| (run.run, &run.evidence.manifest));
    let runs: Vec<(&str, &Manifest)> = runs.collect();
    for pair in runs.windows(2) {
        let [(first, ours), (second, theirs)] = [pair[0], pair[1]];
        if ours.protocol_sha256 != theirs.protocol_sha256 {
            return Err(ContrastError::OtherProtocol {
                first: first.to_owned(),
                first_sha256: ours.protocol_sha256.clone(),
                second: second.to_owned(),
                second_sha256: theirs.protocol_sha256.clone(),
            });
        }
    }
    check_models(&runs)
}

/// That no two runs, each with its name in messages, are of one model.
///
/// # Errors
/// [`ContrastError::GivenTwice`].
pub fn check_models(runs: &[(&str, &Manifest)]) -> Result<(), ContrastError> {
    for (at, &(second, theirs)) in runs.iter().enumerate() {
        for &(first, ours) in &runs[..at] {
            let same_name = ours.model.name == theirs.model.name;
            if same_name || ours.model.weights_sha256 == theirs.model.weights_sha256 {
                return Err(ContrastError::GivenTwice {
                    first: first.to_owned(),
                    second: second.to_owned(),
                    model: theirs.model.name.clone(),
                    what: if same_name {
                        "same name"
                    } else {
                        "same weights"
                    },
                });
            }
        }
    }
    Ok(())
}

fn heading(
    protocol: &Protocol,
    runs: &[GivenRun<'_>],
    readings: &[Reading<'_>],
    families: &[Models],
) -> Comparison {
    let is_member = |at: usize| {
        let mut members = families.iter().flat_map(|models| &models.members);
        members.any(|member| member.run == Some(at))
    };
    let compared = runs.iter().zip(readings).enumerate();
    let compared = compared.map(|(at, (given, reading))| ComparedRun {
        run: given.run.to_owned(),
        model: given.evidence.manifest.model.name.clone(),
        weights_sha256: given.evidence.manifest.model.weights_sha256.clone(),
        declared: is_member(at),
        post_hoc: reading
            .post_hoc
            .as_ref()
            .map(|finding| finding.detail.clone()),
        doubts: reading.doubts.clone(),
    });
    Comparison {
        protocol: protocol.name.clone(),
        protocol_sha256: runs[0].evidence.manifest.protocol_sha256.clone(),
        family_alpha: protocol.family_alpha,
        resamples: protocol.rules.nll.resamples,
        seed: protocol.rules.nll.seed,
        runs: compared.collect(),
        endpoints: Vec::new(),
        missing: Vec::new(),
        filtered: false,
        reversed: Vec::new(),
    }
}

/// Everything that an endpoint is computed from.
struct Bench<'a> {
    protocol: &'a Protocol,
    runs: &'a [GivenRun<'a>],
    readings: &'a [Reading<'a>],
    selection: &'a Selection,
}

/// One hypothesis: a contrast of one model, tested or not.
struct Hypothesis<'a> {
    arms: &'a ArmPair,
    model: &'a str,
    run: Option<usize>,
    shown: bool,
    tested: Result<Tested, Gap>,
}

impl<'a> Bench<'a> {
    /// Adds the family of one endpoint, with what is descriptive beside it.
    fn endpoint(
        &self,
        models: &'a Models,
        plan: &PanelPlan,
        comparison: &mut Comparison,
    ) -> Result<(), ContrastError> {
        let endpoint = plan.panel_name();
        let family = self.declared(models, plan);
        let p: Vec<Option<PValue>> = family
            .iter()
            .map(|hypothesis| Some(hypothesis.tested.as_ref().ok()?.p))
            .collect();
        let adjusted = adjust(&p).map_err(|source| ContrastError::Adjustment {
            endpoint: endpoint.clone(),
            source,
        })?;
        let mut found = EndpointFamily {
            endpoint,
            method: method(plan),
            models: models.members.iter().map(|m| m.model.clone()).collect(),
            size: family.len(),
            missing: p.iter().filter(|p| p.is_none()).count(),
            contrasts: Vec::new(),
        };
        for (hypothesis, adjusted) in family.into_iter().zip(adjusted) {
            self.show(hypothesis, Some(adjusted), &mut found, comparison);
        }
        for hypothesis in self.descriptive(models, plan) {
            self.show(hypothesis, None, &mut found, comparison);
        }
        comparison.endpoints.push(found);
        Ok(())
    }

    /// The family: every declared contrast of every declared model.
    fn declared(&self, models: &'a Models, plan: &PanelPlan) -> Vec<Hypothesis<'a>> {
        let Selection {
            declared, shown, ..
        } = self.selection;
        let of_model = |member: &'a Member| {
            let contrasts = declared.iter().zip(shown);
            contrasts.map(|(arms, &shown)| Hypothesis {
                arms,
                model: &member.model,
                run: member.run.or(member.barred),
                shown,
                tested: match member.run {
                    Some(run) => self.test(run, plan, arms),
                    None => Err(self.absence(member)),
                },
            })
        };
        models.members.iter().flat_map(of_model).collect()
    }

    /// What is asked for and not declared: by contrast, or because of the model.
    fn descriptive(&self, models: &'a Models, plan: &PanelPlan) -> Vec<Hypothesis<'a>> {
        let selection = self.selection;
        let outside = models.members.is_empty();
        let declared = selection.declared.iter().zip(&selection.shown);
        let declared = declared.filter(|&(_, &shown)| shown && outside);
        let contrasts: Vec<&ArmPair> = declared
            .map(|(arms, _)| arms)
            .chain(&selection.undeclared)
            .collect();
        let of_run = |&run: &usize| {
            let model = &self.runs[run].evidence.manifest.model.name;
            let tested = contrasts.iter().map(move |&arms| Hypothesis {
                arms,
                model,
                run: Some(run),
                shown: true,
                tested: self.test(run, plan, arms),
            });
            tested.collect::<Vec<_>>()
        };
        models.descriptive.iter().flat_map(of_run).collect()
    }

    /// Why a declared model has no run in its family.
    fn absence(&self, member: &Member) -> Gap {
        let barred = member.barred.map(|run| &self.readings[run]);
        match barred.and_then(|reading| reading.post_hoc.clone()) {
            Some(finding) => Gap::from(finding),
            None => Gap {
                lack: Lack::RunNotGiven,
                detail: "no run of this model was given".to_owned(),
            },
        }
    }

    fn test(&self, run: usize, plan: &PanelPlan, arms: &ArmPair) -> Result<Tested, Gap> {
        let pairs = self.readings[run].pair(plan, arms)?;
        test(&pairs, &self.protocol.rules.nll).map_err(|error| Gap {
            lack: Lack::Evidence(Reason::BoundUndefined),
            detail: format!("{} is undefined: {error}", method(plan).name()),
        })
    }

    fn show(
        &self,
        hypothesis: Hypothesis<'_>,
        adjusted: Option<PValue>,
        family: &mut EndpointFamily,
        comparison: &mut Comparison,
    ) {
        let Hypothesis {
            arms, model, run, ..
        } = hypothesis;
        if !hypothesis.shown {
            return;
        }
        match hypothesis.tested {
            Ok(tested) => family.contrasts.push(Contrast {
                contrast: arms.text.clone(),
                model: model.to_owned(),
                declared: adjusted.is_some(),
                first: arms.first.clone(),
                second: arms.second.clone(),
                counts: tested.counts,
                effect: tested.effect,
                interval: tested.interval,
                p: tested.p,
                adjusted,
                direction: tested.direction,
                established: adjusted.is_some_and(|p| p.p <= self.protocol.family_alpha)
                    && tested.counts.are_enough(),
            }),
            Err(gap) => {
                let missing = MissingContrast {
                    endpoint: family.endpoint.clone(),
                    contrast: arms.text.clone(),
                    model: model.to_owned(),
                    run: run.map(|run| self.runs[run].run.to_owned()),
                    declared: adjusted.is_some(),
                    lack: gap.lack,
                    detail: gap.detail,
                };
                // A named model beside `*` is in several families and missing once.
                if !comparison.missing.contains(&missing) {
                    comparison.missing.push(missing);
                }
            }
        }
    }
}

fn method(plan: &PanelPlan) -> ContrastMethod {
    match plan {
        PanelPlan::Nll { .. } => ContrastMethod::PairedBootstrap,
        PanelPlan::Math { .. } | PanelPlan::Retrieval { .. } => ContrastMethod::McnemarExact,
    }
}
