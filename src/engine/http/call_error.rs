//! Why a request failed.

/// Why a request has no reply that can be used. Messages name the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallError {
    /// Nobody answers there, or the server refuses to be asked at all: nothing about this request.
    Server(String),
    /// This request failed, for good or for the last time.
    Request {
        /// HTTP status, where there was a reply.
        status: Option<u16>,
        /// What went wrong.
        what: String,
    },
}

impl CallError {
    /// A reply that arrived and is not what it should be.
    pub fn reply(what: String) -> Self {
        CallError::Request {
            status: Some(200),
            what,
        }
    }

    pub fn what(&self) -> &str {
        match self {
            CallError::Server(what) | CallError::Request { what, .. } => what,
        }
    }

    /// Whether asking in another way may help: the server does not take this request, or its reply
    /// is not what was asked for.
    pub fn is_about_form(&self) -> bool {
        let is_reply = matches!(
            self,
            CallError::Request {
                status: Some(200),
                ..
            }
        );
        self.is_refusal() || is_reply
    }

    /// Whether the server fails at this request each time (500): it may do so at every request of
    /// the kind. What a proxy or an overloaded server says (502, 503, 504) is no such answer.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            CallError::Request {
                status: Some(500),
                ..
            }
        )
    }

    /// Whether the server does not take the fields of this request.
    pub fn is_about_fields(&self) -> bool {
        matches!(
            self,
            CallError::Request {
                status: Some(400 | 422),
                ..
            }
        )
    }

    /// Whether the server says that it does not take this request as it is.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            CallError::Request {
                status: Some(400 | 404 | 405 | 413 | 422 | 501),
                ..
            }
        )
    }
}
