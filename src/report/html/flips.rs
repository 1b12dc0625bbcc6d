//! Flips: cases that one arm answers right and the other wrong, both answers side by side.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::certify::{PairedCase, PairedOutcome, PairedPanel};
use crate::schema::{CaseTask, Finish, Record};

use super::HtmlCertificate;
use super::text::{Excerpt, Side, excerpt, side_by_side};

/// Most characters shown of a gold answer, a parsed answer or an article's name.
const SHORT: usize = 200;
/// Most characters of a question that is shown whole.
const QUESTION: usize = 1500;
/// Characters shown of a longer one: its end, where the question stands behind its context.
const QUESTION_END: usize = 400;

/// What was asked, by panel and case.
pub type Questions = BTreeMap<String, BTreeMap<String, String>>;

/// The flips of one recipe on one panel against one control.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FlipList {
    /// Panel name.
    pub panel: String,
    /// Control.
    pub control: String,
    /// Flips from right to wrong.
    pub lost: usize,
    /// Flips from wrong to right.
    pub gained: usize,
    /// Lost ones, then gained ones, in plan order each.
    pub shown: Vec<Flip>,
    /// Lost ones that are not shown.
    pub lost_left_out: usize,
    /// Gained ones that are not shown.
    pub gained_left_out: usize,
}

/// One flip.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flip {
    /// Case.
    pub case: String,
    /// Whether the candidate lost it (gained it otherwise).
    pub lost: bool,
    /// Gold answer.
    pub gold: Option<Excerpt>,
    /// Depth of the needle in per cent.
    pub depth: Option<String>,
    /// What was asked.
    pub question: Option<Question>,
    /// The first differing token in words.
    pub token: Option<String>,
    /// The control's answer, then the candidate's.
    pub answers: [Answer; 2],
}

/// A question, or its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Question {
    /// Characters left out before `text`.
    pub left_out: usize,
    /// The text.
    pub text: String,
}

/// One arm's answer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Answer {
    /// Arm.
    pub arm: String,
    /// Whether it is right.
    pub right: bool,
    /// What the parser made of it.
    pub parsed: Option<Excerpt>,
    /// Whether it was cut by the allowance.
    pub truncated: bool,
    /// The text; absent where the records hold none.
    pub side: Option<Side>,
}

/// The flips of a certificate, at most `most` lost and `most` gained ones per panel and control.
pub(super) fn lists(
    certificate: &HtmlCertificate<'_>,
    questions: &Questions,
    most: usize,
) -> Vec<FlipList> {
    let name = &certificate.certificate.recipe.name;
    let lists = certificate.paired().filter(|paired| has_answers(paired));
    lists
        .map(|paired| list(name, paired, questions, most))
        .collect()
}

/// Cases of which a report with `most` flips per list shows the question, by panel.
pub fn shown_flips<'a>(
    paired: &[PairedPanel<'a>],
    most: usize,
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut cases: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for panel in paired {
        for (_, flips) in flips(panel) {
            let names = flips.iter().take(most).map(|it| it.gold.case.as_str());
            cases.entry(panel.panel).or_default().extend(names);
        }
    }
    cases
}

fn has_answers(paired: &PairedPanel<'_>) -> bool {
    let is_answer = |case: &PairedCase<'_>| matches!(case.outcome, PairedOutcome::Answers { .. });
    paired.cases.iter().any(is_answer)
}

/// Lost cases and gained ones.
fn flips<'p, 'a>(paired: &'p PairedPanel<'a>) -> [(bool, Vec<&'p PairedCase<'a>>); 2] {
    [true, false].map(|lost| {
        let flip = PairedOutcome::Answers {
            control: lost,
            candidate: !lost,
        };
        let cases = paired.cases.iter().filter(|case| case.outcome == flip);
        (lost, cases.collect())
    })
}

fn list(name: &str, paired: &PairedPanel<'_>, questions: &Questions, most: usize) -> FlipList {
    let [(_, lost), (_, gained)] = flips(paired);
    let asked = questions.get(paired.panel);
    let shown = |cases: &[&PairedCase<'_>], is_lost: bool| -> Vec<Flip> {
        let cases = cases.iter().take(most);
        cases
            .map(|case| {
                let question = asked.and_then(|asked| asked.get(&case.gold.case));
                flip((paired.control, name), case, is_lost, question)
            })
            .collect()
    };
    let mut all = shown(&lost, true);
    all.extend(shown(&gained, false));
    FlipList {
        panel: paired.panel.to_owned(),
        control: paired.control.to_owned(),
        lost: lost.len(),
        gained: gained.len(),
        shown: all,
        lost_left_out: lost.len().saturating_sub(most),
        gained_left_out: gained.len().saturating_sub(most),
    }
}

fn flip(
    (control, candidate): (&str, &str),
    case: &PairedCase<'_>,
    lost: bool,
    question: Option<&String>,
) -> Flip {
    let (gold, depth) = match &case.gold.task {
        CaseTask::Math { gold, .. } => (Some(gold), None),
        CaseTask::Retrieval { gold, depth, .. } => (Some(gold), Some(*depth)),
        CaseTask::Imported { gold, .. } => (gold.as_ref(), None),
        CaseTask::Nll { .. } => (None, None),
    };
    let (one, other) = match (&case.control.output, &case.candidate.output) {
        (Some(one), Some(other)) => {
            let (one, other) = side_by_side(one, other);
            (Some(one), Some(other))
        }
        (one, other) => (one.as_deref().map(alone), other.as_deref().map(alone)),
    };
    Flip {
        case: case.gold.case.clone(),
        lost,
        gold: gold.map(|gold| excerpt(gold, SHORT)),
        depth: depth.map(|depth| format!("{:.1}%", 100.0 * depth)),
        question: question.map(|text| shown_question(text)),
        token: first_difference(case.control, case.candidate),
        answers: [
            answer(control, lost, case.control, one),
            answer(candidate, !lost, case.candidate, other),
        ],
    }
}

/// A text that has no counterpart.
fn alone(text: &str) -> Side {
    let shown = excerpt(text, QUESTION);
    Side {
        rest: shown.text,
        left_out_after: shown.left_out,
        ..Side::default()
    }
}

fn answer(arm: &str, right: bool, record: &Record, side: Option<Side>) -> Answer {
    Answer {
        arm: arm.to_owned(),
        right,
        parsed: record.parsed().map(|text| excerpt(text, SHORT)),
        truncated: record.finish == Some(Finish::Length),
        side,
    }
}

/// The first place at which token ids differ; `None` where a record holds no ids or all are equal.
fn first_difference(control: &Record, candidate: &Record) -> Option<String> {
    let (one, other) = (control.output_ids.as_ref()?, candidate.output_ids.as_ref()?);
    let shorter = one.len().min(other.len());
    let at = (0..shorter)
        .find(|&at| one[at] != other[at])
        .or((one.len() != other.len()).then_some(shorter))?;
    let id = |ids: &[u32]| match ids.get(at) {
        Some(id) => format!("id {id}"),
        None => "no token".to_owned(),
    };
    Some(format!(
        "token {}: {} against {}",
        at + 1,
        id(one),
        id(other)
    ))
}

fn shown_question(text: &str) -> Question {
    let length = text.chars().count();
    let left_out = match length > QUESTION {
        true => length - QUESTION_END,
        false => 0,
    };
    Question {
        left_out,
        text: text.chars().skip(left_out).collect(),
    }
}

#[cfg(test)]
mod tests {
    use crate::certify::GoldCase;

    use super::*;

    fn record(ids: &[u32]) -> Record {
        Record {
            output_ids: Some(ids.to_vec()),
            ..Record::default()
        }
    }

    #[test]
    fn the_first_differing_token_is_named_from_one() {
        let difference =
            |one: &[u32], other: &[u32]| first_difference(&record(one), &record(other));
        let expected = "token 2: id 6 against id 7";
        assert_eq!(
            difference(&[5, 6, 2], &[5, 7, 2]).as_deref(),
            Some(expected)
        );
        let expected = "token 3: no token against id 2";
        assert_eq!(difference(&[5, 6], &[5, 6, 2]).as_deref(), Some(expected));
        assert_eq!(difference(&[5], &[5]), None);
        assert_eq!(first_difference(&record(&[1]), &Record::default()), None);
    }

    #[test]
    fn thousands_of_flips_are_bounded_and_counted() {
        let cases: Vec<(GoldCase, Record)> = (0..5000)
            .map(|at| {
                let case = format!("case-{at}");
                let gold = GoldCase {
                    case: case.clone(),
                    case_sha256: case.clone(),
                    prompt_tokens: 1,
                    task: CaseTask::Math {
                        gold: "1".to_owned(),
                        max_new_tokens: 8,
                    },
                };
                let output = Some("#### 1".to_owned());
                (
                    gold,
                    Record {
                        case,
                        output,
                        ..Record::default()
                    },
                )
            })
            .collect();
        let paired = cases
            .iter()
            .enumerate()
            .map(|(at, (gold, record))| PairedCase {
                gold,
                control: record,
                candidate: record,
                outcome: PairedOutcome::Answers {
                    control: at % 5 > 0,
                    candidate: at % 5 == 0,
                },
            });
        let panel = PairedPanel {
            panel: "math",
            control: "native",
            cases: paired.collect(),
        };
        let found = list("AD", &panel, &Questions::new(), 20);
        assert_eq!((found.lost, found.gained), (4000, 1000));
        assert_eq!((found.lost_left_out, found.gained_left_out), (3980, 980));
        assert_eq!(found.shown.len(), 40);
        assert_eq!(
            (found.shown[0].case.as_str(), found.shown[0].lost),
            ("case-1", true)
        );
        assert_eq!(
            (found.shown[20].case.as_str(), found.shown[20].lost),
            ("case-0", false)
        );
        let asked = shown_flips(&[panel], 20);
        assert_eq!(asked["math"].len(), 40);
        let names = found.shown.iter().map(|flip| flip.case.as_str());
        assert_eq!(asked["math"], names.collect());
    }

    #[test]
    fn long_questions_keep_their_end() {
        let text = format!("{}What is the code?", "x".repeat(QUESTION));
        let shown = shown_question(&text);
        assert!(shown.text.ends_with("What is the code?"));
        assert_eq!(shown.text.len() + shown.left_out, text.len());
        assert_eq!(shown_question("short").left_out, 0);
    }
}
