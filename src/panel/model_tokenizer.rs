//! A model's own tokenizer as panels see it.

use crate::model::Tokenizer;
use crate::schema::ChatMessage;

use super::PanelTokenizer;

impl PanelTokenizer for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.encode_text(text).map_err(|error| error.to_string())
    }

    fn bos(&self) -> Option<u32> {
        Tokenizer::bos(self)
    }

    fn chat(&self, messages: &[ChatMessage]) -> Result<Option<Vec<u32>>, String> {
        if !self.has_chat_template() {
            return Ok(None);
        }
        self.chat_ids(messages, true)
            .map(Some)
            .map_err(|error| error.to_string())
    }

    fn sha256(&self) -> &str {
        Tokenizer::sha256(self)
    }
}
