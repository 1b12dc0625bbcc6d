//! Exact decimal numbers of any length.

use std::fmt;

/// Longest exponent that is written out: `1e101` is refused rather than turned into a long text.
const MAX_EXPONENT: i64 = 100;

/// An exact decimal number, held as its canonical text: no leading zero before another digit, no
/// trailing zero after the point, no `-0`, no exponent. Equal values have equal texts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Decimal(String);

impl Decimal {
    /// Reads a text that holds exactly one number, with whatever may stand around one: sign (also
    /// U+2212), thousands separators (`,`, `{,}`, thin and non-breaking spaces), currency, percent,
    /// units, emphasis, LaTeX, a trailing period. Fractions and exponents are read exactly.
    /// `None` where there is no number, more than one, or one that can be read in two ways.
    ///
    /// Canonical texts read back to the same value.
    pub fn parse(text: &str) -> Option<Decimal> {
        super::quantity::read(text).ok().flatten()
    }

    /// From ASCII digits with at most one point (`12`, `0.50`, `.5`, `7.`), without a sign.
    pub(super) fn from_digits(text: &str) -> Option<Decimal> {
        let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if integer.len() + fraction.len() == 0 || !plain(integer) || !plain(fraction) {
            return None;
        }
        Some(Decimal::canonical(integer, fraction))
    }

    /// `mantissa` times ten to the power of `exponent`.
    pub(super) fn scientific(mantissa: &str, exponent: &str) -> Option<Decimal> {
        let exponent: i64 = exponent.parse().ok()?;
        if exponent.abs() > MAX_EXPONENT {
            return None;
        }
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{integer}{fraction}");
        let point = i64::try_from(integer.len()).ok()? + exponent;
        let shifted = if point <= 0 {
            format!("0.{}{digits}", "0".repeat(usize::try_from(-point).ok()?))
        } else {
            let point = usize::try_from(point).ok()?;
            let padded = format!("{digits:0<point$}");
            format!("{}.{}", &padded[..point], &padded[point..])
        };
        Decimal::from_digits(&shifted)
    }

    /// The quotient of two whole numbers where it has finitely many decimals.
    pub(super) fn fraction(numerator: &str, denominator: &str) -> Option<Decimal> {
        let mut numerator: u128 = numerator.parse().ok()?;
        let mut denominator: u128 = denominator.parse().ok()?;
        if denominator == 0 {
            return None;
        }
        let common = gcd(numerator, denominator);
        numerator /= common;
        denominator /= common;
        let mut scale = 0_i64;
        while denominator > 1 {
            // Ten times a fraction whose reduced denominator has a factor other than 2 and 5
            // never becomes whole.
            let step = gcd(denominator, 10);
            if step == 1 {
                return None;
            }
            numerator = numerator.checked_mul(10 / step)?;
            denominator /= step;
            scale += 1;
        }
        Decimal::scientific(&numerator.to_string(), &(-scale).to_string())
    }

    /// The same magnitude below zero; zero stays zero.
    pub(super) fn negated(self) -> Decimal {
        if self.0 == "0" {
            return self;
        }
        match self.0.strip_prefix('-') {
            Some(positive) => Decimal(positive.to_owned()),
            None => Decimal(format!("-{}", self.0)),
        }
    }

    /// Canonical text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn canonical(integer: &str, fraction: &str) -> Decimal {
        let integer = integer.trim_start_matches('0');
        let integer = if integer.is_empty() { "0" } else { integer };
        let fraction = fraction.trim_end_matches('0');
        if fraction.is_empty() {
            Decimal(integer.to_owned())
        } else {
            Decimal(format!("{integer}.{fraction}"))
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: Option<Decimal>) -> Option<String> {
        value.map(|value| value.to_string())
    }

    #[test]
    fn digits_become_canonical() {
        for (given, expected) in [
            ("29", "29"),
            ("29.00", "29"),
            ("007", "7"),
            ("0.50", "0.5"),
            (".5", "0.5"),
            ("7.", "7"),
            ("000", "0"),
            ("0.0", "0"),
        ] {
            assert_eq!(
                text(Decimal::from_digits(given)).as_deref(),
                Some(expected),
                "{given}"
            );
        }
        for given in ["", ".", "1.2.3", "-1", "1e3", "١"] {
            assert_eq!(Decimal::from_digits(given), None, "{given}");
        }
    }

    #[test]
    fn exponents_shift_the_point() {
        for (mantissa, exponent, expected) in [
            ("1", "3", Some("1000")),
            ("1.5", "3", Some("1500")),
            ("1.25", "1", Some("12.5")),
            ("2", "-3", Some("0.002")),
            ("12.5", "-2", Some("0.125")),
            ("0", "9", Some("0")),
            ("1", "101", None),
            ("1", "99999999999999999999", None),
        ] {
            let found = text(Decimal::scientific(mantissa, exponent));
            assert_eq!(found.as_deref(), expected, "{mantissa}e{exponent}");
        }
    }

    #[test]
    fn fractions_are_exact_or_nothing() {
        for (numerator, denominator, expected) in [
            ("1", "2", Some("0.5")),
            ("16", "2", Some("8")),
            ("7", "80", Some("0.0875")),
            ("3", "125", Some("0.024")),
            ("1", "3", None),
            ("6", "3", Some("2")),
            ("1", "0", None),
            ("0", "5", Some("0")),
            ("1", "999999999999999999999999999999999999999999", None),
        ] {
            let found = text(Decimal::fraction(numerator, denominator));
            assert_eq!(found.as_deref(), expected, "{numerator}/{denominator}");
        }
    }

    #[test]
    fn zero_has_no_sign() {
        let zero = Decimal::from_digits("0.0").unwrap();
        assert_eq!(zero.clone().negated(), zero);
        let five = Decimal::from_digits("5").unwrap();
        assert_eq!(five.clone().negated().as_str(), "-5");
        assert_eq!(five.clone().negated().negated(), five);
    }
}
