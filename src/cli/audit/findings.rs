//! What an audit finds, as JSON and as text.

use serde::Serialize;

use super::table::Row;
use crate::stats::{self, PValue, Side, StatsError};

/// Schema of the JSON document.
const SCHEMA: &str = "kvassay.audit/1";

const NOTE: &str = "Counts alone never make a certificate: they do not show that pairs were \
                    matched, that limits and alphas stood before the run, or that the recipe was \
                    engaged.";

/// The document of `kvassay audit --format json`. Proportions throughout.
#[derive(Debug, Serialize)]
pub(super) struct Audit {
    schema: &'static str,
    note: &'static str,
    alpha: f64,
    rows: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Finding {
    label: String,
    pairs: u64,
    lost: u64,
    gained: u64,
    alpha: f64,
    gross_loss: GrossLoss,
    net_change: NetChange,
    mcnemar: McNemar,
}

#[derive(Debug, Serialize)]
struct GrossLoss {
    estimate: f64,
    upper: f64,
    limit: f64,
    pass: bool,
}

#[derive(Debug, Serialize)]
struct NetChange {
    estimate: f64,
    lower: f64,
    upper: f64,
    limit: f64,
    pass: bool,
}

#[derive(Debug, Serialize)]
struct McNemar {
    p: f64,
    log10_p: f64,
}

impl Audit {
    /// Computes every row. A bound that equals its limit passes.
    ///
    /// # Errors
    /// Counts outside a method's domain.
    pub(super) fn new(
        rows: &[Row],
        alpha: f64,
        gross_limit: f64,
        net_margin: f64,
    ) -> Result<Self, StatsError> {
        let findings = rows
            .iter()
            .map(|row| Finding::new(row, gross_limit, net_margin));
        Ok(Audit {
            schema: SCHEMA,
            note: NOTE,
            alpha,
            rows: findings.collect::<Result<_, _>>()?,
        })
    }

    /// Header and one line per row.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let header = [
            "label",
            "pairs",
            "lost",
            "gained",
            "alpha",
            "gross",
            "upper",
            "holds",
            "net",
            "lower",
            "upper",
            "holds",
            "McNemar p",
        ];
        let mut lines = vec![header.map(str::to_owned).to_vec()];
        lines.extend(self.rows.iter().map(Finding::line));
        lines
    }

    /// What the columns mean and do not mean.
    pub(super) fn legend(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(row) = self.rows.first() {
            lines.push(format!(
                "gross: lost/pairs; holds where its Clopper-Pearson upper bound is at most {}%.",
                percent_number(row.gross_loss.limit)
            ));
            lines.push(format!(
                "net: (gained - lost)/pairs; holds where its Tango lower bound is at least {} pp.",
                percent_number(row.net_change.limit)
            ));
            lines
                .push("Bounds are one-sided at the row's alpha; p is exact, two-sided.".to_owned());
        }
        lines.push(NOTE.to_owned());
        lines
    }
}

impl Finding {
    fn new(row: &Row, gross_limit: f64, net_margin: f64) -> Result<Self, StatsError> {
        let Row {
            pairs,
            lost,
            gained,
            alpha,
            ..
        } = *row;
        let upper = stats::clopper_pearson_upper(lost, pairs, alpha)?;
        let bound = |side| stats::tango_bound(lost, gained, pairs, alpha, side);
        let lower = bound(Side::Lower)?;
        // Adding 0 turns the -0 of a zero margin into 0.
        let net_limit = -net_margin + 0.0;
        let PValue { p, log10_p } = stats::mcnemar_exact(lost, gained);
        Ok(Finding {
            label: row.label.clone(),
            pairs,
            lost,
            gained,
            alpha,
            gross_loss: GrossLoss {
                estimate: lost as f64 / pairs as f64,
                upper,
                limit: gross_limit,
                pass: upper <= gross_limit,
            },
            net_change: NetChange {
                estimate: (gained as f64 - lost as f64) / pairs as f64,
                lower,
                upper: bound(Side::Upper)?,
                limit: net_limit,
                pass: lower >= net_limit,
            },
            mcnemar: McNemar { p, log10_p },
        })
    }

    fn line(&self) -> Vec<String> {
        let yes_no = |holds| if holds { "yes" } else { "no" }.to_owned();
        vec![
            self.label.clone(),
            self.pairs.to_string(),
            self.lost.to_string(),
            self.gained.to_string(),
            // Six significant digits: 0.05/24 is 0.00208333.
            significant(self.alpha),
            percent(self.gross_loss.estimate),
            percent(self.gross_loss.upper),
            yes_no(self.gross_loss.pass),
            points(self.net_change.estimate),
            points(self.net_change.lower),
            points(self.net_change.upper),
            yes_no(self.net_change.pass),
            p_value(self.mcnemar.log10_p),
        ]
    }
}

fn percent(proportion: f64) -> String {
    format!("{:.3}%", 100.0 * proportion)
}

fn points(proportion: f64) -> String {
    format!("{:+.3}pp", 100.0 * proportion)
}

/// A proportion in percent without the trailing digits of its binary form.
fn percent_number(proportion: f64) -> String {
    trimmed(&format!("{:.6}", 100.0 * proportion))
}

fn significant(value: f64) -> String {
    let decimals = (5 - value.log10().floor() as i32).clamp(0, 17) as usize;
    trimmed(&format!("{value:.decimals$}"))
}

fn trimmed(decimal: &str) -> String {
    decimal
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

/// A p-value from its logarithm, so that none is shown as 0.
fn p_value(log10_p: f64) -> String {
    if log10_p > -3.0 {
        return format!("{:.4}", 10_f64.powf(log10_p));
    }
    let mut exponent = log10_p.floor();
    let mut digits = format!("{:.2}", 10_f64.powf(log10_p - exponent));
    if digits == "10.00" {
        exponent += 1.0;
        digits = "1.00".to_owned();
    }
    format!("{digits}e{exponent:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_values_never_show_as_zero() {
        assert_eq!(p_value(0.0), "1.0000");
        assert_eq!(p_value(0.0703125_f64.log10()), "0.0703");
        assert_eq!(p_value(-363.945), "1.14e-364");
        assert_eq!(p_value(-4.000_000_1), "1.00e-4");
    }

    #[test]
    fn limits_are_written_as_they_were_typed() {
        assert_eq!(percent_number(0.02), "2");
        assert_eq!(percent_number(-0.01), "-1");
        assert_eq!(percent_number(0.0125), "1.25");
        assert_eq!(percent_number(0.0), "0");
        assert_eq!(significant(0.05 / 24.0), "0.00208333");
        assert_eq!(significant(0.05), "0.05");
    }

    #[test]
    fn bounds_at_the_limit_pass() {
        let row = Row {
            label: "all".to_owned(),
            pairs: 10,
            lost: 0,
            gained: 0,
            alpha: 0.05,
        };
        let upper = stats::clopper_pearson_upper(0, 10, 0.05).unwrap();
        let lower = stats::tango_bound(0, 0, 10, 0.05, Side::Lower).unwrap();
        let finding = Finding::new(&row, upper, -lower).unwrap();
        assert!(finding.gross_loss.pass && finding.net_change.pass);
        let finding = Finding::new(&row, upper.next_down(), (-lower).next_down()).unwrap();
        assert!(!finding.gross_loss.pass && !finding.net_change.pass);
    }
}
