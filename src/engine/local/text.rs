//! The model's own tokenizer as an engine needs it.

use crate::model::Tokenizer;

use super::TokenText;

impl TokenText for Tokenizer {
    fn decode(&self, ids: &[u32]) -> String {
        Tokenizer::decode(self, ids)
    }

    fn eos_ids(&self) -> &[u32] {
        Tokenizer::eos_ids(self)
    }
}
