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
    assert!(
        of_a.doubts.iter().any(|doubt| doubt.contains("arm RF")),
        "{:?}",
        of_a.doubts
    );
    let rows = found.endpoints.iter().flat_map(|family| &family.contrasts);
    for row in rows.filter(|row| row.model == "a") {
        assert!(!row.declared && row.adjusted.is_none(), "{}", row.contrast);
    }
    assert!(found.missing.iter().any(|missing| missing.model == "a"));
}
