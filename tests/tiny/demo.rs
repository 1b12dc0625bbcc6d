//! Short runs of the demo models.

use kvassay::schema::{PanelPlan, Protocol, builtin_protocol};

/// The demo protocol on its panels of 256 tokens, with so many questions in each that has some: few
/// of them take a second.
pub fn small_demo(cases: u32) -> Protocol {
    let mut protocol = builtin_protocol("demo").expect("it is built in");
    protocol.name = "demo-small".to_owned();
    protocol.frozen_panels.clear();
    protocol.calibration.documents = 2;
    protocol.calibration.lengths = vec![256];
    protocol
        .panels
        .retain(|plan| !plan.panel_name().ends_with("1k"));
    for plan in &mut protocol.panels {
        match plan {
            PanelPlan::Math { cases: all, .. } | PanelPlan::Retrieval { cases: all, .. } => {
                *all = cases;
            }
            PanelPlan::Nll { documents, .. } => *documents = 3,
        }
    }
    protocol
}
