//! A tokenizer for tests: words and single signs, numbered by a hash.

use std::collections::BTreeMap;

use super::PanelTokenizer;
use crate::schema::{ChatMessage, sha256_hex};

/// Splits text into words of at most four letters, digits and other signs; spaces belong to what
/// follows.
pub struct FakeTokenizer {
    /// BOS.
    pub bos: Option<u32>,
    /// Has a chat template.
    pub template: bool,
    /// Digest.
    pub sha256: String,
}

/// Tokens that the template puts around a message.
pub const TEMPLATE_TOKENS: [u32; 2] = [3, 4];

impl FakeTokenizer {
    pub fn new() -> Self {
        FakeTokenizer {
            bos: Some(1),
            template: true,
            sha256: sha256_hex(b"fake"),
        }
    }

    fn ids(text: &str) -> Vec<u32> {
        let mut pieces: BTreeMap<usize, String> = BTreeMap::new();
        let mut open = 0;
        for (at, c) in text.char_indices() {
            let extends = pieces.get(&open).is_some_and(|piece: &String| {
                let letters = piece.trim_start_matches(' ');
                letters.is_empty()
                    || (c.is_alphabetic()
                        && letters.chars().all(char::is_alphabetic)
                        && letters.chars().count() < 4)
            });
            if !extends {
                open = at;
            }
            pieces.entry(open).or_default().push(c);
        }
        pieces.values().map(|piece| id(piece)).collect()
    }
}

/// Ids from 10 on.
fn id(piece: &str) -> u32 {
    let hash = piece.bytes().fold(2_166_136_261_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    10 + hash % 50_000
}

impl PanelTokenizer for FakeTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        if text.contains('\u{FFFF}') {
            return Err("cannot encode U+FFFF".to_owned());
        }
        Ok(FakeTokenizer::ids(text))
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn chat(&self, messages: &[ChatMessage]) -> Result<Option<Vec<u32>>, String> {
        if !self.template {
            return Ok(None);
        }
        let mut ids = Vec::from_iter(self.bos);
        for message in messages {
            ids.push(TEMPLATE_TOKENS[0]);
            ids.extend(self.encode(&message.content)?);
            ids.push(TEMPLATE_TOKENS[1]);
        }
        Ok(Some(ids))
    }

    fn sha256(&self) -> &str {
        &self.sha256
    }
}
