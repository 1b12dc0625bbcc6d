//! What native against native shows, and what it does not.

use std::collections::BTreeMap;

use crate::schema::{AaResult, Certificate, HTTP_WORKER, IMPORT_WORKER, Verdict};

use super::notes::rules;

/// What the A/A comparison says about differences, in one sentence.
pub(super) fn sentence(certificate: &Certificate) -> String {
    let Some(aa) = &certificate.aa else {
        return "Native was not run a second time: the noise of the worker is not known."
            .to_owned();
    };
    let records = aa.records;
    if records == 0 {
        return "Native was run a second time, but nothing was compared: the noise of the worker is \
                not known."
            .to_owned();
    }
    if !aa.identical_bits {
        return format!(
            "Native was run twice and lost {} and gained {} answers in {records} records against \
             itself: so much of what the recipe loses may be noise.",
            aa.lost, aa.gained
        );
    }
    match certificate.worker.kind.as_str() {
        HTTP_WORKER => format!(
            "The native server, asked twice, repeats itself on these {records} records. A \
             difference may still come from the other server."
        ),
        IMPORT_WORKER => format!("Native, run twice, repeats itself on these {records} records."),
        _ if is_complete(certificate, aa) => format!(
            "Native was run twice and gave the same bits in {records} records: every difference is \
             the recipe's."
        ),
        _ => format!(
            "Native was run twice and gave the same bits in {records} records. These are not all \
             records: of the others the noise is not known."
        ),
    }
}

/// Whether native was compared with itself on all that any control has, as far as the certificate
/// shows it.
fn is_complete(certificate: &Certificate, aa: &AaResult) -> bool {
    let objectives = &certificate.objectives;
    let verdicts = [&objectives.preservation, &objectives.aggregate].map(|result| result.judged());
    if verdicts.contains(&Verdict::Incomplete) {
        return false;
    }
    let mut pairs: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for rule in rules(objectives) {
        pairs.insert((&rule.control, &rule.panel), rule.pairs);
    }
    let mut of_control: BTreeMap<&str, u64> = BTreeMap::new();
    for ((control, _), pairs) in pairs {
        *of_control.entry(control).or_default() += pairs;
    }
    let most = of_control.into_values().max().unwrap_or(0);
    most > 0 && aa.records >= most
}
