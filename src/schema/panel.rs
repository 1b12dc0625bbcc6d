//! Panel cases: one JSON line per case in a materialised panel file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Schema name in the first line of a panel file.
pub const PANEL_SCHEMA: &str = "kvassay.panel/1";

/// First line of a panel file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PanelHeader {
    /// Always [`PANEL_SCHEMA`].
    #[schemars(extend("const" = PANEL_SCHEMA))]
    pub schema: String,
    /// Panel name (`math`, `nll-1k`, …).
    pub panel: String,
    /// Task definition and its version, e.g. `gsm8k/1`.
    pub task: String,
    /// SHA-256 of the tokenizer (see `Tokenizer::sha256`) for which the panel was materialised.
    pub tokenizer_sha256: String,
    /// SHA-256 of each source data file.
    pub sources: Vec<super::FileDigest>,
    /// Answer parser that decides correctness, e.g. `gsm8k/1`; empty for NLL.
    pub parser: String,
    /// Number of cases that follow.
    pub cases: u32,
}

/// One case. Its `case_sha256` in records is the SHA-256 of its line in the panel file,
/// without the line feed.
// Unknown fields are denied by the flattened task, which is given every field that is left: serde
// would take the task's own fields for unknown ones if this struct denied them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("unevaluatedProperties" = false))]
pub struct PanelCase {
    /// Case name, unique within the panel, e.g. `gsm8k-0000`.
    pub case: String,
    /// Chat messages before templating; empty where no chat template is used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<ChatMessage>,
    /// Exact token ids fed to the model (for NLL: the whole window, BOS included).
    pub prompt_ids: Vec<u32>,
    /// What kind of case it is, and what decides its outcome.
    #[serde(flatten)]
    pub task: CaseTask,
}

impl PanelCase {
    /// What is asked: two cases of the same content are one question, whatever they are called.
    pub fn content(&self) -> (Vec<ChatMessage>, Vec<u32>) {
        (self.messages.clone(), self.prompt_ids.clone())
    }
}

/// One chat message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text.
    pub content: String,
}

/// What decides a case's outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CaseTask {
    /// An exact numeric answer.
    Math {
        /// Gold answer as an exact decimal.
        gold: String,
        /// Most tokens generated.
        max_new_tokens: u32,
    },
    /// Likelihood of the last tokens of the window.
    Nll {
        /// Number of scored targets at the end of `prompt_ids`.
        targets: u32,
        /// Title of the source article.
        article: String,
    },
    /// The value of a needle.
    Retrieval {
        /// Gold value.
        gold: String,
        /// Depth of the needle as a proportion of the haystack, 0 (start) to 1 (end).
        depth: f64,
        /// Most tokens generated.
        max_new_tokens: u32,
    },
    /// A case that another harness has asked and scored: whatever it decided stands.
    Imported {
        /// Gold answer as the harness gives it; absent where its files hold none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gold: Option<String>,
        /// SHA-256 of question and gold answer; absent where the files hold ids alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content_sha256: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_read_back_and_unknown_fields_are_refused() {
        let tasks = [
            CaseTask::Math {
                gold: "12".to_owned(),
                max_new_tokens: 512,
            },
            CaseTask::Nll {
                targets: 128,
                article: "A".to_owned(),
            },
            CaseTask::Retrieval {
                gold: "99".to_owned(),
                depth: 0.1,
                max_new_tokens: 16,
            },
            CaseTask::Imported {
                gold: Some("#### 3".to_owned()),
                content_sha256: None,
            },
        ];
        for task in tasks {
            let case = PanelCase {
                case: "case-0".to_owned(),
                messages: Vec::new(),
                prompt_ids: vec![1, 2],
                task,
            };
            let line = serde_json::to_string(&case).unwrap();
            assert_eq!(serde_json::from_str::<PanelCase>(&line).unwrap(), case);
            let more = line.replacen('{', "{\"colour\":1,", 1);
            let error = serde_json::from_str::<PanelCase>(&more).unwrap_err();
            assert!(error.to_string().contains("colour"), "{error}");
        }
    }
}
