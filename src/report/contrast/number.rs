//! Figures of contrasts for people.

use crate::stats::PValue;

/// Below this log10, a p-value is written as a power of ten.
const PLAIN_LOG10_P: f64 = -4.0;

/// `0.02192`, `1`, or for small values `10^-360.6`: never 0.
pub(in crate::report) fn p_text(p: PValue) -> String {
    if p.log10_p < PLAIN_LOG10_P {
        format!("10^{:.1}", p.log10_p)
    } else {
        significant(p.p, 4)
    }
}

/// A number with as many significant digits at most, trailing zeros left out; small ones with an
/// exponent.
pub(in crate::report) fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if magnitude < -5.0 {
        return format!("{value:.*e}", digits.saturating_sub(1));
    }
    let decimals = (digits as f64 - 1.0 - magnitude).clamp(0.0, 17.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// [`significant`] with its sign, which 0 does not have.
pub(in crate::report) fn signed(value: f64, digits: usize) -> String {
    let sign = if value > 0.0 { "+" } else { "" };
    format!("{sign}{}", significant(value, digits))
}

/// Percentage points without a unit: `72.50`; a minus sign only where digits are left.
pub(in crate::report) fn points(proportion: f64) -> String {
    let text = format!("{:.2}", 100.0 * proportion);
    match text.strip_prefix('-') {
        Some("0.00") => "0.00".to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(log10_p: f64) -> String {
        p_text(PValue {
            p: 10_f64.powf(log10_p),
            log10_p,
        })
    }

    #[test]
    fn p_values_never_show_as_zero() {
        assert_eq!(p(-360.634), "10^-360.6");
        assert_eq!(p(-4.01), "10^-4.0");
        assert_eq!(p(-3.9), "0.0001259");
        assert_eq!(p((274.0 / 100_001.0 * 8.0_f64).log10()), "0.02192");
        assert_eq!(p_text(PValue::ONE), "1");
    }

    #[test]
    fn digits_that_say_nothing_are_left_out() {
        assert_eq!(significant(0.05, 4), "0.05");
        assert_eq!(significant(100.0, 3), "100");
        assert_eq!(significant(1234.5, 3), "1234");
        assert_eq!(significant(-0.001_234_56, 3), "-0.00123");
        assert_eq!(significant(1.234e-9, 3), "1.23e-9");
        assert_eq!(significant(0.999_99, 4), "1");
        assert_eq!(signed(0.0, 3), "0");
        assert_eq!(signed(0.25, 3), "+0.25");
        assert_eq!(signed(-0.25, 3), "-0.25");
        assert_eq!(points(0.725), "72.50");
        assert_eq!(points(-0.000_01), "0.00");
        assert_eq!(points(-0.17), "-17.00");
    }
}
