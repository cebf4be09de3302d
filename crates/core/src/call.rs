//! One call on its way through the gateway: request, route, deadline and reply.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::client_handle::ClientHandle;
use crate::era::{Era, HeaderParams, StatelessContext};
use crate::lane::QueuePolicy;
use crate::run::AgentRun;
use crate::task_table::SealedTaskId;
use crate::time::MonotonicTime;
use crate::trace::CallTrace;

/// The authenticated principal of a request, narrowed by contexts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Unique name in this gateway.
    pub name: Arc<str>,
    /// The role.
    pub role: Role,
    /// Contexts that narrow the role: those of the credential and those of the session.
    pub contexts: ContextSet,
    /// Id of the credential, used to find sessions to close on revocation; empty for credentials
    /// that cannot be revoked.
    pub credential: Arc<str>,
    /// The source address of the request.
    pub peer: PeerAddress,
}

/// The source address of a request. Not part of the identity: principals that differ only in the
/// address are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerAddress(pub Option<SocketAddr>);

impl PartialEq for PeerAddress {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for PeerAddress {}

impl Hash for PeerAddress {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Principal {
    /// Returns a principal without contexts.
    #[must_use]
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
            contexts: ContextSet::default(),
            credential: Arc::default(),
            peer: PeerAddress::default(),
        }
    }

    /// Returns the same principal with a new source address.
    #[must_use]
    pub fn with_peer(&self, peer: PeerAddress) -> Self {
        Self {
            peer,
            ..self.clone()
        }
    }

    /// Returns the same principal, narrowed by `more` as well.
    #[must_use]
    pub fn with_contexts(&self, more: &ContextSet) -> Self {
        Self {
            contexts: self.contexts.union(more),
            ..self.clone()
        }
    }
}

/// Names of contexts that narrow a principal, sorted, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ContextSet(Option<Arc<[Arc<str>]>>);

impl ContextSet {
    /// Returns the set of these names.
    #[must_use]
    pub fn new<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        let names: BTreeSet<Arc<str>> = names.into_iter().map(Into::into).collect();
        Self((!names.is_empty()).then(|| names.into_iter().collect()))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (_, None) => self.clone(),
            (None, Some(_)) => other.clone(),
            (Some(own), Some(more)) => Self::new(own.iter().chain(more.iter()).map(Arc::clone)),
        }
    }

    /// Whether no context applies.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the names.
    #[must_use]
    pub fn names(&self) -> &[Arc<str>] {
        self.0.as_deref().unwrap_or_default()
    }
}

/// The role of a principal. Bound to the credential, never claimed by the client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Holder of the owner token: full access, including the API.
    Owner,
    /// A program started by the owner: the owner's access over MCP, no API access.
    OwnersAgent,
    /// Any local caller while authentication is off: MCP only.
    AnonymousLocal,
    /// A role named in the credential; the policy may or may not define the role.
    Named(Arc<str>),
    /// No role: only the policy's default applies.
    None,
}

/// The endpoint of a call, which decides the names in use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointScope {
    /// All servers, by visible names `server__tool`.
    All,
    /// One server, by upstream names.
    Server(Arc<str>),
    /// The features of one profile across all servers, by visible names.
    Profile(Arc<str>),
}

impl EndpointScope {
    /// Whether visible names of several servers are in use.
    #[must_use]
    pub const fn is_multi_server(&self) -> bool {
        matches!(self, Self::All | Self::Profile(_))
    }
}

/// The feature named by a call; decides the protocol method.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallSubject {
    /// A tool to call.
    Tool(Arc<str>),
    /// A prompt to get.
    Prompt(Arc<str>),
    /// A resource to read, by URI.
    Resource(Arc<str>),
    /// A prompt with an argument to complete.
    CompletePrompt(Arc<str>),
    /// A resource template, or a plain URI, with an argument to complete.
    CompleteResource(Arc<str>),
    /// An existing task.
    Task {
        /// The task id.
        id: Arc<str>,
        /// The operation.
        operation: TaskOperation,
    },
}

/// Operation on a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskOperation {
    /// `tasks/get`: the status.
    Get,
    /// `tasks/result`: the result; waits for the end of the task (legacy).
    Result,
    /// `tasks/update`: responses to the task's input requests (modern).
    Update,
    /// `tasks/cancel`.
    Cancel,
}

/// The kinds of server features distinguished by policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FeatureKind {
    /// A tool.
    Tool,
    /// A prompt.
    Prompt,
    /// A resource, by URI or by template.
    Resource,
    /// A task.
    Task,
}

impl CallSubject {
    /// Returns the method of the request.
    #[must_use]
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Prompt(_) => "prompts/get",
            Self::Resource(_) => "resources/read",
            Self::CompletePrompt(_) | Self::CompleteResource(_) => "completion/complete",
            Self::Task { operation, .. } => match operation {
                TaskOperation::Get => "tasks/get",
                TaskOperation::Result => "tasks/result",
                TaskOperation::Update => "tasks/update",
                TaskOperation::Cancel => "tasks/cancel",
            },
        }
    }

    /// Returns the name, URI or task id.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        match self {
            Self::Tool(name)
            | Self::Prompt(name)
            | Self::Resource(name)
            | Self::CompletePrompt(name)
            | Self::CompleteResource(name)
            | Self::Task { id: name, .. } => name,
        }
    }

    /// Returns the feature kind.
    #[must_use]
    pub const fn kind(&self) -> FeatureKind {
        match self {
            Self::Tool(_) => FeatureKind::Tool,
            Self::Prompt(_) | Self::CompletePrompt(_) => FeatureKind::Prompt,
            Self::Resource(_) | Self::CompleteResource(_) => FeatureKind::Resource,
            Self::Task { .. } => FeatureKind::Task,
        }
    }
}

/// A call as received. The message stays the bytes sent by the client.
#[derive(Clone, Debug)]
pub struct CallRequest {
    /// The calling principal.
    pub principal: Arc<Principal>,
    /// The endpoint of the call.
    pub scope: EndpointScope,
    /// The named feature, in the names of `scope`.
    pub subject: CallSubject,
    /// The part that links send.
    pub message: RequestMessage,
    /// Position of the name, URI or id (a JSON string) in the parameters.
    pub name_at: Range<usize>,
    /// Whether the parameters request a task instead of a direct result.
    pub wants_task: bool,
    /// The client's deadline; the server's timeout applies as well.
    pub deadline: Option<MonotonicTime>,
    /// The agent run with a call limit; absent if the call belongs to no run.
    pub run: Option<Arc<AgentRun>>,
    /// The idempotency key chosen by the client, if any.
    pub idempotency_key: Option<Arc<str>>,
    /// Present for parameters of the modern era, absent for legacy.
    pub stateless: Option<Box<StatelessContext>>,
}

/// The part of a request that passes from the client to the link unchanged, and the way back to
/// the client. The gateway's own requests have no client.
#[derive(Clone, Debug)]
pub struct RequestMessage {
    /// The parameters, a JSON object; empty for a request without parameters.
    pub params: Bytes,
    /// Position of the progress token in `params`. The wire carries the link's own id instead;
    /// progress notifications are mapped back.
    pub progress_at: Option<Range<usize>>,
    /// The raw id of the client's request, used in the response.
    pub id: Bytes,
    /// Receives notifications and server requests during the request; absent if not wanted.
    pub client: Option<Arc<dyn ClientHandle>>,
    /// The trace position of the request; absent if untraced.
    pub trace: Option<Arc<CallTrace>>,
    /// The era of `params`, also understood by the client. A link translates for a server of the
    /// opposite era; the response states its own era.
    pub era: Era,
}

impl RequestMessage {
    /// Returns a message of the legacy era without a client; empty `params` for none.
    #[must_use]
    pub const fn new(params: Bytes) -> Self {
        Self {
            params,
            progress_at: None,
            id: Bytes::from_static(b"0"),
            client: None,
            trace: None,
            era: Era::Legacy,
        }
    }
}

impl CallRequest {
    /// Whether the call continues a request that ended with `input_required`.
    #[must_use]
    pub fn is_continuation(&self) -> bool {
        let stateless = self.stateless.as_ref();
        stateless.is_some_and(|stateless| stateless.is_continuation)
    }

    /// Returns the opened task id, if the call names a task by a sealed id.
    #[must_use]
    pub fn sealed_task_id(&self) -> Option<&SealedTaskId> {
        self.stateless.as_ref()?.task_id.as_ref()
    }
}

/// The upstream target of a call, with declared properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The server's name.
    pub server: Arc<str>,
    /// The upstream name, URI or task id.
    pub name: Arc<str>,
    /// The declared effect.
    pub effect: Effect,
    /// Whether the tool is declared idempotent.
    pub is_idempotent: bool,
    /// The configured timeout, if any.
    pub timeout: Option<Duration>,
    /// Hash of the canonical definition; all zero if unlisted.
    pub definition_hash: [u8; 32],
    /// Queue policy while the server is unreachable; never queued if absent.
    pub queue_policy: Option<Arc<QueuePolicy>>,
    /// Arguments repeated in headers for a server of the modern era.
    pub header_params: HeaderParams,
}

impl Route {
    /// Returns a route to a feature without a definition, listed by the server or not.
    #[must_use]
    pub fn new_unlisted(server: &Arc<str>, name: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            name: Arc::clone(name),
            effect: Effect::Read,
            is_idempotent: true,
            timeout: None,
            definition_hash: [0; 32],
            queue_policy: None,
            header_params: None,
        })
    }

    /// Whether the server has not listed the feature.
    #[must_use]
    pub fn is_unlisted(&self) -> bool {
        self.definition_hash == [0; 32]
    }

    /// Whether a call with unknown execution status may be repeated safely.
    #[must_use]
    pub const fn is_repeatable(&self) -> bool {
        matches!(self.effect, Effect::Read) || self.is_idempotent
    }
}

/// Side effect of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Reads only: may be cached and repeated.
    Read,
    /// Changes state.
    Write,
    /// Undeclared; treated like a write.
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

/// The reply to a call, with provenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReply {
    /// The response, with the id of the call. The edge translates for clients of the opposite era.
    pub response: ServerResponse,
    /// Provenance of the reply.
    pub origin: ReplyOrigin,
    /// The server of a live response; absent for cached and gateway responses.
    pub server: Option<Arc<str>>,
}

/// A response as passed from a link to the edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerResponse {
    /// The whole JSON-RPC response with the caller's id; all remaining bytes are the server's.
    pub bytes: Bytes,
    /// Result or error.
    pub body: BodyKind,
    /// Position of the result or error in `bytes`.
    pub body_at: Range<usize>,
    /// The era of the encoding.
    pub era: Era,
}

impl ServerResponse {
    /// Returns the result or error object.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        self.bytes.get(self.body_at.clone()).unwrap_or_default()
    }

    /// Returns the result or error object, sharing the bytes.
    #[must_use]
    pub fn shared_body(&self) -> Bytes {
        self.bytes.slice(self.body_at.clone())
    }
}

/// Body of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `result`, which may still say `isError`.
    Result,
    /// `error`: the server refused the request or failed.
    Error,
}

/// Provenance of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyOrigin {
    /// Live response of the server.
    Live,
    /// Cached response of an earlier identical call.
    Cached,
    /// The call is stored for later delivery; as far as known, the tool has not run.
    Queued,
    /// Recorded response of an earlier write with the same idempotency key.
    Recorded,
}

impl ReplyOrigin {
    /// Returns the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Cached => "cached",
            Self::Queued => "queued",
            Self::Recorded => "recorded",
        }
    }
}
