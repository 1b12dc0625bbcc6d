//! Metadata: typed values by key.

use std::collections::BTreeMap;

use super::super::ModelError;
use super::cursor::Cursor;

/// Deepest nesting of arrays that is read.
const MAX_DEPTH: usize = 4;

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Unsigned integers of every width.
    Uint(u64),
    /// Signed integers of every width.
    Int(i64),
    /// Floats of both widths.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A string.
    String(String),
    /// Strings.
    Strings(Vec<String>),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f32>),
    /// Flags.
    Flags(Vec<bool>),
    /// Arrays of arrays or of wide floats: kept apart because nothing here reads them.
    Other,
}

/// Key-value pairs of one file.
#[derive(Debug)]
pub(crate) struct Metadata {
    path: String,
    values: BTreeMap<String, Value>,
}

/// Value type numbers of the format.
mod kind {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

/// Reads `count` key-value pairs.
pub(super) fn read_metadata(cursor: &mut Cursor<'_>, count: usize) -> Result<Metadata, ModelError> {
    let mut values = BTreeMap::new();
    for _ in 0..count {
        let key = cursor.string("metadata key")?;
        let kind = cursor.u32(key)?;
        let value = match kind {
            kind::ARRAY => read_array(cursor, key, 0)?,
            _ => read_scalar(cursor, key, kind)?,
        };
        if values.insert(key.to_owned(), value).is_some() {
            return Err(cursor.invalid(&format!("key `{key}`"), "it twice", "each key once"));
        }
    }
    Ok(Metadata {
        path: cursor.path().to_owned(),
        values,
    })
}

fn read_scalar(cursor: &mut Cursor<'_>, key: &str, kind: u32) -> Result<Value, ModelError> {
    Ok(match kind {
        kind::U8 => Value::Uint(u8::from_le_bytes(cursor.array(key)?).into()),
        kind::I8 => Value::Int(i8::from_le_bytes(cursor.array(key)?).into()),
        kind::U16 => Value::Uint(u16::from_le_bytes(cursor.array(key)?).into()),
        kind::I16 => Value::Int(i16::from_le_bytes(cursor.array(key)?).into()),
        kind::U32 => Value::Uint(cursor.u32(key)?.into()),
        kind::I32 => Value::Int(i32::from_le_bytes(cursor.array(key)?).into()),
        kind::F32 => Value::Float(f32::from_le_bytes(cursor.array(key)?).into()),
        kind::BOOL => match cursor.array(key)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => return Err(cursor.invalid(key, other, "0 or 1")),
        },
        kind::STRING => Value::String(cursor.string(key)?.to_owned()),
        kind::U64 => Value::Uint(cursor.u64(key)?),
        kind::I64 => Value::Int(i64::from_le_bytes(cursor.array(key)?)),
        kind::F64 => Value::Float(f64::from_le_bytes(cursor.array(key)?)),
        other => return Err(cursor.invalid(key, other, "a value type from 0 to 12")),
    })
}

/// Bytes of one array item; strings and arrays start with a 64-bit length.
fn least_item_bytes(kind: u32) -> u64 {
    match kind {
        kind::U16 | kind::I16 => 2,
        kind::U32 | kind::I32 | kind::F32 => 4,
        kind::STRING | kind::U64 | kind::I64 | kind::F64 => 8,
        kind::ARRAY => 12,
        _ => 1,
    }
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Value, ModelError> {
    if depth >= MAX_DEPTH {
        return Err(cursor.invalid(key, "deeper arrays", format!("at most {MAX_DEPTH} levels")));
    }
    let kind = cursor.u32(key)?;
    let count = cursor.count(least_item_bytes(kind), key)?;
    match kind {
        kind::STRING => {
            let read = |_| cursor.string(key).map(str::to_owned);
            Ok(Value::Strings(
                (0..count).map(read).collect::<Result<_, _>>()?,
            ))
        }
        kind::F32 => {
            let read = |_| cursor.array(key).map(f32::from_le_bytes);
            Ok(Value::Floats(
                (0..count).map(read).collect::<Result<_, _>>()?,
            ))
        }
        kind::ARRAY => {
            for _ in 0..count {
                read_array(cursor, key, depth + 1)?;
            }
            Ok(Value::Other)
        }
        _ => read_numbers(cursor, key, kind, count),
    }
}

fn read_numbers(
    cursor: &mut Cursor<'_>,
    key: &str,
    kind: u32,
    count: usize,
) -> Result<Value, ModelError> {
    if kind == kind::BOOL {
        let mut flags = Vec::with_capacity(count);
        for _ in 0..count {
            if let Value::Bool(flag) = read_scalar(cursor, key, kind)? {
                flags.push(flag);
            }
        }
        return Ok(Value::Flags(flags));
    }
    let mut numbers = Vec::with_capacity(count);
    for _ in 0..count {
        match read_scalar(cursor, key, kind)? {
            Value::Int(number) => numbers.push(number),
            Value::Uint(number) => match i64::try_from(number) {
                Ok(number) => numbers.push(number),
                Err(_) => return Err(cursor.invalid(key, number, "a number below 2^63")),
            },
            _ => {}
        }
    }
    Ok(match kind {
        kind::F64 => Value::Other,
        _ => Value::Ints(numbers),
    })
}

impl Metadata {
    /// The file, for messages.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// A value.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A whole number, of either signedness.
    pub(crate) fn u64(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.typed(key, "a whole number", |value| match value {
            Value::Uint(number) => Some(*number),
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A whole number that fits 32 bits: dimensions and token ids.
    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>, ModelError> {
        match self.u64(key)? {
            None => Ok(None),
            Some(number) => match u32::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.wrong(key, number, "a number below 2^32")),
            },
        }
    }

    /// A dimension above 0 that must be there.
    pub(crate) fn required_usize(&self, key: &str) -> Result<usize, ModelError> {
        match self.u32(key)? {
            None => Err(self.wrong(key, "nothing", "a whole number")),
            Some(0) => Err(self.wrong(key, 0, "a number above 0")),
            Some(number) => Ok(number as usize),
        }
    }

    /// A finite number.
    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.typed(key, "a finite number", |value| match value {
            Value::Float(number) if number.is_finite() => Some(*number),
            Value::Uint(number) => Some(*number as f64),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A number above 0.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.f64(key)? {
            Some(number) if number <= 0.0 => Err(self.wrong(key, number, "a number above 0")),
            other => Ok(other),
        }
    }

    /// A flag.
    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "a flag", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// A string.
    pub(crate) fn str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An array of strings that must be there.
    pub(crate) fn required_strings(&self, key: &str) -> Result<&[String], ModelError> {
        let strings = self.typed(key, "an array of strings", |value| match value {
            Value::Strings(strings) => Some(strings.as_slice()),
            _ => None,
        })?;
        strings.ok_or_else(|| self.wrong(key, "nothing", "an array of strings"))
    }

    /// An array of whole numbers.
    pub(crate) fn ints(&self, key: &str) -> Result<Option<&[i64]>, ModelError> {
        self.typed(key, "an array of whole numbers", |value| match value {
            Value::Ints(numbers) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// A list of floats.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<&[f32]>, ModelError> {
        self.typed(key, "a list of floats", |value| match value {
            Value::Floats(numbers) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(typed) => Ok(Some(typed)),
                None => Err(self.wrong(key, value.summary(), expected)),
            },
        }
    }

    /// Error about the value of a key.
    pub(crate) fn wrong(
        &self,
        key: &str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> ModelError {
        ModelError::invalid(&self.path, format!("metadata `{key}`"), found, expected)
    }

    /// Error about a key that asks for what is not applied.
    pub(crate) fn unsupported(&self, key: &str) -> ModelError {
        let value = self
            .get(key)
            .map_or_else(|| "nothing".to_owned(), Value::summary);
        ModelError::unsupported(&self.path, format!("{key} = {value}"))
    }

    /// The same, with the values that are applied.
    pub(crate) fn unsupported_beside(&self, key: &str, supported: &str) -> ModelError {
        match self.unsupported(key) {
            ModelError::Unsupported { path, what } => {
                ModelError::unsupported(path, format!("{what} (supported: {supported})"))
            }
            other => other,
        }
    }
}

impl Value {
    /// Whether this is more than one value.
    pub(crate) fn is_array(&self) -> bool {
        match self {
            Value::Uint(_) | Value::Int(_) | Value::Float(_) => false,
            Value::Bool(_) | Value::String(_) => false,
            Value::Strings(_) | Value::Ints(_) | Value::Floats(_) => true,
            Value::Flags(_) | Value::Other => true,
        }
    }

    /// The value, short enough for a message.
    pub(crate) fn summary(&self) -> String {
        match self {
            Value::Uint(number) => number.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::String(text) => format!("{:?}", text.chars().take(80).collect::<String>()),
            Value::Strings(list) => format!("{} strings", list.len()),
            Value::Ints(list) => format!("{} whole numbers", list.len()),
            Value::Floats(list) => format!("{} floats", list.len()),
            Value::Flags(list) => format!("{} flags", list.len()),
            Value::Other => "an array".to_owned(),
        }
    }
}
