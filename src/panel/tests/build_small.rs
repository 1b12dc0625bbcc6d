//! Whole builds on made-up data.

use std::collections::HashSet;

use super::*;
use crate::panel::fake::{FakeTokenizer, TEMPLATE_TOKENS};
use crate::schema::{CaseTask, PanelCase};

fn all_panels() -> Protocol {
    protocol(
        json!([
            {"kind": "math", "task": "gsm8k", "cases": 4, "max_new_tokens": 16},
            {"kind": "nll", "task": "wikipedia-nll", "length": 256, "documents": 5, "targets": 16},
            {"kind": "nll", "task": "wikipedia-nll", "length": 1024, "documents": 3, "targets": 16},
            {"kind": "retrieval", "task": "needle", "length": 512, "cases": 10, "max_new_tokens": 12},
            {"kind": "retrieval", "task": "needle", "length": 1024, "cases": 6, "max_new_tokens": 12},
        ]),
        json!({"documents": 2, "lengths": [128, 512], "forced_tokens": 8}),
    )
}

fn data() -> Data {
    Data::new().with_questions(6).with_articles(20)
}

fn built(protocol: &Protocol, data: &Data, tokenizer: &FakeTokenizer, context: u32) -> BuiltPanels {
    build(protocol, &data.resolve(), tokenizer, &geometry(context)).unwrap()
}

fn panel<'a>(built: &'a BuiltPanels, name: &str) -> &'a Panel {
    built
        .supported()
        .find(|(found, _)| *found == name)
        .unwrap()
        .1
}

fn reason(built: &BuiltPanels, name: &str) -> String {
    let panel = built
        .panels
        .iter()
        .find(|panel| panel.name == name)
        .unwrap();
    match &panel.outcome {
        Outcome::Unsupported(reason) => reason.clone(),
        Outcome::Built(_) => panic!("{name} was built"),
    }
}

fn calibration_panel(built: &Materialised) -> Panel {
    match &built.calibration {
        Some(Outcome::Built(panel)) => panel.clone(),
        other => panic!("{other:?}"),
    }
}

fn article(case: &PanelCase) -> &str {
    match &case.task {
        CaseTask::Nll { article, .. } => article,
        other => panic!("{other:?}"),
    }
}

#[test]
fn math_prompts_go_through_the_template() {
    let (protocol, data) = (all_panels(), data());
    let built = built(&protocol, &data, &FakeTokenizer::new(), 4096);
    let math = panel(&built, "math");
    assert_eq!(math.header.task, "gsm8k/1");
    assert_eq!(math.header.parser, "gsm8k/1");
    assert_eq!(math.header.sources[0].path, "gsm8k/questions.jsonl");
    assert_eq!((math.header.cases, math.cases.len()), (4, 4));
    let case = &math.cases[1];
    assert_eq!(case.case, "gsm8k-0001");
    assert_eq!(case.messages.len(), 1);
    assert!(case.messages[0].content.starts_with("Ann has 2 pears"));
    assert!(case.messages[0].content.ends_with("#### <number>"));
    assert_eq!(case.prompt_ids[..2], [1, TEMPLATE_TOKENS[0]]);
    assert_eq!(
        case.task,
        CaseTask::Math {
            gold: "4".to_owned(),
            max_new_tokens: 16
        }
    );
}

#[test]
fn plain_math_prompts_have_no_template() {
    let plain = protocol(
        json!([{"kind": "math", "task": "gsm8k-plain", "cases": 1, "max_new_tokens": 16}]),
        json!({"documents": 0, "lengths": [], "forced_tokens": 0}),
    );
    let tokenizer = FakeTokenizer {
        template: false,
        ..FakeTokenizer::new()
    };
    // No text is needed, so none need be there.
    let data = Data::new().with_questions(1);
    let built = built(&plain, &data, &tokenizer, 4096);
    let case = &panel(&built, "math").cases[0];
    let text = "Question: Ann has 1 pears and buys 1 more. How many has she?\nAnswer:";
    let expected: Vec<u32> = [1]
        .into_iter()
        .chain(tokenizer.encode(text).unwrap())
        .collect();
    assert_eq!(case.prompt_ids, expected);
    assert!(case.messages.is_empty());
    assert!(built.calibration.is_none());
    assert_eq!(built.probe, case.prompt_ids);
}

#[test]
fn nll_windows_start_with_bos_and_the_article() {
    for bos in [Some(1), None] {
        let (protocol, data) = (all_panels(), data());
        let tokenizer = FakeTokenizer {
            bos,
            ..FakeTokenizer::new()
        };
        let built = built(&protocol, &data, &tokenizer, 4096);
        for (name, length, documents) in [("nll-256", 256, 5), ("nll-1k", 1024, 3)] {
            let nll = panel(&built, name);
            assert_eq!(nll.cases.len(), documents);
            assert_eq!(nll.header.parser, "");
            for case in &nll.cases {
                assert_eq!(case.prompt_ids.len(), length);
                let number = article(case).trim_start_matches("Town ").to_owned();
                let start = tokenizer
                    .encode(&format!("The town number {number} had 0 wells"))
                    .unwrap();
                let text = &case.prompt_ids[bos.iter().len()..];
                assert_eq!(text[..start.len()], start);
                assert_eq!(
                    case.prompt_ids.iter().filter(|id| **id == 1).count(),
                    bos.iter().len()
                );
            }
        }
    }
}

#[test]
fn purposes_never_share_an_article() {
    let (protocol, data) = (all_panels(), data());
    let built = materialise(
        &protocol,
        &data.resolve(),
        &FakeTokenizer::new(),
        &geometry(4096),
    )
    .unwrap();
    let titles = |panel: &Panel| {
        panel
            .cases
            .iter()
            .map(|c| article(c).to_owned())
            .collect::<HashSet<_>>()
    };
    let of = |name: &str| match &built
        .panels
        .iter()
        .find(|p| p.name == name)
        .unwrap()
        .outcome
    {
        Outcome::Built(panel) => panel.clone(),
        Outcome::Unsupported(reason) => panic!("{reason}"),
    };
    let (short, long) = (titles(&of("nll-256")), titles(&of("nll-1k")));
    assert_eq!(
        (short.len(), long.len()),
        (5, 3),
        "one window per article and length"
    );
    assert!(long.is_subset(&short));
    let calibration = titles(&calibration_panel(&built));
    assert_eq!(calibration.len(), 2);
    assert!(calibration.is_disjoint(&short));
    for case in of("retrieval-1k")
        .cases
        .iter()
        .chain(&of("retrieval-512").cases)
    {
        for title in short.union(&calibration) {
            let number = title.trim_start_matches("Town ");
            assert!(
                !case.messages[0]
                    .content
                    .contains(&format!("town number {number} had"))
            );
        }
    }
}

#[test]
fn retrieval_prompts_fill_their_length() {
    let (protocol, data) = (all_panels(), data());
    let tokenizer = FakeTokenizer::new();
    let built = built(&protocol, &data, &tokenizer, 1024);
    for (name, length, cases) in [("retrieval-512", 512, 10), ("retrieval-1k", 1024, 6)] {
        let retrieval = panel(&built, name);
        assert_eq!(retrieval.header.parser, "needle/1");
        let mut depths = Vec::new();
        for case in &retrieval.cases {
            let CaseTask::Retrieval {
                gold,
                depth,
                max_new_tokens,
            } = &case.task
            else {
                panic!("{:?}", case.task)
            };
            depths.push(*depth);
            let text = &case.messages[0].content;
            let tokens = case.prompt_ids.len() + *max_new_tokens as usize;
            // No word of the text has more than three tokens.
            assert!((length - 3..=length).contains(&tokens), "{name}: {tokens}");
            assert_eq!(text.matches("The access code of the ").count(), 5);
            let (_, asked) = text.rsplit_once("What is the access code of the ").unwrap();
            let key = asked.split('?').next().unwrap();
            let needle = format!("The access code of the {key} is {gold}.");
            let (before, _) = text.split_once(&needle).unwrap();
            assert!(before.ends_with(['.', '\n', ' ']));
            let place = before.len() as f64 / text.len() as f64;
            assert!((place - depth).abs() < 0.35, "{name}: {place} for {depth}");
            assert!(crate::score::retrieval_correct(gold, gold, false));
        }
        depths.sort_by(f64::total_cmp);
        let expected: Vec<f64> = (0..cases)
            .map(|i| (f64::from(i) + 0.5) / f64::from(cases))
            .collect();
        assert_eq!(depths, expected);
    }
    let questions: HashSet<&str> = panel(&built, "retrieval-512")
        .cases
        .iter()
        .map(|case| case.messages[0].content.rsplit("\n\n").next().unwrap())
        .collect();
    assert!(questions.len() > 8, "keys differ");
}

#[test]
fn the_same_inputs_give_the_same_bytes_and_another_seed_others() {
    let (mut protocol, data) = (all_panels(), data());
    let tokenizer = FakeTokenizer::new();
    let first = built(&protocol, &data, &tokenizer, 4096);
    assert_eq!(first, built(&protocol, &data, &tokenizer, 4096));
    assert_eq!(first.probe.len(), 128);
    assert_eq!(
        first.probe,
        first.calibration.as_ref().unwrap().documents[0]
    );
    protocol.seed += 1;
    let second = built(&protocol, &data, &tokenizer, 4096);
    assert_eq!(panel(&first, "math").sha256, panel(&second, "math").sha256);
    for name in ["nll-256", "retrieval-512"] {
        assert_ne!(panel(&first, name).sha256, panel(&second, name).sha256);
    }
}

#[test]
fn what_does_not_fit_the_model_is_unsupported() {
    let (protocol, data) = (all_panels(), data());
    let small = built(&protocol, &data, &FakeTokenizer::new(), 512);
    assert!(reason(&small, "nll-1k").contains("1,024 tokens"));
    assert!(reason(&small, "retrieval-1k").contains("context of 512"));
    assert!(small.calibration.is_none(), "512 tokens and 8 forced ones");
    let whole = materialise(
        &protocol,
        &data.resolve(),
        &FakeTokenizer::new(),
        &geometry(512),
    );
    assert!(matches!(
        whole.unwrap().calibration,
        Some(Outcome::Unsupported(reason)) if reason.contains("calibration needs 520 tokens")
    ));
    let large = built(&protocol, &data, &FakeTokenizer::new(), 4096);
    assert_eq!(panel(&small, "nll-256"), panel(&large, "nll-256"));
    assert_eq!(
        panel(&small, "retrieval-512"),
        panel(&large, "retrieval-512")
    );

    let tiny = built(&protocol, &data, &FakeTokenizer::new(), 40);
    assert!(reason(&tiny, "math").starts_with("gsm8k-0000 needs "));

    let plain = FakeTokenizer {
        template: false,
        ..FakeTokenizer::new()
    };
    let without = built(&protocol, &data, &plain, 4096);
    for name in ["math", "retrieval-512", "retrieval-1k"] {
        assert!(reason(&without, name).contains("gsm8k-plain"), "{name}");
    }
    assert_eq!(without.supported().count(), 2);
}

#[test]
fn a_length_below_the_needles_is_unsupported() {
    let short = protocol(
        json!([{"kind": "retrieval", "task": "needle", "length": 64, "cases": 1, "max_new_tokens": 12}]),
        json!({"documents": 0, "lengths": [], "forced_tokens": 0}),
    );
    let built = built(&short, &data(), &FakeTokenizer::new(), 4096);
    assert!(reason(&built, "retrieval-64").contains("more than the length of 64"));
}

#[test]
fn too_little_data_is_refused_with_what_there_is() {
    let tokenizer = FakeTokenizer::new();
    let error = |protocol: &Protocol, data: &Data| {
        build(protocol, &data.resolve(), &tokenizer, &geometry(4096))
            .unwrap_err()
            .to_string()
    };
    let few_questions = Data::new().with_questions(3).with_articles(20);
    assert_eq!(
        error(&all_panels(), &few_questions),
        "math: found 3 questions, expected 4"
    );
    let few_articles = Data::new().with_questions(4).with_articles(2);
    let message = error(&all_panels(), &few_articles);
    assert!(
        message.contains("nll-1k: found 0 articles of at least 1,023 tokens"),
        "{message}"
    );
    assert!(message.contains("expected 3"), "{message}");
    let no_haystack = Data::new().with_questions(4).with_articles(8);
    let mut protocol = all_panels();
    protocol.panels.remove(2);
    protocol.calibration.documents = 3;
    let message = error(&protocol, &no_haystack);
    assert!(
        message.contains("retrieval-1k: found 0 tokens of haystack in 0 articles"),
        "{message}"
    );
}

/// Questions are refused where they are read; articles may hold the same text under two titles.
#[test]
fn a_case_that_comes_twice_is_refused() {
    let text = "The town had seven wells in its time. ".repeat(40);
    let lines = ["A", "B"].map(|title| json!({"title": title, "text": text}).to_string());
    let data = Data::new();
    data.write("wikipedia/articles.jsonl", lines.join("\n"));
    let none = json!({"documents": 0, "lengths": [], "forced_tokens": 0});
    let of = |documents: u32| {
        let panels = json!([{"kind": "nll", "task": "wikipedia-nll", "length": 64,
            "documents": documents, "targets": 8}]);
        let (protocol, tokenizer) = (protocol(panels, none.clone()), FakeTokenizer::new());
        build(&protocol, &data.resolve(), &tokenizer, &geometry(4096))
    };
    of(1).unwrap();
    assert_eq!(
        of(2).unwrap_err().to_string(),
        "panel nll-64: found case nll-64-0001 with the content of case nll-64-0000, expected each \
         content once"
    );
}

#[test]
fn wrong_tasks_and_failing_tokenizers_are_named() {
    let math = |task: &str| {
        protocol(
            json!([{"kind": "math", "task": task, "cases": 1, "max_new_tokens": 4}]),
            json!({"documents": 0, "lengths": [], "forced_tokens": 0}),
        )
    };
    let data = Data::new();
    data.write(
        "gsm8k/a.jsonl",
        json!({"question": "\u{FFFF}", "answer": "#### 1"}).to_string(),
    );
    let error = |task: &str| {
        build(
            &math(task),
            &data.resolve(),
            &FakeTokenizer::new(),
            &geometry(99),
        )
        .unwrap_err()
        .to_string()
    };
    assert!(
        error("needle")
            .contains("found `needle`, expected a task of kind math: gsm8k, gsm8k-plain")
    );
    assert!(error("gsm8k-plain").contains("panel math: tokenizer: cannot encode"));
}
