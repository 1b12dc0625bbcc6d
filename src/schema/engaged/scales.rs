//! Scales that a recipe must show.

use crate::recipe::ByteFormat;

/// Scales that must be read back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scales {
    /// Native storage has none.
    None,
    /// One and the same number, whichever.
    Constant,
    /// From the smallest to the largest of the layers looked at.
    Fixed(f32, f32),
    /// Positive numbers, one per head vector.
    Dynamic(ByteFormat),
    /// Positive numbers, one per group.
    Grouped,
}

/// What scales lack that were read back.
pub(super) fn lack(expected: Scales, low: Option<f32>, high: Option<f32>) -> Option<String> {
    let (low, high) = match (expected, low, high) {
        (Scales::None, None, None) => return None,
        (Scales::None, low, high) => {
            let found = low.or(high).map_or_else(String::new, shown);
            return Some(format!("found scale {found}, native storage has none"));
        }
        (_, Some(low), Some(high)) => (low, high),
        _ => return Some("no scale was read back".to_owned()),
    };
    let found = if low.to_bits() == high.to_bits() {
        format!("found scale {}", shown(low))
    } else {
        format!("found scales from {} to {}", shown(low), shown(high))
    };
    if !(low > 0.0 && low <= high && high.is_finite()) {
        return Some(format!("{found}, expected positive numbers"));
    }
    match expected {
        Scales::Fixed(a, b) if low.to_bits() == a.to_bits() && high.to_bits() == b.to_bits() => {
            None
        }
        Scales::Fixed(a, b) if a.to_bits() == b.to_bits() => {
            Some(format!("{found}, expected {a} from the calibration"))
        }
        Scales::Fixed(a, b) => Some(format!("{found}, expected {a} to {b} from the calibration")),
        Scales::Dynamic(format) if low == 1.0 && high == 1.0 => Some(format!(
            "{found} alone, expected absmax / {} of every head vector",
            format.largest()
        )),
        Scales::Constant if low.to_bits() != high.to_bits() => {
            Some(format!("{found}, expected one fixed scale"))
        }
        Scales::Constant | Scales::Dynamic(_) | Scales::Grouped | Scales::None => None,
    }
}

fn shown(scale: f32) -> String {
    let unit = if scale == 1.0 { " (unit scale)" } else { "" };
    format!("{scale}{unit}")
}
