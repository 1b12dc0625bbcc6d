//! Text to token ids and back, and the chat template.

mod bytes;
mod folder;
mod template;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::schema::{ChatMessage, canonical_sha256};

use super::ModelError;
pub(crate) use folder::FolderTokenizer;
use template::ChatTemplate;

/// What is expected of token ids, each of which has a row in the embedding.
pub(crate) fn ids_below(vocab_size: usize) -> String {
    format!("ids below the vocabulary of {vocab_size}")
}

/// What a tokenizer is made of, whatever file it comes from.
pub(crate) struct TokenizerParts {
    /// File of the definition, for messages.
    pub path: String,
    /// File that names tokens, likewise.
    pub settings_path: String,
    /// File that holds the chat template, likewise.
    pub template_path: String,
    /// Content of a `tokenizer.json`.
    pub definition: Value,
    /// Source of the chat template.
    pub chat_template: Option<String>,
    /// Beginning-of-sequence token as templates see it.
    pub bos_token: Option<String>,
    /// End-of-sequence token as templates see it.
    pub eos_token: Option<String>,
    /// Whether sequences start with the beginning-of-sequence token; `None` leaves it to the
    /// definition's post-processor.
    pub add_bos: Option<bool>,
    /// Ids that end generation, besides the end-of-sequence token.
    pub eos_ids: Vec<u32>,
}

/// A model's tokenizer with its chat template.
#[derive(Clone)]
pub struct Tokenizer {
    path: String,
    /// Leaves the strings of special tokens in a text uninterpreted.
    plain: tokenizers::Tokenizer,
    /// Recognises the strings of special tokens.
    rendered: tokenizers::Tokenizer,
    bos: Option<u32>,
    eos_ids: Vec<u32>,
    template: Option<ChatTemplate>,
    sha256: String,
    /// Added tokens from this id on belong to no row of the embedding.
    beyond: Option<usize>,
}

impl Tokenizer {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// When the definition or the chat template cannot be read, or a token that they name is
    /// not in the vocabulary.
    pub(crate) fn from_parts(parts: TokenizerParts) -> Result<Self, ModelError> {
        let path = parts.path.as_str();
        let rendered = build(path, &parts.definition)?;
        let bos = bos(&rendered, &parts)?;
        let eos_ids = eos_ids(&rendered, &parts)?;
        let mut plain = rendered.clone();
        plain.set_encode_special_tokens(true);
        let identity = json!({
            "definition": parts.definition,
            "chat_template": parts.chat_template,
            "bos": bos,
            "bos_token": parts.bos_token,
            "eos_ids": eos_ids,
            "eos_token": parts.eos_token,
        });
        let sha256 = canonical_sha256(&identity)
            .map_err(|e| ModelError::invalid(path, "tokenizer", e, "JSON"))?;
        let template = match parts.chat_template {
            None => None,
            Some(source) => Some(ChatTemplate::new(
                &parts.template_path,
                source,
                parts.bos_token,
                parts.eos_token,
            )?),
        };
        Ok(Tokenizer {
            path: parts.path,
            plain,
            rendered,
            bos,
            eos_ids,
            template,
            sha256,
            beyond: None,
        })
    }

    /// Token ids of running text. No token is added at either end, and the strings of special
    /// tokens (`<|im_end|>`) are text like any other, so that no document can end a turn. Tokens
    /// that the vocabulary adds without calling them special are still found.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encode(&self.plain, text)
    }

    /// Token ids of a rendered chat: the strings of special tokens become those tokens. No token
    /// is added at either end.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encode(&self.rendered, text)
    }

    fn encode(
        &self,
        tokenizer: &tokenizers::Tokenizer,
        text: &str,
    ) -> Result<Vec<u32>, ModelError> {
        let encoding = tokenizer
            .encode_fast(text, false)
            .map_err(|e| ModelError::invalid(&self.path, "text to encode", e, "token ids"))?;
        let ids = encoding.get_ids();
        if let Some(vocabulary) = self.beyond
            && let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary)
        {
            let what = format!("id of token `{}` in a text", self.piece(*id));
            let expected = ids_below(vocabulary);
            return Err(ModelError::invalid(&self.path, what, id, expected));
        }
        Ok(ids.to_vec())
    }

    /// Token ids of a whole prompt: the messages through the chat template, tokenised with special
    /// tokens recognised, and exactly one beginning-of-sequence token where the model has one,
    /// whether or not the template writes it.
    ///
    /// # Errors
    /// As [`Tokenizer::render_chat`] and [`Tokenizer::encode_rendered`].
    pub fn chat_ids(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<Vec<u32>, ModelError> {
        let text = self.render_chat(messages, add_generation_prompt)?;
        let mut ids = self.encode_rendered(&text)?;
        if let Some(bos) = self.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Text of the ids, special tokens left out. Bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        // A failure must be visible in the output, never an empty answer.
        self.rendered
            .decode(ids, true)
            .unwrap_or_else(|e| format!("<undecodable: {e}>"))
    }

    /// Text of one token by itself, special tokens included. Bytes that are not UTF-8 become U+FFFD.
    pub fn piece(&self, id: u32) -> String {
        self.rendered.decode(&[id], false).unwrap_or_default()
    }

    /// The token that starts every sequence; `None` where the model does not prepend one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Tokens that end generation, ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The messages as the chat template renders them, with thinking disabled. Templates that ask
    /// for today's date get 26 July 2024, so that prompts do not depend on the day of the run.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] without a chat template, [`ModelError::Invalid`] with what the
    /// template says where it refuses the messages or uses what is not there.
    pub fn render_chat(
        &self,
        messages: &[ChatMessage],
        add_generation_prompt: bool,
    ) -> Result<String, ModelError> {
        match &self.template {
            Some(template) => template.render(messages, add_generation_prompt),
            None => {
                let what = "chat messages: the model has no chat template";
                Err(ModelError::unsupported(&self.path, what))
            }
        }
    }

    /// Largest id that the tokenizer can produce.
    pub(crate) fn largest_id(&self) -> u32 {
        self.largest(true).map_or(0, |(_, id)| id)
    }

    /// The token with the largest id.
    fn largest(&self, with_added: bool) -> Option<(String, u32)> {
        let vocabulary = self.rendered.get_vocab(with_added).into_iter();
        vocabulary.max_by_key(|(_, id)| *id)
    }

    /// Checks that every id of the vocabulary itself lies below `vocab_size`. Tokens that were added
    /// behind it, such as the image tokens that the text models of Gemma 3 share with the multimodal ones,
    /// may lie beyond: a text that contains one is refused when it is encoded.
    ///
    /// # Errors
    /// Names the token with the largest id.
    pub(crate) fn check_ids(&mut self, vocab_size: usize) -> Result<(), ModelError> {
        let is_beyond = |id: u32| id as usize >= vocab_size;
        if let Some((token, id)) = self.largest(false).filter(|(_, id)| is_beyond(*id)) {
            let what = format!("id of token `{token}`");
            let expected = ids_below(vocab_size);
            return Err(ModelError::invalid(&self.path, what, id, expected));
        }
        let added = self.rendered.get_added_tokens_decoder();
        self.beyond = added.into_keys().any(is_beyond).then_some(vocab_size);
        Ok(())
    }

    /// SHA-256 over the tokenizer's definition, chat template and the tokens that begin and end a
    /// sequence.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

fn build(path: &str, definition: &Value) -> Result<tokenizers::Tokenizer, ModelError> {
    let wrong = |e: &dyn std::fmt::Display| {
        let expected = "a definition that the tokenizers library reads";
        ModelError::invalid(path, "tokenizer", e, expected)
    };
    let bytes = serde_json::to_vec(definition).map_err(|e| wrong(&e))?;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| wrong(&e))?;
    // Panels decide on lengths: text is never cut or padded behind their back.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| wrong(&e))?;
    Ok(tokenizer)
}

/// The id of a `token` that the field `name` of the file `path` names.
fn token_id(
    tokenizer: &tokenizers::Tokenizer,
    path: &str,
    name: &str,
    token: &str,
) -> Result<u32, ModelError> {
    tokenizer.token_to_id(token).ok_or_else(|| {
        ModelError::invalid(
            path,
            format!("field `{name}`"),
            format!("`{token}`"),
            "a token of the vocabulary",
        )
    })
}

fn bos(
    tokenizer: &tokenizers::Tokenizer,
    parts: &TokenizerParts,
) -> Result<Option<u32>, ModelError> {
    let path = &parts.settings_path;
    let named = match &parts.bos_token {
        Some(token) => Some(token_id(tokenizer, path, "bos_token", token)?),
        None => None,
    };
    match parts.add_bos {
        Some(false) => Ok(None),
        Some(true) if named.is_none() => {
            let what = "beginning-of-sequence token";
            Err(ModelError::invalid(
                path,
                what,
                "nothing",
                "the token that is to be added",
            ))
        }
        Some(true) => Ok(named),
        None => prepended(tokenizer, &parts.path),
    }
}

/// The token that the post-processor puts before a text.
fn prepended(tokenizer: &tokenizers::Tokenizer, path: &str) -> Result<Option<u32>, ModelError> {
    let ids = |special| match tokenizer.encode_fast("a", special) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(e) => Err(ModelError::invalid(
            path,
            "tokenizer",
            e,
            "token ids of \"a\"",
        )),
    };
    let (bare, whole) = (ids(false)?, ids(true)?);
    match whole.iter().position(|id| Some(id) == bare.first()) {
        Some(0) | None => Ok(None),
        Some(1) => Ok(whole.first().copied()),
        Some(count) => {
            let what = format!("{count} tokens before every text");
            Err(ModelError::unsupported(path, what))
        }
    }
}

fn eos_ids(
    tokenizer: &tokenizers::Tokenizer,
    parts: &TokenizerParts,
) -> Result<Vec<u32>, ModelError> {
    let path = &parts.settings_path;
    let mut ids = parts.eos_ids.clone();
    if let Some(token) = &parts.eos_token {
        ids.push(token_id(tokenizer, path, "eos_token", token)?);
    }
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        let what = "end-of-sequence tokens";
        return Err(ModelError::invalid(path, what, "none", "at least one"));
    }
    Ok(ids)
}
