//! Contrasts that rest on little, or on what is in doubt.

use super::*;

/// As with degradation: whatever its p, the bootstrap of a handful shows nothing.
#[test]
fn a_handful_of_documents_establishes_no_difference() {
    for (of_panel, established) in [(2, false), (31, false), (32, true)] {
        let mut protocol = four(&["a"]);
        let PanelPlan::Nll { documents, .. } = &mut protocol.panels[1] else {
            panic!("{:?}", protocol.panels);
        };
        *documents = of_panel;
        let mut a = run_of(&protocol, "a");
        scale_nll(&mut a, "RF", "nll-1k", 1.05);
        let found = compared(&[&a], &[]).unwrap();
        let nll = row(endpoint(&found, "nll-1k"), "a", "AF-RF");
        assert!(nll.adjusted.unwrap().p < 0.05, "{of_panel}");
        assert_eq!(nll.established, established, "{of_panel}");
    }
}

#[test]
fn doubts_about_the_second_native_run_are_said() {
    let protocol = four(&["a"]);
    let mut evidence = run_of(&protocol, "a");
    records_mut(&mut evidence, "native-aa", "math").pop();
    let found = compared(&[&evidence], &[]).unwrap();
    let [records, totals] = found.runs[0].doubts.as_slice() else {
        panic!("{:?}", found.runs[0].doubts);
    };
    assert!(records.contains("arm native-aa, panel math"), "{records}");
    assert!(
        totals.contains("native-aa has engagement totals"),
        "{totals}"
    );
}

#[test]
fn an_unproved_engagement_is_said() {
    let protocol = four(&["a"]);
    let mut evidence = run_of(&protocol, "a");
    assert!(
        compared(&[&evidence], &[]).unwrap().runs[0]
            .doubts
            .is_empty()
    );
    arm_mut(&mut evidence, "RF").engagement = None;
    let found = compared(&[&evidence], &[]).unwrap();
    assert_eq!(found.runs[0].doubts.len(), 1);
    assert!(found.runs[0].doubts[0].contains("arm RF"));
}
