//! Two text columns of a columnar file, row by row.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;

use super::error::PanelError;

/// Calls `each(row, [first, second])` for every row, counted from 1.
///
/// # Errors
/// [`PanelError`] where the file is damaged, a column is missing, a value is no text, or `each`
/// fails.
pub(super) fn for_each(
    path: &Path,
    columns: [&str; 2],
    each: &mut dyn FnMut(usize, [String; 2]) -> Result<(), PanelError>,
) -> Result<(), PanelError> {
    // The reader checks less than foreign bytes demand; what it trips over is an error of the file.
    catch_unwind(AssertUnwindSafe(|| read(path, columns, each)))
        .unwrap_or_else(|_| Err(damaged(path, "damaged contents".to_owned())))
}

fn read(
    path: &Path,
    columns: [&str; 2],
    each: &mut dyn FnMut(usize, [String; 2]) -> Result<(), PanelError>,
) -> Result<(), PanelError> {
    let file = File::open(path).map_err(PanelError::io(path))?;
    let unreadable = |error: ParquetError| damaged(path, error.to_string());
    let reader = SerializedFileReader::new(file).map_err(unreadable)?;
    let schema = reader.metadata().file_metadata().schema();
    let projection = projection(schema, columns).ok_or_else(|| {
        let found: Vec<_> = schema.get_fields().iter().map(|f| f.name()).collect();
        PanelError::File {
            path: path.to_owned(),
            found: format!("columns {}", found.join(", ")),
            expected: format!("columns {} and {}", columns[0], columns[1]),
        }
    })?;
    let rows = reader.get_row_iter(Some(projection)).map_err(unreadable)?;
    for (index, row) in rows.enumerate() {
        let row = row.map_err(unreadable)?;
        let [first, second] = columns.map(|column| text(&row, column, path, index + 1));
        each(index + 1, [first?, second?])?;
    }
    Ok(())
}

fn damaged(path: &Path, found: String) -> PanelError {
    PanelError::File {
        path: path.to_owned(),
        found,
        expected: "a readable Parquet file".to_owned(),
    }
}

fn projection(schema: &Type, columns: [&str; 2]) -> Option<Type> {
    let fields = schema
        .get_fields()
        .iter()
        .filter(|field| columns.contains(&field.name()))
        .map(Arc::clone)
        .collect::<Vec<_>>();
    if fields.len() != columns.len() {
        return None;
    }
    Type::group_type_builder(schema.name())
        .with_fields(fields)
        .build()
        .ok()
}

fn text(row: &Row, column: &str, path: &Path, line: usize) -> Result<String, PanelError> {
    let field = row.get_column_iter().find(|(name, _)| *name == column);
    match field {
        Some((_, Field::Str(text))) => Ok(text.clone()),
        Some((_, Field::Bytes(bytes))) => {
            String::from_utf8(bytes.data().to_vec()).map_err(|error| PanelError::Line {
                path: path.to_owned(),
                line,
                found: format!("{column}: bytes that are no UTF-8 ({})", error.utf8_error()),
                expected: "text".to_owned(),
            })
        }
        other => Err(PanelError::Line {
            path: path.to_owned(),
            line,
            found: format!("{column}: {}", other.map_or("nothing", |_| "no text")),
            expected: "text".to_owned(),
        }),
    }
}
