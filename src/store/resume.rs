//! What is left of a plan: a pure function of plan and records.

use std::collections::HashSet;
use std::fmt;

use crate::schema::Record;

/// A planned case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseKey {
    /// Case name, unique within a plan.
    pub case: String,
    /// SHA-256 of the case's line in the panel file.
    pub case_sha256: String,
}

/// The first record that is not the one which the plan has at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanFault {
    /// The case has a record already.
    Duplicate {
        /// Line from 1.
        line: usize,
        /// Case name.
        case: String,
        /// Line of its first record.
        first: usize,
    },
    /// The plan has another case here.
    Order {
        /// Line from 1.
        line: usize,
        /// Case name.
        case: String,
        /// Name of the planned case.
        expected: String,
    },
    /// The plan has no further case.
    Beyond {
        /// Line from 1.
        line: usize,
        /// Case name.
        case: String,
        /// Number of planned cases.
        planned: usize,
    },
    /// The right name, but another content than the plan's.
    Content {
        /// Line from 1.
        line: usize,
        /// Case name.
        case: String,
        /// Digest in the record.
        found: String,
        /// Digest in the plan.
        expected: String,
    },
}

impl PlanFault {
    /// Line of the record, from 1.
    pub fn line(&self) -> usize {
        match self {
            PlanFault::Duplicate { line, .. }
            | PlanFault::Order { line, .. }
            | PlanFault::Beyond { line, .. }
            | PlanFault::Content { line, .. } => *line,
        }
    }

    /// The same fault with other lines, such as those of a file.
    pub(super) fn in_lines(mut self, of: impl Fn(usize) -> usize) -> Self {
        match &mut self {
            PlanFault::Duplicate { line, first, .. } => {
                *line = of(*line);
                *first = of(*first);
            }
            PlanFault::Order { line, .. }
            | PlanFault::Beyond { line, .. }
            | PlanFault::Content { line, .. } => *line = of(*line),
        }
        self
    }
}

impl fmt::Display for PlanFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanFault::Duplicate { case, first, .. } => {
                write!(
                    f,
                    "found a second record of case {case}, the first is in line {first}"
                )
            }
            PlanFault::Order { case, expected, .. } => {
                write!(f, "found case {case}, expected case {expected}")
            }
            PlanFault::Beyond { case, planned, .. } => {
                write!(
                    f,
                    "found case {case}, expected the end after {planned} cases"
                )
            }
            PlanFault::Content {
                case,
                found,
                expected,
                ..
            } => write!(
                f,
                "case {case}: found case_sha256 {found}, expected {expected}"
            ),
        }
    }
}

/// The cases of `plan` that have no record yet. `records` must be the plan's beginning, in its
/// order.
///
/// # Errors
/// [`PlanFault`] for the first record that is not the planned one.
pub fn remaining<'a>(plan: &'a [CaseKey], records: &[Record]) -> Result<&'a [CaseKey], PlanFault> {
    for at in 0..records.len() {
        check_at(plan, records, at)?;
    }
    Ok(&plan[records.len()..])
}

/// The places of the records that are the first of their case. A run writes no others: what was
/// doubled behind it makes the evidence incomplete, and is no record of a case that is left.
pub fn first_of_each(records: &[Record]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let is_first = |at: &usize| {
        let record = &records[*at];
        seen.insert((record.case.as_str(), record.case_sha256.as_str()))
    };
    (0..records.len()).filter(is_first).collect()
}

/// Checks that record number `at` is what the plan has there.
fn check_at(plan: &[CaseKey], records: &[Record], at: usize) -> Result<(), PlanFault> {
    let record = &records[at];
    let line = at + 1;
    let case = record.case.clone();
    let planned = plan.get(at);
    if planned.is_some_and(|key| key.case == record.case && key.case_sha256 == record.case_sha256) {
        return Ok(());
    }
    // Only a fault is worth the search: every earlier record is the planned one.
    if let Some(first) = records[..at]
        .iter()
        .position(|other| other.case == record.case)
    {
        let first = first + 1;
        return Err(PlanFault::Duplicate { line, case, first });
    }
    Err(match planned {
        None => PlanFault::Beyond {
            line,
            case,
            planned: plan.len(),
        },
        Some(key) if key.case == record.case => PlanFault::Content {
            line,
            case,
            found: record.case_sha256.clone(),
            expected: key.case_sha256.clone(),
        },
        Some(key) => PlanFault::Order {
            line,
            case,
            expected: key.case.clone(),
        },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(n: usize) -> Vec<CaseKey> {
        (0..n)
            .map(|i| CaseKey {
                case: format!("c{i}"),
                case_sha256: format!("{i:064}"),
            })
            .collect()
    }

    fn record(i: usize) -> Record {
        Record {
            case: format!("c{i}"),
            case_sha256: format!("{i:064}"),
            ..Record::default()
        }
    }

    /// By sets of names, without looking at positions: the records are good exactly if they are
    /// as many different planned cases as there are records, none of them later than the number
    /// of records, each in ascending order.
    fn oracle(planned: usize, indices: &[usize]) -> Option<Vec<usize>> {
        let ascending = indices.windows(2).all(|pair| pair[0] < pair[1]);
        let early = indices.iter().all(|&i| i < indices.len() && i < planned);
        (ascending && early).then(|| (0..planned).filter(|i| !indices.contains(i)).collect())
    }

    proptest! {
        #[test]
        fn agrees_with_the_oracle(
            planned in 0usize..6,
            records in prop_oneof![
                (0usize..7).prop_map(|n| (0..n).collect::<Vec<_>>()),
                prop::collection::vec(0usize..7, 0..7),
            ]
        ) {
            let plan = plan(planned);
            let stored: Vec<Record> = records.iter().map(|&i| record(i)).collect();
            let left = remaining(&plan, &stored).ok().map(|left| {
                left.iter().map(|key| key.case[1..].parse().unwrap()).collect::<Vec<usize>>()
            });
            prop_assert_eq!(left, oracle(planned, &records));
        }

        #[test]
        fn a_changed_digest_anywhere_is_found(planned in 1usize..9, at in 0usize..9) {
            let at = at % planned;
            let mut stored: Vec<Record> = (0..planned).map(record).collect();
            stored[at].case_sha256 = "f".repeat(64);
            let fault = remaining(&plan(planned), &stored).unwrap_err();
            let is_content = matches!(&fault, PlanFault::Content { .. });
            prop_assert!(is_content);
            prop_assert_eq!(fault.line(), at + 1);
        }
    }

    #[test]
    fn faults_say_what_was_found_and_expected() {
        let message = |indices: &[usize]| {
            let stored: Vec<Record> = indices.iter().map(|&i| record(i)).collect();
            let fault = remaining(&plan(3), &stored).unwrap_err();
            format!("{}: {fault}", fault.line())
        };
        assert_eq!(
            message(&[0, 1, 0]),
            "3: found a second record of case c0, the first is in line 1"
        );
        assert_eq!(message(&[0, 2]), "2: found case c2, expected case c1");
        assert_eq!(
            message(&[0, 1, 2, 3]),
            "4: found case c3, expected the end after 3 cases"
        );
    }
}
