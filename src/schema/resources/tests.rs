use super::*;

fn part(device: &str, peak: u64, gap: u64) -> ResourcePart {
    ResourcePart {
        device: device.to_owned(),
        total_bytes: Some(1000),
        allocations: Allocations {
            weights: 500,
            cache: peak / 2,
            ..Allocations::default()
        },
        sampled: Some(MemorySamples {
            scope: SampleScope::Device,
            peak_bytes: peak,
            samples: 10,
            largest_gap_ms: gap,
        }),
    }
}

fn resources(parts: Vec<ResourcePart>) -> Resources {
    Resources {
        parts,
        ..Resources::empty()
    }
}

#[test]
fn parts_are_summed_and_the_largest_of_each_figure_counts() {
    let found = resources(vec![
        part("a", 700, 20),
        part("b", 600, 45),
        part("a", 1, 1),
    ]);
    let summary = found.summary().unwrap();
    assert_eq!(summary.devices, ["a", "b"]);
    assert_eq!(summary.parts, 3);
    assert_eq!(summary.allocations.cache, 350);
    assert_eq!(
        summary.sampled,
        Some(MemorySamples {
            scope: SampleScope::Device,
            peak_bytes: 700,
            samples: 30,
            largest_gap_ms: 45,
        })
    );
    assert_eq!(resources(Vec::new()).summary(), None);
}

#[test]
fn one_part_without_samples_leaves_the_whole_without() {
    let blind = ResourcePart {
        sampled: None,
        total_bytes: None,
        ..part("a", 2000, 20)
    };
    for parts in [
        vec![part("a", 700, 20), blind.clone()],
        vec![blind, part("a", 700, 20)],
    ] {
        let summary = resources(parts).summary().unwrap();
        assert_eq!((summary.sampled, summary.total_bytes), (None, None));
        assert_eq!(summary.allocations.cache, 1000);
    }
    let mut other = part("a", 1, 1);
    other.sampled.as_mut().unwrap().scope = SampleScope::Process;
    let mixed = resources(vec![part("a", 700, 20), other]);
    assert_eq!(mixed.summary().unwrap().sampled, None);
}

#[test]
fn limits_name_what_was_found_and_what_is_allowed() {
    let summary = resources(vec![part("a", 700, 21)]).summary();
    let limits = |peak, gap| ResourceLimits {
        peak_device_bytes: peak,
        largest_sample_gap_ms: gap,
    };
    for kept in [
        limits(None, None),
        limits(Some(700), Some(21)),
        limits(Some(701), None),
    ] {
        assert_eq!(kept.crossed(summary.as_ref()), None);
    }
    let Some(Crossed::Limit(what)) = limits(Some(699), Some(1)).crossed(summary.as_ref()) else {
        panic!("not crossed");
    };
    assert_eq!(
        what,
        "had 700 bytes (0.00 GiB) of memory in use, peak_device_bytes allows 699 (0.00 GiB)"
    );
    let Some(Crossed::Limit(what)) = limits(None, Some(20)).crossed(summary.as_ref()) else {
        panic!("not crossed");
    };
    assert!(
        what.ends_with("had 21 ms between two samples of memory, largest_sample_gap_ms allows 20")
    );
    for unknown in [
        None,
        resources(vec![ResourcePart {
            sampled: None,
            ..part("a", 1, 1)
        }])
        .summary(),
    ] {
        let found = limits(Some(1 << 40), None).crossed(unknown.as_ref());
        assert!(matches!(found, Some(Crossed::Unknown(_))), "{found:?}");
    }
}
