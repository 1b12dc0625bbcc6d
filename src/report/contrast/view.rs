//! A comparison as a page shows it.

use serde::Serialize;

use crate::certify::{Comparison, Contrast, EndpointFamily};

use crate::report::html::minus;

use super::notes::{missing_lines, notes};
use super::number::p_text;
use super::sentence::{confidence, sentence};
use super::text::{effect, heading, interval};

/// Contrasts per endpoint, and what is to be said of them.
#[derive(Clone, Debug, Serialize)]
pub(in crate::report) struct ContrastView {
    /// Families that show a contrast.
    families: Vec<FamilyView>,
    /// Confidence of the intervals: `95%`.
    confidence: String,
    /// Contrasts that could not be computed.
    missing: Vec<String>,
    /// What is corrected for and what is not.
    notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct FamilyView {
    heading: String,
    rows: Vec<RowView>,
}

#[derive(Clone, Debug, Serialize)]
struct RowView {
    model: String,
    contrast: String,
    effect: String,
    interval: String,
    p: String,
    /// Absent for a descriptive contrast.
    adjusted: Option<String>,
    established: bool,
    sentence: String,
}

impl ContrastView {
    /// Everything that the text of the comparison says.
    pub fn new(comparison: &Comparison) -> Self {
        let shown = comparison.endpoints.iter();
        let shown = shown.filter(|family| !family.contrasts.is_empty());
        ContrastView {
            families: shown.map(FamilyView::new).collect(),
            confidence: confidence(),
            missing: missing_lines(&comparison.missing),
            notes: notes(comparison),
        }
    }
}

impl FamilyView {
    fn new(family: &EndpointFamily) -> Self {
        let row = |found: &Contrast| RowView {
            model: found.model.clone(),
            contrast: found.contrast.clone(),
            effect: minus(&effect(found)),
            interval: minus(&interval(found)),
            p: p_text(found.p),
            adjusted: found.adjusted.map(p_text),
            established: found.established,
            sentence: sentence(&family.endpoint, found),
        };
        FamilyView {
            heading: heading(family),
            rows: family.contrasts.iter().map(row).collect(),
        }
    }
}
