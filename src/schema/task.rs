//! Task definitions: texts, parser and accepted source files, with a version.

use serde::Deserialize;

use super::PanelPlan;

/// Schema name of task definitions.
const TASK_SCHEMA: &str = "kvassay.task/1";

/// Built-in definitions, in the order in which they are listed.
const BUILTIN: [&str; 7] = [
    include_str!("../../tasks/gsm8k.toml"),
    include_str!("../../tasks/gsm8k-plain.toml"),
    include_str!("../../tasks/wikipedia-nll.toml"),
    include_str!("../../tasks/needle.toml"),
    include_str!("../../tasks/demo-math.toml"),
    include_str!("../../tasks/demo-prose.toml"),
    include_str!("../../tasks/demo-needle.toml"),
];

/// What a task measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Questions with exact numeric answers.
    Math,
    /// Likelihood of text.
    Nll,
    /// The value of a needle.
    Retrieval,
}

impl TaskKind {
    /// Name as in task files.
    pub fn name(self) -> &'static str {
        match self {
            TaskKind::Math => "math",
            TaskKind::Nll => "nll",
            TaskKind::Retrieval => "retrieval",
        }
    }
}

/// How a source file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceFormat {
    /// One JSON object per line.
    Jsonl,
    /// Columnar file.
    Parquet,
    /// WikiText layout: ` = Title = ` lines begin articles.
    Wikitext,
}

/// A source file that a task accepts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// File name inside the task's folder; one `*` stands for any characters.
    pub file: String,
    /// How it is read.
    pub format: SourceFormat,
    /// SHA-256 of the file, where it is known. Otherwise the digest is recorded only and the
    /// source counts as unpinned.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Generator that writes the file, where it is not read from the data folder.
    #[serde(default)]
    pub generator: Option<String>,
}

/// What a retrieval prompt consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HaystackKind {
    /// Words of articles, with the needles between their sentences.
    #[default]
    Articles,
    /// Needle after needle, now and then a short generated article between two.
    Codes,
}

/// A task definition.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Always [`TASK_SCHEMA`].
    schema: String,
    /// Name.
    pub name: String,
    /// Version of texts and rules.
    pub version: u32,
    /// What it measures.
    pub kind: TaskKind,
    /// One sentence for people.
    pub description: String,
    /// Decisive parser or scorer, e.g. `gsm8k/1`; empty for likelihoods.
    #[serde(default)]
    pub parser: String,
    /// Prompts go through the model's chat template.
    #[serde(default)]
    pub chat: bool,
    /// Text of the user's message, or the whole prompt, with `{question}`, or `{haystack}` and
    /// `{key}`.
    #[serde(default)]
    pub prompt: String,
    /// Sentence of a needle with `{key}` and `{value}`.
    #[serde(default)]
    pub needle: String,
    /// What surrounds the needle.
    #[serde(default)]
    pub haystack: HaystackKind,
    /// Needles of other keys, among articles.
    #[serde(default)]
    pub distractors: usize,
    /// Folder of the source files inside the data folder.
    pub folder: String,
    /// Task whose sources are used instead of own ones.
    #[serde(default)]
    pub sources_of: Option<String>,
    /// Accepted source files; the first that is there is taken.
    #[serde(default)]
    pub sources: Vec<Source>,
}

impl Task {
    /// Name and version as stored in panel headers, e.g. `gsm8k/1`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.name, self.version)
    }

    /// Accepted source files, those of another task where it uses them.
    pub fn accepted_sources(&self) -> Vec<Source> {
        match self.sources_of.as_deref().and_then(builtin_task) {
            Some(other) => other.sources,
            None => self.sources.clone(),
        }
    }

    /// The accepted source that a file at `path` below the data folder is, the first that fits.
    pub fn source_at(&self, path: &str) -> Option<Source> {
        let mut sources = self.accepted_sources().into_iter();
        sources.find(|source| {
            let whole = format!("{}/{}", self.folder, source.file);
            match whole.split_once('*') {
                None => whole == path,
                Some((before, after)) => path
                    .strip_prefix(before)
                    .and_then(|rest| rest.strip_suffix(after))
                    .is_some_and(|middle| !middle.contains('/')),
            }
        })
    }

    fn from_toml(text: &str) -> Option<Task> {
        // A test reads each of the embedded files.
        let mut task: Task = toml::from_str(text).ok()?;
        task.prompt = task.prompt.trim_end_matches('\n').to_owned();
        (task.schema == TASK_SCHEMA).then_some(task)
    }
}

impl PanelPlan {
    /// Name of the panel's task.
    pub fn task(&self) -> &str {
        match self {
            PanelPlan::Math { task, .. }
            | PanelPlan::Nll { task, .. }
            | PanelPlan::Retrieval { task, .. } => task,
        }
    }

    /// What the panel measures.
    pub fn kind(&self) -> TaskKind {
        match self {
            PanelPlan::Math { .. } => TaskKind::Math,
            PanelPlan::Nll { .. } => TaskKind::Nll,
            PanelPlan::Retrieval { .. } => TaskKind::Retrieval,
        }
    }

    /// The built-in task that the panel is made by, where there is one of its name and kind.
    pub fn builtin_task(&self) -> Option<Task> {
        builtin_task(self.task()).filter(|task| task.kind == self.kind())
    }
}

/// Every built-in task.
pub fn builtin_tasks() -> Vec<Task> {
    BUILTIN
        .iter()
        .filter_map(|text| Task::from_toml(text))
        .collect()
}

/// The built-in task of this name.
pub fn builtin_task(name: &str) -> Option<Task> {
    builtin_tasks().into_iter().find(|task| task.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score;

    #[test]
    fn every_task_reads_and_names_what_exists() {
        let tasks = builtin_tasks();
        assert_eq!(tasks.len(), BUILTIN.len());
        for task in tasks {
            assert!(!task.accepted_sources().is_empty(), "{}", task.name);
            match task.kind {
                TaskKind::Math => {
                    assert!(score::Parser::from_name(&task.parser).is_some());
                    assert!(task.prompt.contains("{question}"));
                }
                TaskKind::Retrieval => {
                    assert_eq!(task.parser, score::NEEDLE_SCORER);
                    assert!(task.prompt.contains("{haystack}") && task.prompt.contains("{key}"));
                    assert!(task.needle.contains("{key}") && task.needle.contains("{value}"));
                }
                TaskKind::Nll => assert_eq!(task.parser, ""),
            }
        }
        assert_eq!(builtin_task("gsm8k").unwrap().id(), "gsm8k/1");
        assert_eq!(builtin_task("gsm8k-2"), None);
    }

    #[test]
    fn a_source_is_found_by_its_path() {
        let task = builtin_task("gsm8k").unwrap();
        let pinned = |path: &str| task.source_at(path).map(|source| source.sha256.is_some());
        assert_eq!(pinned("gsm8k/test.jsonl"), Some(true));
        assert_eq!(pinned("gsm8k/other.jsonl"), Some(false));
        assert_eq!(pinned("gsm8k/main/test-00000.parquet"), Some(false));
        for path in ["test.jsonl", "gsm8k/a/b.jsonl", "demo/problems.jsonl", ""] {
            assert_eq!(task.source_at(path), None, "{path}");
        }
        let borrowed = builtin_task("demo-needle").unwrap();
        assert!(borrowed.source_at("demo/articles.jsonl").is_some());
    }
}
