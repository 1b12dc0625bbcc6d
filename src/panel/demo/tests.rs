//! What generated texts promise.

use std::collections::HashSet;

use super::*;
use crate::stats::CounterRng;

#[test]
fn solutions_are_right_line_by_line() {
    let mut rng = CounterRng::new(7, 0);
    for _ in 0..500 {
        let problem = problem(&mut rng);
        let mut last = None;
        for line in problem.solution.lines() {
            let Some(answer) = line.strip_prefix("#### ") else {
                let words: Vec<&str> = line.split(' ').collect();
                let [a, sign, b, "=", result] = words[..] else {
                    panic!("{line}");
                };
                let (a, b): (u32, u32) = (a.parse().unwrap(), b.parse().unwrap());
                let value = match sign {
                    "+" => a + b,
                    "-" => a - b,
                    "*" => a * b,
                    _ => a / b,
                };
                assert_eq!(value.to_string(), result, "{line}");
                assert!(last.is_none_or(|last| last == a), "{line}");
                last = Some(value);
                continue;
            };
            assert_eq!(answer, problem.answer.to_string());
        }
        assert_eq!(last, Some(problem.answer));
        assert!(problem.question.ends_with("have now?"));
    }
}

#[test]
fn keys_differ_and_needles_hold_their_value() {
    let mut rng = CounterRng::new(7, 1);
    let keys = keys(&mut rng, 159);
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 159);
    for key in keys {
        let (sentence, value) = needle(&mut rng, key);
        assert_eq!(value.len(), 4);
        assert_eq!(sentence, format!("The code of {key} is {value}."));
        assert!(needle_question(key).contains(key));
    }
}

#[test]
fn articles_come_back_to_their_facts() {
    let mut rng = CounterRng::new(7, 2);
    let article = article(&mut rng, 40);
    assert!(article.text.matches(&article.title).count() > 5);
    assert!(article.text.lines().count() > 5);
}
