//! The table of counts that `kvassay audit` reads.

use std::collections::BTreeMap;
use std::io::Read;

use csv::{ErrorKind, ReaderBuilder, StringRecord, Trim};

use super::super::values::{parse_count, parse_score_alpha};
use crate::import::{Lines, QuoteFault, quote_fault};
use crate::stats::MAX_COUNT;

/// One line of the table, checked: at least one pair, `lost + gained <= pairs`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub label: String,
    pub pairs: u64,
    pub lost: u64,
    pub gained: u64,
    pub alpha: f64,
}

/// A whole table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub rows: Vec<Row>,
    /// Columns with other names, in file order.
    pub ignored: Vec<String>,
}

/// Why a file holds no table. Lines count from 1, the header included.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    #[error("the file is empty, expected a header with label, pairs, lost, gained")]
    Empty,
    #[error("the table has a header but no rows, expected at least one")]
    NoRows,
    #[error("line 1: no column `{column}`, found {found}, expected label, pairs, lost, gained")]
    MissingColumn { column: &'static str, found: String },
    #[error("line 1: column `{column}` stands twice, expected distinct names")]
    DoubledColumn { column: String },
    #[error("line {line}: found {found} fields, expected {expected} as in the header")]
    FieldCount {
        line: u64,
        found: u64,
        expected: u64,
    },
    #[error("line {}: found {}, expected {}", .0.line, .0.found, .0.expected)]
    Quote(QuoteFault),
    #[error("line {line}: not UTF-8 text")]
    Encoding { line: u64 },
    #[error("line {line}, column `{column}`: found `{found}`, expected {expected}")]
    Field {
        line: u64,
        column: &'static str,
        found: String,
        expected: String,
    },
    #[error(
        "line {line}: lost + gained is {lost} + {gained}, expected at most the {pairs} pairs of \
         the row"
    )]
    Discordant {
        line: u64,
        lost: u64,
        gained: u64,
        pairs: u64,
    },
    #[error(
        "line {line}, column `label`: found `{label}` again after line {first}, expected distinct \
         labels"
    )]
    DoubledLabel {
        line: u64,
        label: String,
        first: u64,
    },
    #[error("cannot read")]
    Io(#[from] std::io::Error),
    #[error("not readable as CSV")]
    Csv(#[source] csv::Error),
}

/// Reads a table. A byte-order mark, CRLF, blank lines, spaces around fields and quoted fields are
/// understood; rows without an alpha of their own get `default_alpha`.
///
/// # Errors
/// The first line that is not as expected.
pub(super) fn read(mut input: impl Read, default_alpha: f64) -> Result<Table, TableError> {
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    if let Some(fault) = quote_fault(text) {
        return Err(TableError::Quote(fault));
    }
    let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(text);
    let header = reader.headers().map_err(|error| csv_error(error, text))?;
    let columns = Columns::find(header)?;
    let (mut lines, mut first_lines) = (Lines::new(text), BTreeMap::new());
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(error, text))?;
        let line = lines.of(record.position());
        let fields = Fields {
            line,
            record: &record,
        };
        let row = columns.row(&fields, default_alpha)?;
        if let Some(first) = first_lines.insert(row.label.clone(), line) {
            let label = row.label;
            return Err(TableError::DoubledLabel { line, label, first });
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(TableError::NoRows);
    }
    Ok(Table {
        rows,
        ignored: columns.ignored,
    })
}

fn csv_error(error: csv::Error, text: &[u8]) -> TableError {
    let line = Lines::new(text).of(error.position());
    match error.kind() {
        ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => TableError::FieldCount {
            line,
            found: *len,
            expected: *expected_len,
        },
        ErrorKind::Utf8 { .. } => TableError::Encoding { line },
        _ => TableError::Csv(error),
    }
}

/// Where the columns stand.
struct Columns {
    label: usize,
    pairs: usize,
    lost: usize,
    gained: usize,
    alpha: Option<usize>,
    ignored: Vec<String>,
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, TableError> {
        if header.iter().all(str::is_empty) {
            return Err(TableError::Empty);
        }
        let place = |name: &str| header.iter().position(|column| column == name);
        for (index, column) in header.iter().enumerate() {
            if place(column) != Some(index) {
                let column = column.to_owned();
                return Err(TableError::DoubledColumn { column });
            }
        }
        let required = |column: &'static str| {
            place(column).ok_or_else(|| TableError::MissingColumn {
                column,
                found: header.iter().collect::<Vec<_>>().join(", "),
            })
        };
        let known = ["label", "pairs", "lost", "gained", "alpha"];
        let others = header.iter().filter(|column| !known.contains(column));
        Ok(Columns {
            label: required("label")?,
            pairs: required("pairs")?,
            lost: required("lost")?,
            gained: required("gained")?,
            alpha: place("alpha"),
            ignored: others.map(|column| format!("`{column}`")).collect(),
        })
    }

    fn row(&self, fields: &Fields, default_alpha: f64) -> Result<Row, TableError> {
        let label = fields.text(self.label);
        if label.is_empty() {
            return Err(fields.error("label", self.label, "a name".to_owned()));
        }
        let pairs = fields.count("pairs", self.pairs)?;
        if !(1..=MAX_COUNT).contains(&pairs) {
            let expected = format!("1 to {MAX_COUNT} pairs");
            return Err(fields.error("pairs", self.pairs, expected));
        }
        let lost = fields.count("lost", self.lost)?;
        let gained = fields.count("gained", self.gained)?;
        if lost.saturating_add(gained) > pairs {
            return Err(TableError::Discordant {
                line: fields.line,
                lost,
                gained,
                pairs,
            });
        }
        Ok(Row {
            label: label.to_owned(),
            pairs,
            lost,
            gained,
            alpha: self.alpha_of(fields)?.unwrap_or(default_alpha),
        })
    }

    /// The row's own alpha, where the column exists and the field is not empty.
    fn alpha_of(&self, fields: &Fields) -> Result<Option<f64>, TableError> {
        let Some(index) = self.alpha.filter(|&index| !fields.text(index).is_empty()) else {
            return Ok(None);
        };
        let parsed = parse_score_alpha(fields.text(index));
        let expected = "0 < alpha <= 0.5, as 0.05 or 0.05/24";
        let alpha = parsed.map_err(|_| fields.error("alpha", index, expected.to_owned()))?;
        Ok(Some(alpha))
    }
}

/// One record and the line where it begins.
struct Fields<'a> {
    line: u64,
    record: &'a StringRecord,
}

impl Fields<'_> {
    /// A field; records have as many as the header.
    fn text(&self, index: usize) -> &str {
        self.record.get(index).unwrap_or_default()
    }

    fn count(&self, column: &'static str, index: usize) -> Result<u64, TableError> {
        let expected = || "a whole number of at least 0, in digits".to_owned();
        parse_count(self.text(index)).ok_or_else(|| self.error(column, index, expected()))
    }

    fn error(&self, column: &'static str, index: usize, expected: String) -> TableError {
        TableError::Field {
            line: self.line,
            column,
            found: self.text(index).to_owned(),
            expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(text: &str) -> Result<Table, TableError> {
        read(text.as_bytes(), 0.05)
    }

    fn message(text: &str) -> String {
        table(text).unwrap_err().to_string()
    }

    #[test]
    fn plausible_files_are_read() {
        let text = "\u{feff}gained, label ,pairs,model,lost,alpha\r\n\
                    3,\"AF, fixed\",1319,q,6,0.05/24\r\n\r\n  10 ,AD,1319.0,q,6,\r\n";
        let table = table(text).unwrap();
        assert_eq!(table.ignored, ["`model`"]);
        assert_eq!(table.rows.len(), 2);
        assert_eq!(table.rows[0].label, "AF, fixed");
        assert_eq!(table.rows[0].alpha, 0.05 / 24.0);
        let second = &table.rows[1];
        assert_eq!((second.pairs, second.lost, second.gained), (1319, 6, 10));
        assert_eq!(second.alpha, 0.05);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let head = "label,pairs,lost,gained\n";
        for (body, expected) in [
            (
                "a,10,-1,0",
                "line 2, column `lost`: found `-1`, expected a whole number",
            ),
            ("a,10,1.5,0", "line 2, column `lost`: found `1.5`"),
            ("a,10,,0", "line 2, column `lost`: found ``"),
            (
                "a,10,1,0\n\nb,ten,0,0",
                "line 4, column `pairs`: found `ten`",
            ),
            (
                "a,0,0,0",
                "line 2, column `pairs`: found `0`, expected 1 to",
            ),
            (",10,0,0", "line 2, column `label`: found ``"),
            (
                "a,10,6,5",
                "line 2: lost + gained is 6 + 5, expected at most the 10 pairs",
            ),
            (
                "a,10,1,0\na,10,1,0",
                "line 3, column `label`: found `a` again after line 2",
            ),
            ("a,10,1", "line 2: found 3 fields, expected 4"),
            ("a,10,1,0,0", "line 2: found 5 fields, expected 4"),
        ] {
            let found = message(&format!("{head}{body}\n"));
            assert!(found.starts_with(expected), "{body}: {found}");
        }
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        for end in ["\n", "\r\n", "\r"] {
            let text = [
                "\u{feff}",
                "label,pairs,lost,gained",
                "a,9,0,0",
                "",
                "",
                "b,9,x,0",
            ];
            let text = text.join(end).replacen(end, "", 1);
            let found = message(&text);
            assert!(
                found.starts_with("line 5, column `lost`"),
                "{end:?}: {found}"
            );
        }
        let quoted = "label,pairs,lost,gained\n\"a\nb\",9,0,0\nc,9,0\n";
        assert_eq!(
            message(quoted),
            "line 4: found 3 fields, expected 4 as in the header"
        );
        let open = "label,pairs,lost,gained\n\n\"a,9,0,0\nb,9,0,0\n";
        assert_eq!(
            message(open),
            "line 3: found a quoted field without an end, expected a closing quote"
        );
    }

    #[test]
    fn headers_are_checked() {
        assert_eq!(message(""), TableError::Empty.to_string());
        assert_eq!(message("\n\n"), TableError::Empty.to_string());
        assert_eq!(
            message("label,pairs,lost,gained\n"),
            TableError::NoRows.to_string()
        );
        assert_eq!(
            message("label;pairs;lost;gained\na;1;0;0\n"),
            "line 1: no column `label`, found label;pairs;lost;gained, expected label, pairs, lost, \
             gained"
        );
        assert_eq!(
            message("label,pairs,lost,gained,lost\na,1,0,0,0\n"),
            "line 1: column `lost` stands twice, expected distinct names"
        );
    }

    #[test]
    fn alphas_of_rows_are_checked() {
        for alpha in ["0", "0.6", "nan", "5%"] {
            let found = message(&format!(
                "label,pairs,lost,gained,alpha\na,10,1,0,{alpha}\n"
            ));
            assert!(
                found.starts_with("line 2, column `alpha`: found `"),
                "{found}"
            );
        }
    }

    #[test]
    fn other_encodings_are_refused() {
        let text = b"label,pairs,lost,gained\nM\xfcller,10,1,0\n";
        let error = read(&text[..], 0.05).unwrap_err();
        assert_eq!(error.to_string(), "line 2: not UTF-8 text");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut input = b"label,pairs,lost,gained\n".to_vec();
            input.extend(bytes);
            if let Ok(table) = read(&input[..], 0.05) {
                for row in table.rows {
                    prop_assert!(row.pairs >= 1 && row.lost + row.gained <= row.pairs);
                }
            }
        }
    }
}
