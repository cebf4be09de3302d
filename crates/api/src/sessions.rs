//! `/api/v1/sessions`: open sessions and their contexts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;

/// Response of `GET /api/v1/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionsResponse {
    /// API version.
    pub v: u8,
    /// Number of open sessions.
    pub total: u64,
    /// Sessions, most recently used first; a limited number.
    pub sessions: Vec<SessionEntry>,
}

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionEntry {
    /// Id for the API; not the id that clients send.
    pub id: String,
    /// Principal that opened the session.
    pub principal: Arc<str>,
    /// Role in force.
    pub role: Option<String>,
    /// Id of the token that opened the session; `None` for the owner and for nobody.
    pub token: Option<Arc<str>>,
    /// Name of the client program.
    pub client: Option<Arc<str>>,
    /// Version of the client program.
    pub client_version: Option<Arc<str>>,
    /// Path of the endpoint.
    pub endpoint: String,
    /// Revision of the protocol.
    pub revision: Word,
    /// Contexts of the session.
    pub contexts: Vec<Arc<str>>,
    /// Contexts of its token and principal.
    pub token_contexts: Vec<Arc<str>>,
    /// Age in milliseconds.
    pub age_ms: u64,
    /// Time since the last request in milliseconds.
    pub idle_ms: u64,
    /// Number of open streams.
    pub streams: u64,
    /// Number of calls in flight.
    pub calls: u64,
}

/// Body of `PUT /api/v1/sessions/{id}/context`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionNarrowRequest {
    /// Contexts in place of those set before.
    pub contexts: Vec<String>,
    /// True narrows the session's token, and thereby all sessions of the token. Default: true for
    /// tokens created for a single run of a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<bool>,
}

/// Response of `PUT /api/v1/sessions/{id}/context`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionNarrowResponse {
    /// API version.
    pub v: u8,
    /// Id of the session.
    pub id: String,
    /// Contexts in force.
    pub contexts: Vec<Arc<str>>,
    /// What was narrowed: `session` or `credential`.
    pub narrows: Word,
    /// Id of the narrowed token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Response of `DELETE /api/v1/sessions/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionEndResponse {
    /// API version.
    pub v: u8,
    /// Id of the session.
    pub id: String,
    /// Always true.
    pub ended: bool,
}
