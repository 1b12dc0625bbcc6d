//! Which runs a Holm family spans, and its adjustment.

use crate::certify::arms::declares;
use crate::schema::{Manifest, Protocol};
use crate::stats::{PValue, StatsError, holm, holm_log10};

/// A declared model of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Name of the model: the run's, else the protocol's.
    pub model: String,
    /// Number of its run; absent where it was not given, or is barred.
    pub run: Option<usize>,
    /// A run of it whose records the protocol did not precede: it cannot take the model's place.
    pub barred: Option<usize>,
}

/// Models that are tested together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Models {
    /// The declared models, in the protocol's order; empty outside of any family.
    pub members: Vec<Member>,
    /// Runs whose undeclared contrasts are shown here.
    pub descriptive: Vec<usize>,
}

/// The families of a protocol: one over all of its models, or, as `*` stands for one model, one for
/// each run that takes the place of `*`. A run of a model that is not declared, or whose records the
/// protocol did not precede (`frozen`), stands by itself, outside of any family.
pub(super) fn families(
    protocol: &Protocol,
    manifests: &[&Manifest],
    frozen: &[bool],
) -> Vec<Models> {
    let declared: Vec<Option<usize>> = manifests
        .iter()
        .map(|manifest| place(protocol, manifest))
        .collect();
    let places: Vec<Option<usize>> = declared
        .iter()
        .zip(frozen)
        .map(|(place, &frozen)| place.filter(|_| frozen))
        .collect();
    let star = protocol.models.iter().position(|model| model.name == "*");
    let of_star: Vec<usize> = (0..places.len())
        .filter(|&run| star.is_some() && places[run] == star)
        .collect();
    let choices: Vec<Option<usize>> = if of_star.is_empty() {
        vec![None]
    } else {
        of_star.into_iter().map(Some).collect()
    };
    let mut shown = vec![false; places.len()];
    let mut families = Vec::new();
    for choice in choices {
        let run_at = |slot: usize| {
            if Some(slot) == star {
                choice
            } else {
                places.iter().position(|&place| place == Some(slot))
            }
        };
        let members: Vec<Member> = protocol
            .models
            .iter()
            .enumerate()
            .map(|(slot, model)| {
                let run = run_at(slot);
                let barred = declared.iter().position(|&place| place == Some(slot));
                member(
                    &model.name,
                    run,
                    barred.filter(|_| run.is_none()),
                    manifests,
                )
            })
            .collect();
        // A named model is in every family, its descriptive contrasts are shown once.
        let runs = members.iter().filter_map(|member| member.run);
        let descriptive = runs.filter(|&run| !std::mem::replace(&mut shown[run], true));
        families.push(Models {
            descriptive: descriptive.collect(),
            members,
        });
    }
    let outside = (0..places.len()).filter(|&run| places[run].is_none());
    families.extend(outside.map(|run| Models {
        members: Vec::new(),
        descriptive: vec![run],
    }));
    families
}

fn member(
    declared: &str,
    run: Option<usize>,
    barred: Option<usize>,
    manifests: &[&Manifest],
) -> Member {
    let given = run.or(barred);
    let model = given.map_or(declared, |run| &manifests[run].model.name);
    Member {
        model: model.to_owned(),
        run,
        barred,
    }
}

/// The declared model that a run is of: by its own name first, else `*`.
fn place(protocol: &Protocol, manifest: &Manifest) -> Option<usize> {
    let of = |is_star: bool| {
        protocol
            .models
            .iter()
            .position(|model| (model.name == "*") == is_star && declares(model, &manifest.model))
    };
    of(false).or_else(|| of(true))
}

/// Holm-adjusted p-values of a family in which `None` stands for a test that was declared and
/// cannot be computed: it counts as p = 1.
///
/// # Errors
/// As [`holm`].
pub(super) fn adjust(family: &[Option<PValue>]) -> Result<Vec<PValue>, StatsError> {
    let values = || family.iter().map(|p| p.unwrap_or(PValue::ONE));
    let p: Vec<f64> = values().map(|value| value.p).collect();
    let log10_p: Vec<f64> = values().map(|value| value.log10_p).collect();
    let (p, log10_p) = (holm(&p)?, holm_log10(&log10_p)?);
    let pairs = p.into_iter().zip(log10_p);
    Ok(pairs.map(|(p, log10_p)| PValue { p, log10_p }).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::stats::mcnemar_exact;
    use crate::store::samples;

    fn protocol(models: &[&str]) -> Protocol {
        let mut protocol = samples::protocol();
        protocol.models = models
            .iter()
            .map(|name| samples::model(name, None))
            .collect();
        protocol
    }

    fn planned(protocol: &Protocol, runs: &[&str]) -> Vec<(Vec<Option<usize>>, Vec<usize>)> {
        let manifests: Vec<Manifest> = runs
            .iter()
            .map(|name| {
                let mut manifest = samples::manifest(protocol.clone());
                manifest.model.name = (*name).to_owned();
                manifest
            })
            .collect();
        let manifests: Vec<&Manifest> = manifests.iter().collect();
        let found = families(protocol, &manifests, &vec![true; manifests.len()]);
        let runs = |models: &Models| models.members.iter().map(|member| member.run).collect();
        found
            .iter()
            .map(|models| (runs(models), models.descriptive.clone()))
            .collect()
    }

    #[test]
    fn named_models_form_one_family_given_or_not() {
        let protocol = protocol(&["a", "b"]);
        assert_eq!(
            planned(&protocol, &["b", "a"]),
            [(vec![Some(1), Some(0)], vec![1, 0])]
        );
        assert_eq!(planned(&protocol, &["b"]), [(vec![None, Some(0)], vec![0])]);
    }

    #[test]
    fn a_star_is_one_model_in_each_family() {
        let any = protocol(&["*"]);
        assert_eq!(planned(&any, &["a"]), [(vec![Some(0)], vec![0])]);
        assert_eq!(
            planned(&any, &["a", "b"]),
            [(vec![Some(0)], vec![0]), (vec![Some(1)], vec![1])]
        );
        let mixed = protocol(&["a", "*"]);
        assert_eq!(
            planned(&mixed, &["b", "a", "c"]),
            [
                (vec![Some(1), Some(0)], vec![1, 0]),
                (vec![Some(1), Some(2)], vec![2])
            ]
        );
    }

    #[test]
    fn an_undeclared_model_leaves_the_family_as_it_is() {
        let protocol = protocol(&["a"]);
        assert_eq!(
            planned(&protocol, &["x"]),
            [(vec![None], vec![]), (vec![], vec![0])]
        );
        let mut weights = protocol;
        weights.models[0].sha256 = Some("0".repeat(64));
        assert_eq!(
            planned(&weights, &["a"]),
            [(vec![None], vec![]), (vec![], vec![0])]
        );
    }

    #[test]
    fn families_have_the_golden_adjusted_values() {
        let golden = include_str!("../../../fixtures/stats/holm_sign_families.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert!(cases.len() > 15);
        for case in cases {
            let count = |block: &Value, name: &str| block[name].as_u64().unwrap();
            let family: Vec<Option<PValue>> = case["inputs"]["blocks"]
                .as_array()
                .unwrap()
                .iter()
                .map(|block| Some(mcnemar_exact(count(block, "n_pos"), count(block, "n_neg"))))
                .collect();
            let expected = case["expected"]["holm_two_sided"].as_array().unwrap();
            let adjusted = adjust(&family).unwrap();
            assert_eq!(adjusted.len(), expected.len());
            for (found, expected) in adjusted.iter().zip(expected) {
                let expected = expected.as_f64().unwrap();
                assert!((found.p / expected - 1.0).abs() < 1e-12, "{}", case["id"]);
                let difference = (found.log10_p - expected.log10()).abs();
                assert!(difference < 1e-12, "{}", case["id"]);
            }
        }
    }

    #[test]
    fn a_missing_test_stays_in_the_family_with_p_1() {
        let p = |lost, gained| Some(mcnemar_exact(lost, gained));
        let whole = adjust(&[p(0, 10), p(5, 5), p(3, 12)]).unwrap();
        let gap = adjust(&[p(0, 10), None, p(3, 12)]).unwrap();
        assert_eq!(whole, gap);
        assert_eq!(gap[1], PValue::ONE);
        assert_eq!(gap[0].p, 3.0 * p(0, 10).unwrap().p);
    }

    #[test]
    fn the_published_ruin_stays_finite() {
        let adjusted = adjust(&[Some(mcnemar_exact(1199, 0)), None, None, None]).unwrap();
        assert_eq!(adjusted[0].p, 0.0);
        let expected = -360.634 + 4_f64.log10();
        assert!(
            (adjusted[0].log10_p - expected).abs() < 1e-3,
            "{adjusted:?}"
        );
    }
}
