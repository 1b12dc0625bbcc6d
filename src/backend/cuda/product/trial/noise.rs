//! What algorithms are run on.

/// Numbers in -1..1 from a counter.
pub fn noise_of(count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            let bits = i.wrapping_mul(0x9e37_79b1) ^ i.wrapping_mul(0x85eb_ca6b).rotate_left(13);
            let bits = (bits ^ (bits >> 15)).wrapping_mul(0x2c1b_3c6d);
            ((bits ^ (bits >> 12)) >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_fills_its_interval_without_repeating() {
        let noise = noise_of(100_000);
        let mean = noise.iter().map(|&x| f64::from(x)).sum::<f64>() / noise.len() as f64;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!(noise.iter().all(|x| (-1.0..1.0).contains(x)));
        let mut bits: Vec<u32> = noise.iter().map(|x| x.to_bits()).collect();
        bits.sort_unstable();
        bits.dedup();
        assert!(bits.len() > 99_000, "{}", bits.len());
    }
}
