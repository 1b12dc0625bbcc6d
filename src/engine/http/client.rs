//! Requests with time-outs, retries and a limit on the size of replies.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, StatusCode, redirect};
use serde_json::Value;

use crate::engine::FailedAttempt;

use super::address::ServerUrl;
pub(super) use super::call_error::CallError;
use super::key::ApiKey;
use super::retry::{RetryPolicy, is_busy, is_retryable, retry_after};

/// Largest reply that is read, in bytes. The log-probabilities of 8,192 tokens take about one.
pub const REPLY_LIMIT: usize = 8 << 20;
/// The same where a reply lists every token of a vocabulary, at about 100 bytes each.
const LIST_LIMIT: usize = 64 << 20;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Most characters of a refusal that are shown.
const SHOWN: usize = 300;
/// Attempts at a request that timed out: the third would hardly end sooner.
const TIMED_ATTEMPTS: u32 = 2;

/// Hears of failed attempts.
pub(super) type OnFailure<'a> = &'a mut (dyn FnMut(FailedAttempt) + Send);

/// Sends requests to one server. Clones share their connections.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    key: Option<Arc<ApiKey>>,
    retry: RetryPolicy,
}

/// One failed attempt, and whether another one makes sense.
struct Failure {
    status: Option<u16>,
    what: String,
    kind: Kind,
    asked_wait: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Trying again cannot help.
    Final,
    /// The server refuses to be asked.
    Refused,
    /// Overload, failure, or a connection that was cut.
    Passing,
    /// Nobody listens.
    Unreachable,
    /// No reply in time.
    TimedOut,
}

impl Client {
    /// A client for `url` whose requests take at most `timeout`. TLS certificates are verified
    /// against the system's; redirects are not followed, so that the key goes nowhere else.
    ///
    /// # Errors
    /// What TLS lacks on this machine.
    pub fn new(
        url: &ServerUrl,
        key: Option<Arc<ApiKey>>,
        timeout: Duration,
        retry: RetryPolicy,
    ) -> Result<Self, String> {
        // The first one installs the provider; every later one finds it there.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("kvassay/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT.min(timeout))
            .read_timeout(timeout)
            .timeout(timeout)
            .pool_idle_timeout(IDLE)
            .tcp_nodelay(true);
        if url.is_loopback() {
            builder = builder.no_proxy();
        }
        Ok(Client {
            http: builder.build().map_err(|error| chain(&error))?,
            key,
            retry,
        })
    }

    /// Posts `body` and returns the reply's JSON.
    pub async fn post(
        &self,
        url: &str,
        body: &Value,
        on_failure: OnFailure<'_>,
    ) -> Result<Value, CallError> {
        let (post, limit) = (Method::POST, REPLY_LIMIT);
        let bytes = self.call(post, url, Some(body), limit, on_failure).await?;
        self.json(url, &bytes)
    }

    /// As [`Client::post`], for a reply that lists a vocabulary.
    pub async fn post_for_list(
        &self,
        url: &str,
        body: &Value,
        on_failure: OnFailure<'_>,
    ) -> Result<Value, CallError> {
        let (post, limit) = (Method::POST, LIST_LIMIT);
        let bytes = self.call(post, url, Some(body), limit, on_failure).await?;
        self.json(url, &bytes)
    }

    /// Gets JSON that a server must have.
    pub async fn get(&self, url: &str) -> Result<Value, CallError> {
        let mut deaf = |_| {};
        let get = self.call(Method::GET, url, None, REPLY_LIMIT, &mut deaf);
        let bytes = get.await?;
        self.json(url, &bytes)
    }

    /// Gets JSON that a server may have; `None` where it has no such endpoint, keeps it to itself, or
    /// has something else there.
    pub async fn get_optional(&self, url: &str) -> Result<Option<Value>, CallError> {
        let bytes = self.optional(Method::GET, url, None).await?;
        Ok(bytes.and_then(|bytes| self.json(url, &bytes).ok()))
    }

    /// As [`Client::get_optional`], for the reply to a posted `body`.
    pub async fn post_optional(&self, url: &str, body: &Value) -> Result<Option<Value>, CallError> {
        let bytes = self.optional(Method::POST, url, Some(body)).await?;
        Ok(bytes.and_then(|bytes| self.json(url, &bytes).ok()))
    }

    /// As [`Client::get_optional`], for text.
    pub async fn get_text(&self, url: &str) -> Result<Option<String>, CallError> {
        let bytes = self.optional(Method::GET, url, None).await?;
        Ok(bytes.map(|bytes| self.scrub(&String::from_utf8_lossy(&bytes))))
    }

    async fn optional(
        &self,
        method: Method,
        url: &str,
        body: Option<&Value>,
    ) -> Result<Option<Vec<u8>>, CallError> {
        let mut status = None;
        let mut note = |failure: FailedAttempt| status = failure.status;
        let reply = self.call(method, url, body, REPLY_LIMIT, &mut note);
        match reply.await {
            Ok(bytes) => Ok(Some(bytes)),
            // A server that is starting or overloaded may have what it does not give now.
            Err(_) if status.is_some_and(|status| !is_busy(status)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn scrub(&self, text: &str) -> String {
        match &self.key {
            Some(key) => key.scrub(text),
            None => text.to_owned(),
        }
    }

    /// Parses a reply. One that repeats the key would carry it into records: it is refused.
    fn json(&self, url: &str, bytes: &[u8]) -> Result<Value, CallError> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|error| CallError::reply(format!("{url}: reply is no JSON: {error}")))?;
        match &self.key {
            Some(key) if key.is_in_value(&value) => {
                let what = format!("{url}: the reply repeats the API key");
                Err(CallError::reply(what))
            }
            _ => Ok(value),
        }
    }

    async fn call(
        &self,
        method: Method,
        url: &str,
        body: Option<&Value>,
        limit: usize,
        on_failure: OnFailure<'_>,
    ) -> Result<Vec<u8>, CallError> {
        let body = body.map(Value::to_string);
        let mut attempt = 0;
        loop {
            attempt += 1;
            let failure = match self.attempt(&method, url, body.as_deref(), limit).await {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => failure,
            };
            let most = match failure.kind {
                Kind::Final | Kind::Refused => 1,
                Kind::TimedOut => TIMED_ATTEMPTS.min(self.retry.attempts),
                Kind::Passing | Kind::Unreachable => self.retry.attempts,
            };
            let wait = (attempt < most).then(|| {
                self.retry
                    .wait(attempt, failure.asked_wait, rand::random::<f64>())
            });
            let what = self.scrub(&format!("{url}: {}", failure.what));
            on_failure(FailedAttempt {
                attempt,
                status: failure.status,
                error: what.clone(),
                wait_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
            });
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(failure.into_error(what)),
            }
        }
    }

    async fn attempt(
        &self,
        method: &Method,
        url: &str,
        body: Option<&str>,
        limit: usize,
    ) -> Result<Vec<u8>, Failure> {
        let mut request = self.http.request(method.clone(), url);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.header());
        }
        if let Some(body) = body {
            let json = "application/json";
            request = request.header(CONTENT_TYPE, json).body(body.to_owned());
        }
        let mut reply = request.send().await.map_err(|error| transport(&error))?;
        let status = reply.status();
        let asked_wait = reply
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| retry_after(value.to_str().ok()?, SystemTime::now()));
        let mut bytes = Vec::new();
        let told = reply.content_length().unwrap_or(0);
        let mut too_large = told > limit as u64;
        while !too_large {
            match reply.chunk().await {
                Ok(Some(chunk)) if bytes.len() + chunk.len() > limit => too_large = true,
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error) => return Err(transport(&error)),
            }
        }
        if too_large {
            return Err(Failure {
                status: Some(status.as_u16()),
                what: format!("reply is larger than {} MiB", limit >> 20),
                kind: Kind::Final,
                asked_wait: None,
            });
        }
        if status == StatusCode::OK {
            return Ok(bytes);
        }
        // Before anything is cut: half of the key is no key that could be found.
        let text = self.scrub(&String::from_utf8_lossy(&bytes));
        Err(refusal(status, &text, asked_wait))
    }
}

impl Failure {
    /// Without the number of attempts: records do not depend on it, and have a log of their own.
    fn into_error(self, what: String) -> CallError {
        match self.kind {
            Kind::Refused | Kind::Unreachable => CallError::Server(what),
            Kind::Final | Kind::Passing | Kind::TimedOut => CallError::Request {
                status: self.status,
                what,
            },
        }
    }
}

fn refusal(status: StatusCode, body: &str, asked_wait: Option<Duration>) -> Failure {
    let kind = match status.as_u16() {
        code if is_retryable(code) => Kind::Passing,
        300..=399 | 401 | 403 => Kind::Refused,
        _ => Kind::Final,
    };
    let text = shown(body);
    let reason = status.canonical_reason().unwrap_or("unknown status");
    let colon = if text.is_empty() { "" } else { ": " };
    Failure {
        status: Some(status.as_u16()),
        what: format!("status {} ({reason}){colon}{text}", status.as_u16()),
        kind,
        asked_wait,
    }
}

fn transport(error: &reqwest::Error) -> Failure {
    let text = words(error);
    // A certificate that does not hold will not hold the next time either.
    let is_certificate = error.is_connect() && text.contains("certificate");
    let kind = if is_certificate {
        Kind::Refused
    } else if error.is_connect() {
        Kind::Unreachable
    } else if error.is_timeout() {
        Kind::TimedOut
    } else {
        Kind::Passing
    };
    Failure {
        status: None,
        what: text,
        kind,
        asked_wait: None,
    }
}

/// What failed, and its causes; the address is told by the caller.
fn words(error: &reqwest::Error) -> String {
    let what = if error.is_timeout() {
        "no reply in time"
    } else if error.is_connect() {
        "cannot connect"
    } else {
        "the connection failed"
    };
    match error.source() {
        Some(cause) => format!("{what}: {}", chain(cause)),
        None => what.to_owned(),
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}

/// The beginning of a refusal on one line.
fn shown(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(SHOWN)
        .collect();
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}
