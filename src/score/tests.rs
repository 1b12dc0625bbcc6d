//! Tables of outputs with the one answer that each may give.

use proptest::prelude::*;

use super::*;

fn answer(output: &str) -> Option<String> {
    parse_answer(Parser::Gsm8k1, output).map(|answer| answer.to_string())
}

fn check(cases: &[(&str, Option<&str>)], read: fn(&str) -> Option<String>) {
    let wrong: Vec<_> = cases
        .iter()
        .map(|(output, expected)| (output, read(output), expected))
        .filter(|(_, found, expected)| found.as_deref() != **expected)
        .collect();
    assert!(wrong.is_empty(), "(output, found, expected): {wrong:#?}");
}

#[test]
fn numbers_in_every_dress() {
    let cases = [
        ("29", Some("29")),
        ("29.00", Some("29")),
        ("$29.00", Some("29")),
        ("$29.00.", Some("29")),
        ("\\$29", Some("29")),
        ("$ 29", Some("29")),
        ("29 $", Some("29")),
        ("€29.50", Some("29.5")),
        ("£29", Some("29")),
        ("US$29", Some("29")),
        ("29€", Some("29")),
        ("-5", Some("-5")),
        ("\u{2212}5", Some("-5")),
        ("-$5", Some("-5")),
        ("$-5", Some("-5")),
        ("+5", Some("5")),
        ("-0", Some("0")),
        ("1,234", Some("1234")),
        ("$1,234.00.", Some("1234")),
        ("1{,}234", Some("1234")),
        ("1,\\!234", Some("1234")),
        ("1\u{202F}234", Some("1234")),
        ("1\u{2009}234\u{2009}567.5", Some("1234567.5")),
        ("1\u{A0}234", Some("1234")),
        ("1\\,234", Some("1234")),
        ("1,450,000", Some("1450000")),
        ("50%", Some("50")),
        ("50\\%", Some("50")),
        ("18 eggs", Some("18")),
        ("18 dollars per day.", Some("18")),
        ("18...", Some("18")),
        ("18... done", Some("18")),
        ("...18", Some("18")),
        (".5", Some("0.5")),
        ("**18**", Some("18")),
        ("*18*", Some("18")),
        ("`18`", Some("18")),
        ("1/2", Some("0.5")),
        ("-3/4", Some("-0.75")),
        ("\\frac{3}{4}", Some("0.75")),
        ("\\dfrac{16}{2}", Some("8")),
        ("1e3", Some("1000")),
        ("1.5E-2", Some("0.015")),
        ("18\\text{ dollars}", Some("18")),
        ("\\text{18}", Some("18")),
        ("\\boxed{\\$18}", Some("18")),
        ("9 * 2 = <<9*2=18>>18", Some("18")),
        ("x = 18", Some("18")),
        ("9*2 = 18", Some("18")),
        ("5/day", Some("5")),
        ("3-year-old", Some("3")),
        ("5th", Some("5")),
        ("18 (18)", Some("18")),
        ("18 - that is all", Some("18")),
    ];
    check(&cases, |text| {
        Decimal::parse(text).map(|value| value.to_string())
    });
}

#[test]
fn what_can_be_read_in_two_ways_is_not_read() {
    let cases = [
        "",
        "eggs",
        "1,23",
        "12,34,567",
        "1.234,56",
        "1.2.3",
        "1234,567",
        "0,123",
        "1,2,3",
        "1 234",
        "12 345",
        "1'234",
        "1_234",
        "3:30",
        "1/3",
        "1/2/3",
        "1 1/2",
        "1\\frac{1}{2}",
        "\\frac{x}{2}",
        "\\sqrt{2}",
        "10^3",
        "2**3",
        "10^{-3}",
        "2 \\times 10^3",
        "10²",
        "½",
        "1½",
        "18k",
        "18K",
        "2M",
        "2x",
        "2 million",
        "2.5 thousand",
        "3 dozen",
        "2 and a half",
        "5-10",
        "5–10",
        "–5",
        "±5",
        "--5",
        "10 -5",
        "= - 5",
        "- 5",
        "5 and 6",
        "5 or 6",
        "x = 5, y = 6",
        "9*2",
        "2*2",
        "18 + x",
        "x + 18",
        "COVID-19",
        "A1",
        "x_1",
        "USD18",
        "Rs.5",
        "not 18",
        "isn't 18",
        "１８",
        "١٨",
        "1e999",
        "2. Add the eggs",
        "18 = 9 * 2",
        "1\u{2009}23",
    ];
    let read: Vec<_> = cases
        .iter()
        .filter_map(|text| Some((text, Decimal::parse(text)?)))
        .collect();
    assert!(read.is_empty(), "{read:?}");
}

#[test]
fn the_mark_that_the_task_asks_for_comes_first() {
    check(
        &[
            ("She makes 9 * 2 = 18.\n#### 18", Some("18")),
            ("#### 18.00", Some("18")),
            ("####18", Some("18")),
            ("#### $1,234", Some("1234")),
            ("#### **18**", Some("18")),
            ("#### \\boxed{18}", Some("18")),
            ("#### <18>", Some("18")),
            ("#### -5", Some("-5")),
            ("#### \u{2212}5", Some("-5")),
            ("#### - 5", None),
            ("####\n18", Some("18")),
            ("##### 18", Some("18")),
            ("#### Answer: 18", Some("18")),
            ("#### x = 18", Some("18")),
            ("#### 9 * 2 = 18", Some("18")),
            ("#### 9 * 2", None),
            ("#### 5 or 6\nSo 7.", None),
            ("#### 18 eggs\nThere are 7 days in a week.", Some("18")),
            // The last mark wins, a recited one before it does not.
            ("#### 5 ... #### 18", Some("18")),
            ("#### 5\nWait, that was the example.\n#### 18", Some("18")),
            // Headings are no marks.
            (
                "#### Step 1: 5 eggs\n#### Step 2\nThe answer is 18.",
                Some("18"),
            ),
            (
                "#### 1. Add\n5 eggs\n#### 2. Double\nThe answer is 18.",
                Some("18"),
            ),
            ("#### <number>\nThe answer is 18.", Some("18")),
            // An item's number or the answer: nothing follows, so nobody can tell.
            ("So \\boxed{7}.\n#### 18. That is all.", None),
            ("\\boxed{7}\n#### 18", Some("18")),
        ],
        answer,
    );
}

#[test]
fn boxes_phrases_and_last_numbers_follow_in_order() {
    check(
        &[
            ("It is \\boxed{18}.", Some("18")),
            ("First \\boxed{5}, then \\boxed{18}. In 7 days", Some("18")),
            ("\\boxed{\\$18}", Some("18")),
            ("\\boxed{1{,}234}", Some("1234")),
            ("\\boxed{18\\text{ dollars}}", Some("18")),
            ("\\boxed{\\frac{1}{2}}", Some("0.5")),
            ("\\boxed{\\frac{1}{3}} of 12", None),
            ("\\boxed{x = 18}", Some("18")),
            ("\\boxed{18", Some("18")),
            ("\\boxed{no answer} 5", None),
            ("The answer is $29.00.", Some("29")),
            ("The answer is: 18. There are 7 days.", Some("18")),
            ("The answer is that she makes $18 every day.", Some("18")),
            ("The final answer is **18**.", Some("18")),
            ("The answer is\n\n18 dollars", Some("18")),
            ("**Answer:** 18", Some("18")),
            ("**Answer**: 18 eggs", Some("18")),
            ("Answer: 18.\nThere are 7 days.", Some("18")),
            ("The answer is not 18.", None),
            ("The answer is 5 or 6.", None),
            ("The answer is 18... done", Some("18")),
            ("Is my answer right? Yes: she makes 18.", Some("18")),
            // `Answer:` heads the solution here.
            (
                "Answer: 16 - 3 - 4 = 9 eggs are left.\nShe makes 9 * 2 = 18",
                Some("18"),
            ),
            (
                "Answer: Janet sells 9 eggs.\nShe makes 18 dollars.",
                Some("18"),
            ),
            ("She makes 9 * 2 = $18 every day.", Some("18")),
            ("She makes 9 * 2 = $<<9*2=18>>18.", Some("18")),
            ("so 18...", Some("18")),
            ("a loss of \u{2212}18", Some("-18")),
            ("eggs:\n- 18", Some("18")),
            ("5 eggs, then 1.2.3", None),
            ("it is 9 * 2", None),
            ("10 - 5 = 5", Some("5")),
            ("I do not know.", None),
            ("", None),
        ],
        answer,
    );
}

#[test]
fn only_the_models_own_answer_counts() {
    check(
        &[
            (
                "#### 18\n\nQuestion: Tom has 3.\nAnswer: 3\n#### 3",
                Some("18"),
            ),
            ("18\n\nQ: Tom has 3.\nA: 3", Some("18")),
            ("18\nQuestion 2: Tom has 3", Some("18")),
            ("18\n**Problem:** Tom has 3", Some("18")),
            ("18\nHuman: and 5?\nAssistant: 6", Some("18")),
            ("18\n<|im_start|>user\n5", Some("18")),
            ("Question: she has 16.\nAnswer:\n#### 18", Some("18")),
            ("Sure!\nQuestion: she has 16.\n#### 18", Some("18")),
            ("<think>\n#### 5\n</think>\n#### 18", Some("18")),
            ("<think>5</think>", None),
        ],
        answer,
    );
}

#[test]
fn the_secondary_parser_takes_the_last_number() {
    check(
        &[
            ("#### 18\nThere are 7 days.", Some("7")),
            ("\\boxed{18}", Some("18")),
            ("no", None),
            ("18 eggs, 1,23 dollars", None),
        ],
        |output| parse_answer(Parser::Gsm8kLastNumber1, output).map(|answer| answer.to_string()),
    );
}

#[test]
fn unparsed_and_truncated_answers_are_wrong() {
    let gold = Decimal::parse("29").unwrap();
    let answer = parse_answer(Parser::Gsm8k1, "is $29.00.");
    assert!(math_correct(answer.as_ref(), &gold, false));
    assert!(!math_correct(answer.as_ref(), &gold, true));
    assert!(!math_correct(None, &gold, false));
    assert!(!math_correct(Decimal::parse("2.9").as_ref(), &gold, false));
}

#[test]
fn parsers_have_names() {
    for parser in Parser::ALL {
        assert_eq!(Parser::from_name(parser.name()), Some(parser));
    }
    assert_eq!(Parser::from_name("gsm8k/2"), None);
    assert!(!Parser::secondary().contains(&Parser::Gsm8k1));
}

#[test]
fn needles_are_found_exactly() {
    let gold = "4812907";
    for output in [
        "4812907",
        " 4812907.",
        "The code is **4812907**.",
        "4,812,907",
        "The 2nd code: 4812907",
        "4812907, I repeat: 4812907",
    ] {
        assert!(retrieval_correct(output, gold, false), "{output}");
        assert!(!retrieval_correct(output, gold, true), "{output}");
    }
    for output in [
        "",
        "481290",
        "48129071",
        "4812908",
        "4812907 or 5555555",
        "1111111, no: 4812907",
        "-4812907",
        "4812907k",
        "code4812907",
        "4 812 907",
        "4812907.5",
        "unknown",
    ] {
        assert!(!retrieval_correct(output, gold, false), "{output}");
    }
    assert!(retrieval_correct(" amber \n", "amber", false));
    assert!(!retrieval_correct("not amber", "amber", false));
    assert!(retrieval_correct("42", "42", false));
}

fn with_separators(digits: &str, separator: &str) -> String {
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push_str(separator);
        }
        out.push(digit);
    }
    out
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        for parser in Parser::ALL {
            parse_answer(parser, &text);
        }
        retrieval_correct(&text, "4812907", false);
    }

    #[test]
    fn no_text_of_marks_panics(text in r"[-+0-9.,$ #*\\{}=/^_\n:a-eA-E<>|\x{2212}\x{2009}½]{0,60}") {
        for parser in Parser::ALL {
            parse_answer(parser, &text);
        }
        parse_answer(Parser::Gsm8k1, &format!("#### {text}\n\\boxed{{{text}}} answer is {text}"));
    }

    #[test]
    fn what_is_written_reads_back(
        negative in any::<bool>(), integer in "[0-9]{1,30}", fraction in "[0-9]{0,12}",
    ) {
        let sign = if negative { "-" } else { "" };
        let text = format!("{sign}{integer}.{fraction}");
        let value = Decimal::parse(text.trim_end_matches('.')).unwrap();
        prop_assert_eq!(Decimal::parse(&value.to_string()), Some(value.clone()));
        for output in [format!("#### {value}"), format!("\\boxed{{{value}}}"), format!("answer is {value}."), format!("so {value}")] {
            prop_assert_eq!(parse_answer(Parser::Gsm8k1, &output), Some(value.clone()));
        }
    }

    #[test]
    fn separators_keep_the_value(
        digits in "[1-9][0-9]{0,15}", separator in "(,|\\{,\\}|\u{2009}|\u{202F}|\u{A0})",
        negative in any::<bool>(), currency in "[$€£]?", period in "\\.?",
    ) {
        let sign = if negative { "\u{2212}" } else { "" };
        let plain = Decimal::parse(&format!("{}{digits}", if negative { "-" } else { "" }));
        prop_assert!(plain.is_some());
        let dressed = format!("{sign}{currency}{}{period}", with_separators(&digits, &separator));
        prop_assert_eq!(Decimal::parse(&dressed), plain.clone());
        prop_assert_eq!(parse_answer(Parser::Gsm8k1, &format!("Total:\n#### {dressed}")), plain);
    }
}
