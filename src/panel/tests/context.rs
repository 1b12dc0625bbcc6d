//! Panels that are longer than a model's context.

use super::*;
use crate::panel::fake::FakeTokenizer;

/// More text would not help: the context is named, however much text there is.
#[test]
fn a_panel_beyond_the_context_asks_for_no_text() {
    let long = protocol(
        json!([
            {"kind": "nll", "task": "wikipedia-nll", "length": 1024, "documents": 3, "targets": 128},
            {"kind": "retrieval", "task": "needle", "length": 1024, "cases": 2,
                "max_new_tokens": 12},
        ]),
        json!({"documents": 4, "lengths": [1024], "forced_tokens": 8}),
    );
    let few = Data::new().with_articles(2);
    let built = build(&long, &few.resolve(), &FakeTokenizer::new(), &geometry(512)).unwrap();
    for panel in ["nll-1k", "retrieval-1k"] {
        let found = built.panels.iter().find(|built| built.name == panel);
        let Outcome::Unsupported(why) = &found.unwrap().outcome else {
            panic!("{panel} was built");
        };
        assert!(
            why.contains("more than the model's context of 512"),
            "{why}"
        );
    }
    assert!(built.calibration.is_none());
}
