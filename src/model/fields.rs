//! Typed access to the fields of a JSON object, with errors that name file and field.

use serde_json::{Map, Value};

use super::ModelError;

/// Reads a JSON object from `text`.
///
/// # Errors
/// Names the file, line and column.
pub(crate) fn parse_object(path: &str, text: &[u8]) -> Result<Map<String, Value>, ModelError> {
    let value: Value = serde_json::from_slice(text)
        .map_err(|e| ModelError::invalid(path, "JSON", e, "a JSON object"))?;
    match value {
        Value::Object(map) => Ok(map),
        other => Err(ModelError::invalid(path, "JSON", kind(&other), "an object")),
    }
}

/// One JSON object of one file. A field that is `null` counts as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    path: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// Fields of `map`, which stands in the file `path`.
    pub(crate) fn new(path: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { path, map }
    }

    /// The field, unless absent or `null`.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The file.
    pub(crate) fn path(&self) -> &'a str {
        self.path
    }

    /// Whether there is no field.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Names of the fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.keys().map(String::as_str)
    }

    /// Whether the field does not stand there at all, not even as `null`.
    pub(crate) fn is_absent(&self, name: &str) -> bool {
        !self.map.contains_key(name)
    }

    /// An object within this one.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ModelError> {
        let read = |value: &'a Value| value.as_object().map(|map| Fields::new(self.path, map));
        self.typed(name, "an object", read)
    }

    /// A count.
    pub(crate) fn usize(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let number = self
            .get(name)
            .map(|value| whole(value).map_err(|expected| self.wrong(name, short(value), expected)));
        number.transpose()
    }

    /// A count above 0 that must be there.
    pub(crate) fn required_usize(&self, name: &str) -> Result<usize, ModelError> {
        match self.usize(name)? {
            Some(0) => Err(self.wrong(name, "0", "a number above 0")),
            Some(number) => Ok(number),
            None => Err(self.missing(name, "a whole number")),
        }
    }

    /// A finite number.
    pub(crate) fn f64(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// A number above 0.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f64>, ModelError> {
        match self.f64(name)? {
            Some(number) if number <= 0.0 => Err(self.wrong(name, number, "a number above 0")),
            other => Ok(other),
        }
    }

    /// A number above 0 that must be there.
    pub(crate) fn required_positive(&self, name: &str) -> Result<f64, ModelError> {
        self.positive(name)?
            .ok_or_else(|| self.missing(name, "a number above 0"))
    }

    /// A flag.
    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>, ModelError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A string.
    pub(crate) fn str(&self, name: &str) -> Result<Option<&'a str>, ModelError> {
        self.typed(name, "a string", Value::as_str)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(typed) => Ok(Some(typed)),
                None => Err(self.wrong(name, short(value), expected)),
            },
        }
    }

    /// Error about a field with a wrong value.
    pub(crate) fn wrong(
        &self,
        name: &str,
        found: impl std::fmt::Display,
        expected: impl std::fmt::Display,
    ) -> ModelError {
        ModelError::invalid(self.path, format!("field `{name}`"), found, expected)
    }

    /// Error about a field that must be there.
    pub(crate) fn missing(&self, name: &str, expected: impl std::fmt::Display) -> ModelError {
        self.wrong(name, "nothing", expected)
    }

    /// Error about a field that asks for what is not applied.
    pub(crate) fn unsupported(&self, name: &str) -> ModelError {
        ModelError::unsupported(self.path, self.setting(name))
    }

    /// The same, with the values that are applied.
    pub(crate) fn unsupported_beside(
        &self,
        name: &str,
        supported: impl std::fmt::Display,
    ) -> ModelError {
        let what = format!("{} (supported: {supported})", self.setting(name));
        ModelError::unsupported(self.path, what)
    }

    fn setting(&self, name: &str) -> String {
        let value = self.get(name).map_or_else(|| "null".to_owned(), short);
        format!("{name} = {value}")
    }
}

/// A count of at most 32 bits, or what is expected of one: config dimensions beyond that are
/// nonsense, and products of two must not overflow.
pub(crate) fn whole(value: &Value) -> Result<usize, String> {
    let most = u64::from(u32::MAX);
    match value.as_u64() {
        Some(number) if number <= most => Ok(number as usize),
        // Beyond 64 bits a number is read as a float.
        number if number.is_some() || value.as_f64().is_some_and(|x| x > most as f64) => {
            Err(format!("a whole number up to {most}"))
        }
        _ => Err("a whole number".to_owned()),
    }
}

/// JSON of a value, cut to a length that fits a message.
pub(crate) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What kind of JSON value this is.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
