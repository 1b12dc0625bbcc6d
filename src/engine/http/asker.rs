//! One server as tasks ask it: requests for answers and for likelihoods.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value, json};

use crate::engine::{GenerateRequest, ScoreRequest};
use crate::model::Tokenizer;
use crate::schema::{LikelihoodDialect, PromptForm, PromptTemplate, ServerIdentity};

use super::address::ServerUrl;
use super::client::{CallError, Client, OnFailure};
use super::identity::shown;
use super::reply::{self, Answer};
use super::sampling;

/// Added to the logit of a token so that a greedy choice takes it.
const FORCE: f32 = 1e4;
/// Tokens that a server may have beyond those of the tokenizer: vocabularies are padded.
const PADDING: u32 = 4096;

/// What a task needs to ask a server.
#[derive(Clone)]
pub(super) struct Asker {
    pub client: Client,
    pub url: ServerUrl,
    pub identity: ServerIdentity,
    pub tokenizer: Arc<Tokenizer>,
    pub template: PromptTemplate,
    pub seed: u64,
    /// Model that replies must name; `None` where they name none, or nothing was asked yet.
    pub reply_model: Option<String>,
    /// The server takes the switch that turns thinking off.
    pub thinking_switch: bool,
    /// `repetition_penalty` is sent, so that the server penalises no repeated token.
    pub repetition_penalty: bool,
    /// The server answers messages.
    pub chat: bool,
    /// Form of prompts that are not sent as messages.
    pub raw: Option<PromptForm>,
    /// Free slots of llama.cpp for likelihoods.
    pub slots: Slots,
}

/// Slots of llama.cpp that nobody uses: prefixes stay in the one that began them.
#[derive(Clone, Debug)]
pub(super) struct Slots(Arc<Mutex<Vec<u32>>>);

/// A slot in use.
struct Slot {
    number: Option<u32>,
    of: Slots,
}

impl Slots {
    pub fn new(count: u32) -> Self {
        Slots(Arc::new(Mutex::new((0..count).rev().collect())))
    }

    fn take(&self) -> Slot {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Slot {
            number: free.pop(),
            of: self.clone(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.number);
    }
}

impl Asker {
    /// Form in which `request` is sent.
    pub fn form(&self, request: &GenerateRequest) -> Result<PromptForm, CallError> {
        let raw = if self.template == PromptTemplate::Server && !request.messages.is_empty() {
            self.chat.then_some(PromptForm::Messages)
        } else {
            self.raw
        };
        raw.ok_or_else(|| CallError::Request {
            status: None,
            what: format!("{}: takes no prompt that could be checked", self.url),
        })
    }

    /// Asks for an answer.
    pub async fn answer(
        &self,
        request: &GenerateRequest,
        on_failure: OnFailure<'_>,
    ) -> Result<Answer, CallError> {
        let form = self.form(request)?;
        self.answer_as(form, request, on_failure).await
    }

    /// Asks for an answer to a prompt in this form.
    pub async fn answer_as(
        &self,
        form: PromptForm,
        request: &GenerateRequest,
        on_failure: OnFailure<'_>,
    ) -> Result<Answer, CallError> {
        let mut body = self.body(request.max_new_tokens);
        let (url, parse) = match form {
            PromptForm::Messages => {
                body.insert("messages".to_owned(), json!(request.messages));
                if self.thinking_switch {
                    let switch = json!({"enable_thinking": false});
                    body.insert("chat_template_kwargs".to_owned(), switch);
                }
                let parse = reply::chat as fn(&Value) -> Result<Answer, String>;
                (self.url.openai("/chat/completions"), parse)
            }
            PromptForm::TokenIds => {
                body.insert("prompt".to_owned(), json!(request.prompt_ids));
                (self.url.openai("/completions"), reply::completion as _)
            }
            PromptForm::Text | PromptForm::TextWithoutBos => {
                let text = self.text(request, form)?;
                body.insert("prompt".to_owned(), json!(text));
                (self.url.openai("/completions"), reply::completion as _)
            }
        };
        if self.is_llama() {
            // An answer must not depend on what was asked before.
            body.insert("cache_prompt".to_owned(), json!(false));
        }
        let reply = self.post(&url, Value::Object(body), on_failure).await?;
        let answer = parse(&reply).map_err(|what| CallError::reply(format!("{url}: {what}")))?;
        let (ours, theirs) = (request.prompt_ids.len(), answer.prompt_tokens);
        match theirs {
            Some(theirs) if form != PromptForm::Messages && theirs as usize != ours => {
                let what = "usage.prompt_tokens: found";
                let bos = if theirs as usize == ours + 1 {
                    ": a second beginning-of-sequence token, as it seems"
                } else {
                    ""
                };
                Err(CallError::reply(format!(
                    "{url}: {what} {theirs}, expected {ours}{bos}"
                )))
            }
            _ => Ok(answer),
        }
    }

    fn body(&self, max_new_tokens: u32) -> Map<String, Value> {
        sampling::openai(
            &self.identity,
            max_new_tokens,
            self.seed,
            self.repetition_penalty,
        )
    }

    fn is_llama(&self) -> bool {
        sampling::is_llama(&self.identity)
    }

    /// The prompt as text, with its beginning-of-sequence token or without.
    pub fn text(&self, request: &GenerateRequest, form: PromptForm) -> Result<String, CallError> {
        let bos = self.tokenizer.bos().map(|id| self.tokenizer.piece(id));
        let bos = bos.unwrap_or_default();
        let text = if request.messages.is_empty() {
            self.tokenizer.decode(&request.prompt_ids)
        } else {
            let rendered = self.tokenizer.render_chat(&request.messages, true);
            rendered.map_err(|error| CallError::Request {
                status: None,
                what: error.to_string(),
            })?
        };
        let bare = text.strip_prefix(bos.as_str()).unwrap_or(&text);
        Ok(match form {
            PromptForm::TextWithoutBos => bare.to_owned(),
            _ => format!("{bos}{bare}"),
        })
    }

    /// Posts, and checks that the same model replies as before.
    pub async fn post(
        &self,
        url: &str,
        body: Value,
        on_failure: OnFailure<'_>,
    ) -> Result<Value, CallError> {
        let reply = self.client.post(url, &body, on_failure).await?;
        self.same_model(url, reply)
    }

    fn same_model(&self, url: &str, reply: Value) -> Result<Value, CallError> {
        let wrong = |what: String| CallError::reply(format!("{url}: {what}"));
        let found = reply::model(&reply).map_err(wrong)?;
        match (&found, &self.reply_model) {
            (Some(found), Some(expected)) if found != expected => Err(CallError::Server(format!(
                "{url}: the reply is of model {}, expected {}, which answered before: the server \
                 has changed",
                shown(found),
                shown(expected)
            ))),
            _ => Ok(reply),
        }
    }

    /// Asks for the negative log-likelihood of a window's targets, in nats.
    pub async fn likelihood(
        &self,
        dialect: LikelihoodDialect,
        request: &ScoreRequest,
        on_failure: OnFailure<'_>,
    ) -> Result<f64, CallError> {
        let targets = request.targets as usize;
        let mut body = self.body(1);
        if !self.identity.heeds_repetition_penalty() {
            // Log-probabilities of a prompt know no penalties: a refusal would be for nothing.
            body.remove("repetition_penalty");
        }
        body.insert("prompt".to_owned(), json!(request.ids));
        let url = self.url.openai("/completions");
        let wrong = |what: String| CallError::reply(format!("{url}: {what}"));
        match dialect {
            LikelihoodDialect::PromptLogprobs => {
                body.insert("prompt_logprobs".to_owned(), json!(0));
                let reply = self.post(&url, Value::Object(body), on_failure).await?;
                reply::prompt_logprobs(&reply, &request.ids, targets).map_err(wrong)
            }
            LikelihoodDialect::EchoLogprobs => {
                body.insert("echo".to_owned(), json!(true));
                body.insert("logprobs".to_owned(), json!(1));
                let reply = self.post(&url, Value::Object(body), on_failure).await?;
                let is_piece = |id, text: &str| {
                    is_piece(&self.tokenizer.piece(id), text)
                        || self.is_part(id) && self.is_bytes(id, text)
                };
                reply::echo_logprobs(&reply, &request.ids, targets, is_piece).map_err(wrong)
            }
            LikelihoodDialect::ForcedTokens => self.forced(request, on_failure).await,
        }
    }

    /// Target by target: llama.cpp tells the probability of the token that it samples, before
    /// sampling, and a bias on its logit makes it sample the target. It tells none of a token that
    /// ends within a character: another token is forced there, beside which it lists them all.
    async fn forced(
        &self,
        request: &ScoreRequest,
        on_failure: OnFailure<'_>,
    ) -> Result<f64, CallError> {
        let url = self.url.own("/completion");
        let slot = self.slots.take();
        let ids = &request.ids;
        let first = ids.len().saturating_sub(request.targets as usize).max(1);
        let mut sum = 0.0;
        for at in first..ids.len() {
            let target = ids[at];
            let is_part = self.is_part(target);
            let (forced, listed) = match is_part {
                true => (
                    self.whole_token(&url)?,
                    self.tokenizer.largest_id() + PADDING,
                ),
                false => (target, 1),
            };
            let mut body = json!({
                "model": self.identity.model,
                "prompt": ids[..at],
                "n_predict": 1,
                "n_probs": listed,
                "post_sampling_probs": false,
                "temperature": 0,
                "seed": self.seed,
                "logit_bias": [[forced, FORCE]],
                // All but the last token of the prompt is the one before.
                "cache_prompt": true,
                "stream": false,
            });
            for (name, value) in sampling::llama() {
                body[name] = value;
            }
            if let Some(number) = slot.number {
                body["id_slot"] = json!(number);
            }
            let logprob = if is_part {
                let reply = self.client.post_for_list(&url, &body, &mut *on_failure);
                let reply = self.same_model(&url, reply.await?)?;
                reply::listed_token(&reply, forced, target, at)
            } else {
                let reply = self.post(&url, body, &mut *on_failure).await?;
                reply::forced_token(&reply, target, at)
            };
            sum -= logprob.map_err(|what| CallError::reply(format!("{url}: {what}")))?;
        }
        Ok(sum)
    }

    /// Whether a token ends within a character, as far as its text by itself shows.
    pub fn is_part(&self, id: u32) -> bool {
        self.tokenizer.piece(id).contains('\u{fffd}')
    }

    /// Whether `text` has the bytes of a token as characters of Latin-1, as a server may tell a token that
    /// ends within a character.
    fn is_bytes(&self, id: u32, text: &str) -> bool {
        match (self.tokenizer.piece_bytes(id), latin1(text)) {
            (Some(expected), Some(found)) => found == expected,
            (None, Some(found)) => String::from_utf8_lossy(&found) == self.tokenizer.piece(id),
            (_, None) => false,
        }
    }

    /// A token whose text is a whole character.
    fn whole_token(&self, url: &str) -> Result<u32, CallError> {
        let ids = self.tokenizer.encode_text("a").unwrap_or_default();
        let found = ids.last().copied().filter(|&id| !self.is_part(id));
        found.ok_or_else(|| {
            CallError::reply(format!(
                "{url}: the tokenizer has no token of a whole character"
            ))
        })
    }

    /// Token ids of `text` by the server's own tokenizer, special tokens added; `None` where it has
    /// no such endpoint or keeps it to itself.
    pub async fn tokenize(&self, text: &str) -> Result<Option<Vec<u32>>, CallError> {
        let body = if self.is_llama() {
            json!({"model": self.identity.model, "content": text, "add_special": true,
                   "parse_special": true})
        } else {
            json!({"model": self.identity.model, "prompt": text, "add_special_tokens": true})
        };
        let url = self.url.own("/tokenize");
        let reply = self.client.post_optional(&url, &body).await?;
        Ok(reply.and_then(|reply| reply::tokens(&reply).ok()))
    }
}

/// Whether a server's text of a token is `piece`, ours. Parts of a character cannot be compared, and
/// a space in front may be left out of a token by itself.
fn is_piece(piece: &str, text: &str) -> bool {
    let is_part = |text: &str| text.contains('\u{fffd}') || text.starts_with("bytes:");
    piece.trim_start() == text.trim_start() || is_part(piece) && is_part(text)
}

/// Bytes of a text of Latin-1 characters; `None` for other texts.
fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_tokens_agree_up_to_what_cannot_be_seen() {
        assert!(is_piece("Hello", " Hello") && is_piece(" a", " a"));
        assert!(is_piece("\u{fffd}", "bytes:\\xe2") && is_piece("", ""));
        assert!(!is_piece("Hello", "hello") && !is_piece("a", "\u{fffd}"));
        assert!(!is_piece("a", "ab") && !is_piece("\u{fffd}", "a"));
    }

    #[test]
    fn latin1_is_a_byte_for_each_character() {
        assert_eq!(latin1("a\u{f0}\u{9f}"), Some(vec![b'a', 0xf0, 0x9f]));
        assert_eq!(latin1("\u{100}"), None);
    }

    #[test]
    fn slots_come_back() {
        let slots = Slots::new(2);
        let (a, b) = (slots.take(), slots.take());
        assert_eq!((a.number, b.number), (Some(0), Some(1)));
        assert_eq!(slots.take().number, None);
        drop(a);
        assert_eq!(slots.take().number, Some(0));
    }
}
