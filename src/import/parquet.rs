//! Rows of a columnar file as JSON values.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::{Field, Row};
use ::parquet::schema::types::Type;
use serde_json::{Map, Number, Value};

use super::ImportError;
use super::read::Input;

/// Every row with those of `columns` that the file has, as a JSON object.
///
/// # Errors
/// [`ImportError::Input`] where the file is damaged.
pub(super) fn rows(
    input: &Input,
    columns: &[&str],
) -> Result<Vec<Map<String, Value>>, ImportError> {
    // The reader checks less than foreign bytes demand; what it trips over is an error of the file.
    catch_unwind(AssertUnwindSafe(|| read(input, columns)))
        .unwrap_or_else(|_| Err(damaged(input, "damaged contents".to_owned())))
}

fn read(input: &Input, columns: &[&str]) -> Result<Vec<Map<String, Value>>, ImportError> {
    let unreadable = |error: ParquetError| damaged(input, error.to_string());
    let file = File::open(&input.path).map_err(ImportError::io(&input.path))?;
    let reader = SerializedFileReader::new(file).map_err(unreadable)?;
    let schema = reader.metadata().file_metadata().schema();
    let fields = schema
        .get_fields()
        .iter()
        .filter(|field| columns.contains(&field.name()))
        .map(Arc::clone)
        .collect::<Vec<_>>();
    if fields.is_empty() {
        let found: Vec<_> = schema.get_fields().iter().map(|f| f.name()).collect();
        return Err(ImportError::input(
            &input.name,
            format!("columns {}", found.join(", ")),
            format!("columns {}", columns.join(", ")),
        ));
    }
    let projection = Type::group_type_builder(schema.name())
        .with_fields(fields)
        .build()
        .map_err(unreadable)?;
    let rows = reader.get_row_iter(Some(projection)).map_err(unreadable)?;
    rows.map(|row| row.map(|row| object(&row)).map_err(unreadable))
        .collect()
}

fn damaged(input: &Input, found: String) -> ImportError {
    ImportError::input(&input.name, found, "a readable Parquet file")
}

fn object(row: &Row) -> Map<String, Value> {
    row.get_column_iter()
        .map(|(name, field)| (name.clone(), value(field)))
        .collect()
}

/// A field as JSON. Numbers that are not finite become text, as in JSON that Python writes.
fn value(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(found) => Value::Bool(*found),
        Field::Byte(number) => (*number).into(),
        Field::Short(number) => (*number).into(),
        Field::Int(number) => (*number).into(),
        Field::Long(number) => (*number).into(),
        Field::UByte(number) => (*number).into(),
        Field::UShort(number) => (*number).into(),
        Field::UInt(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        Field::Float16(number) => float(f64::from(*number)),
        Field::Float(number) => float(f64::from(*number)),
        Field::Double(number) => float(*number),
        Field::Str(text) => Value::String(text.clone()),
        Field::Bytes(bytes) => Value::String(String::from_utf8_lossy(bytes.data()).into_owned()),
        Field::Group(row) => Value::Object(object(row)),
        Field::ListInternal(list) => Value::Array(list.elements().iter().map(value).collect()),
        // Dates, decimals and maps decide nothing; their text is enough.
        other => Value::String(other.to_string()),
    }
}

fn float(number: f64) -> Value {
    let name = match number {
        _ if number.is_nan() => "NaN",
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => return Number::from_f64(number).map_or(Value::Null, Value::Number),
    };
    Value::String(name.to_owned())
}
