//! Exponentials that the compiler vectorises and that have the same bits on every machine, which
//! a system's mathematics library does not promise.

/// Adding and subtracting this rounds an f32 of moderate size to a whole number, whose value then
/// stands in the lowest mantissa bits of the sum.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// `2^x` with a relative error below 2e-7; 0 below -126, `2^127` above 127, NaN for NaN.
/// `exp2(0)` is exactly 1.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // Comparisons, unlike `min`, let NaN through.
    let clipped = if x > 127.0 { 127.0 } else { x };
    let rounded = clipped + ROUND;
    let whole = rounded - ROUND;
    let fraction = clipped - whole;
    let power = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    let result = fraction_exp2(fraction) * power;
    if x < -126.0 { 0.0 } else { result }
}

/// `2^f` for |f| <= 1/2: the Taylor series of `exp(f ln 2)` to the seventh power, whose remainder
/// is below 1e-8.
#[inline(always)]
fn fraction_exp2(f: f32) -> f32 {
    const COEFFICIENTS: [f32; 7] = [
        1.525_273_4e-5,
        1.540_353e-4,
        1.333_355_8e-3,
        9.618_129e-3,
        5.550_411e-2,
        2.402_265e-1,
        6.931_472e-1,
    ];
    let mut sum = COEFFICIENTS[0];
    for c in &COEFFICIENTS[1..] {
        sum = sum.mul_add(f, *c);
    }
    sum.mul_add(f, 1.0)
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp2(-x * std::f32::consts::LOG2_E))
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp2(-x * std::f32::consts::LOG2_E))
}

/// `x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u))` with `u = sqrt(2 / pi) * (x + 0.044715 x^3)`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    const FACTOR: f32 = 2.0 * 0.797_884_6 * std::f32::consts::LOG2_E;
    let inner = (0.044_715 * x * x).mul_add(x, x);
    x / (1.0 + exp2(-FACTOR * inner))
}

/// Hyperbolic tangent with an absolute error below 2e-7, and a relative one below 1e-6; NaN for NaN.
///
/// Where `1 - 2 / (1 + exp(2 x))` would cancel, its Taylor series to the seventh power.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let square = x * x;
    let series = square.mul_add(-17.0 / 315.0, 2.0 / 15.0);
    let series = series.mul_add(square, -1.0 / 3.0);
    let near = (series * square).mul_add(x, x);
    let far = 1.0 - 2.0 / (1.0 + exp2(x * (2.0 * std::f32::consts::LOG2_E)));
    if x.abs() < 0.2 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_is_accurate_over_its_range() {
        let (mut absolute, mut relative) = (0.0_f64, 0.0_f64);
        for i in -1_000_000..=1_000_000 {
            let x = i as f32 * 2e-5;
            let exact = f64::from(x).tanh();
            let error = (f64::from(tanh(x)) - exact).abs();
            absolute = absolute.max(error);
            if i != 0 {
                relative = relative.max(error / exact.abs());
            }
        }
        assert!(
            absolute < 2e-7 && relative < 1e-6,
            "{absolute:e} {relative:e}"
        );
        assert_eq!([tanh(0.0), tanh(1e30), tanh(-1e30)], [0.0, 1.0, -1.0]);
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn exp2_is_accurate_over_its_range() {
        let mut worst = 0.0_f64;
        for i in 0..=2_000_000 {
            let x = -126.0 + i as f32 * (253.0 / 2_000_000.0);
            let exact = f64::from(x).exp2();
            worst = worst.max((f64::from(exp2(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst:e}");
    }

    #[test]
    fn exp2_at_its_edges() {
        assert_eq!(exp2(0.0), 1.0);
        assert_eq!(exp2(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp2(-126.5), 0.0);
        assert_eq!(exp2(1e9), 2.0_f32.powi(127));
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn silu_follows_its_definition() {
        for i in -4000..=4000 {
            let x = i as f32 / 40.0;
            let exact = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            // Far below zero the rounding of the exponent's argument weighs most.
            let tolerance = if x < -5.0 { 4e-6 } else { 3e-7 };
            let error = (f64::from(silu(x)) - exact).abs();
            assert!(error <= tolerance * exact.abs() + 1e-35, "{x}");
        }
        assert!(silu(f32::NAN).is_nan());
        assert!(silu(-1000.0).abs() < 1e-35);
    }

    #[test]
    fn gelu_follows_its_definition() {
        for i in -4000..=4000 {
            let x = i as f32 / 200.0;
            let wide = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            // The difference of 1 and a tangent close to -1 has lost its digits.
            let exact = wide / (1.0 + (-2.0 * inner).exp());
            let tolerance = if x < -3.0 { 1e-4 } else { 1e-6 };
            let error = (f64::from(gelu_tanh(x)) - exact).abs();
            assert!(error <= tolerance * exact.abs() + 1e-35, "{x}: {error:e}");
        }
        assert!(gelu_tanh(f32::NAN).is_nan());
        assert!(gelu_tanh(-1000.0).abs() < 1e-35);
        assert_eq!(gelu_tanh(1000.0), 1000.0);
    }
}
