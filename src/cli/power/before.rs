//! Before a run: probabilities of passing at assumed rates.

use std::io::Write;

use anyhow::bail;
use serde::Serialize;

use crate::certify::{
    Assumptions, ObjectivePower, Probability, RulePower, objective_powers, rule_powers,
};
use crate::schema::{CertificateProtocol, PanelPlan, Protocol};
use crate::stats::{AssumedIncrease, Rates};

use super::super::protocol::{self, percent};
use super::{Assumed, Failure, Format, SCHEMA, limit_text, write_json, write_table};

/// Loss rates of the table that is printed where nothing is assumed.
const TABLE_RATES: [f64; 6] = [0.0, 0.001, 0.0025, 0.005, 0.01, 0.02];

const INDEPENDENT_PAIRS: &str = "Each pair is lost or gained independently at the assumed rates; \
    rules on counts are enumerated exactly, with the bounds that decide them.";
const INDEPENDENT_PANELS: &str = "Panels are taken to be independent: an objective's probability \
    is the product over its panels.";
const SIMULATED: &str = "nll is simulated with normal differences and the bootstrap that decides \
    it; ± is one standard error of the simulation.";
const CONTROL: &str = "Where the control's accuracy is assumed, a panel counts with the least \
    probability that its rule passes and the control answers enough: the sum of both less 1.";
const TABLE: &str = "No rates were assumed: losses at the rate of each column, nothing gained; nll \
    is left out.";
const MOST_LOST: &str = "most lost: the largest number of lost pairs that passes where none is \
    gained.";

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    mode: &'static str,
    protocol: CertificateProtocol,
    assumed: AssumedView,
    rules: Vec<RulePower>,
    objectives: Vec<ObjectivePower>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<Table>,
    notes: Vec<String>,
}

/// The assumptions as proportions; `null` where there is none.
#[derive(Serialize)]
struct AssumedView {
    pairs: Option<u32>,
    loss: Option<f64>,
    gain: Option<f64>,
    retrieval_loss: Option<f64>,
    nll_increase: Option<f64>,
    nll_sd: Option<f64>,
    control_accuracy: Option<f64>,
    retrieval_accuracy: Option<f64>,
}

/// Probabilities over loss rates, for rules on counts.
#[derive(Serialize)]
struct Table {
    loss_rates: [f64; 6],
    rows: Vec<TableRow>,
}

#[derive(Serialize)]
struct TableRow {
    rule: &'static str,
    panel: String,
    pairs: u32,
    probabilities: Vec<f64>,
}

/// Prints the probabilities, or a table of them where nothing is assumed.
pub(super) fn run(
    name: &str,
    assumed: &Assumed,
    format: Format,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let document = document(name, assumed).map_err(Failure::input)?;
    match format {
        Format::Json => write_json(out, &document)?,
        Format::Text => write_text(out, &document)?,
    }
    Ok(())
}

fn document(name: &str, assumed: &Assumed) -> anyhow::Result<Document> {
    let frozen = protocol::load(name)?;
    let identity = CertificateProtocol {
        name: frozen.name.clone(),
        sha256: frozen.sha256()?,
    };
    let protocol = resized(frozen, assumed.pairs)?;
    let assumptions = assumptions(assumed)?;
    let rules = rule_powers(&protocol, &assumptions)?;
    let nothing = assumptions == Assumptions::default();
    let table = nothing.then(|| table(&protocol)).transpose()?;
    Ok(Document {
        schema: SCHEMA,
        mode: "before",
        protocol: identity,
        assumed: view(assumed, &assumptions),
        objectives: objective_powers(&protocol, &rules),
        notes: notes(&protocol, &assumptions),
        rules,
        table,
    })
}

/// The protocol with another number of math questions.
fn resized(mut protocol: Protocol, pairs: Option<u32>) -> anyhow::Result<Protocol> {
    let Some(pairs) = pairs else {
        return Ok(protocol);
    };
    let math = protocol.panels.iter_mut().find_map(|panel| match panel {
        PanelPlan::Math { cases, .. } => Some(cases),
        PanelPlan::Nll { .. } | PanelPlan::Retrieval { .. } => None,
    });
    match math {
        Some(cases) => *cases = pairs,
        None => bail!(
            "--pairs {pairs}: protocol {} has no math panel to resize",
            protocol.name
        ),
    }
    Ok(protocol)
}

fn assumptions(assumed: &Assumed) -> anyhow::Result<Assumptions> {
    let rates = assumed
        .loss
        .map(|loss| Rates::new(loss, assumed.gain.unwrap_or(0.0)))
        .transpose()?;
    if let (Some(rates), Some(accuracy)) = (rates, assumed.control_accuracy) {
        check_accuracy("--loss", rates.loss, accuracy)?;
        check_accuracy("--gain", rates.gain, 1.0 - accuracy)?;
    }
    if let (Some(loss), Some(accuracy)) = (assumed.retrieval_loss, assumed.retrieval_accuracy) {
        check_accuracy("--retrieval-loss", loss, accuracy)?;
    }
    let increase = assumed
        .nll_increase
        .zip(assumed.nll_sd)
        .map(|(mean, sd)| AssumedIncrease { mean, sd });
    Ok(Assumptions {
        rates,
        retrieval_loss: assumed.retrieval_loss,
        increase,
        control_accuracy: assumed.control_accuracy,
        retrieval_accuracy: assumed.retrieval_accuracy,
    })
}

/// Only what the control answers right can be lost, and only the rest gained.
fn check_accuracy(option: &str, rate: f64, most: f64) -> anyhow::Result<()> {
    if rate > most + 1e-12 {
        bail!(
            "{option} is {}%, expected at most {}% at the control's accuracy",
            percent(rate),
            percent(most)
        );
    }
    Ok(())
}

fn view(assumed: &Assumed, assumptions: &Assumptions) -> AssumedView {
    AssumedView {
        pairs: assumed.pairs,
        loss: assumed.loss,
        gain: assumptions.rates.map(|rates| rates.gain),
        retrieval_loss: assumed.retrieval_loss,
        nll_increase: assumed.nll_increase,
        nll_sd: assumed.nll_sd,
        control_accuracy: assumed.control_accuracy,
        retrieval_accuracy: assumed.retrieval_accuracy,
    }
}

fn table(protocol: &Protocol) -> anyhow::Result<Table> {
    let mut rows: Vec<TableRow> = Vec::new();
    for loss in TABLE_RATES {
        let assumptions = Assumptions {
            rates: Some(Rates::new(loss, 0.0)?),
            retrieval_loss: Some(loss),
            ..Assumptions::default()
        };
        for power in rule_powers(protocol, &assumptions)? {
            let Some(found) = power.probability else {
                continue;
            };
            let same = |row: &&mut TableRow| row.rule == power.rule && row.panel == power.panel;
            match rows.iter_mut().find(same) {
                Some(row) => row.probabilities.push(found.value),
                None => rows.push(TableRow {
                    rule: power.rule,
                    panel: power.panel,
                    pairs: power.pairs,
                    probabilities: vec![found.value],
                }),
            }
        }
    }
    Ok(Table {
        loss_rates: TABLE_RATES,
        rows,
    })
}

fn notes(protocol: &Protocol, assumptions: &Assumptions) -> Vec<String> {
    let modelled = *assumptions != Assumptions::default();
    let accuracy = assumptions
        .control_accuracy
        .or(assumptions.retrieval_accuracy);
    let mut notes = vec![MOST_LOST.to_owned(), INDEPENDENT_PAIRS.to_owned()];
    if modelled {
        notes.push(INDEPENDENT_PANELS.to_owned());
    } else {
        notes.push(TABLE.to_owned());
    }
    if assumptions.increase.is_some() {
        notes.push(SIMULATED.to_owned());
    }
    if accuracy.is_some() {
        notes.push(CONTROL.to_owned());
    }
    if protocol.controls.len() > 1 {
        notes.push(format!(
            "One of {} controls is modelled: against all of them probabilities are at most these.",
            protocol.controls.len()
        ));
    }
    notes
}

fn write_text(out: &mut dyn Write, document: &Document) -> std::io::Result<()> {
    let identity = &document.protocol;
    writeln!(out, "protocol {} {}", identity.name, &identity.sha256[..12])?;
    writeln!(out, "assumed: {}\n", assumed_text(&document.assumed))?;
    let header = ["rule", "panel", "pairs", "alpha", "limit", "most lost"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(document.rules.iter().map(rule_cells));
    if let Some(table) = &document.table {
        let rates = TABLE_RATES.map(|rate| format!("{}%", percent(rate)));
        rows[0].extend(rates);
        for (row, power) in rows[1..].iter_mut().zip(&document.rules) {
            row.extend(table_cells(table, power));
        }
    } else {
        rows[0].push("passes with".to_owned());
        for (row, power) in rows[1..].iter_mut().zip(&document.rules) {
            let cell = power
                .probability
                .map_or("not modelled".to_owned(), probability_text);
            row.push(cell);
        }
        if document
            .rules
            .iter()
            .any(|power| power.control_suffices.is_some())
        {
            rows[0].push("control suffices".to_owned());
            for (row, power) in rows[1..].iter_mut().zip(&document.rules) {
                row.push(power.control_suffices.map_or("-".to_owned(), plain));
            }
        }
    }
    write_table(out, &rows)?;
    writeln!(out)?;
    for objective in document
        .objectives
        .iter()
        .filter(|_| document.table.is_none())
    {
        writeln!(out, "{}", objective_text(objective))?;
    }
    for note in &document.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn rule_cells(power: &RulePower) -> Vec<String> {
    let lost = match (power.rule, power.largest_lost) {
        ("nll", _) => "-".to_owned(),
        (_, Some(lost)) => lost.to_string(),
        (_, None) => "none passes".to_owned(),
    };
    vec![
        power.rule.to_owned(),
        power.panel.clone(),
        power.pairs.to_string(),
        format!("{:.6}", power.alpha),
        limit_text(power.rule, power.limit),
        lost,
    ]
}

fn table_cells(table: &Table, power: &RulePower) -> Vec<String> {
    let same = |row: &&TableRow| row.rule == power.rule && row.panel == power.panel;
    match table.rows.iter().find(same) {
        Some(row) => row.probabilities.iter().map(|&p| plain(p)).collect(),
        None => vec!["-".to_owned(); TABLE_RATES.len()],
    }
}

fn objective_text(objective: &ObjectivePower) -> String {
    let name = objective.objective;
    if !objective.without_panel.is_empty() {
        let rules = objective.without_panel.join(", ");
        return format!("{name}: cannot pass, the protocol has no panel for {rules}");
    }
    let Some(found) = objective.probability else {
        return format!("{name}: nothing of it was modelled");
    };
    let mut text = format!("{name} passes with probability {}", probability_text(found));
    if !objective.not_modelled.is_empty() {
        text.push_str(&format!(
            " as far as it was modelled: nothing was assumed for {}",
            objective.not_modelled.join(", ")
        ));
    }
    text
}

fn probability_text(found: Probability) -> String {
    if found.monte_carlo_se > 0.0 {
        format!("{:.3} ± {:.3}", found.value, found.monte_carlo_se)
    } else {
        plain(found.value)
    }
}

/// Four decimals; what would round to certainty is shown as short of it.
fn plain(probability: f64) -> String {
    if probability > 0.0 && probability < 0.00005 {
        "<0.0001".to_owned()
    } else if (0.99995..1.0).contains(&probability) {
        ">0.9999".to_owned()
    } else {
        format!("{probability:.4}")
    }
}

fn assumed_text(assumed: &AssumedView) -> String {
    let mut parts = Vec::new();
    if let Some(pairs) = assumed.pairs {
        parts.push(format!("{pairs} math questions"));
    }
    let rates = [
        ("loss", assumed.loss),
        ("gain", assumed.gain),
        ("retrieval loss", assumed.retrieval_loss),
        ("NLL increase", assumed.nll_increase),
        ("with sd", assumed.nll_sd),
        ("control accuracy", assumed.control_accuracy),
        ("control accuracy on retrieval", assumed.retrieval_accuracy),
    ];
    for (name, rate) in rates {
        parts.extend(rate.map(|rate| format!("{name} {}%", percent(rate))));
    }
    if parts.is_empty() {
        "nothing".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_is_shown_only_where_it_is() {
        let shown = [0.0, 1e-9, 0.5, 0.99994, 0.99999, 1.0].map(plain);
        let expected = ["0.0000", "<0.0001", "0.5000", "0.9999", ">0.9999", "1.0000"];
        assert_eq!(shown, expected);
    }
}
