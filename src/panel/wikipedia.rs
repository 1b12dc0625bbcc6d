//! Articles, from WikiText files, JSON lines or a columnar file.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::data::{Located, SourceFile};
use super::error::PanelError;
use super::gsm8k::json_lines;
use super::parquet_rows;
use super::task::SourceFormat;

/// An article.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Article {
    /// Title, unique within the text.
    pub title: String,
    /// Text as it stands in the source. In WikiText it begins with the title's line, and the
    /// source's spacing (` @-@ `, ` , `) stays.
    pub text: String,
}

#[derive(Deserialize)]
struct Line {
    title: String,
    text: String,
}

/// Every article, in file order.
///
/// # Errors
/// [`PanelError`], with the line: bad UTF-8, invalid JSON, an empty title or text, a title that was
/// there before, text before the first title.
pub(super) fn read(source: &Located) -> Result<Vec<Article>, PanelError> {
    let mut articles = Articles::default();
    for file in &source.files {
        articles.read_file(file, source.format)?;
    }
    Ok(articles.read)
}

#[derive(Default)]
struct Articles {
    read: Vec<Article>,
    /// Where each title was first seen.
    seen: HashMap<String, String>,
}

impl Articles {
    fn read_file(&mut self, file: &SourceFile, format: SourceFormat) -> Result<(), PanelError> {
        let path = &file.path;
        match format {
            SourceFormat::Parquet => {
                parquet_rows::for_each(path, ["title", "text"], &mut |row, [title, text]| {
                    self.add(path, row, Article { title, text })
                })
            }
            SourceFormat::Jsonl => json_lines(file, &mut |number, Line { title, text }| {
                self.add(path, number, Article { title, text })
            }),
            SourceFormat::Wikitext => self.read_wikitext(file),
        }
    }

    fn add(&mut self, path: &Path, line: usize, article: Article) -> Result<(), PanelError> {
        let wrong = |found: String, expected: &str| PanelError::Line {
            path: path.to_owned(),
            line,
            found,
            expected: expected.to_owned(),
        };
        if article.title.trim().is_empty() || article.text.trim().is_empty() {
            return Err(wrong("an empty title or text".to_owned(), "an article"));
        }
        let place = format!("{}:{line}", path.display());
        if let Some(first) = self.seen.insert(article.title.clone(), place) {
            let found = format!("title `{}` again, first at {first}", article.title);
            return Err(wrong(found, "each title once"));
        }
        self.read.push(article);
        Ok(())
    }

    fn read_wikitext(&mut self, file: &SourceFile) -> Result<(), PanelError> {
        let (path, bytes) = (&file.path, file.bytes()?);
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()]
                .iter()
                .filter(|b| **b == b'\n')
                .count()
                + 1;
            PanelError::Line {
                path: path.to_owned(),
                line,
                found: format!("bytes that are no UTF-8 ({error})"),
                expected: "UTF-8".to_owned(),
            }
        })?;
        // Line ends do not belong to the text: a converted file gives the same articles.
        let text = text.replace("\r\n", "\n");
        let lines: Vec<&str> = text.split('\n').collect();
        let starts: Vec<usize> = (0..lines.len())
            .filter(|&at| starts_article(&lines, at))
            .collect();
        let preamble = &lines[..starts.first().copied().unwrap_or(lines.len())];
        if let Some(at) = preamble.iter().position(|line| !line.trim().is_empty()) {
            return Err(PanelError::Line {
                path: path.to_owned(),
                line: at + 1,
                found: "text before the first title".to_owned(),
                expected: "a line of the form ` = Title = `".to_owned(),
            });
        }
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(lines.len());
            let article = Article {
                title: title_of(lines[start]).unwrap_or_default().to_owned(),
                text: lines[start..end].join("\n").trim_end().to_owned(),
            };
            self.add(path, start + 1, article)?;
        }
        Ok(())
    }
}

/// The title of a line ` = Title = `; headings inside articles have more signs.
fn title_of(line: &str) -> Option<&str> {
    let title = line
        .strip_prefix(" = ")?
        .trim_end()
        .strip_suffix(" =")?
        .trim();
    let inner = title.starts_with('=') || title.ends_with('=') || title.is_empty();
    (!inner).then_some(title)
}

/// Whether an article starts at this line.
///
/// Not every line of a title's form is one: WikiText breaks lines at the signs of equations, and
/// leaves ` = 1 henry and capacitance C = ` on a line of its own. Such a line follows text that does
/// not end a sentence, and what follows it does not speak of its words, as an article's first
/// sentence does of its title's.
fn starts_article(lines: &[&str], at: usize) -> bool {
    let Some(title) = title_of(lines[at]) else {
        return false;
    };
    let before = at.checked_sub(1).map_or("", |before| lines[before].trim());
    let closed = before.is_empty() || before.ends_with(['=', '.', '!', '?', '"', '”', '\'', ')']);
    closed
        || speaks_of(
            title,
            lines[at + 1..].iter().find(|line| !line.trim().is_empty()),
        )
}

/// Whether at least half of a title's words stand in `text`.
fn speaks_of(title: &str, text: Option<&&str>) -> bool {
    let Some(text) = text else {
        return false;
    };
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let title: Vec<String> = title.split_whitespace().map(str::to_lowercase).collect();
    let spoken = title.iter().filter(|word| words.contains(word)).count();
    2 * spoken >= title.len()
}
