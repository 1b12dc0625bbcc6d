//! What it would take for a rule to pass at the rates that were observed.

use crate::schema::{RuleName, RuleOutlook, RuleResult};
use crate::stats::{
    AssumedIncrease, Criterion, Needed, Rates, StatsError, documents_for_increase, pairs_for_loss,
    pairs_for_net_change,
};

/// Probabilities of passing that an outlook is about.
pub const POWERS: [f64; 2] = [0.8, 0.95];

/// How many pairs the rule would need; `None` where it passed, or where its result lacks the
/// figures that an outlook rests on. A pure function of the result.
///
/// Rules on counts take the observed rates for the true ones and enumerate; the NLL rule takes the
/// observed increase and its spread over documents, by normal approximation.
pub fn outlook(result: &RuleResult) -> Option<RuleOutlook> {
    if result.pass {
        return None;
    }
    let [low, high] = POWERS.map(|power| needed(result, power));
    let (low, high) = (low?.ok()?, high?.ok()?);
    let pairs = |needed| match needed {
        Needed::Pairs(pairs) => Some(pairs),
        Needed::BeyondLimit | Needed::OutOfReach => None,
    };
    Some(RuleOutlook {
        rule: result.rule.clone(),
        panel: result.panel.clone(),
        control: result.control.clone(),
        pairs: result.pairs,
        needed_80: pairs(low),
        needed_95: pairs(high),
        beyond_limit: low == Needed::BeyondLimit,
        approximate: result.rule == RuleName::Nll.name(),
    })
}

fn needed(result: &RuleResult, power: f64) -> Option<Result<Needed, StatsError>> {
    let criterion = Criterion {
        alpha: result.alpha,
        limit: result.limit,
    };
    let rate = |count: u64| count as f64 / result.pairs as f64;
    let rule = RuleName::ALL
        .into_iter()
        .find(|rule| rule.name() == result.rule)?;
    Some(match rule {
        RuleName::GrossLoss | RuleName::Retrieval => {
            pairs_for_loss(rate(result.lost?), criterion, power)
        }
        RuleName::NetChange => {
            let (loss, gain) = (rate(result.lost?), rate(result.gained?));
            pairs_for_net_change(Rates { loss, gain }, criterion, power)
        }
        RuleName::Nll => {
            let assumed = AssumedIncrease {
                mean: result.estimate,
                sd: result.document_sd?,
            };
            documents_for_increase(assumed, criterion, power)
        }
    })
}

/// The fewest pairs with which a rule on counts passes where nothing is lost and nothing gained;
/// `None` where no number up to 100,000 does, and for the NLL rule, which passes at any. A pure
/// function of the rule's alpha and limit.
pub fn least_pairs(result: &RuleResult) -> Option<u64> {
    let criterion = Criterion {
        alpha: result.alpha,
        limit: result.limit,
    };
    let rule = RuleName::ALL
        .into_iter()
        .find(|rule| rule.name() == result.rule)?;
    // Without loss there is no chance in it: the probability of passing is 0 or 1.
    let [power, _] = POWERS;
    let needed = match rule {
        RuleName::GrossLoss | RuleName::Retrieval => pairs_for_loss(0.0, criterion, power),
        RuleName::NetChange => pairs_for_net_change(Rates::new(0.0, 0.0).ok()?, criterion, power),
        RuleName::Nll => return None,
    };
    match needed.ok()? {
        Needed::Pairs(pairs) => Some(pairs),
        Needed::BeyondLimit | Needed::OutOfReach => None,
    }
}
