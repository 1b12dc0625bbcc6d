//! Questions with exact numeric answers, from JSON lines or a columnar file.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::data::{Located, SourceFile};
use super::error::PanelError;
use super::parquet_rows;
use super::task::SourceFormat;
use crate::score::Decimal;

/// What precedes the gold number in an answer.
const GOLD_MARK: &str = "####";

/// A question and its gold answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// Text, without white space around it.
    pub text: String,
    /// The number after the last `####` of the answer.
    pub gold: Decimal,
}

#[derive(Deserialize)]
struct Line {
    question: String,
    answer: String,
    #[serde(default)]
    id: Option<serde_json::Value>,
}

/// Every question, in file order.
///
/// # Errors
/// [`PanelError`], with the line: bad UTF-8, invalid JSON, an empty question, an answer without a
/// number after `####`, a question or id that was there before.
pub(super) fn read(source: &Located) -> Result<Vec<Question>, PanelError> {
    let mut questions = Questions::default();
    for file in &source.files {
        questions.read_file(file, source.format)?;
    }
    Ok(questions.read)
}

#[derive(Default)]
struct Questions {
    read: Vec<Question>,
    /// Where each question and id was first seen.
    seen: HashMap<String, String>,
}

impl Questions {
    fn read_file(&mut self, file: &SourceFile, format: SourceFormat) -> Result<(), PanelError> {
        let path = &file.path;
        match format {
            SourceFormat::Parquet => parquet_rows::for_each(
                path,
                ["question", "answer"],
                &mut |row, [question, answer]| {
                    let line = Line {
                        question,
                        answer,
                        id: None,
                    };
                    self.add(path, row, &line)
                },
            ),
            SourceFormat::Jsonl => json_lines(file, &mut |number, line: Line| {
                self.add(path, number, &line)
            }),
            SourceFormat::Wikitext => Err(PanelError::File {
                path: path.clone(),
                found: "running text".to_owned(),
                expected: "questions".to_owned(),
            }),
        }
    }

    fn add(&mut self, path: &Path, number: usize, line: &Line) -> Result<(), PanelError> {
        let wrong = |found: String, expected: &str| PanelError::Line {
            path: path.to_owned(),
            line: number,
            found,
            expected: expected.to_owned(),
        };
        let text = line.question.trim();
        if text.is_empty() {
            return Err(wrong("an empty question".to_owned(), "text"));
        }
        let Some((_, gold)) = line.answer.rsplit_once(GOLD_MARK) else {
            return Err(wrong(
                "an answer without ####".to_owned(),
                "#### and the gold number at its end",
            ));
        };
        let gold = Decimal::parse(gold)
            .ok_or_else(|| wrong(format!("`{}` after ####", gold.trim()), "one exact number"))?;
        let keys = [
            Some(format!("question `{text}`")),
            line.id.as_ref().map(|id| format!("id {id}")),
        ];
        for key in keys.into_iter().flatten() {
            let place = format!("{}:{number}", path.display());
            if let Some(first) = self.seen.insert(key.clone(), place) {
                return Err(wrong(format!("{key} again, first at {first}"), "each once"));
            }
        }
        self.read.push(Question {
            text: text.to_owned(),
            gold,
        });
        Ok(())
    }
}

/// Calls `each(line, value)` for every line that is not blank, counted from 1.
pub(super) fn json_lines<T: DeserializeOwned>(
    file: &SourceFile,
    each: &mut dyn FnMut(usize, T) -> Result<(), PanelError>,
) -> Result<(), PanelError> {
    let (path, bytes) = (&file.path, file.bytes()?);
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let wrong = |found: String, expected: &str| PanelError::Line {
            path: path.to_owned(),
            line: index + 1,
            found,
            expected: expected.to_owned(),
        };
        let text = std::str::from_utf8(line)
            .map_err(|error| wrong(format!("bytes that are no UTF-8 ({error})"), "UTF-8"))?;
        if text.trim().is_empty() {
            continue;
        }
        let value = serde_json::from_str(text)
            .map_err(|error| wrong(error.to_string(), "a JSON object with the task's fields"))?;
        each(index + 1, value)?;
    }
    Ok(())
}
