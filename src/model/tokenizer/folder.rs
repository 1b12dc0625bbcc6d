//! The tokenizer of a Hugging Face folder.

use serde_json::{Map, Value};

use super::super::ModelError;
use super::super::fields::{Fields, parse_object, short};
use super::super::hf_config::token_ids;
use super::{Tokenizer, TokenizerParts, ids_below};

/// Contents of the files that make a tokenizer; only `tokenizer.json` must be there.
pub(crate) struct FolderTokenizer<'a> {
    /// Folder, for messages.
    pub folder: &'a str,
    /// `tokenizer.json`.
    pub tokenizer: Option<&'a [u8]>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `chat_template.jinja`.
    pub chat_template: Option<&'a [u8]>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a [u8]>,
    /// `config.json`.
    pub config: &'a [u8],
    /// Tokens that the model knows.
    pub vocab_size: usize,
}

impl FolderTokenizer<'_> {
    /// Builds the tokenizer.
    ///
    /// Generation ends at the ids of `generation_config.json`, else of `config.json`, and at the
    /// tokenizer's own end-of-sequence token. A `chat_template.jinja` wins over the template in
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// Names the file and what is missing or wrong in it.
    pub(crate) fn build(&self) -> Result<Tokenizer, ModelError> {
        let path = format!("{}/tokenizer.json", self.folder);
        let text = self.tokenizer.ok_or_else(|| {
            ModelError::invalid(&path, "file", "nothing", "the tokenizer's definition")
        })?;
        let definition = Value::Object(parse_object(&path, text)?);
        let config_path = format!("{}/tokenizer_config.json", self.folder);
        let map = match self.tokenizer_config {
            Some(text) => parse_object(&config_path, text)?,
            None => Map::new(),
        };
        let config = Fields::new(&config_path, &map);
        Tokenizer::from_parts(TokenizerParts {
            definition,
            chat_template: self.chat_template(config)?,
            template_path: match self.chat_template {
                Some(_) => self.template_path(),
                None => config_path.clone(),
            },
            bos_token: special_token(config, "bos_token")?,
            eos_token: special_token(config, "eos_token")?,
            add_bos: config.bool("add_bos_token")?,
            eos_ids: self.eos_ids()?,
            settings_path: config_path.clone(),
            path,
        })
    }

    fn template_path(&self) -> String {
        format!("{}/chat_template.jinja", self.folder)
    }

    fn chat_template(&self, config: Fields<'_>) -> Result<Option<String>, ModelError> {
        if let Some(text) = self.chat_template {
            let path = self.template_path();
            return match std::str::from_utf8(text) {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(e) => Err(ModelError::invalid(path, "template", e, "UTF-8")),
            };
        }
        match config.get("chat_template") {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Array(list)) => default_template(config, list).map(Some),
            Some(other) => {
                let expected = "a template or a list of named templates";
                Err(config.wrong("chat_template", short(other), expected))
            }
        }
    }

    fn eos_ids(&self) -> Result<Vec<u32>, ModelError> {
        let generation = ("generation_config.json", self.generation_config);
        for (name, text) in [generation, ("config.json", Some(self.config))] {
            let Some(text) = text else {
                continue;
            };
            let path = format!("{}/{name}", self.folder);
            let map = parse_object(&path, text)?;
            let fields = Fields::new(&path, &map);
            if let Some(value) = fields.get("eos_token_id") {
                return self.known_ids(fields, "eos_token_id", value);
            }
        }
        Ok(Vec::new())
    }

    /// The ids that the field `name` holds as `value`, all of them in the vocabulary.
    fn known_ids(
        &self,
        fields: Fields<'_>,
        name: &str,
        value: &Value,
    ) -> Result<Vec<u32>, ModelError> {
        let expected = ids_below(self.vocab_size);
        let ids = token_ids(value).ok_or_else(|| {
            let expected = format!("a token id or a list of them, {expected}");
            fields.wrong(name, short(value), expected)
        })?;
        let mut foreign = ids.iter().filter(|id| **id as usize >= self.vocab_size);
        match foreign.next() {
            Some(id) => Err(fields.wrong(name, id, expected)),
            None => Ok(ids),
        }
    }
}

fn default_template(config: Fields<'_>, list: &[Value]) -> Result<String, ModelError> {
    let named_default = |one: &&Value| one.get("name").and_then(Value::as_str) == Some("default");
    let template = list
        .iter()
        .find(named_default)
        .and_then(|one| one.get("template"));
    match template.and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => {
            let found = format!("{} templates, none of them `default`", list.len());
            Err(config.wrong("chat_template", found, "a template named `default`"))
        }
    }
}

/// A token given as its text, or as an object with the text in `content`.
fn special_token(config: Fields<'_>, name: &str) -> Result<Option<String>, ModelError> {
    let text = match config.get(name) {
        None => return Ok(None),
        Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
        Some(other) => other.as_str(),
    };
    match text {
        Some(text) => Ok(Some(text.to_owned())),
        None => {
            let found = config.get(name).map_or_else(String::new, short);
            Err(config.wrong(name, found, "a token's text"))
        }
    }
}
