use super::*;
use crate::schema::{
    CalibrationPlan, CalibrationSource, ObjectiveName, ProtocolModel, ResourceLimits,
    builtin_protocol,
};

fn reference() -> Protocol {
    builtin_protocol("reference").unwrap()
}

/// The message of `reference` after a change.
fn refusal(change: impl FnOnce(&mut Protocol)) -> String {
    let mut protocol = reference();
    change(&mut protocol);
    protocol.validate().unwrap_err().to_string()
}

fn candidate(name: &str, spec: &str) -> ProtocolCandidate {
    ProtocolCandidate {
        name: name.to_owned(),
        spec: spec.to_owned(),
    }
}

fn model(name: &str, sha256: Option<&str>) -> ProtocolModel {
    ProtocolModel {
        name: name.to_owned(),
        sha256: sha256.map(str::to_owned),
    }
}

fn set_length(panel: &mut PanelPlan, new: u32) {
    match panel {
        PanelPlan::Nll { length, .. } | PanelPlan::Retrieval { length, .. } => *length = new,
        PanelPlan::Math { .. } => unreachable!("a math panel has no length"),
    }
}

fn limits(peak: Option<u64>, gap: Option<u64>) -> Option<ResourceLimits> {
    Some(ResourceLimits {
        peak_device_bytes: peak,
        largest_sample_gap_ms: gap,
    })
}

#[test]
fn resource_limits_are_part_of_the_digest_only_where_they_are_set() {
    let mut protocol = reference();
    let without = protocol.sha256().unwrap();
    assert!(
        !serde_json::to_string(&protocol)
            .unwrap()
            .contains("resource_limits")
    );
    protocol.resource_limits = limits(Some(76 << 30), Some(500));
    protocol.validate().unwrap();
    assert_ne!(protocol.sha256().unwrap(), without);
    let toml = protocol.to_toml().unwrap();
    assert!(toml.contains("peak_device_bytes = 81604378624"), "{toml}");
    assert_eq!(Protocol::from_toml(&toml).unwrap(), protocol);
}

#[test]
fn each_violation_is_named() {
    let messages = [
        refusal(|p| p.schema = "kvassay.protocol/2".to_owned()),
        refusal(|p| p.name = "../x".to_owned()),
        refusal(|p| p.description = "two\nlines".to_owned()),
        refusal(|p| p.family_alpha = 0.0),
        refusal(|p| p.family_alpha = f64::NAN),
        refusal(|p| p.models.clear()),
        refusal(|p| p.models.push(model("*", None))),
        refusal(|p| p.models[0].name = " ".to_owned()),
        refusal(|p| p.models[0] = model("m", Some("ABC"))),
        refusal(|p| p.controls.clear()),
        refusal(|p| p.controls.push("native".to_owned())),
        refusal(|p| p.controls.push("native-aa".to_owned())),
        refusal(|p| p.controls.push("a/b".to_owned())),
        refusal(|p| p.controls.push("control-a".to_owned())),
        refusal(|p| p.controls.push("SD".to_owned())),
        refusal(|p| p.controls.push("Native".to_owned())),
        refusal(|p| p.controls.push("Native-AA".to_owned())),
        refusal(|p| p.candidates.clear()),
        refusal(|p| p.candidates.push(candidate("AF", "k=native,v=e4m3:fixed"))),
        refusal(|p| p.candidates[0] = candidate("AF", "k=native,v=fp8")),
        refusal(|p| p.candidates[0] = candidate("AF", "AF")),
        refusal(|p| p.candidates[0] = candidate("AF", "k=native,v=e4m3:dynamic")),
        refusal(|p| p.candidates[0] = candidate("mine", "k=native,v=e4m3:fixed")),
        refusal(|p| p.candidates[0] = candidate("AF", "k=native,v=int8:fixed")),
        refusal(|p| p.candidates[0] = candidate("native", "k=native,v=int8:fixed")),
        refusal(|p| p.candidates[0] = candidate("control-a", "k=native,v=int8:fixed")),
        refusal(|p| p.candidates[0] = candidate("none", "k=native,v=native")),
        refusal(|p| {
            p.candidates[0] = candidate("X", "k=native,v=int8:fixed");
            p.candidates[1] = candidate("Y", "k=native,v=int8:fixed");
        }),
        refusal(|p| p.objectives.clear()),
        refusal(|p| p.objectives.push(ObjectiveName::Aggregate)),
        refusal(|p| p.objectives = vec![ObjectiveName::Aggregate]),
        refusal(|p| p.calibration.documents = 0),
        refusal(|p| p.calibration.lengths.clear()),
        refusal(|p| p.calibration.lengths = vec![8, 8]),
        refusal(|p| p.calibration.lengths = vec![0]),
        refusal(|p| {
            p.calibration = CalibrationPlan {
                source: CalibrationSource::Checkpoint,
                documents: 0,
                lengths: Vec::new(),
                ..p.calibration.clone()
            };
            p.candidates[1] = candidate("Y", "k=native,v=int8:fixed");
        }),
        refusal(|p| p.panels.clear()),
        refusal(|p| set_length(&mut p.panels[2], 1024)),
        refusal(|p| set_length(&mut p.panels[1], 128)),
        refusal(|p| set_length(&mut p.panels[3], 16)),
        refusal(|p| p.rules.gross_loss.divisor = 11),
        refusal(|p| p.rules.net_change.divisor = 0),
        refusal(|p| p.rules.nll.divisor = 5),
        refusal(|p| p.rules.retrieval.divisor = 5),
        refusal(|p| p.models.push(model("another", None))),
        refusal(|p| p.rules.gross_loss.limit = 2.0),
        refusal(|p| p.rules.net_change.limit = 0.01),
        refusal(|p| p.rules.nll.limit = 0.0),
        refusal(|p| p.rules.retrieval.limit = f64::NAN),
        refusal(|p| p.rules.nll.resamples = 239),
        refusal(|p| p.assay_sensitivity.math = 1.5),
        refusal(|p| p.assay_sensitivity.retrieval = f64::NAN),
        refusal(|p| p.contrasts.push("AF-XX".to_owned())),
        refusal(|p| p.contrasts.push("AF-AF".to_owned())),
        refusal(|p| p.contrasts.push("AF".to_owned())),
        refusal(|p| p.contrasts.push("RF-AF".to_owned())),
        refusal(|p| {
            p.candidates[0] = candidate("RF-SF", "k=native,v=int8:fixed");
            p.candidates[3] = candidate("SF-AD", "k=native,v=int8:dynamic");
            p.candidates[4] = candidate("AD", "k=native,v=e4m3:dynamic");
            p.contrasts = vec!["RF-SF-AD".to_owned()];
        }),
        refusal(|p| p.family_alpha = 0.6),
        refusal(|p| p.rules.net_change.limit = -0.0),
        refusal(|p| p.assay_sensitivity.math = -0.0),
        refusal(|p| p.rules.nll.resamples = u32::MAX),
        refusal(|p| p.resource_limits = limits(None, None)),
        refusal(|p| p.resource_limits = limits(Some(0), None)),
        refusal(|p| p.resource_limits = limits(Some(1), Some(u64::MAX))),
    ];
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn least_divisors_are_enough() {
    let mut protocol = reference();
    protocol.rules.nll.divisor = 6;
    protocol.rules.retrieval.divisor = 6;
    assert!(protocol.validate().is_ok());
    assert_eq!(protocol.alpha(RuleName::Nll), 0.05 / 6.0);
    assert_eq!(protocol.degradation_alpha(), 0.05 / 30.0);
}

#[test]
fn unnamed_recipes_take_any_free_name_and_hyphens_in_contrasts() {
    let mut protocol = reference();
    let spec = "k=e4m3:fixed,v=e4m3:fixed,skip-layers=0,-1";
    protocol.candidates[0] = candidate("SF-edges", spec);
    protocol.candidates[1] = candidate(spec, spec);
    protocol.candidates[1].spec = "k=int8:fixed,v=int8:fixed".to_owned();
    protocol.candidates[1].name = protocol.candidates[1].spec.clone();
    protocol.contrasts = vec![
        "SF-edges-SF".to_owned(),
        "AD-SF-edges".to_owned(),
        "k=int8:fixed,v=int8:fixed-SF-edges".to_owned(),
    ];
    protocol.validate().unwrap();
    let (first, second) = protocol.contrast("AD-SF-edges").unwrap();
    assert_eq!(
        (first.name.as_str(), second.name.as_str()),
        ("AD", "SF-edges")
    );
}

#[test]
fn a_protocol_without_fixed_scales_needs_no_calibration() {
    let mut protocol = reference();
    protocol.candidates.retain(|c| c.name.ends_with('D'));
    protocol.contrasts.retain(|text| text.ends_with('D'));
    protocol.calibration = CalibrationPlan {
        documents: 0,
        lengths: Vec::new(),
        forced_tokens: 0,
        source: CalibrationSource::Measured,
    };
    assert!(protocol.validate().is_ok());
}

#[test]
fn objectives_rest_on_their_rules() {
    let serving = |objective| {
        RuleName::ALL
            .into_iter()
            .filter(|rule| rule.serves(objective))
            .map(RuleName::name)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        serving(ObjectiveName::Preservation),
        ["gross_loss", "nll", "retrieval"]
    );
    assert_eq!(
        serving(ObjectiveName::Aggregate),
        ["net_change", "nll", "retrieval"]
    );
}
