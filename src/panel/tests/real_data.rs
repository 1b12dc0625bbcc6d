//! The known source files, where they are at hand.

use super::*;
use crate::panel::fake::FakeTokenizer;
use crate::panel::{gsm8k, wikipedia};
use crate::score::{Parser, parse_answer};

#[test]
fn every_reference_solution_parses_to_its_gold_answer() {
    let Some(data) = real_data() else { return };
    let located = data.locate(&builtin_task("gsm8k").unwrap()).unwrap();
    assert!(located.files[0].pinned);
    let questions = gsm8k::read(&located).unwrap();
    assert_eq!(questions.len(), 1319);
    let text = fs::read_to_string(&located.files[0].path).unwrap();
    for (line, question) in text.lines().zip(&questions) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let solution = line["answer"].as_str().unwrap();
        let answer = parse_answer(Parser::Gsm8k1, solution);
        assert_eq!(answer.as_ref(), Some(&question.gold), "{solution}");
        // In a box instead of behind the mark.
        let (steps, gold) = solution.rsplit_once("#### ").unwrap();
        let boxed = format!("{steps}The total is \\boxed{{\\${gold}}}.");
        assert_eq!(
            parse_answer(Parser::Gsm8k1, &boxed).as_ref(),
            Some(&question.gold)
        );
        let told = format!("{steps}The answer is ${gold}.");
        assert_eq!(
            parse_answer(Parser::Gsm8k1, &told).as_ref(),
            Some(&question.gold)
        );
    }
}

#[test]
fn converted_line_ends_change_nothing() {
    let Some(real) = real_data() else { return };
    let task = builtin_task("wikipedia-nll").unwrap();
    let text = fs::read_to_string(real.path().join("wikipedia/wiki.test.raw")).unwrap();
    let lf = text.replace("\r\n", "\n");
    let read = |text: String| {
        let data = Data::new();
        data.write("wikipedia/wiki.test.raw", text);
        let located = data.resolve().locate(&task)?;
        assert!(located.files[0].pinned);
        Ok::<_, PanelError>((located.digests(), wikipedia::read(&located)?))
    };
    let expected = read(lf.clone()).unwrap();
    assert_eq!(read(lf.replace('\n', "\r\n")).unwrap(), expected);
    // Any other difference is one.
    let error = read(lf.replacen("Boulter", "Bolter", 1))
        .unwrap_err()
        .to_string();
    assert!(error.contains("SHA-256: found"), "{error}");
}

#[test]
fn the_wikitext_test_split_holds_sixty_articles() {
    let Some(data) = real_data() else { return };
    let located = data
        .locate(&builtin_task("wikipedia-nll").unwrap())
        .unwrap();
    assert!(located.files[0].pinned);
    let articles = wikipedia::read(&located).unwrap();
    // Two more lines look like titles: an equation of `Constant k filter`, broken at its signs.
    assert_eq!(articles.len(), 60);
    assert_eq!(articles[0].title, "Robert Boulter");
    assert_eq!(articles[59].title, "The Hustler ( film )");
    let whole = fs::read_to_string(&located.files[0].path)
        .unwrap()
        .replace("\r\n", "\n");
    let kept: usize = articles.iter().map(|article| article.text.len()).sum();
    assert!(whole.len() - kept < 60 * 4, "only line ends are dropped");
}

#[test]
fn the_wikitext_protocols_can_be_built() {
    let Some(data) = real_data() else { return };
    for name in ["reference-wikitext", "smoke"] {
        let mut protocol = builtin_protocol(name).unwrap();
        for plan in &mut protocol.panels {
            // The text is divided alike whatever the number of needles.
            if let crate::schema::PanelPlan::Retrieval { cases, .. } = plan {
                *cases = 2;
            }
        }
        let built = build(&protocol, &data, &FakeTokenizer::new(), &geometry(8192)).unwrap();
        assert_eq!(built.supported().count(), protocol.panels.len(), "{name}");
        assert!(built.calibration.is_some(), "{name}");
        assert_eq!(built.probe.len(), 256, "{name}");
    }
}
