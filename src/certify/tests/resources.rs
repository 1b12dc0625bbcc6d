//! Resource evidence in certificates, and limits on it.

use crate::schema::*;

use super::super::*;
use super::world::*;

type Change = fn(&mut Option<Resources>);

fn part(peak: u64, gap: u64) -> ResourcePart {
    ResourcePart {
        device: "a GPU".to_owned(),
        total_bytes: Some(1000),
        allocations: Allocations {
            weights: 400,
            ..Allocations::default()
        },
        sampled: Some(MemorySamples {
            scope: SampleScope::Device,
            peak_bytes: peak,
            samples: 9,
            largest_gap_ms: gap,
        }),
    }
}

/// Every arm took 700 bytes at most, under limits of 800 bytes and 50 ms.
fn limited() -> Evidence {
    let mut evidence = world(protocol(), 1231);
    change_protocol(&mut evidence, |protocol| {
        protocol.resource_limits = Some(ResourceLimits {
            peak_device_bytes: Some(800),
            largest_sample_gap_ms: Some(50),
        });
    });
    for arm in evidence.arms.values_mut() {
        arm.resources = Some(Resources {
            parts: vec![part(700, 21), part(650, 22)],
            ..Resources::empty()
        });
    }
    evidence
}

#[test]
fn arms_within_their_limits_pass_and_say_what_they_took() {
    let found = certificate(&limited(), "AD");
    assert_eq!(verdicts(&found), [(Verdict::Pass, None); 2]);
    let arms: Vec<&str> = found.resources.keys().map(String::as_str).collect();
    assert_eq!(arms, ["AD", "native", "native-aa"]);
    let summary = &found.resources["AD"];
    let sampled = summary.sampled.unwrap();
    assert_eq!((summary.parts, sampled.samples), (2, 18));
    assert_eq!((sampled.peak_bytes, sampled.largest_gap_ms), (700, 22));
}

#[test]
fn evidence_is_stated_without_limits_too_and_nothing_is_without_evidence() {
    let mut evidence = limited();
    change_protocol(&mut evidence, |protocol| protocol.resource_limits = None);
    arm_mut(&mut evidence, "AD").resources = None;
    let found = certificate(&evidence, "AD");
    assert_eq!(verdicts(&found), [(Verdict::Pass, None); 2]);
    assert!(!found.resources.contains_key("AD"));
    let text = serde_json::to_string(&certificate(&world(protocol(), 1231), "AD")).unwrap();
    assert!(!text.contains("resources"));
}

#[test]
fn any_arm_of_the_trial_that_crosses_a_limit_makes_it_incomplete() {
    for arm in ["native", "native-aa", "AD"] {
        for (part, what) in [
            (part(801, 20), "801 bytes (0.00 GiB) of memory in use"),
            (part(1, 51), "51 ms between two samples of memory"),
        ] {
            let mut evidence = limited();
            let resources = arm_mut(&mut evidence, arm).resources.as_mut().unwrap();
            resources.parts[1] = part;
            let found = certificate(&evidence, "AD");
            let reason = (Verdict::Incomplete, Some("resource_limit"));
            assert_eq!(verdicts(&found), [reason; 2]);
            let detail = found.objectives.aggregate.detail.unwrap();
            assert_eq!(detail.split("; ").count(), 1, "{detail}");
            assert!(
                detail.starts_with(&format!("arm {arm} had {what}")),
                "{detail}"
            );
            // Another candidate's certificate does not rest on this one's arm.
            let passes = certificate(&evidence, "SD").objectives.aggregate.verdict;
            assert_eq!(passes == Verdict::Pass, arm == "AD");
        }
    }
}

#[test]
fn missing_evidence_under_limits_is_incomplete() {
    let none = |resources: &mut Option<Resources>| *resources = None;
    let empty = |resources: &mut Option<Resources>| *resources = Some(Resources::empty());
    let blind = |resources: &mut Option<Resources>| {
        resources.as_mut().unwrap().parts[0].sampled = None;
    };
    let changes: [(Change, &str); 3] = [
        (none, "arm native has no resource evidence"),
        (empty, "arm native has no resource evidence"),
        (blind, "arm native ran where memory in use is not sampled"),
    ];
    for (change, expected) in changes {
        let mut evidence = limited();
        change(&mut arm_mut(&mut evidence, "native").resources);
        let found = certificate(&evidence, "AD");
        let reason = (Verdict::Incomplete, Some("resources_unknown"));
        assert_eq!(verdicts(&found), [reason; 2]);
        assert_eq!(
            found.objectives.preservation.detail.as_deref(),
            Some(expected)
        );
    }
}
