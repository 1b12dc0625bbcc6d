//! Sizes in bytes on the command line: `40GiB`, `36MiB`, `32GB`, `1.5 GiB`, `1073741824`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number, or an unknown unit.
    #[error(
        "found size `{0}`, expected a number and B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), such as 40GiB"
    )]
    Syntax(String),
    /// More than 64 bits of bytes.
    #[error("found size `{0}`, expected less than 16 EiB")]
    TooLarge(String),
}

impl FromStr for Size {
    type Err = SizeError;

    /// A decimal number and a unit; without a unit the number is bytes. Fractions of a byte are
    /// cut off.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        let syntax = || SizeError::Syntax(text.to_owned());
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit_bytes(unit.trim_start_matches(' ')).ok_or_else(syntax)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let numeric = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
        let malformed = whole.is_empty() || !numeric(whole) || !numeric(fraction);
        // Eighteen decimals keep the product below within 128 bits.
        if malformed || number.ends_with('.') || fraction.len() > 18 {
            return Err(syntax());
        }
        exact_bytes(whole, fraction, unit)
            .map(Size)
            .ok_or_else(|| SizeError::TooLarge(text.to_owned()))
    }
}

/// `whole.fraction x unit` rounded down; `None` beyond 64 bits.
fn exact_bytes(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    let unit = u128::from(unit);
    let whole = u128::from(whole.parse::<u64>().ok()?).checked_mul(unit)?;
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let fraction: u128 = format!("0{fraction}").parse().ok()?;
    u64::try_from(whole + fraction * unit / scale).ok()
}

fn unit_bytes(unit: &str) -> Option<u64> {
    Some(match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    })
}

impl fmt::Display for Size {
    /// The largest binary unit that leaves no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            (1u64 << 40, "TiB"),
            (1 << 30, "GiB"),
            (1 << 20, "MiB"),
            (1 << 10, "KiB"),
        ];
        let exact = units
            .into_iter()
            .find(|(bytes, _)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        match exact {
            Some((bytes, unit)) => write!(f, "{} {unit}", self.0 / bytes),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests;
