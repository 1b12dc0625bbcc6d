//! Records: one line per case of one arm.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::KvTotals;

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop token.
    Stop,
    /// The allowance of new tokens was used up: a truncated answer.
    Length,
    /// The case failed.
    Error,
}

/// One final record. Fields that a panel does not have are absent. No clock time and no attempt
/// count, so that a resumed run ends with the same bytes as an uninterrupted one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Case name.
    pub case: String,
    /// SHA-256 of the case's line in the panel file.
    pub case_sha256: String,
    /// Number of prompt tokens; 0 for imported records, whose harness does not say.
    pub prompt_tokens: u32,
    /// Retrieval: depth of the needle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<f64>,
    /// Math and retrieval: generated text, special tokens left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Math and retrieval: number of generated tokens, the stop token included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    /// Math and retrieval on built-in workers: generated token ids, the stop token included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_ids: Option<Vec<u32>>,
    /// Math and retrieval: why generation ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<Finish>,
    /// Math: parsed answer as an exact decimal; `null` where nothing could be parsed. Records of
    /// earlier versions leave it out there.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<String>")]
    pub answer: Option<Option<String>>,
    /// Math and retrieval: whether the answer is right. Unparsed or truncated is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
    /// Math: scores of secondary parsers, by name; recorded, never decisive.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub secondary: std::collections::BTreeMap<String, bool>,
    /// NLL: number of scored targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<u32>,
    /// NLL: sum of natural-log negative log-likelihoods over the targets, in nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_sum: Option<f64>,
    /// What this case stored in the cache, per component (built-in workers).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv: Option<KvTotals>,
    /// Why the case failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Record {
    /// The parsed answer; `None` where nothing could be parsed, in either form.
    pub fn parsed(&self) -> Option<&str> {
        self.answer.as_ref()?.as_deref()
    }
}

/// A field that is there, `null` included.
fn present<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(field).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_could_not_be_parsed_is_null_and_read_in_both_forms() {
        let of = |answer: &str| {
            let text =
                format!("{{\"case\":\"a\",\"case_sha256\":\"b\",\"prompt_tokens\":1{answer}}}");
            let record: Record = serde_json::from_str(&text).unwrap();
            assert_eq!(serde_json::to_string(&record).unwrap(), text);
            (record.parsed().map(str::to_owned), record.answer)
        };
        assert_eq!(of(""), (None, None));
        assert_eq!(of(",\"answer\":null"), (None, Some(None)));
        let twelve = Some("12".to_owned());
        assert_eq!(of(",\"answer\":\"12\""), (twelve.clone(), Some(twelve)));
    }
}
