//! The tokenizer of a GGUF file: byte-level BPE, rebuilt from vocabulary, merges and the name of
//! the pre-tokenizer, or SentencePiece's, rebuilt from vocabulary and scores.

mod pre;
mod spm;

use serde_json::{Map, Value, json};

use super::super::ModelError;
use super::super::tokenizer::{Tokenizer, TokenizerParts};
use super::Metadata;
use pre::Pre;

/// Token types of the format.
mod kind {
    pub(super) const NORMAL: i64 = 1;
    pub(super) const UNKNOWN: i64 = 2;
    pub(super) const CONTROL: i64 = 3;
    pub(super) const USER_DEFINED: i64 = 4;
    pub(super) const UNUSED: i64 = 5;
}

/// Control tokens that end a turn or a document wherever a vocabulary has them; files name only
/// one of the several at which their models stop.
const END_TOKENS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<eos>",
];

/// Keys of single tokens that end generation.
const END_KEYS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];

/// Vocabulary entries with their types.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    tokens: &'a [String],
    types: Option<&'a [i64]>,
}

/// Builds the tokenizer that `metadata` describes.
///
/// # Errors
/// [`ModelError::Unsupported`] for other kinds of tokenizers and unknown pre-tokenizers, by name;
/// [`ModelError::Invalid`] for tables that do not fit each other.
pub(crate) fn tokenizer(metadata: &Metadata) -> Result<Tokenizer, ModelError> {
    let model = "tokenizer.ggml.model";
    let (vocabulary, definition, adds_bos) = match metadata.str(model)? {
        Some("gpt2") => {
            let pre = pre_tokenizer(metadata)?;
            let vocabulary = Vocabulary::read(metadata)?;
            let definition = definition(&vocabulary, merges(metadata)?, &pre)?;
            (vocabulary, definition, pre.adds_bos)
        }
        Some("llama") => {
            let vocabulary = Vocabulary::read(metadata)?;
            let definition = spm::definition(&vocabulary)?;
            (vocabulary, definition, true)
        }
        Some(_) => return Err(metadata.unsupported_beside(model, "gpt2, llama")),
        None => return Err(metadata.wrong(model, "nothing", "`gpt2` or `llama`")),
    };
    Tokenizer::from_parts(TokenizerParts {
        path: metadata.path().to_owned(),
        settings_path: metadata.path().to_owned(),
        template_path: metadata.path().to_owned(),
        definition,
        chat_template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
        bos_token: vocabulary.token("tokenizer.ggml.bos_token_id")?,
        eos_token: vocabulary.token("tokenizer.ggml.eos_token_id")?,
        add_bos: Some(
            metadata
                .bool("tokenizer.ggml.add_bos_token")?
                .unwrap_or(adds_bos),
        ),
        eos_ids: vocabulary.end_ids()?,
    })
}

fn pre_tokenizer(metadata: &Metadata) -> Result<Pre, ModelError> {
    let pre_key = "tokenizer.ggml.pre";
    let unsupported = || metadata.unsupported_beside(pre_key, &Pre::NAMES.join(", "));
    let name = metadata.str(pre_key)?.ok_or_else(unsupported)?;
    Pre::named(name).ok_or_else(unsupported)
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, ModelError> {
        let tokens = metadata.required_strings("tokenizer.ggml.tokens")?;
        let key = "tokenizer.ggml.token_type";
        let types = metadata.ints(key)?;
        match types {
            Some(types) if types.len() != tokens.len() => {
                let expected = format!("one for each of the {} tokens", tokens.len());
                Err(metadata.wrong(key, types.len(), expected))
            }
            _ => Ok(Vocabulary {
                metadata,
                tokens,
                types,
            }),
        }
    }

    fn kind(&self, id: usize) -> i64 {
        self.types.map_or(kind::NORMAL, |types| types[id])
    }

    /// The text of the token whose id stands under `key`.
    fn token(&self, key: &str) -> Result<Option<String>, ModelError> {
        let Some(id) = self.metadata.u32(key)? else {
            return Ok(None);
        };
        match self.tokens.get(id as usize) {
            Some(token) => Ok(Some(token.clone())),
            None => {
                let expected = format!("an id below {}", self.tokens.len());
                Err(self.metadata.wrong(key, id, expected))
            }
        }
    }

    fn end_ids(&self) -> Result<Vec<u32>, ModelError> {
        let mut ids = Vec::new();
        for key in END_KEYS {
            if self.token(key)?.is_some() {
                ids.extend(self.metadata.u32(key)?);
            }
        }
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kind(id) == kind::CONTROL && END_TOKENS.contains(&token.as_str()) {
                ids.push(id as u32);
            }
        }
        Ok(ids)
    }

    /// Ids by token; unused places of the vocabulary are left out.
    fn table(&self) -> Result<Map<String, Value>, ModelError> {
        let mut table = Map::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if self.kind(id) == kind::UNUSED {
                continue;
            }
            if table.insert(token.clone(), json!(id)).is_some() {
                let key = "tokenizer.ggml.tokens";
                let found = format!("`{token}` twice");
                return Err(self.metadata.wrong(key, found, "each token once"));
            }
        }
        Ok(table)
    }

    /// Tokens that are found in a text before it is split.
    fn added(&self) -> Vec<Value> {
        let added = |id: &usize| {
            let kind = self.kind(*id);
            matches!(kind, kind::UNKNOWN | kind::CONTROL | kind::USER_DEFINED)
        };
        (0..self.tokens.len())
            .filter(added)
            .map(|id| {
                json!({
                    "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false,
                    "special": self.kind(id) != kind::USER_DEFINED,
                })
            })
            .collect()
    }
}

/// Pairs of tokens, from strings in which a space parts them.
fn merges(metadata: &Metadata) -> Result<Vec<Value>, ModelError> {
    let key = "tokenizer.ggml.merges";
    let split = |merge: &String| match merge.split_once(' ') {
        Some((first, second)) if !first.is_empty() && !second.is_empty() => {
            Ok(json!([first, second]))
        }
        _ => Err(metadata.wrong(key, format!("{merge:?}"), "two tokens with a space between")),
    };
    metadata.required_strings(key)?.iter().map(split).collect()
}

/// The content of an equivalent `tokenizer.json`.
fn definition(
    vocabulary: &Vocabulary<'_>,
    merges: Vec<Value>,
    pre: &Pre,
) -> Result<Value, ModelError> {
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": vocabulary.added(),
        "normalizer": pre.normalizer,
        "pre_tokenizer": pre.pre_tokenizer,
        "post_processor": null,
        "decoder": pre::byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocabulary.table()?,
            "merges": merges,
        },
    }))
}
