//! Native against native: bit for bit.

use crate::schema::Record;

/// First case, in plan order, whose two records differ in tokens, end, error or NLL bits, and what
/// differs. A case without a second record differs too.
pub(super) fn first_difference(
    first: &[Record],
    second: &[Record],
) -> Option<(String, &'static str)> {
    let unpaired = first.len() != second.len();
    first
        .iter()
        .zip(second)
        .find_map(|(a, b)| difference(a, b).map(|what| (a.case.clone(), what)))
        .or_else(|| {
            let longer = if first.len() > second.len() {
                first
            } else {
                second
            };
            let case = longer.get(first.len().min(second.len()));
            unpaired
                .then(|| case.map_or_else(String::new, |record| record.case.clone()))
                .map(|case| (case, "the number of records"))
        })
}

fn difference(a: &Record, b: &Record) -> Option<&'static str> {
    let nll_bits = |record: &Record| record.nll_sum.map(f64::to_bits);
    let checks = [
        (a.case_sha256 != b.case_sha256, "the case"),
        (a.output_ids != b.output_ids, "the output's tokens"),
        (a.output != b.output, "the output"),
        (a.finish != b.finish, "the finish"),
        (nll_bits(a) != nll_bits(b), "the NLL's bits"),
        (a.error != b.error, "the error"),
    ];
    checks
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nll(case: &str, sum: f64) -> Record {
        Record {
            case: case.to_owned(),
            nll_sum: Some(sum),
            ..Record::default()
        }
    }

    #[test]
    fn names_the_first_difference_down_to_one_bit() {
        let first = [nll("a", 1.0), nll("b", 2.0), nll("c", 3.0)];
        assert_eq!(first_difference(&first, &first.clone()), None);
        let mut second = first.clone();
        second[1].nll_sum = Some(f64::from_bits(2.0f64.to_bits() + 1));
        second[2].nll_sum = Some(4.0);
        assert_eq!(
            first_difference(&first, &second),
            Some(("b".to_owned(), "the NLL's bits"))
        );
        // -0.0 equals 0.0 as a number, and is another result all the same.
        assert!(first_difference(&[nll("a", 0.0)], &[nll("a", -0.0)]).is_some());
    }

    #[test]
    fn a_missing_record_is_a_difference() {
        let first = [nll("a", 1.0), nll("b", 2.0)];
        let found = first_difference(&first, &first[..1]).unwrap();
        assert_eq!(found, ("b".to_owned(), "the number of records"));
        assert!(first_difference(&first[..1], &first).is_some());
    }
}
