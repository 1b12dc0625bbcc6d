//! Sentences about what a verdict hangs on: pairs that a rule would need, and single documents.

use crate::certify::POWERS;
use crate::schema::{Influence, Objectives, RuleOutlook, RuleResult};
use crate::stats::MAX_PAIRS_SOUGHT;

use super::figure::bound_and_limit;
use super::notes::rules;

/// Share of the differences above which one document is named whatever the verdict.
const LARGE_SHARE: f64 = 0.5;

/// What each rule that failed would need; a rule that serves both objectives is named once.
pub(super) fn outlooks(objectives: &Objectives) -> Vec<String> {
    let both = [&objectives.preservation, &objectives.aggregate];
    let mut sentences: Vec<String> = Vec::new();
    for outlook in both.into_iter().flat_map(|result| &result.outlook) {
        let sentence = outlook_sentence(outlook);
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    sentences
}

fn outlook_sentence(outlook: &RuleOutlook) -> String {
    let RuleOutlook {
        rule,
        panel,
        control,
        pairs,
        ..
    } = outlook;
    let place = format!("{rule} on {panel} against {control}");
    if outlook.beyond_limit {
        return format!(
            "{place}: the estimate itself is at the limit or beyond, more pairs alone would not do"
        );
    }
    let about = if outlook.approximate { "about " } else { "" };
    let needed = |pairs: Option<u64>| match pairs {
        Some(pairs) => format!("{about}{pairs}"),
        None => format!("more than {MAX_PAIRS_SOUGHT}"),
    };
    format!(
        "{place}: if what was observed on {pairs} pairs held, {} would pass with probability {}, {} \
         with {}",
        needed(outlook.needed_80),
        POWERS[0],
        needed(outlook.needed_95),
        POWERS[1]
    )
}

/// Documents without which an NLL rule would be judged otherwise, or that carry most of the
/// differences.
pub(super) fn influences(objectives: &Objectives) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for rule in rules(objectives) {
        let found = rule.influence.as_ref();
        if let Some(sentence) = found.and_then(|found| influence_sentence(rule, found))
            && !sentences.contains(&sentence)
        {
            sentences.push(sentence);
        }
    }
    sentences
}

fn influence_sentence(rule: &RuleResult, influence: &Influence) -> Option<String> {
    let passes_without = influence.bound_without <= rule.limit;
    let turns = passes_without != rule.pass;
    if !turns && influence.share.abs() <= LARGE_SHARE {
        return None;
    }
    let judged = match (turns, passes_without) {
        (true, true) => "the rule would hold",
        (true, false) => "the rule would not hold",
        (false, _) => "the rule is judged alike",
    };
    let [without, _] = bound_and_limit(&rule.rule, influence.bound_without, rule.limit);
    Some(format!(
        "{} on {} against {}: document {} carries {:+.0}% of the absolute differences; without it \
         the bound is {without} and {judged} (a diagnosis, no verdict)",
        rule.rule,
        rule.panel,
        rule.control,
        influence.case,
        100.0 * influence.share
    ))
}
