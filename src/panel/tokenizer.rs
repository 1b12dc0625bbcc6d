//! What panels need of a tokenizer.

use crate::schema::ChatMessage;

/// The tokenizer of one model, as panels see it.
pub trait PanelTokenizer {
    /// Token ids of plain text: no special token is added, and none is recognised in the text.
    ///
    /// # Errors
    /// A message saying what could not be encoded.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;

    /// The token that the model expects at the start of a text, if it has one.
    fn bos(&self) -> Option<u32>;

    /// Token ids of messages rendered through the chat template, with the generation prompt added
    /// and thinking disabled; special tokens are recognised. `None`: the model has no template.
    ///
    /// # Errors
    /// A message saying what the template or the tokenizer refused.
    fn chat(&self, messages: &[ChatMessage]) -> Result<Option<Vec<u32>>, String>;

    /// Lower-case hexadecimal SHA-256 of everything that the methods above depend on.
    fn sha256(&self) -> &str;
}
