//! Replies of servers: untrusted JSON into typed answers. Errors name the field.

use serde_json::Value;

use crate::schema::Finish;

/// Above 0 by no more than this is rounding; log-probabilities are not positive.
const ROUNDING: f64 = 1e-3;
/// At or below this servers mean that they have no log-probability (-9999, the lowest float).
const PLACEHOLDER: f64 = -9999.0;

/// An answer to a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Model that the reply names.
    pub model: Option<String>,
    /// Text; empty where the server sent none.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// The reply held reasoning beside the text.
    pub reasoning: bool,
    /// Tokens of the prompt by the server's count.
    pub prompt_tokens: Option<u32>,
    /// Generated tokens by the server's count.
    pub output_tokens: Option<u32>,
}

/// A value with its path, for messages.
#[derive(Clone)]
struct At<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> At<'a> {
    fn root(value: &'a Value) -> Self {
        At {
            value,
            path: String::new(),
        }
    }

    fn wrong<T>(&self, expected: &str) -> Result<T, String> {
        let found = match self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(flag) => flag.to_string(),
            Value::Number(number) => number.to_string(),
            Value::String(text) => {
                let short: String = text.chars().take(40).collect();
                format!("{short:?}")
            }
            Value::Array(items) => format!("a list of {}", items.len()),
            Value::Object(_) => "an object".to_owned(),
        };
        let path = if self.path.is_empty() {
            "reply"
        } else {
            &self.path
        };
        Err(format!("{path}: found {found}, expected {expected}"))
    }

    /// A field; `null` and absence are alike.
    fn maybe(&self, name: &str) -> Option<At<'a>> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        let dot = if self.path.is_empty() { "" } else { "." };
        Some(At {
            value,
            path: format!("{}{dot}{name}", self.path),
        })
    }

    fn field(&self, name: &str) -> Result<At<'a>, String> {
        match self.maybe(name) {
            Some(field) => Ok(field),
            None if self.value.is_object() => {
                let dot = if self.path.is_empty() { "" } else { "." };
                Err(format!("{}{dot}{name}: found nothing", self.path))
            }
            None => self.wrong("an object"),
        }
    }

    fn list(&self) -> Result<Vec<At<'a>>, String> {
        let Value::Array(items) = self.value else {
            return self.wrong("a list");
        };
        let at = |(index, value)| At {
            value,
            path: format!("{}[{index}]", self.path),
        };
        Ok(items.iter().enumerate().map(at).collect())
    }

    fn only(&self) -> Result<At<'a>, String> {
        match self.list()?.as_slice() {
            [one] => Ok(one.clone()),
            _ => self.wrong("one entry"),
        }
    }

    fn text(&self) -> Result<&'a str, String> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => self.wrong("a text"),
        }
    }

    fn count(&self) -> Result<u32, String> {
        let count = self.value.as_u64().and_then(|n| u32::try_from(n).ok());
        count.map_or_else(|| self.wrong("a count"), Ok)
    }

    /// A log-probability, natural log.
    fn logprob(&self) -> Result<f64, String> {
        match self.value.as_f64() {
            Some(logprob) if logprob > PLACEHOLDER && logprob <= ROUNDING => Ok(logprob),
            _ => self.wrong("a log-probability between -9999 and 0"),
        }
    }

    fn maybe_text(&self, name: &str) -> Result<Option<&'a str>, String> {
        self.maybe(name).map(|at| at.text()).transpose()
    }

    fn maybe_count(&self, name: &str) -> Result<Option<u32>, String> {
        self.maybe(name).map(|at| at.count()).transpose()
    }
}

/// Model that a reply names, where it names one.
pub fn model(reply: &Value) -> Result<Option<String>, String> {
    Ok(At::root(reply).maybe_text("model")?.map(str::to_owned))
}

/// A reply of the chat endpoint.
///
/// # Errors
/// The field, what was found there and what was expected.
pub fn chat(reply: &Value) -> Result<Answer, String> {
    let root = At::root(reply);
    let choice = root.field("choices")?.only()?;
    let message = choice.field("message")?;
    let reasoning = ["reasoning_content", "reasoning"]
        .into_iter()
        .filter_map(|name| message.maybe(name))
        .any(|at| at.value.as_str().is_none_or(|text| !text.trim().is_empty()));
    let text = message.maybe_text("content")?.unwrap_or_default();
    answer(&root, &choice, text, reasoning)
}

/// A reply of the completions endpoint.
///
/// # Errors
/// As [`chat`].
pub fn completion(reply: &Value) -> Result<Answer, String> {
    let root = At::root(reply);
    let choice = root.field("choices")?.only()?;
    let text = choice.maybe_text("text")?.unwrap_or_default();
    answer(&root, &choice, text, false)
}

fn answer(root: &At<'_>, choice: &At<'_>, text: &str, reasoning: bool) -> Result<Answer, String> {
    let ended = choice.field("finish_reason")?;
    let finish = match ended.text()? {
        "stop" | "eos" | "stop_sequence" => Finish::Stop,
        "length" | "max_tokens" => Finish::Length,
        _ => return ended.wrong("stop or length"),
    };
    let usage = root.maybe("usage");
    let count = |name: &str| match &usage {
        Some(usage) => usage.maybe_count(name),
        None => Ok(None),
    };
    Ok(Answer {
        model: root.maybe_text("model")?.map(str::to_owned),
        text: text.to_owned(),
        finish,
        reasoning,
        prompt_tokens: count("prompt_tokens")?,
        output_tokens: count("completion_tokens")?,
    })
}

/// Negative log-likelihood of the last `targets` of `ids` from `prompt_logprobs`: one entry per
/// token, the first null, each naming its token's id.
///
/// # Errors
/// As [`chat`].
pub fn prompt_logprobs(reply: &Value, ids: &[u32], targets: usize) -> Result<f64, String> {
    let root = At::root(reply);
    let choice = root.field("choices")?.only()?;
    let field = match choice.maybe("prompt_logprobs") {
        Some(field) => field,
        None => root.field("prompt_logprobs")?,
    };
    let entries = field.list()?;
    if entries.len() != ids.len() {
        return field.wrong(&format!("one entry for each of {} tokens", ids.len()));
    }
    let first = ids.len().saturating_sub(targets).max(1);
    let mut sum = 0.0;
    for (at, (entry, id)) in entries.iter().zip(ids).enumerate().skip(1) {
        // Every position is checked, not the targets alone: their likelihood depends on all of it.
        let token = match entry.maybe(&id.to_string()) {
            Some(token) => token,
            None => return entry.wrong(&format!("an entry for token {id}, the {at}. of ours")),
        };
        let logprob = token.field("logprob")?.logprob()?;
        if at >= first {
            sum -= logprob;
        }
    }
    Ok(sum)
}

/// The same from `echo` with `logprobs`: tokens are texts, and `is_piece(id, text)` says whether a
/// text is that of a token. Tokens that were generated behind the prompt may follow.
///
/// # Errors
/// As [`chat`].
pub fn echo_logprobs(
    reply: &Value,
    ids: &[u32],
    targets: usize,
    is_piece: impl Fn(u32, &str) -> bool,
) -> Result<f64, String> {
    let root = At::root(reply);
    let choice = root.field("choices")?.only()?;
    let logprobs = choice.field("logprobs")?;
    let (tokens, values) = (logprobs.field("tokens")?, logprobs.field("token_logprobs")?);
    let (texts, entries) = (tokens.list()?, values.list()?);
    let generated = texts.len().checked_sub(ids.len());
    if generated.is_none_or(|generated| generated > 1) {
        return tokens.wrong(&format!("one entry for each of {} tokens", ids.len()));
    }
    if entries.len() != texts.len() {
        return values.wrong(&format!("as many entries as tokens, {}", texts.len()));
    }
    let first = ids.len().saturating_sub(targets).max(1);
    let mut sum = 0.0;
    for (at, (&id, (text, entry))) in ids.iter().zip(texts.iter().zip(&entries)).enumerate() {
        if !is_piece(id, text.text()?) {
            return text.wrong(&format!("the text of token {id}"));
        }
        if at >= first {
            sum -= entry.logprob()?;
        }
    }
    Ok(sum)
}

/// Log-probability of the one forced token `id` in a reply of llama.cpp's `/completion` to a prompt
/// of `prompt_tokens`.
///
/// # Errors
/// As [`chat`].
pub fn forced_token(reply: &Value, id: u32, prompt_tokens: usize) -> Result<f64, String> {
    forced(reply, id, prompt_tokens)?
        .field("logprob")?
        .logprob()
}

/// Log-probability of token `id` from the list of all tokens beside the forced token `forced_id`,
/// otherwise as [`forced_token`].
///
/// # Errors
/// As [`chat`].
pub fn listed_token(
    reply: &Value,
    forced_id: u32,
    id: u32,
    prompt_tokens: usize,
) -> Result<f64, String> {
    let list = forced(reply, forced_id, prompt_tokens)?.field("top_logprobs")?;
    let Value::Array(items) = list.value else {
        return list.wrong("a list");
    };
    let is_it = |item: &Value| item.get("id").and_then(Value::as_u64) == Some(u64::from(id));
    match items.iter().position(is_it) {
        Some(index) => {
            let entry = At {
                value: &items[index],
                path: format!("{}[{index}]", list.path),
            };
            entry.field("logprob")?.logprob()
        }
        None => list.wrong(&format!("an entry for token {id}")),
    }
}

fn forced(reply: &Value, id: u32, prompt_tokens: usize) -> Result<At<'_>, String> {
    let root = At::root(reply);
    if let Some(evaluated) = root.maybe("tokens_evaluated")
        && evaluated.count()? as usize != prompt_tokens
    {
        return evaluated.wrong(&format!("the {prompt_tokens} tokens of the prompt"));
    }
    let token = root.field("completion_probabilities")?.only()?;
    let found = token.field("id")?;
    if found.count()? != id {
        return found.wrong(&format!("the forced token {id}"));
    }
    Ok(token)
}

/// Token ids of a reply of a tokenisation endpoint.
///
/// # Errors
/// As [`chat`].
pub fn tokens(reply: &Value) -> Result<Vec<u32>, String> {
    let list = At::root(reply).field("tokens")?.list()?;
    list.iter().map(At::count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn placeholders_are_no_log_probabilities() {
        let at = |logprob: Value| {
            let entries = json!([null, {"7": {"logprob": logprob}}]);
            let reply = json!({"choices": [{"prompt_logprobs": entries}]});
            prompt_logprobs(&reply, &[3, 7], 1)
        };
        assert_eq!(at(json!(-2.5)), Ok(2.5));
        assert_eq!(at(json!(-9998.5)), Ok(9998.5));
        for placeholder in [json!(-9999.0), json!(f32::MIN), json!(f64::MIN), json!(0.5)] {
            let error = at(placeholder).unwrap_err();
            assert!(error.contains("between -9999 and 0"), "{error}");
        }
    }

    #[test]
    fn a_listed_token_is_found_by_its_id() {
        let list = json!([{"id": 4, "logprob": -0.1}, {"id": 9, "logprob": -3.0},
                          {"id": 5, "logprob": f32::MIN}]);
        let token = json!({"id": 2, "logprob": -7.0, "top_logprobs": list});
        let reply = json!({"tokens_evaluated": 6, "completion_probabilities": [token]});
        assert_eq!(listed_token(&reply, 2, 9, 6), Ok(-3.0));
        for (forced, id, read) in [(2, 8, 6), (3, 9, 6), (2, 9, 5), (2, 5, 6)] {
            assert!(listed_token(&reply, forced, id, read).is_err());
        }
        assert_eq!(forced_token(&reply, 2, 6), Ok(-7.0));
    }
}
