//! Comma-separated values: one row per case, one arm or both in a file.

use std::path::PathBuf;

use ::csv::{ReaderBuilder, StringRecord};

use super::ImportError;
use super::content::{Content, is_sha256};
use super::json::PROTOCOL_FIELDS;
use super::quotes::{Lines, quote_fault};
use super::read::{Input, MAX_LINE, is_among};
use super::sample::{ArmLog, Logs, Sample, Score};

/// Column of the case id.
const CASE: &str = "case";
/// Column of the outcome where a file holds one arm.
const CORRECT: &str = "correct";

/// What can be chosen.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Column with the native arm's outcomes; `correct`, else `native`, where absent.
    pub native_column: Option<String>,
    /// Column with the candidate arm's outcomes; `correct`, else `candidate`, where absent.
    pub candidate_column: Option<String>,
}

/// Reads the tables of both arms; both may be the same files with a column for each arm.
///
/// # Errors
/// [`ImportError::Input`] with file and line, and where both arms are the same column.
pub fn read(
    native: &[PathBuf],
    candidate: &[PathBuf],
    options: &Options,
) -> Result<Logs, ImportError> {
    let (native_paths, candidate_paths) = (native, candidate);
    let (native, first) = read_arm(native, options.native_column.as_deref(), "native")?;
    let (candidate, second) =
        read_arm(candidate, options.candidate_column.as_deref(), "candidate")?;
    refuse_shared(native_paths, &first, candidate_paths, &second)?;
    let last = |columns: &[String]| columns.last().cloned().unwrap_or_default();
    let (first, second) = (last(&first), last(&second));
    let metric = if first == second {
        format!("column {first}")
    } else {
        format!("columns {first} and {second}")
    };
    Ok(Logs {
        harness: "csv",
        native,
        candidate,
        metric,
        filter: None,
    })
}

/// Refuses a column of a file that is both arms: native would be compared with itself.
fn refuse_shared(
    native: &[PathBuf],
    native_columns: &[String],
    candidate: &[PathBuf],
    candidate_columns: &[String],
) -> Result<(), ImportError> {
    for (path, column) in native.iter().zip(native_columns) {
        let mut others = candidate.iter().zip(candidate_columns);
        let is_same = |(other, name): (&PathBuf, &String)| {
            name == column && is_among(path, std::slice::from_ref(other))
        };
        if others.any(is_same) {
            return Err(ImportError::input(
                path.display().to_string(),
                format!("column {column} for both arms"),
                "a column for each: --native-column and --candidate-column",
            ));
        }
    }
    Ok(())
}

/// The arm, and the column of its outcomes in each file.
fn read_arm(
    paths: &[PathBuf],
    asked: Option<&str>,
    role: &str,
) -> Result<(ArmLog, Vec<String>), ImportError> {
    let mut log = ArmLog::default();
    let mut used = Vec::new();
    for path in paths {
        let input = Input::read(path)?;
        log.files.push(input.digest());
        used.push(read_file(&input, asked, role, &mut log.samples)?);
    }
    Ok((log, used))
}

fn read_file(
    input: &Input,
    asked: Option<&str>,
    role: &str,
    samples: &mut Vec<Sample>,
) -> Result<String, ImportError> {
    let text = input.text();
    if let Some(fault) = quote_fault(text) {
        let place = format!("{}:{}", input.name, fault.line);
        return Err(ImportError::input(place, fault.found, fault.expected));
    }
    let mut reader = ReaderBuilder::new().from_reader(text);
    let header = reader.headers().map_err(refused(input))?.clone();
    let (columns, name) = Columns::find(input, &header, asked, role)?;
    let (mut row, mut lines) = (StringRecord::new(), Lines::new(text));
    while reader.read_record(&mut row).map_err(refused(input))? {
        let place = format!("{}:{}", input.name, lines.of(row.position()));
        if row.as_slice().len() > MAX_LINE {
            let found = format!("a row of {} bytes", row.as_slice().len());
            let expected = format!("at most {MAX_LINE}");
            return Err(ImportError::input(place, found, expected));
        }
        samples.push(columns.sample(place, &row)?);
    }
    Ok(name)
}

fn refused(input: &Input) -> impl Fn(::csv::Error) -> ImportError + '_ {
    |error| {
        let line = |position| Lines::new(input.text()).of(Some(position));
        let line = error.position().map(line);
        let place = line.map_or(input.name.clone(), |line| format!("{}:{line}", input.name));
        let found = match error.kind() {
            ::csv::ErrorKind::UnequalLengths {
                expected_len, len, ..
            } => format!("{len} fields where the header has {expected_len}"),
            ::csv::ErrorKind::Utf8 { err, .. } => format!("bytes that are no UTF-8 ({err})"),
            _ => error.to_string(),
        };
        ImportError::input(place, found, "comma-separated values with a header")
    }
}

/// Where the columns stand.
struct Columns {
    case: usize,
    correct: usize,
    content: Option<usize>,
    gold: Option<usize>,
    output: Option<usize>,
    error: Option<usize>,
    protocol: Option<usize>,
}

impl Columns {
    fn find(
        input: &Input,
        header: &StringRecord,
        asked: Option<&str>,
        role: &str,
    ) -> Result<(Columns, String), ImportError> {
        let place = || format!("{}:1", input.name);
        let names: Vec<&str> = header.iter().map(str::trim).collect();
        let twice = names
            .iter()
            .enumerate()
            .find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            let found = format!("column {name} twice");
            return Err(ImportError::input(place(), found, "each column once"));
        }
        let at = |name: &str| names.iter().position(|found| *found == name);
        let lacks = |expected: String| {
            let found = match names.iter().all(|name| name.is_empty()) {
                true => "no names of columns".to_owned(),
                false => format!("columns {}", names.join(", ")),
            };
            ImportError::input(place(), found, expected)
        };
        let name = match asked {
            Some(name) => name,
            None if at(CORRECT).is_some() => CORRECT,
            None => role,
        };
        let correct = at(name).ok_or_else(|| match asked {
            Some(_) => lacks(format!("column {name}")),
            None => lacks(format!(
                "column {CORRECT} or {role}, or --{role}-column with the name of another"
            )),
        })?;
        let columns = Columns {
            case: at(CASE).ok_or_else(|| lacks(format!("column {CASE}")))?,
            correct,
            content: at("content"),
            gold: at("gold"),
            output: at("output"),
            error: at("error"),
            protocol: PROTOCOL_FIELDS.into_iter().find_map(at),
        };
        Ok((columns, name.to_owned()))
    }

    fn sample(&self, place: String, row: &StringRecord) -> Result<Sample, ImportError> {
        let cell = |at: Option<usize>| {
            let text = at.and_then(|at| row.get(at));
            text.filter(|text| !text.trim().is_empty())
        };
        let Some(id) = cell(Some(self.case)) else {
            return Err(ImportError::input(place, "a row without a case", "its id"));
        };
        let gold = cell(self.gold);
        let content = match (self.content, cell(self.content)) {
            (None, _) => None,
            (Some(_), Some(text)) if is_sha256(text.trim()) => {
                Some(Content::of_digest(text.trim(), gold))
            }
            (Some(_), Some(text)) => Some(Content::of_text(text, gold)),
            (Some(_), None) => {
                let expected = "its question or the question's SHA-256, as for other rows";
                return Err(ImportError::input(place, "a row without content", expected));
            }
        };
        let score = match cell(self.error) {
            Some(error) => Score::Errored(error.to_owned()),
            None => outcome(&place, row.get(self.correct).unwrap_or_default())?,
        };
        Ok(Sample {
            id: Some(id.trim().to_owned()),
            content,
            score,
            output: cell(self.output).map(str::to_owned),
            prompt_sha256: None,
            protocol_sha256: cell(self.protocol).map(|text| text.trim().to_ascii_lowercase()),
            place,
        })
    }
}

fn outcome(place: &str, text: &str) -> Result<Score, ImportError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Score::Unscored("an empty field".to_owned()));
    }
    if text.eq_ignore_ascii_case("true") {
        return Ok(Score::Correct(true));
    }
    if text.eq_ignore_ascii_case("false") {
        return Ok(Score::Correct(false));
    }
    match text.parse::<f64>() {
        Ok(1.0) => Ok(Score::Correct(true)),
        Ok(0.0) => Ok(Score::Correct(false)),
        Ok(_) => Ok(Score::Unscored(text.to_owned())),
        Err(_) => {
            let found = format!("outcome `{text}`");
            Err(ImportError::input(place, found, "0, 1, true or false"))
        }
    }
}
