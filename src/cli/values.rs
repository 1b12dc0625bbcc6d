//! Numbers as people write them on the command line and in tables.

/// An alpha in (0, 1): a decimal (`0.05`) or a family alpha over its divisor (`0.05/24`).
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_alpha(text: &str) -> Result<f64, String> {
    alpha_below(text, 1.0, "0 < alpha < 1")
}

/// A one-sided alpha of a score bound, in (0, 0.5], written as for [`parse_alpha`].
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_score_alpha(text: &str) -> Result<f64, String> {
    alpha_below(text, 0.5_f64.next_up(), "0 < alpha <= 0.5")
}

fn alpha_below(text: &str, end: f64, expected: &str) -> Result<f64, String> {
    let value = match text.split_once('/') {
        Some((alpha, divisor)) => {
            let divisor = number(divisor, text)?;
            if divisor < 1.0 {
                return Err(format!("`{text}` divides by less than 1"));
            }
            number(alpha, text)? / divisor
        }
        None => number(text, text)?,
    };
    if value > 0.0 && value < end {
        Ok(value)
    } else {
        Err(format!("`{text}` is {value}, expected {expected}"))
    }
}

/// A limit above 0 and below 1: `2%`, `2pp` or `0.02`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_limit(text: &str) -> Result<f64, String> {
    let value = proportion(text)?;
    if value > 0.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(out_of_range(text, value, "more than 0%"))
    }
}

/// A margin from 0 to below 1: `1pp`, `1%` or `0.01`. The sign is not written: a margin is a
/// distance.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_margin(text: &str) -> Result<f64, String> {
    let value = proportion(text)?;
    if (0.0..1.0).contains(&value) {
        Ok(value.abs())
    } else {
        Err(out_of_range(text, value, "at least 0%"))
    }
}

/// A proportion of either sign: `-1pp`, `2%` or `0.02`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_proportion(text: &str) -> Result<f64, String> {
    proportion(text)
}

/// A rate from 0 to 1: `0.5%` or `0.005`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    let value = proportion(text)?;
    if (0.0..=1.0).contains(&value) {
        Ok(value.abs())
    } else {
        let percent = 100.0 * value;
        Err(format!(
            "`{text}` means {percent}%, expected 0% to 100%, such as 0.5% or 0.005"
        ))
    }
}

/// A relative change between -1 and 1: `0.1%` or `-0.001`.
///
/// # Errors
/// Says what was found and what is expected.
pub(super) fn parse_change(text: &str) -> Result<f64, String> {
    let value = proportion(text)?;
    if value > -1.0 && value < 1.0 {
        Ok(value)
    } else {
        Err(out_of_range(text, value, "more than -100%"))
    }
}

fn out_of_range(text: &str, value: f64, least: &str) -> String {
    let percent = 100.0 * value;
    format!("`{text}` means {percent}%, expected {least} and less than 100%, such as 1% or 0.01")
}

fn proportion(text: &str) -> Result<f64, String> {
    let trimmed = text.trim();
    let percent = trimmed
        .strip_suffix('%')
        .or_else(|| trimmed.strip_suffix("pp"));
    match percent {
        // Shifted as decimals are: 0.7 / 100 is not the nearest number to 0.007.
        Some(digits) => number(&format!("{}e-2", digits.trim()), text)
            .or_else(|_| Ok(number(digits, text)? / 100.0)),
        None => number(trimmed, text),
    }
}

fn number(digits: &str, text: &str) -> Result<f64, String> {
    match digits.trim().parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("`{text}` is no number")),
    }
}

/// A count in decimal digits. A fraction of zeros (`1319.0`, as data frames write whole numbers
/// beside missing ones) is the same count.
pub(super) fn parse_count(text: &str) -> Option<u64> {
    let digits = match text.split_once('.') {
        Some((digits, zeros)) if !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => digits,
        Some(_) => return None,
        None => text,
    };
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphas_are_decimals_or_quotients() {
        assert_eq!(parse_alpha("0.05"), Ok(0.05));
        assert_eq!(parse_alpha(" 0.05 / 24 "), Ok(0.05 / 24.0));
        assert_eq!(parse_alpha("0.9"), Ok(0.9));
        assert_eq!(parse_score_alpha("0.5"), Ok(0.5));
        assert!(parse_score_alpha("0.51").is_err());
        for text in [
            "", "0", "-0.05", "1", "nan", "inf", "5%", "0.05/0", "0.05/0.1", "a/b",
        ] {
            assert!(parse_alpha(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_and_margins_name_their_unit_or_are_proportions() {
        for text in ["2%", "2 %", "0.02", "2pp", " 2 pp ", "2e-2"] {
            assert_eq!(parse_limit(text), Ok(0.02), "{text}");
        }
        assert_eq!(parse_limit("0.7%"), Ok(0.007));
        assert_eq!(parse_limit("2e0%"), Ok(0.02));
        assert_eq!(parse_proportion("-1 pp"), Ok(-0.01));
        for text in ["1pp", "1%", "0.01"] {
            assert_eq!(parse_margin(text), Ok(0.01), "{text}");
        }
        assert_eq!(parse_margin("0"), Ok(0.0));
        for text in [
            "2", "0%", "-2%", "100%", "nan", "NaN%", "inf", "%", "pp", "", "2%%", "2 points",
        ] {
            assert!(parse_limit(text).is_err(), "{text}");
        }
        for text in ["-1pp", "1", "101%", "1p", "one"] {
            assert!(parse_margin(text).is_err(), "{text}");
        }
        let message = parse_limit("2").unwrap_err();
        assert!(message.contains("means 200%"), "{message}");
    }

    #[test]
    fn rates_and_changes() {
        for text in ["0.5%", "0.005", "0.5 pp"] {
            assert_eq!(parse_rate(text), Ok(0.005), "{text}");
        }
        assert_eq!(parse_rate("100%"), Ok(1.0));
        assert_eq!(parse_rate("-0").map(f64::is_sign_negative), Ok(false));
        assert_eq!(parse_change("-0.1%"), Ok(-0.001));
        for text in ["-0.5%", "101%", "%", "nan", "inf%", "", "half"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        assert!(parse_change("-100%").is_err() && parse_change("1").is_err());
    }

    #[test]
    fn counts_are_whole() {
        assert_eq!(parse_count("1319"), Some(1319));
        assert_eq!(parse_count("1319.0"), Some(1319));
        for text in [
            "",
            "-1",
            "+1",
            "1.5",
            "1.",
            ".0",
            "1e3",
            "1,319",
            "0x1",
            "99999999999999999999",
        ] {
            assert_eq!(parse_count(text), None, "{text}");
        }
    }
}
