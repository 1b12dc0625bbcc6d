//! Chat templates, rendered as the library that they are written for renders them.

use std::sync::LazyLock;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, State, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use regex::Regex;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::schema::ChatMessage;

use super::super::ModelError;

/// A chat template with the tokens that it may write.
#[derive(Clone)]
pub(super) struct ChatTemplate {
    path: String,
    source: String,
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
}

impl ChatTemplate {
    /// Takes the template's source. Whether it compiles shows when something is rendered: what needs no
    /// template runs without one that does.
    ///
    /// # Errors
    /// When the environment cannot be set up.
    pub(super) fn new(
        path: &str,
        source: String,
        bos_token: Option<String>,
        eos_token: Option<String>,
    ) -> Result<Self, ModelError> {
        let environment = environment().map_err(|e| wrong(path, &e))?;
        Ok(ChatTemplate {
            path: path.to_owned(),
            environment,
            source: without_generation_tags(&source),
            bos_token,
            eos_token,
        })
    }

    /// The messages as text.
    ///
    /// # Errors
    /// With what the template says.
    pub(super) fn render(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, ModelError> {
        let template = self.environment.template_from_str(&self.source);
        let variables = context! {
            messages => Serde(messages),
            add_generation_prompt,
            enable_thinking => false,
            tools => (),
            documents => (),
            bos_token => token(self.bos_token.as_deref()),
            eos_token => token(self.eos_token.as_deref()),
        };
        template
            .and_then(|template| template.render(variables))
            .map_err(|e| wrong(&self.path, &e))
    }
}

/// `{% generation %}`, by which training finds the model's own words, renders as its body in a scope of its
/// own.
fn without_generation_tags(source: &str) -> String {
    static TAG: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}").expect("a valid expression")
    });
    let tag = TAG.replace_all(source, "{%$1 ${2}with $3%}");
    tag.into_owned()
}

fn wrong(path: &str, error: &Error) -> ModelError {
    let line = error
        .line()
        .map_or_else(String::new, |n| format!(", line {n}"));
    let what = format!("chat template{line}");
    ModelError::invalid(path, what, error, "a template that renders")
}

/// A token, or the undefined value that prints nothing.
fn token(text: Option<&str>) -> Value {
    text.map_or(Value::UNDEFINED, Value::from)
}

fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    environment.set_syntax(syntax.trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(python_method);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    Ok(environment)
}

/// Methods of Python's strings, lists and dictionaries.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (method, value.as_str(), arguments) {
        // The library's own `title` does not start a word after punctuation.
        ("title", Some(text), []) => Ok(Value::from(title(text))),
        _ => unknown_method_callback(state, value, method, arguments),
    }
}

/// Python's `str.title`: a word is a run of letters.
fn title(text: &str) -> String {
    let mut out = String::new();
    let mut within = false;
    for character in text.chars() {
        if within {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
        within = character.is_alphabetic();
    }
    out
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// The fixed date, 26 July 2024 (a Friday), at midnight: the date that templates of the Llama
/// family fall back to where no clock is given.
fn strftime_now(format: String) -> Result<String, Error> {
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = characters.next();
        out.push_str(match directive {
            Some('d' | 'e') => "26",
            Some('m') => "07",
            Some('b' | 'h') => "Jul",
            Some('B') => "July",
            Some('y') => "24",
            Some('Y') => "2024",
            Some('a') => "Fri",
            Some('A') => "Friday",
            Some('w' | 'u') => "5",
            Some('j') => "208",
            Some('H' | 'M' | 'S') => "00",
            Some('I') => "12",
            Some('p') => "AM",
            Some('f') => "000000",
            Some('F') => "2024-07-26",
            Some('D' | 'x') => "07/26/24",
            Some('T' | 'X') => "00:00:00",
            Some('R') => "00:00",
            Some('c') => "Fri Jul 26 00:00:00 2024",
            // Python's naive times have no zone.
            Some('z' | 'Z') => "",
            Some('%') => "%",
            // Without the zero in front.
            Some('-') => match characters.next() {
                Some('d' | 'e') => "26",
                Some('m') => "7",
                Some('y') => "24",
                Some('j') => "208",
                Some('H' | 'M' | 'S') => "0",
                Some('I') => "12",
                _ => return Err(unknown_directive(&format)),
            },
            _ => return Err(unknown_directive(&format)),
        });
    }
    Ok(out)
}

fn unknown_directive(format: &str) -> Error {
    let message = format!("strftime_now: unknown directive in `{format}`");
    Error::new(ErrorKind::InvalidOperation, message)
}

/// JSON as Python writes it: no escapes for HTML, a space after commas and colons.
fn tojson(value: Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    kwargs.assert_all_used()?;
    let written = match indent {
        None => write_json(&value, PythonFormatter),
        Some(width) => write_json(&value, PrettyFormatter::with_indent(&vec![b' '; width])),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

fn write_json(value: &Value, formatter: impl Formatter) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    value.serialize(&mut serializer)?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// Separators `, ` and `: `.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
