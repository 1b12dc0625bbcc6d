//! Panels as protocols write them.
//!
//! A derived reader would take a whole panel in before it knows its kind, and would name a wrong
//! key without its line. Here each key is read where it stands.

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::PanelPlan;

/// Every key that a panel of some kind has.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    kind: Kind,
    task: String,
    #[serde(default, deserialize_with = "given")]
    length: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    cases: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    documents: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    targets: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    max_new_tokens: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Math,
    Nll,
    Retrieval,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Math => "math",
            Kind::Nll => "nll",
            Kind::Retrieval => "retrieval",
        }
    }
}

/// A number that stands there: `null` is none.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    u32::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for PanelPlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        let which = match fields.length {
            Some(length) => format!("{} panel of length {length}", fields.kind.name()),
            None => format!("{} panel", fields.kind.name()),
        };
        fields
            .plan()
            .map_err(|what| Error::custom(format!("{which}: {what}")))
    }
}

impl Fields {
    fn plan(mut self) -> Result<PanelPlan, String> {
        let plan = match self.kind {
            Kind::Math => PanelPlan::Math {
                cases: take("cases", &mut self.cases)?,
                max_new_tokens: take("max_new_tokens", &mut self.max_new_tokens)?,
                task: self.task.clone(),
            },
            Kind::Nll => PanelPlan::Nll {
                length: take("length", &mut self.length)?,
                documents: take("documents", &mut self.documents)?,
                targets: take("targets", &mut self.targets)?,
                task: self.task.clone(),
            },
            Kind::Retrieval => PanelPlan::Retrieval {
                length: take("length", &mut self.length)?,
                cases: take("cases", &mut self.cases)?,
                max_new_tokens: take("max_new_tokens", &mut self.max_new_tokens)?,
                task: self.task.clone(),
            },
        };
        let left = [
            ("length", self.length),
            ("cases", self.cases),
            ("documents", self.documents),
            ("targets", self.targets),
            ("max_new_tokens", self.max_new_tokens),
        ];
        match left.iter().find(|(_, value)| value.is_some()) {
            None => Ok(plan),
            Some((key, _)) => Err(format!("found key `{key}`, which this kind does not have")),
        }
    }
}

fn take(key: &str, value: &mut Option<u32>) -> Result<u32, String> {
    value
        .take()
        .ok_or_else(|| format!("found no key `{key}`, which this kind needs"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::builtin_protocols;

    fn refusal(text: &str) -> String {
        let error = serde_json::from_str::<PanelPlan>(text).unwrap_err();
        error.to_string()
    }

    #[test]
    fn what_is_written_reads_back() {
        for plan in builtin_protocols().into_iter().flat_map(|p| p.panels) {
            let text = serde_json::to_string(&plan).unwrap();
            assert_eq!(serde_json::from_str::<PanelPlan>(&text).unwrap(), plan);
        }
    }

    #[test]
    fn keys_of_other_kinds_missing_and_null_ones_are_named() {
        let math = r#"{"kind":"math","task":"t","cases":1,"max_new_tokens":2"#;
        for (rest, message) in [
            (
                r#","length":9}"#,
                "math panel of length 9: found key `length`",
            ),
            (r#","targets":null}"#, "invalid type: null"),
            (r#","novel":1}"#, "unknown field `novel`"),
            (r#","cases":1}"#, "duplicate field `cases`"),
            (r#","kind":"nll"}"#, "duplicate field `kind`"),
        ] {
            let found = refusal(&format!("{math}{rest}"));
            assert!(found.contains(message), "{rest}: {found}");
        }
        for (text, message) in [
            (
                r#"{"kind":"nll","task":"t","length":9,"documents":2}"#,
                "nll panel of length 9: found no key `targets`",
            ),
            (
                r#"{"kind":"math","task":"t"}"#,
                "math panel: found no key `cases`",
            ),
            (r#"{"task":"t"}"#, "missing field `kind`"),
            (r#"{"kind":"maths","task":"t"}"#, "unknown variant `maths`"),
            (
                r#"{"kind":"math","cases":1,"max_new_tokens":1}"#,
                "missing field `task`",
            ),
        ] {
            let found = refusal(text);
            assert!(found.contains(message), "{text}: {found}");
        }
    }
}
