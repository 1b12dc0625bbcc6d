//! A protocol and panels for the fake engine.

use std::path::Path;

use crate::panel::{BuiltPanel, BuiltPanels, CalibrationDocs, Outcome, Panel};
use crate::schema::{
    CalibrationPlan, CalibrationSource, CaseTask, NllRule, PanelCase, PanelHeader, PanelPlan,
    ProportionRule, Protocol, ProtocolCandidate, Rules,
};
use crate::store::samples;

/// A protocol of five questions, three documents and three needles.
pub fn protocol() -> Protocol {
    let proportion = |limit| ProportionRule { limit, divisor: 4 };
    let candidate = |name: &str, spec: &str| ProtocolCandidate {
        name: name.to_owned(),
        spec: spec.to_owned(),
    };
    Protocol {
        name: "tiny".to_owned(),
        description: "A protocol of tests.".to_owned(),
        models: vec![samples::model("*", None)],
        candidates: vec![
            candidate("AF", "k=native,v=e4m3:fixed"),
            candidate("AD", "k=native,v=e4m3:dynamic"),
        ],
        calibration: CalibrationPlan {
            documents: 2,
            lengths: vec![16],
            forced_tokens: 4,
            source: CalibrationSource::Measured,
        },
        panels: vec![
            PanelPlan::Math {
                task: "gsm8k".to_owned(),
                cases: 5,
                max_new_tokens: 8,
            },
            PanelPlan::Nll {
                task: "wikipedia-nll".to_owned(),
                length: 16,
                documents: 3,
                targets: 4,
            },
            PanelPlan::Retrieval {
                task: "needle".to_owned(),
                length: 16,
                cases: 3,
                max_new_tokens: 8,
            },
        ],
        rules: Rules {
            gross_loss: proportion(0.02),
            net_change: proportion(-0.01),
            nll: NllRule {
                limit: 0.01,
                divisor: 4,
                resamples: 1000,
                seed: 1,
            },
            retrieval: proportion(0.05),
        },
        ..samples::protocol()
    }
}

/// Panels of so many questions, three documents and three needles, written to and read back
/// from `dir`.
pub fn panels(dir: &Path, questions: u32) -> BuiltPanels {
    let math = |i: u32, ids: &[u32]| {
        (
            format!("gsm8k-{i:04}"),
            CaseTask::Math {
                gold: ids.iter().sum::<u32>().to_string(),
                max_new_tokens: 8,
            },
        )
    };
    let nll = |i: u32, _: &[u32]| {
        (
            format!("nll-{i:04}"),
            CaseTask::Nll {
                targets: 4,
                article: format!("Article {i}"),
            },
        )
    };
    let retrieval = |i: u32, ids: &[u32]| {
        (
            format!("needle-{i:04}"),
            CaseTask::Retrieval {
                gold: format!("the answer is {}", ids.iter().sum::<u32>()),
                depth: f64::from(i) / 4.0,
                max_new_tokens: 8,
            },
        )
    };
    BuiltPanels {
        panels: vec![
            panel(dir, "math", questions, &math),
            panel(dir, "nll-16", 3, &nll),
            panel(dir, "retrieval-16", 3, &retrieval),
        ],
        calibration: Some(CalibrationDocs {
            documents: vec![vec![1; 16], vec![2; 16]],
            sha256: "2".repeat(64),
        }),
        probe: vec![7; 16],
    }
}

/// Name and task of case `i`, given its prompt.
type MakeTask = dyn Fn(u32, &[u32]) -> (String, CaseTask);

fn panel(dir: &Path, name: &str, cases: u32, task: &MakeTask) -> BuiltPanel {
    let plans = protocol().panels;
    let plan = plans.iter().find(|plan| plan.panel_name() == name).unwrap();
    let header = PanelHeader {
        cases,
        ..samples::header(plan, &"1".repeat(64))
    };
    let lines: Vec<PanelCase> = (1..=cases)
        .map(|i| {
            let prompt_ids = vec![i, i + 10, 20];
            let (case, task) = task(i, &prompt_ids);
            PanelCase {
                case,
                messages: Vec::new(),
                prompt_ids,
                task,
            }
        })
        .collect();
    let path = dir.join(format!("{name}.jsonl"));
    let sha256 = crate::panel::write_panel(&path, &header, &lines).unwrap();
    let panel: Panel = crate::panel::read_panel(&path, &sha256).unwrap();
    BuiltPanel {
        name: name.to_owned(),
        outcome: Outcome::Built(panel),
    }
}
