//! One tool call as it travels through the gateway.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::caller::CallerEnd;
use crate::time::Now;

/// Who asks, as proved by a credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Its name, unique in this gateway.
    pub name: Arc<str>,
    /// What it may do.
    pub role: Role,
}

impl Principal {
    /// Returns a principal.
    #[must_use]
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
        }
    }
}

/// What a principal is in this gateway. Bound to the credential, never claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Holds the owner token: may do all, the API included.
    Owner,
    /// Any local caller while authentication is switched off: MCP only.
    AnonymousLocal,
    /// Nothing is granted.
    None,
}

/// Which names a call may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All servers, by visible names `server__tool`.
    All,
    /// One server, by its own names.
    Server(Arc<str>),
}

/// What is asked. The parameters stay the bytes the caller sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who asks.
    pub principal: Arc<Principal>,
    /// Where the name is to be looked up.
    pub scope: Scope,
    /// The tool's name in that scope.
    pub tool: Arc<str>,
    /// The parameters of `tools/call`, a JSON object.
    pub params: Bytes,
    /// Where in `params` the value of `name` stands.
    pub name_at: Range<usize>,
    /// Where in `params` the caller's progress token stands.
    pub progress_at: Option<Range<usize>>,
    /// The id the answer carries, as the caller wrote it.
    pub id: Bytes,
    /// The caller's own limit; the server's limit holds as well.
    pub deadline: Option<Now>,
    /// Takes what the server says before it answers; absent where nobody listens.
    pub caller: Option<Arc<dyn CallerEnd>>,
}

/// Where a call goes, and what its tool declares about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The server's name.
    pub server: Arc<str>,
    /// The tool's own name.
    pub tool: Arc<str>,
    /// What running it does.
    pub effect: Effect,
}

/// What running a tool does to the world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Reads only: may be cached and repeated.
    Read,
    /// Changes something.
    Write,
    /// Nobody said; treated like a write.
    #[default]
    Unknown,
}

impl Effect {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Unknown => "unknown",
        }
    }
}

/// What the caller gets back, and how it came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The whole JSON-RPC answer, under the id of the call.
    pub answer: Bytes,
    /// Where the result or error object stands in `answer`.
    pub body_at: Range<usize>,
    /// Whether that is a result or a JSON-RPC error of the server.
    pub body: Body,
    /// How it came to be.
    pub origin: Origin,
}

/// Which of the two an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// `result`, which may still say `isError`.
    Result,
    /// `error`: the server refused or failed to serve the request.
    Error,
}

/// How a reply came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The server answered just now.
    Live,
}

impl Origin {
    /// Returns the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
        }
    }
}
