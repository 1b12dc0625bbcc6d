use crate::store::samples;

use super::*;

/// A protocol whose simulations are short.
fn protocol() -> Protocol {
    let mut protocol = samples::protocol();
    protocol.rules.nll.divisor = 4;
    for plan in &mut protocol.panels {
        if let PanelPlan::Nll { documents, .. } = plan {
            *documents = 32;
        }
    }
    protocol
}

fn powers(protocol: &Protocol, assumptions: Assumptions) -> (Vec<RulePower>, Vec<ObjectivePower>) {
    let rules = rule_powers(protocol, &assumptions).unwrap();
    let objectives = objective_powers(protocol, &rules);
    (rules, objectives)
}

fn all() -> Assumptions {
    Assumptions {
        rates: Some(Rates {
            loss: 0.005,
            gain: 0.004,
        }),
        retrieval_loss: Some(0.002),
        increase: Some(AssumedIncrease {
            mean: 0.004,
            sd: 0.016,
        }),
        ..Assumptions::default()
    }
}

#[test]
fn objectives_are_products_of_their_rules() {
    let protocol = protocol();
    let (rules, objectives) = powers(&protocol, all());
    let value = |at: usize| rules[at].probability.unwrap().value;
    let se = |at: usize| rules[at].probability.unwrap().monte_carlo_se;
    let names: Vec<&str> = rules.iter().map(|power| power.rule).collect();
    let expected = [
        "gross_loss",
        "net_change",
        "nll",
        "nll",
        "retrieval",
        "retrieval",
    ];
    assert_eq!(names, expected);
    // Panels of one size have simulations of their own.
    assert_ne!(value(2), value(3));
    let shared = value(2) * value(3) * value(4) * value(5);
    for (objective, own) in objectives.iter().zip([value(0), value(1)]) {
        let found = objective.probability.unwrap();
        assert!((found.value - own * shared).abs() < 1e-12);
        // The relative error of a product of two estimates, to first order.
        let relative = ((se(2) / value(2)).powi(2) + (se(3) / value(3)).powi(2)).sqrt();
        let error = found.monte_carlo_se / (found.value * relative);
        assert!((error - 1.0).abs() < 0.01, "{error}");
        assert!(objective.not_modelled.is_empty() && objective.without_panel.is_empty());
    }
}

#[test]
fn what_is_not_assumed_is_not_modelled() {
    let (rules, objectives) = powers(&protocol(), Assumptions::default());
    assert!(rules.iter().all(|power| power.probability.is_none()));
    assert_eq!(objectives[0].probability, None);
    assert_eq!(objectives[0].not_modelled.len(), 5);
    let only_counts = Assumptions {
        increase: None,
        ..all()
    };
    let (_, objectives) = powers(&protocol(), only_counts);
    assert_eq!(
        objectives[1].not_modelled,
        ["nll on nll-1k", "nll on nll-8k"]
    );
    assert_eq!(objectives[1].probability.unwrap().monte_carlo_se, 0.0);
}

#[test]
fn a_rule_without_a_panel_cannot_pass() {
    let mut protocol = protocol();
    protocol.panels.truncate(3);
    let (rules, objectives) = powers(&protocol, all());
    assert_eq!(rules.len(), 4);
    assert_eq!(objectives[0].without_panel, ["retrieval"]);
    assert_eq!(objectives[0].probability.unwrap().value, 0.0);
    protocol.objectives = vec![ObjectiveName::Preservation];
    let (rules, objectives) = powers(&protocol, all());
    assert!(rules.iter().all(|power| power.rule != "net_change"));
    assert_eq!(objectives.len(), 1);
}

#[test]
fn a_control_that_may_be_too_weak_lowers_the_probability() {
    let assumptions = Assumptions {
        control_accuracy: Some(0.5),
        retrieval_accuracy: Some(0.99),
        ..all()
    };
    let protocol = protocol();
    let (rules, objectives) = powers(&protocol, assumptions);
    // 660 of 1,319 are half: the median of Bin(1319, 1/2) lies between 659 and 660.
    assert!((rules[0].control_suffices.unwrap() - 0.5).abs() < 1e-9);
    assert!(rules[4].control_suffices.unwrap() > 0.99);
    assert_eq!(rules[2].control_suffices, None);
    let (_, without) = powers(&protocol, all());
    let value = |objectives: &[ObjectivePower]| objectives[0].probability.unwrap().value;
    assert!(value(&objectives) < 0.51 * value(&without));
}
