//! Contrasts where the protocol may not have stood before the records.

use super::*;

/// A protocol that was put into `run.json` after the records declares nothing about them.
#[test]
fn contrasts_of_records_before_the_protocol_are_descriptive() {
    let protocol = four(&["a", "b"]);
    let (mut a, b) = (ruined(&protocol, "a"), run_of(&protocol, "b"));
    a.arms.get_mut("RF").unwrap().start = None;
    let found = compared(&[&a, &b], &[]).unwrap();
    let [of_a, of_b] = found.runs.as_slice() else {
        panic!("two runs");
    };
    assert!(!of_a.declared && of_b.declared);
    let why = of_a.post_hoc.as_deref().unwrap();
    assert!(why.contains("arm RF"), "{why}");
    assert_eq!(of_b.post_hoc, None);
    let rows = found.endpoints.iter().flat_map(|family| &family.contrasts);
    for row in rows.filter(|row| row.model == "a") {
        assert!(!row.declared && row.adjusted.is_none(), "{}", row.contrast);
    }
    // The run was given; what is missing says what it lacks.
    let of_a = found.missing.iter().filter(|missing| missing.model == "a");
    let of_a: Vec<&MissingContrast> = of_a.collect();
    assert_eq!(of_a.len(), 15);
    for missing in of_a {
        assert!(missing.declared && missing.run.as_deref() == Some("run-0"));
        assert_eq!(
            (missing.lack.name(), missing.detail.as_str()),
            ("protocol_unproved", why)
        );
    }
}
