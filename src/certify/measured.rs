//! Measured coverage of the bootstrap bound, in the words of a caveat.

/// Alphas at which coverage was measured, from large to small.
const ALPHAS: [(f64, &str); 3] = [
    (0.05, "0.05"),
    (0.05 / 8.0, "0.05/8"),
    (0.05 / 24.0, "0.05/24"),
];

/// True error of the upper bound over alpha, by documents: for normal, heavy-tailed and skewed
/// differences, each at the three alphas. From `examples/coverage.rs`; docs/statistics.md gives the
/// standard errors.
const ERRORS: [(u32, [[f64; 3]; 3]); 3] = [
    (
        32,
        [[1.01, 1.56, 2.16], [1.29, 2.28, 3.36], [2.87, 9.04, 17.28]],
    ),
    (
        64,
        [[1.22, 1.72, 2.04], [1.17, 1.68, 2.28], [2.54, 7.04, 14.04]],
    ),
    (
        128,
        [[1.04, 1.32, 1.20], [1.03, 1.48, 1.56], [1.96, 4.48, 7.80]],
    ),
];

/// One sentence per number of documents that were compared (`compared`, with the panel's name), with the
/// figures of the nearest case on the unfavourable side: no more documents, no larger alpha. Panels with
/// fewer documents than were measured have none.
pub(super) fn bootstrap_errors(compared: &[(String, u32)], alpha: f64) -> Vec<String> {
    let mut panels: Vec<(u32, Vec<String>)> = Vec::new();
    for (name, documents) in compared {
        match panels.iter_mut().find(|(of, _)| of == documents) {
            Some((_, names)) => names.push(name.clone()),
            None => panels.push((*documents, vec![name.clone()])),
        }
    }
    panels
        .iter()
        .filter_map(|(documents, names)| sentence(*documents, alpha, names))
        .collect()
}

fn sentence(documents: u32, alpha: f64, names: &[String]) -> Option<String> {
    let (measured, errors) = ERRORS.iter().rev().find(|(of, _)| *of <= documents)?;
    // A quotient of decimals may round to either side of the same quotient.
    let at = ALPHAS
        .iter()
        .position(|(of, _)| *of <= alpha * (1.0 + 1e-9));
    let column = at.unwrap_or(ALPHAS.len() - 1);
    let smaller = if at.is_none() {
        " (smaller ones were not measured)"
    } else {
        ""
    };
    let [normal, heavy, skewed] = errors.map(|row| row[column]);
    Some(format!(
        "{}: at {measured} documents and alpha {}{smaller}, simulated bootstrap bounds missed the \
         truth {normal:.1} times as often as alpha says where differences were normal, {heavy:.1} \
         times with heavy tails, {skewed:.1} times where they were skewed.",
        names.join(", "),
        ALPHAS[column].1
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences([first, second]: [u32; 2], divisor: u32) -> Vec<String> {
        let compared = [("nll-1k".to_owned(), first), ("nll-8k".to_owned(), second)];
        bootstrap_errors(&compared, 0.05 / f64::from(divisor))
    }

    #[test]
    fn the_nearest_case_on_the_unfavourable_side_is_cited() {
        let found = sentences([64, 64], 24);
        assert_eq!(
            found,
            [
                "nll-1k, nll-8k: at 64 documents and alpha 0.05/24, simulated bootstrap bounds \
                 missed the truth 2.0 times as often as alpha says where differences were normal, \
                 2.3 times with heavy tails, 14.0 times where they were skewed."
            ]
        );
        let found = sentences([100, 500], 8);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("nll-1k: at 64 documents and alpha 0.05/8, "));
        assert!(found[1].starts_with("nll-8k: at 128 documents and alpha 0.05/8, "));
        let found = sentences([31, 32], 12);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("nll-8k: at 32 documents and alpha 0.05/24, "));
        let found = sentences([32, 32], 25);
        assert!(found[0].contains("alpha 0.05/24 (smaller ones were not measured)"));
    }
}
