//! Retrieval by depth: right answers of every arm in parts of the haystack.

use serde::Serialize;

use crate::certify::{DepthCounts, by_depth};

use super::HtmlCertificate;

/// Parts of the haystack.
const STRATA: u32 = 10;
/// Shades of a cell, the last one for all right.
const SHADES: u64 = 8;

/// The arms of one panel against one control.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DepthTable {
    /// Panel name.
    pub panel: String,
    /// Control.
    pub control: String,
    /// Whether the run has several controls.
    pub controls: bool,
    /// Depths at which parts begin, in per cent.
    pub depths: Vec<String>,
    /// Pairs in every part, where they are the same number everywhere.
    pub pairs: Option<u64>,
    /// The control, then every recipe.
    pub rows: Vec<DepthRow>,
}

/// One arm.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DepthRow {
    /// Control or recipe.
    pub arm: String,
    /// One per part.
    pub cells: Vec<DepthCell>,
}

/// Right answers in one part.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DepthCell {
    /// `19`, or `19/20` where parts differ in size; a dash where there is no pair.
    pub text: String,
    /// Shade from 0 (none right) to [`SHADES`]; absent where there is no pair.
    pub shade: Option<u64>,
}

/// Recipes with their counts.
type Arms = Vec<(String, Vec<DepthCounts>)>;

/// A table per retrieval panel and control.
pub(super) fn tables(certificates: &[HtmlCertificate<'_>], controls: usize) -> Vec<DepthTable> {
    let mut tables: Vec<(DepthTable, Arms)> = Vec::new();
    for certificate in certificates {
        for paired in certificate.paired() {
            let counts = by_depth(&paired.cases, STRATA);
            if counts.is_empty() {
                continue;
            }
            let arm = (certificate.certificate.recipe.name.clone(), counts);
            let of_same =
                |table: &DepthTable| table.panel == paired.panel && table.control == paired.control;
            match tables.iter_mut().find(|(table, _)| of_same(table)) {
                Some((_, arms)) => arms.push(arm),
                None => tables.push((empty(paired.panel, paired.control, controls), vec![arm])),
            }
        }
    }
    tables
        .into_iter()
        .map(|(table, arms)| fill(table, &arms))
        .collect()
}

fn empty(panel: &str, control: &str, controls: usize) -> DepthTable {
    DepthTable {
        panel: panel.to_owned(),
        control: control.to_owned(),
        controls: controls > 1,
        depths: (0..STRATA)
            .map(|at| (100 * at / STRATA).to_string())
            .collect(),
        pairs: None,
        rows: Vec::new(),
    }
}

fn fill(mut table: DepthTable, arms: &[(String, Vec<DepthCounts>)]) -> DepthTable {
    let sizes: Vec<u64> = arms
        .iter()
        .flat_map(|(_, counts)| counts.iter().map(|it| it.pairs))
        .collect();
    let same = sizes.windows(2).all(|pair| pair[0] == pair[1]);
    table.pairs = sizes.first().copied().filter(|_| same);
    // Where records are missing, pairs differ by recipe: the control is shown where it has most.
    let most = arms.iter().max_by_key(|(_, counts)| {
        let pairs: u64 = counts.iter().map(|it| it.pairs).sum();
        pairs
    });
    if let Some((_, counts)) = most {
        let right = |it: &DepthCounts| it.control_correct;
        table.rows.push(row(&table.control, counts, same, right));
    }
    for (arm, counts) in arms {
        let right = |it: &DepthCounts| it.candidate_correct;
        table.rows.push(row(arm, counts, same, right));
    }
    table
}

fn row(
    arm: &str,
    counts: &[DepthCounts],
    same: bool,
    right: impl Fn(&DepthCounts) -> u64,
) -> DepthRow {
    DepthRow {
        arm: arm.to_owned(),
        cells: counts
            .iter()
            .map(|it| cell(right(it), it.pairs, same))
            .collect(),
    }
}

fn cell(right: u64, pairs: u64, same: bool) -> DepthCell {
    DepthCell {
        text: match (pairs, same) {
            (0, _) => "\u{2013}".to_owned(),
            (_, true) => right.to_string(),
            (_, false) => format!("{right}/{pairs}"),
        },
        shade: (right * SHADES).checked_div(pairs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_count_and_shade() {
        let whole = cell(20, 20, true);
        assert_eq!((whole.text.as_str(), whole.shade), ("20", Some(SHADES)));
        // One lost answer must not look like none.
        assert!(cell(19, 20, true).shade < whole.shade);
        assert_eq!(cell(3, 4, false).text, "3/4");
        assert_eq!(cell(0, 0, false).shade, None);
    }
}
