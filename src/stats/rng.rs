//! Counter-based random numbers: Philox2x64-10.

/// Multiplier and key increment of Philox2x64 (Salmon et al. 2011, table 2).
const MULTIPLIER: u64 = 0xD2B7_4407_B1CE_6E93;
const WEYL: u64 = 0x9E37_79B9_7F4A_7C15;
const ROUNDS: u32 = 10;

/// A counter-based generator: number `i` of stream `s` under seed `k` is a pure function of
/// `(k, s, i)`, so results depend neither on the number of threads nor on the order of work.
///
/// The function is Philox2x64-10 with key `seed` and counter `(block, stream)`; one block holds two
/// numbers. Not for cryptography.
///
/// Literature: Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3",
/// SC'11.
#[derive(Clone, Debug)]
pub struct CounterRng {
    seed: u64,
    stream: u64,
    next: u64,
}

impl CounterRng {
    /// Stream `stream` of seed `seed`, positioned at its first number.
    pub fn new(seed: u64, stream: u64) -> Self {
        CounterRng {
            seed,
            stream,
            next: 0,
        }
    }

    /// Number `counter` of the stream, uniform over all 64-bit values. Independent of the position
    /// of [`CounterRng::next_u64`].
    pub fn u64_at(&self, counter: u64) -> u64 {
        self.block(counter / 2)[(counter % 2) as usize]
    }

    /// The next number of the stream.
    pub fn next_u64(&mut self) -> u64 {
        let value = self.u64_at(self.next);
        self.next = self.next.wrapping_add(1);
        value
    }

    /// A number in `0..n`, each exactly equally likely (multiply and shift, rejecting the few
    /// products that would favour some results; Lemire 2019, ACM TOMACS 29:3). `n = 0` has no
    /// member to return and gives 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            return 0;
        }
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number uniform on (0, 1), both ends excluded: the middle of one of 2^52 equal parts.
    pub fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// A standard normal number, by the polar form of two uniform ones (Box & Muller 1958, Ann.
    /// Math. Stat. 29:610-611). Takes two numbers of the stream.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }

    /// Puts a slice into an order drawn uniformly from all orders (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }

    /// Block `index` of the stream: numbers `2 * index` and `2 * index + 1`.
    #[inline]
    pub(super) fn block(&self, index: u64) -> [u64; 2] {
        philox([index, self.stream], self.seed)
    }
}

#[inline]
fn philox(mut counter: [u64; 2], mut key: u64) -> [u64; 2] {
    for _ in 0..ROUNDS {
        let product = u128::from(MULTIPLIER) * u128::from(counter[0]);
        counter = [(product >> 64) as u64 ^ key ^ counter[1], product as u64];
        key = key.wrapping_add(WEYL);
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the reference implementation of Philox2x64-10.
    #[test]
    fn philox_gives_the_known_answers() {
        let cases = [
            ([0; 2], 0, [0xca00_a045_9843_d731, 0x66c2_4222_c9a8_45b5]),
            (
                [u64::MAX; 2],
                u64::MAX,
                [0x65b0_21d6_0cd8_310f, 0x4d02_f322_2f86_df20],
            ),
            (
                [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
                0xa409_3822_299f_31d0,
                [0x0a5e_742c_2997_341c, 0xb0f8_83d3_8000_de5d],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn numbers_are_a_function_of_their_place() {
        let mut walking = CounterRng::new(7, 3);
        let fixed = walking.clone();
        for counter in 0..100 {
            assert_eq!(walking.next_u64(), fixed.u64_at(counter));
        }
        assert_ne!(fixed.u64_at(0), CounterRng::new(7, 4).u64_at(0));
        assert_ne!(fixed.u64_at(0), CounterRng::new(8, 3).u64_at(0));
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let mut rng = CounterRng::new(1, 0);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        // Chi-square with 6 degrees of freedom: 22.5 is exceeded with probability 0.001.
        let chi_square: f64 = counts
            .iter()
            .map(|&count| (f64::from(count) - 10_000.0).powi(2) / 10_000.0)
            .sum();
        assert!(chi_square < 22.5, "chi-square {chi_square}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
        assert!((0..100).any(|_| rng.below(u64::MAX) > u64::MAX / 2));
    }

    #[test]
    fn normal_numbers_have_their_moments() {
        let mut rng = CounterRng::new(3, 0);
        let values: Vec<f64> = (0..40_000).map(|_| rng.normal()).collect();
        let moment = |k: i32| values.iter().map(|z| z.powi(k)).sum::<f64>() / 40_000.0;
        // Four standard errors of each moment: sqrt(1), sqrt(2), sqrt(96) over 200.
        assert!(moment(1).abs() < 0.02);
        assert!((moment(2) - 1.0).abs() < 0.03);
        assert!((moment(4) - 3.0).abs() < 0.2);
        assert!((0..1_000).all(|_| (f64::MIN_POSITIVE..1.0).contains(&rng.unit())));
    }

    #[test]
    fn shuffle_permutes() {
        let mut items: Vec<u32> = (0..50).collect();
        CounterRng::new(5, 5).shuffle(&mut items);
        let mut sorted = items.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        assert_ne!(items, sorted);
        let mut again: Vec<u32> = (0..50).collect();
        CounterRng::new(5, 5).shuffle(&mut again);
        assert_eq!(items, again);
    }
}
