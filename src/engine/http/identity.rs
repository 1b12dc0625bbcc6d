//! Who a server is: model, engine, context, cache format, as far as it tells.

use serde_json::Value;

use crate::schema::{ReportedCache, ServerIdentity};

use super::address::ServerUrl;
use super::client::{CallError, Client};

/// Most characters of a server's name of something that are shown.
const LONGEST_NAME: usize = 100;
/// Most names of models that are listed.
const MOST_NAMES: usize = 20;

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub identity: ServerIdentity,
    /// Sequences side by side (llama.cpp).
    pub slots: Option<u32>,
    /// When its process began, in Unix seconds: two addresses of one process have the same.
    pub process_start: Option<f64>,
}

/// Why a server cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IdentityError {
    /// It cannot be asked.
    Call(CallError),
    /// It serves another model than was asked for, or several.
    Model(String),
}

impl From<CallError> for IdentityError {
    fn from(error: CallError) -> Self {
        IdentityError::Call(error)
    }
}

/// Asks the server at `url` who it is. `wanted` is the name of the served model; without one the
/// server must serve one model.
pub(super) async fn ask(
    client: &Client,
    url: &ServerUrl,
    wanted: Option<&str>,
) -> Result<Found, IdentityError> {
    let models_url = url.openai("/models");
    let models = client.get(&models_url).await?;
    let Listed {
        model,
        context,
        engine,
    } = choose(&models_url, &models, wanted)?;
    let mut found = Found {
        identity: ServerIdentity {
            url: url.to_string(),
            engine: "unknown".to_owned(),
            version: None,
            model,
            context,
            cache: None,
        },
        slots: None,
        process_start: None,
    };
    let props_url = url.own("/props");
    if let Some(mut props) = client.get_optional(&props_url).await? {
        // A router tells nothing of a model that is not named.
        if word(&props, "role").as_deref() == Some("router")
            && let Some(url) = asking(&props_url, "model", &found.identity.model)
            && let Some(own) = client.get_optional(&url).await?
        {
            props = own;
        }
        llama(&props, &mut found);
    }
    if found.identity.engine == "unknown"
        && let Some(metrics) = client.get_text(&url.own("/metrics")).await?
    {
        self::metrics(&metrics, &mut found);
    }
    if found.identity.engine == "unknown"
        && let Some(engine) = engine
    {
        found.identity.engine = engine.to_owned();
    }
    if matches!(found.identity.engine.as_str(), "vllm" | "tensorrt-llm")
        && let Some(version) = client.get_optional(&url.own("/version")).await?
    {
        found.identity.version = word(&version, "version");
    }
    if found.identity.engine == "unknown" || found.identity.engine == "sglang" {
        for path in ["/server_info", "/get_server_info"] {
            if let Some(info) = client.get_optional(&url.own(path)).await?
                && sglang(path, &info, &mut found)
            {
                break;
            }
        }
    }
    Ok(found)
}

/// `url?name=value`.
fn asking(url: &str, name: &str, value: &str) -> Option<String> {
    let url = reqwest::Url::parse_with_params(url, [(name, value)]).ok()?;
    Some(url.into())
}

/// What a list of models says of the served one.
#[derive(Debug, PartialEq)]
struct Listed {
    model: String,
    context: Option<u32>,
    /// Engine, by who owns the model: the least sign of all, which a proxy may hide or copy.
    engine: Option<&'static str>,
}

fn engine_of(owner: &str) -> Option<&'static str> {
    match owner {
        "vllm" => Some("vllm"),
        "sglang" => Some("sglang"),
        "llamacpp" => Some("llama.cpp"),
        "tensorrt_llm" => Some("tensorrt-llm"),
        _ => None,
    }
}

/// The served model.
fn choose(url: &str, models: &Value, wanted: Option<&str>) -> Result<Listed, IdentityError> {
    let listed = models.get("data").and_then(Value::as_array);
    let Some(listed) = listed else {
        let what = format!("{url}: data: found no list, expected the served models");
        return Err(CallError::reply(what).into());
    };
    let ids: Vec<String> = listed
        .iter()
        .filter_map(|entry| text(entry, "id"))
        .collect();
    let at = match wanted {
        Some(wanted) => ids.iter().position(|id| id == wanted),
        None if ids.len() == 1 => Some(0),
        None => None,
    };
    let Some(at) = at else {
        let served = if ids.is_empty() {
            "no model".to_owned()
        } else {
            let names: Vec<String> = ids.iter().map(|id| shown(id)).collect();
            shown_list(&names)
        };
        let expected = match wanted {
            Some(wanted) => format!("{wanted} from --served-model"),
            None => "one model, or --served-model with the name of one".to_owned(),
        };
        return Err(IdentityError::Model(format!(
            "{url}: found {served}, expected {expected}"
        )));
    };
    let mut listed = listed.iter();
    let entry = listed.find(|entry| text(entry, "id").as_ref() == Some(&ids[at]));
    let owner = entry.and_then(|entry| text(entry, "owned_by"));
    Ok(Listed {
        model: ids[at].clone(),
        context: entry.and_then(|entry| context(entry, "max_model_len")),
        engine: owner.as_deref().and_then(engine_of),
    })
}

/// llama.cpp's `/props`. Upstream does not tell its cache types; forks do.
fn llama(props: &Value, found: &mut Found) {
    let (Some(build), Some(settings)) = (
        word(props, "build_info"),
        props.get("default_generation_settings"),
    ) else {
        return;
    };
    let identity = &mut found.identity;
    identity.engine = "llama.cpp".to_owned();
    identity.version = Some(build);
    identity.context = context(settings, "n_ctx").or(identity.context);
    found.slots = count(props, "total_slots");
    let of = |names: [&str; 2]| names.iter().find_map(|name| word(props, name));
    if let (Some(k), Some(v)) = (
        of(["cache_type_k", "type_k"]),
        of(["cache_type_v", "type_v"]),
    ) {
        let source = "/props cache_type_k, cache_type_v".to_owned();
        identity.cache = Some(ReportedCache { source, k, v });
    }
}

/// Prometheus metrics: vLLM's cache configuration, and when the process began.
fn metrics(text: &str, found: &mut Found) {
    let identity = &mut found.identity;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with("vllm:") {
            identity.engine = "vllm".to_owned();
        } else if line.starts_with("sglang:") {
            identity.engine = "sglang".to_owned();
        }
        if line.starts_with("vllm:cache_config_info")
            && let Some(dtype) = label(line, "cache_dtype")
        {
            let dtype = shown(&dtype);
            identity.cache = Some(ReportedCache {
                source: "/metrics vllm:cache_config_info cache_dtype".to_owned(),
                k: dtype.clone(),
                v: dtype,
            });
        }
        if let Some(start) = line.strip_prefix("process_start_time_seconds ") {
            found.process_start = start.trim().parse().ok().filter(|n: &f64| n.is_finite());
        }
    }
}

/// Value of a label in a line of Prometheus metrics.
fn label(line: &str, name: &str) -> Option<String> {
    let key = format!("{name}=\"");
    let mut places = line.match_indices(&key).map(|(at, _)| at);
    let at = places.find(|&at| line[..at].ends_with(['{', ',']))?;
    let rest = &line[at + key.len()..];
    rest.find('"').map(|end| rest[..end].to_owned())
}

/// SGLang's server info; says whether it is one.
fn sglang(path: &str, info: &Value, found: &mut Found) -> bool {
    let Some(dtype) = word(info, "kv_cache_dtype") else {
        return false;
    };
    let identity = &mut found.identity;
    identity.engine = "sglang".to_owned();
    identity.version = word(info, "version");
    identity.context = context(info, "context_length").or(identity.context);
    identity.cache = Some(ReportedCache {
        source: format!("{path} kv_cache_dtype"),
        k: dtype.clone(),
        v: dtype,
    });
    true
}

/// A word of a server for people to read.
fn word(value: &Value, name: &str) -> Option<String> {
    text(value, name).map(|text| shown(&text))
}

/// A name from a server as messages and reports may show it: what does not print is escaped, and what
/// is long is cut.
pub(super) fn shown(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        match c {
            '"' | '\'' | '\\' => text.push(c),
            _ => text.extend(c.escape_debug()),
        }
        if text.chars().count() >= LONGEST_NAME {
            break;
        }
    }
    text.chars().take(LONGEST_NAME).collect()
}

/// The first names of a list.
fn shown_list(names: &[String]) -> String {
    let (first, rest) = names.split_at(names.len().min(MOST_NAMES));
    match rest.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name)?.as_str().map(str::to_owned)
}

fn count(value: &Value, name: &str) -> Option<u32> {
    u32::try_from(value.get(name)?.as_u64()?).ok()
}

/// A context in tokens. 0 says that there is none yet.
fn context(value: &Value, name: &str) -> Option<u32> {
    count(value, name).filter(|&tokens| tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nobody() -> Found {
        Found {
            identity: ServerIdentity {
                url: "http://h".to_owned(),
                engine: "unknown".to_owned(),
                version: None,
                model: "m".to_owned(),
                context: Some(9),
                cache: None,
            },
            slots: None,
            process_start: None,
        }
    }

    #[test]
    fn the_only_model_or_the_named_one() {
        let models = json!({"data": [{"id": "a", "max_model_len": 4096},
                                     {"id": "b", "owned_by": "tensorrt_llm"}]});
        let chosen = |wanted| choose("URL", &models, wanted);
        let listed = |model: &str, context, engine| Listed {
            model: model.to_owned(),
            context,
            engine,
        };
        assert_eq!(chosen(Some("a")), Ok(listed("a", Some(4096), None)));
        assert_eq!(
            chosen(Some("b")),
            Ok(listed("b", None, Some("tensorrt-llm")))
        );
        for wanted in [None, Some("c")] {
            let error = chosen(wanted).unwrap_err();
            let IdentityError::Model(text) = error else {
                panic!("{error:?}");
            };
            assert!(text.contains("found a, b, expected"), "{text}");
        }
        assert!(choose("URL", &json!({"data": 1}), None).is_err());
    }

    #[test]
    fn names_that_do_not_print_are_escaped_and_long_ones_cut() {
        assert_eq!(shown("org/Model-8B \"é\""), "org/Model-8B \"é\"");
        assert_eq!(shown("a\u{1b}[31m\n\u{202e}b"), "a\\u{1b}[31m\\n\\u{202e}b");
        assert_eq!(shown(&"x".repeat(101)), "x".repeat(100));
        let models = json!({"data": [{"id": "a\u{1b}[2J"}, {"id": "y".repeat(9000)}]});
        let error = format!("{:?}", choose("URL", &models, None));
        assert!(!error.contains('\u{1b}') && error.len() < 400, "{error}");
        let mut found = nobody();
        let info = json!({"kv_cache_dtype": "fp8\n", "version": "\u{1b}7"});
        assert!(sglang("/server_info", &info, &mut found));
        assert_eq!(found.identity.version.as_deref(), Some("\\u{1b}7"));
        assert_eq!(found.identity.cache.unwrap().k, "fp8\\n");
        let many: Vec<String> = (0..22).map(|n| n.to_string()).collect();
        assert!(shown_list(&many).ends_with("19 and 2 more"));
    }

    #[test]
    fn owners_of_models_name_engines() {
        let of = ["vllm", "sglang", "llamacpp", "tensorrt_llm", "organization"].map(engine_of);
        let (vllm, sglang) = (Some("vllm"), Some("sglang"));
        assert_eq!(
            of,
            [vllm, sglang, Some("llama.cpp"), Some("tensorrt-llm"), None]
        );
    }

    #[test]
    fn a_context_of_0_is_none() {
        let mut found = nobody();
        let settings = json!({"params": {}, "n_ctx": 0});
        let props = json!({"role": "router", "build_info": "b1",
                           "default_generation_settings": settings});
        llama(&props, &mut found);
        assert_eq!(found.identity.engine, "llama.cpp");
        assert_eq!(found.identity.context, Some(9));
    }

    #[test]
    fn engines_and_their_cache_formats() {
        let mut found = nobody();
        let text = "# HELP x\nvllm:cache_config_info{block_size=\"16\",\
                    mamba_cache_dtype=\"auto\",cache_dtype=\"fp8\",x=\"\"} 1.0\n\
                    process_start_time_seconds 1.7e9\n";
        metrics(text, &mut found);
        assert_eq!(found.identity.engine, "vllm");
        assert_eq!(found.identity.cache.unwrap().k, "fp8");
        assert_eq!(found.process_start, Some(1.7e9));

        let mut found = nobody();
        let info = json!({"kv_cache_dtype": "fp8_e5m2", "version": "0.5", "api_key": "secret"});
        assert!(sglang("/server_info", &info, &mut found));
        assert_eq!(found.identity.version.as_deref(), Some("0.5"));
        assert!(!format!("{found:?}").contains("secret"));

        let mut found = nobody();
        let settings = json!({"n_ctx": 2048});
        let props = json!({"build_info": "b1", "default_generation_settings": settings,
                           "total_slots": 4});
        llama(&props, &mut found);
        assert_eq!(found.identity.engine, "llama.cpp");
        assert_eq!((found.identity.context, found.slots), (Some(2048), Some(4)));
        assert_eq!(found.identity.cache, None);

        let url = asking("http://h/props", "model", "a/b c&d");
        assert_eq!(url.as_deref(), Some("http://h/props?model=a%2Fb+c%26d"));
    }
}
