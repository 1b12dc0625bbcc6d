//! Record lines: text to records and back.

use std::ops::Range;
use std::path::Path;

use crate::schema::Record;

use super::StoreError;

/// Length of the part of `bytes` that consists of whole lines. What follows is a torn line.
pub(super) fn whole_lines(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1)
}

/// Reads every line of `bytes`, which must end with a line feed or be empty.
pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Record>, StoreError> {
    let lines = bytes.split_inclusive(|&byte| byte == b'\n');
    lines
        .enumerate()
        .map(|(at, line)| {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            read(line).map_err(|error| StoreError::Record {
                path: path.to_owned(),
                line: at + 1,
                what: format!("found no record: {error}"),
            })
        })
        .collect()
}

/// Reads a record. A likelihood that is no finite number is read as such: JSON holds none, but what
/// wrote the line may, and evidence is judged by what it says.
fn read(line: &[u8]) -> serde_json::Result<Record> {
    serde_json::from_slice(line).or_else(|error| {
        let Some((place, sum)) = unbounded(line) else {
            return Err(error);
        };
        let finite = [&line[..place.start], b"null", &line[place.end..]].concat();
        let record: Record = serde_json::from_slice(&finite)?;
        Ok(Record {
            nll_sum: Some(sum),
            ..record
        })
    })
}

/// Where a record's `nll_sum` stands and what it is, if it is not finite: `NaN`, `Infinity`, or a
/// number beyond the largest (`1e999`).
fn unbounded(line: &[u8]) -> Option<(Range<usize>, f64)> {
    const NAME: &[u8] = b"\"nll_sum\"";
    let text = std::str::from_utf8(line).ok()?;
    // Within a text the quotes of the name would be escaped.
    let name = line.windows(NAME.len()).position(|found| found == NAME)?;
    let colon = name + NAME.len() + text[name + NAME.len()..].find(':')?;
    let rest = &text[colon + 1..];
    let value = &rest[..rest.find([',', '}'])?];
    let start = colon + 1 + (value.len() - value.trim_start().len());
    let sum: f64 = value.trim().parse().ok()?;
    (!sum.is_finite()).then(|| (start..start + value.trim().len(), sum))
}

/// Appends the line of `record` to `out`.
pub(super) fn push_line(path: &Path, record: &Record, out: &mut Vec<u8>) -> Result<(), StoreError> {
    let start = out.len();
    serde_json::to_writer(&mut *out, record).map_err(StoreError::json(path))?;
    // JSON has no NaN: what does not read back as it was must not be written.
    let same = serde_json::from_slice::<Record>(&out[start..]).is_ok_and(|back| back == *record);
    if !same {
        return Err(StoreError::NotFinite {
            path: path.to_owned(),
            what: format!("the record of case {}", record.case),
        });
    }
    out.push(b'\n');
    Ok(())
}

/// What keeps `record` from being final, if anything: it needs an outcome or an error, not both.
pub(super) fn outcome_fault(record: &Record) -> Option<&'static str> {
    let answered = record.correct.is_some() && record.finish.is_some() && record.output.is_some();
    let scored = record.targets.is_some() && record.nll_sum.is_some();
    match (&record.error, answered, scored) {
        (Some(_), false, false) | (None, true, false) | (None, false, true) => None,
        (Some(_), _, _) => Some("found an error and an outcome, expected one of them"),
        (None, true, true) => Some("found an answer and a likelihood, expected one of them"),
        (None, false, false) => Some(
            "found no outcome, expected output, finish and correct, or targets and nll_sum, or error",
        ),
    }
}

#[cfg(test)]
pub(super) mod samples {
    //! Records for tests.

    use crate::schema::{Finish, Record};

    use super::super::CaseKey;

    /// A plan of `n` cases.
    pub fn plan(n: usize) -> Vec<CaseKey> {
        (0..n)
            .map(|i| CaseKey {
                case: format!("case-{i}"),
                case_sha256: crate::schema::sha256_hex(&[i as u8]),
            })
            .collect()
    }

    /// A final record of each planned case; every kind of outcome occurs.
    pub fn records(plan: &[CaseKey]) -> Vec<Record> {
        plan.iter()
            .enumerate()
            .map(|(i, key)| record(i, key))
            .collect()
    }

    fn record(i: usize, key: &CaseKey) -> Record {
        let blank = Record {
            case: key.case.clone(),
            case_sha256: key.case_sha256.clone(),
            prompt_tokens: 7,
            ..Record::default()
        };
        match i % 3 {
            0 => Record {
                output: Some("zwölf\n\"12\"".to_owned()),
                finish: Some(Finish::Stop),
                answer: Some(Some("12".to_owned())),
                correct: Some(true),
                ..blank
            },
            1 => Record {
                targets: Some(128),
                nll_sum: Some(0.1 + i as f64 / 3.0),
                ..blank
            },
            _ => Record {
                error: Some("beyond the context".to_owned()),
                finish: Some(Finish::Error),
                ..blank
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{plan, records};
    use super::*;

    #[test]
    fn lines_read_back_and_errors_name_their_line() {
        let path = Path::new("arms/AD/math.jsonl");
        let records = records(&plan(4));
        let mut bytes = Vec::new();
        for record in &records {
            assert_eq!(outcome_fault(record), None);
            push_line(path, record, &mut bytes).unwrap();
        }
        assert_eq!(parse(path, &bytes).unwrap(), records);
        for (bad, what) in [
            ("{\"case\":\"x\"}\n", "case_sha256"),
            ("\n", "EOF"),
            (
                "{\"case\":\"x\",\"case_sha256\":\"y\",\"prompt_tokens\":1,\"colour\":2}\n",
                "colour",
            ),
            (
                "{\"case\":\"x\",\"case_sha256\":\"y\",\"prompt_tokens\":1,\"depth\":1e999}\n",
                "number out of range",
            ),
            (
                "{\"case\":\"x\",\"case_sha256\":\"y\",\"prompt_tokens\":1,\"nll_sum\":nought}\n",
                "expected ident",
            ),
            ("{\"case\":\"\u{0}\n", "control character"),
        ] {
            let mut bytes = bytes.clone();
            bytes.extend_from_slice(bad.as_bytes());
            let error = parse(path, &bytes).unwrap_err().to_string();
            assert!(error.starts_with("arms/AD/math.jsonl:5: "), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn a_likelihood_that_is_not_finite_is_read_as_such() {
        let path = Path::new("x.jsonl");
        let mut record = records(&plan(2)).remove(1);
        record.case = "a \\\"nll_sum\\\":1e999, b".to_owned();
        let text = serde_json::to_string(&record).unwrap();
        let sum = format!("\"nll_sum\":{}", record.nll_sum.unwrap());
        for (written, is_nan) in [
            ("1e999", false),
            ("-1e999", false),
            ("1e999 ", false),
            (" NaN", true),
            ("Infinity", false),
            ("-Infinity", false),
        ] {
            let changed = text.replace(&sum, &format!("\"nll_sum\":{written}"));
            assert_ne!(changed, text);
            let found = parse(path, format!("{changed}\n").as_bytes())
                .unwrap()
                .remove(0);
            let value = found.nll_sum.unwrap();
            assert!(!value.is_finite() && value.is_nan() == is_nan, "{written}");
            assert_eq!((&found.case, found.targets), (&record.case, record.targets));
        }
        assert_eq!(
            parse(path, format!("{text}\n").as_bytes()).unwrap(),
            [record]
        );
    }

    #[test]
    fn not_finite_and_unfinished_records_are_refused() {
        let path = Path::new("x.jsonl");
        let mut record = records(&plan(2)).remove(1);
        record.nll_sum = Some(f64::NAN);
        let error = push_line(path, &record, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("case-1"), "{error}");
        record.nll_sum = None;
        assert!(outcome_fault(&record).is_some());
        record.error = Some("failed".to_owned());
        assert_eq!(outcome_fault(&record), None);
        record.nll_sum = Some(1.0);
        assert!(outcome_fault(&record).is_some());
    }
}
