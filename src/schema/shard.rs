//! A run that is split over several jobs.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Most parts of a run.
const MOST: u32 = 10_000;

/// One of the parts of a run: an equal share of the cases of every panel, `2/4` in text and JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard {
    index: u32,
    of: u32,
}

impl Shard {
    /// Number, from 1.
    pub fn index(self) -> u32 {
        self.index
    }

    /// How many parts the run has.
    pub fn of(self) -> u32 {
        self.of
    }

    /// Every part of the run.
    pub fn all(self) -> impl Iterator<Item = Shard> {
        let of = self.of;
        (1..=of).map(move |index| Shard { index, of })
    }

    /// The cases of a panel of `cases` cases, in plan order: the parts in order are the panel, and none
    /// has over one case more than another.
    pub fn range(self, cases: usize) -> Range<usize> {
        let first = |index: u32| {
            let before = u128::from(index) * cases as u128 / u128::from(self.of);
            usize::try_from(before).unwrap_or(cases)
        };
        first(self.index - 1)..first(self.index)
    }
}

/// Text that names no part of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected I/N with I from 1 to N, and N at most {MOST}")]
pub struct ShardError(String);

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        let parts = text.split_once('/');
        let parts = parts.and_then(|(index, of)| Some((number(index)?, number(of)?)));
        match parts {
            Some((index, of)) if (1..=of).contains(&index) && of <= MOST => Ok(Shard { index, of }),
            _ => Err(ShardError(text.to_owned())),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.of)
    }
}

impl Serialize for Shard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Shard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Shard {
    fn schema_name() -> Cow<'static, str> {
        "Shard".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "One of the parts of a run: an equal share of the cases of every panel.",
            "type": "string",
            "pattern": "^[0-9]+/[0-9]+$",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_in_order_are_the_panel(cases in 0usize..5000, of in 1u32..60) {
            let first: Shard = format!("1/{of}").parse().unwrap();
            let mut end = 0;
            for shard in first.all() {
                let range = shard.range(cases);
                prop_assert_eq!(range.start, end);
                let share = cases / of as usize;
                prop_assert!(range.len() == share || range.len() == share + 1);
                prop_assert_eq!(shard.to_string().parse(), Ok(shard));
                end = range.end;
            }
            prop_assert_eq!(end, cases);
        }

        #[test]
        fn no_text_panics(text in ".{0,12}") {
            let _ = text.parse::<Shard>();
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        for text in [
            "", "1", "0/2", "3/2", "1/0", "+1/2", "1/+2", " 1/2", "1/2/3", "1/10001", "a/b",
        ] {
            let error = text.parse::<Shard>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("found {text:?}")));
        }
        let shard: Shard = "2/4".parse().unwrap();
        assert_eq!((shard.index(), shard.of()), (2, 4));
        assert_eq!(serde_json::to_string(&shard).unwrap(), "\"2/4\"");
        assert!(serde_json::from_str::<Shard>("\"5/4\"").is_err());
        assert!(serde_json::from_str::<Shard>("2").is_err());
        // As many cases as a panel can name, in the largest part.
        let last: Shard = "10000/10000".parse().unwrap();
        assert_eq!(last.range(usize::MAX).end, usize::MAX);
    }
}
