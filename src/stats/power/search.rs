//! Searches over whole numbers.

/// The smallest `n` in `low..=high` with `holds(n)`, where `holds` is false up to some number and
/// true from there on; `None` where it is false at `high`. Looks near `guess` first, so that a good
/// guess costs few evaluations.
pub(super) fn smallest<E>(
    (low, high): (u64, u64),
    guess: u64,
    mut holds: impl FnMut(u64) -> Result<bool, E>,
) -> Result<Option<u64>, E> {
    // False below `first`, true at `above`.
    let (mut first, mut above) = (low, None);
    let mut at = guess.clamp(low, high);
    let mut step = (at / 64).max(1);
    loop {
        if holds(at)? {
            above = Some(at);
            if first > low || at == first {
                break;
            }
            at = at.saturating_sub(step).max(first);
        } else {
            first = at + 1;
            if at == high || above.is_some() {
                break;
            }
            at = at.saturating_add(step).min(high);
        }
        step = step.saturating_mul(2);
    }
    let Some(mut above) = above else {
        return Ok(None);
    };
    while first < above {
        let middle = first + (above - first) / 2;
        if holds(middle)? {
            above = middle;
        } else {
            first = middle + 1;
        }
    }
    Ok(Some(above))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_that_holds_is_found_from_any_guess(
            low in 0_u64..50, width in 0_u64..5_000, guess in 0_u64..10_000, first in 0_u64..6_000,
        ) {
            let high = low + width;
            let found = smallest((low, high), guess, |n| Ok::<_, Infallible>(n >= first)).unwrap();
            let expected = (low..=high).find(|&n| n >= first);
            prop_assert_eq!(found, expected);
        }
    }
}
