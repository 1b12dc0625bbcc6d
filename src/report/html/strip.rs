//! NLL differences per document: a strip of dots per recipe and control.

use serde::Serialize;

use crate::certify::{PairedOutcome, PairedPanel};
use crate::report::notes::rules;
use crate::schema::{CaseTask, RuleResult};

use super::HtmlCertificate;
use super::axis::{Axis, Spot, Tick};
use super::figures::nats;

/// Most dots in a strip.
const MOST_DOTS: usize = 1000;
/// Heights at which dots stand, in per cent: neighbours do not cover each other.
const HEIGHTS: [u32; 5] = [50, 30, 70, 40, 60];
/// Documents named below a strip.
const NAMED: usize = 5;

/// The strips of one panel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Strips {
    /// Panel name.
    pub panel: String,
    /// Labelled places of the axis.
    pub ticks: Vec<Tick>,
    /// Place of 0.
    pub zero: Spot,
    /// Whether the axis is logarithmic on both sides of 0.
    pub logarithmic: bool,
    /// Whether strips name their control.
    pub controls: bool,
    /// One per recipe and control.
    pub rows: Vec<Strip>,
}

/// The documents of one recipe against one control.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Strip {
    /// Recipe.
    pub recipe: String,
    /// Control.
    pub control: String,
    /// Documents.
    pub documents: usize,
    /// Documents with a higher NLL than the control's.
    pub worse: usize,
    /// Documents with a lower one.
    pub better: usize,
    /// Dots, from the smallest difference.
    pub dots: Vec<Dot>,
    /// Documents without a dot.
    pub left_out: usize,
    /// Place and text of the difference of means; absent where no rule gives the means.
    pub mean: Option<(Spot, String)>,
    /// Documents with the largest differences, the largest first.
    pub largest: Vec<Named>,
}

/// One document.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Dot {
    /// Place of the difference.
    pub x: String,
    /// Height in per cent.
    pub y: u32,
}

/// A document by name.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Named {
    /// Case.
    pub case: String,
    /// Article; absent where the panel does not say.
    pub article: Option<String>,
    /// Difference in nats per target.
    pub difference: String,
}

/// The strips of every NLL panel.
pub(super) fn strips(certificates: &[HtmlCertificate<'_>], controls: usize) -> Vec<Strips> {
    let mut panels: Vec<&str> = Vec::new();
    for paired in certificates.iter().flat_map(HtmlCertificate::paired) {
        let is_nll = !differences(paired).is_empty();
        if is_nll && !panels.contains(&paired.panel) {
            panels.push(paired.panel);
        }
    }
    panels
        .into_iter()
        .map(|panel| strips_of(panel, certificates, controls))
        .collect()
}

fn strips_of(panel: &str, certificates: &[HtmlCertificate<'_>], controls: usize) -> Strips {
    let lists: Vec<(&HtmlCertificate<'_>, &PairedPanel<'_>)> = certificates
        .iter()
        .flat_map(|certificate| {
            certificate
                .paired()
                .map(move |paired| (certificate, paired))
        })
        .filter(|(_, paired)| paired.panel == panel && !paired.cases.is_empty())
        .collect();
    let spreads: Vec<f64> = lists.iter().map(|(_, paired)| spread(paired)).collect();
    let axis = Axis::around_zero(&spreads);
    Strips {
        panel: panel.to_owned(),
        ticks: axis.ticks(1.0, ""),
        zero: axis.spot(0.0),
        logarithmic: axis.is_logarithmic(),
        controls: controls > 1,
        rows: lists
            .into_iter()
            .map(|(certificate, paired)| strip(certificate, paired, &axis))
            .collect(),
    }
}

/// Difference candidate - control of each document, in nats per target, with the document's place
/// in the list.
fn differences(paired: &PairedPanel<'_>) -> Vec<(usize, f64)> {
    let cases = paired.cases.iter().enumerate();
    cases
        .filter_map(|(at, case)| match case.outcome {
            PairedOutcome::MeanNll { control, candidate } => Some((at, candidate - control)),
            PairedOutcome::Answers { .. } => None,
        })
        .collect()
}

fn spread(paired: &PairedPanel<'_>) -> f64 {
    let sizes = differences(paired).into_iter().map(|(_, it)| it.abs());
    sizes.fold(0.0, f64::max)
}

fn strip(certificate: &HtmlCertificate<'_>, paired: &PairedPanel<'_>, axis: &Axis) -> Strip {
    let mut sorted = differences(paired);
    sorted.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let dots: Vec<Dot> = sorted
        .iter()
        .take(MOST_DOTS)
        .enumerate()
        .map(|(at, (_, difference))| Dot {
            x: axis.spot(*difference).x,
            y: HEIGHTS[at % HEIGHTS.len()],
        })
        .collect();
    Strip {
        recipe: certificate.certificate.recipe.name.clone(),
        control: paired.control.to_owned(),
        documents: sorted.len(),
        worse: sorted.iter().filter(|(_, it)| *it > 0.0).count(),
        better: sorted.iter().filter(|(_, it)| *it < 0.0).count(),
        left_out: sorted.len() - dots.len(),
        dots,
        mean: mean(certificate, paired).map(|mean| (axis.spot(mean), nats(mean))),
        largest: largest(paired, sorted),
    }
}

/// Difference of the means that the certificate gives.
fn mean(certificate: &HtmlCertificate<'_>, paired: &PairedPanel<'_>) -> Option<f64> {
    let is_own = |rule: &&RuleResult| {
        rule.rule == "nll" && rule.panel == paired.panel && rule.control == paired.control
    };
    let rule = rules(&certificate.certificate.objectives).find(is_own)?;
    Some(rule.candidate_mean? - rule.control_mean?)
}

fn largest(paired: &PairedPanel<'_>, mut differences: Vec<(usize, f64)>) -> Vec<Named> {
    differences.sort_by(|(i, a), (j, b)| b.abs().total_cmp(&a.abs()).then(i.cmp(j)));
    let shown = differences.into_iter().filter(|(_, it)| *it != 0.0);
    shown
        .take(NAMED)
        .map(|(at, difference)| {
            let gold = paired.cases[at].gold;
            Named {
                case: gold.case.clone(),
                article: match &gold.task {
                    CaseTask::Nll { article, .. } => Some(article.clone()),
                    _ => None,
                },
                difference: nats(difference),
            }
        })
        .collect()
}
