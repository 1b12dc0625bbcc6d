//! Resampling of rows with replacement, the same bits for any number of threads.

use rayon::prelude::*;

use super::CounterRng;

/// Resamples per unit of parallel work.
const CHUNK: usize = 256;

/// Draws `resamples` bootstrap samples of the rows and maps the column sums of each through
/// `statistic`. Resample `i` uses stream `i` of the seed and adds its rows in the order drawn, so
/// that entry `i` of the result depends on nothing else. `rows` holds 1 to `u32::MAX` rows.
pub(super) fn resample<const C: usize>(
    rows: &[[f64; C]],
    resamples: u32,
    seed: u64,
    statistic: impl Fn([f64; C]) -> f64 + Sync,
) -> Vec<f64> {
    let mut values = vec![0.0; resamples as usize];
    values
        .par_chunks_mut(CHUNK)
        .enumerate()
        .for_each(|(chunk, values)| {
            for (offset, value) in values.iter_mut().enumerate() {
                let stream = (chunk * CHUNK + offset) as u64;
                *value = statistic(resampled_sums(rows, &CounterRng::new(seed, stream)));
            }
        });
    values
}

/// Column sums of as many rows as there are, drawn with replacement.
///
/// An index takes one 32-bit word: the high half of `word * n`, where words that would favour some
/// indices (`low half < 2^32 mod n`) are passed over, so that every row is exactly equally likely.
pub(super) fn resampled_sums<const C: usize>(rows: &[[f64; C]], rng: &CounterRng) -> [f64; C] {
    let n = rows.len() as u32;
    let threshold = n.wrapping_neg() % n;
    let mut sums = [0.0; C];
    let mut missing = n;
    for block in 0.. {
        for word in rng.block(block).into_iter().flat_map(halves) {
            let product = u64::from(word) * u64::from(n);
            if (product as u32) < threshold {
                continue;
            }
            let row = &rows[(product >> 32) as usize];
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
            missing -= 1;
            if missing == 0 {
                return sums;
            }
        }
    }
    sums
}

fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_equally_likely() {
        // One-hot rows: the sums count how often each row was drawn.
        let rows = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
        let mut counts = [0.0; 3];
        for stream in 0..30_000 {
            let sums = resampled_sums(&rows, &CounterRng::new(11, stream));
            assert_eq!(sums.iter().sum::<f64>(), 3.0);
            for (count, sum) in counts.iter_mut().zip(sums) {
                *count += sum;
            }
        }
        // Chi-square with 2 degrees of freedom: 13.8 is exceeded with probability 0.001.
        let chi_square: f64 = counts
            .iter()
            .map(|c| (c - 30_000.0_f64).powi(2) / 30_000.0)
            .sum();
        assert!(chi_square < 13.8, "{counts:?}");
    }

    #[test]
    fn entries_depend_on_their_index_only() {
        let rows: Vec<[f64; 1]> = (0..37).map(|i| [f64::from(i).sqrt()]).collect();
        let few = resample(&rows, 300, 5, |[sum]| sum);
        let many = resample(&rows, 1_000, 5, |[sum]| sum);
        assert_eq!(few, many[..300]);
        assert_ne!(few, resample(&rows, 300, 6, |[sum]| sum));
    }
}
