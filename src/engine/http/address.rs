//! Addresses of servers.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;

/// Address of a server's OpenAI-compatible interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// Normalised: lower-case scheme and host, no default port, no slash and no `/v1` at the end.
    root: String,
    is_loopback: bool,
}

/// Why a text is no address of a server. The text is not repeated: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found}, expected http://HOST[:PORT][/PATH] or https://…, with or without /v1 at the end")]
pub struct AddressError {
    found: String,
}

impl ServerUrl {
    /// Reads an address.
    ///
    /// # Errors
    /// [`AddressError`] for anything but http and https, for a user or password (a key goes into
    /// `OPENAI_API_KEY` or a file), a query or a fragment.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let wrong = |found: &str| AddressError {
            found: found.to_owned(),
        };
        let url = Url::parse(text).map_err(|error| wrong(&format!("found no URL ({error})")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(&format!("found scheme `{}`", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("found a user or password in the URL"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(wrong("found a query or fragment in the URL"));
        }
        let Some(host) = url.host_str() else {
            return Err(wrong("found no host"));
        };
        let host = host.trim_end_matches('.');
        let port = url.port().map_or(String::new(), |port| format!(":{port}"));
        let path = url.path().trim_end_matches('/');
        let path = path.strip_suffix("/v1").unwrap_or(path);
        let path = path.trim_end_matches('/');
        Ok(ServerUrl {
            root: format!("{}://{host}{port}{path}", url.scheme()),
            is_loopback: is_loopback(host),
        })
    }

    /// The address without `/v1`, which is added to the OpenAI endpoints.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// An endpoint of the server's own, such as `/props`.
    pub(super) fn own(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    /// An OpenAI endpoint, such as `/chat/completions`.
    pub(super) fn openai(&self, path: &str) -> String {
        format!("{}/v1{path}", self.root)
    }

    /// Whether the address is of this machine itself.
    pub(super) fn is_loopback(&self) -> bool {
        self.is_loopback
    }

    /// Whether both lead to the same server for certain: every name of this machine is one.
    pub fn is_same(&self, other: &ServerUrl) -> bool {
        let after_host = |url: &ServerUrl| {
            let parsed = Url::parse(&url.root).ok()?;
            Some((parsed.port_or_known_default(), parsed.path().to_owned()))
        };
        self.root == other.root
            || self.is_loopback && other.is_loopback && after_host(self) == after_host(other)
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.root)
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // A connection to the unspecified address ends at this machine too.
    let is_own = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    let by_number = bare
        .parse()
        .is_ok_and(|ip: IpAddr| is_own(ip.to_canonical()));
    by_number || host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ServerUrl {
        ServerUrl::parse(text).unwrap()
    }

    #[test]
    fn spellings_of_one_server_are_the_same() {
        for (text, root) in [
            ("http://Host:8000", "http://host:8000"),
            ("HTTP://host:8000/", "http://host:8000"),
            ("http://host:8000/v1", "http://host:8000"),
            ("http://host:8000/v1/", "http://host:8000"),
            ("http://host:80/v1", "http://host"),
            ("https://host:443/a/v1", "https://host/a"),
            ("http://[::1]:9/v1", "http://[::1]:9"),
        ] {
            assert_eq!(url(text).root(), root);
        }
        let local = url("http://localhost:8000/v1");
        assert!(local.is_same(&url("http://127.0.0.1:8000")));
        assert!(local.is_same(&url("http://[::1]:8000/")));
        for own in ["0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "[::ffff:0.0.0.0]"] {
            assert!(local.is_same(&url(&format!("http://{own}:8000"))), "{own}");
        }
        for other in ["10.0.0.1", "[::ffff:10.0.0.1]", "[::2]"] {
            assert!(
                !local.is_same(&url(&format!("http://{other}:8000"))),
                "{other}"
            );
        }
        assert!(!local.is_same(&url("http://127.0.0.1:8001")));
        assert!(!local.is_same(&url("http://127.0.0.1:8000/other")));
        assert!(!url("http://a:1").is_same(&url("http://b:1")));
        assert!(url("http://a").is_same(&url("http://a:80/v1")));
    }

    #[test]
    fn what_is_no_address_is_refused_without_repeating_it() {
        for text in [
            "host:8000",
            "ftp://host",
            "http://user:secret@host",
            "http://secret@host/",
            "http://host/?key=secret",
            "http://host/#secret",
            "http://",
        ] {
            let error = ServerUrl::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
            assert!(error.contains("expected http://HOST"), "{error}");
        }
    }
}
