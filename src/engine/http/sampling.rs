//! Fields of requests that make a server choose greedily. A field that is missing takes the server's
//! default, which may come from its command line or from the model's files.

use serde_json::{Map, Value, json};

use crate::schema::ServerIdentity;

/// Fields of a request to an OpenAI endpoint. `repetition_penalty` is vLLM's name of a penalty that
/// OpenAI does not have; it is switched off where the server takes the field.
pub(super) fn openai(
    identity: &ServerIdentity,
    max_new_tokens: u32,
    seed: u64,
    repetition_penalty: bool,
) -> Map<String, Value> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("model", json!(identity.model));
    set("max_tokens", json!(max_new_tokens));
    set("temperature", json!(0));
    set("top_p", json!(1));
    set("presence_penalty", json!(0));
    set("frequency_penalty", json!(0));
    set("seed", json!(seed));
    set("n", json!(1));
    set("stream", json!(false));
    if repetition_penalty {
        // The default is what the model's generation_config.json says, in vLLM and SGLang.
        set("repetition_penalty", json!(1));
    }
    if is_llama(identity) {
        body.extend(llama());
        // `--logit-bias` stays in force where a request has none.
        body.insert("logit_bias".to_owned(), json!([]));
    }
    body
}

/// Fields of llama.cpp at each of its endpoints, besides the temperature. Its defaults come from its
/// command line or from the GGUF file's `general.sampling.*`.
pub(super) fn llama() -> Map<String, Value> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| body.insert(name.to_owned(), value);
    set("repeat_penalty", json!(1));
    set("presence_penalty", json!(0));
    set("frequency_penalty", json!(0));
    set("dry_multiplier", json!(0));
    set("xtc_probability", json!(0));
    set("mirostat", json!(0));
    // With a range, a temperature of 0 is drawn from it.
    set("dynatemp_range", json!(0));
    // A chain without this one ignores the temperature.
    set("samplers", json!(["temperature"]));
    body
}

pub(super) fn is_llama(identity: &ServerIdentity) -> bool {
    identity.engine == "llama.cpp"
}
