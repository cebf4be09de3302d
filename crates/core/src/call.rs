//! One call as it travels through the gateway.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::caller::CallerEnd;
use crate::era::{Era, Mirrors, Stateless};
use crate::lane::Queueing;
use crate::run::Run;
use crate::tasks::Sealed;
use crate::time::Now;
use crate::trace::Trace;

/// Who asks, as proved by a credential, and narrowed by where it asks from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Its name, unique in this gateway.
    pub name: Arc<str>,
    /// What it may do.
    pub role: Role,
    /// Rules that narrow what the role may do: those of the credential and those of the session.
    pub contexts: Contexts,
    /// Names the credential that proved it, to find what it opened when it is revoked; empty where
    /// there is none to revoke.
    pub credential: Arc<str>,
    /// Where its request came from.
    pub peer: Peer,
}

/// The address that a request came from. It says where, not who: two principals that differ in
/// nothing else are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer(pub Option<SocketAddr>);

impl PartialEq for Peer {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Peer {}

impl Hash for Peer {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Principal {
    /// Returns a principal that nothing narrows.
    #[must_use]
    pub fn new(name: &str, role: Role) -> Self {
        Self {
            name: name.into(),
            role,
            contexts: Contexts::default(),
            credential: Arc::default(),
            peer: Peer::default(),
        }
    }

    /// Returns the same principal at another address.
    #[must_use]
    pub fn at_peer(&self, peer: Peer) -> Self {
        Self {
            peer,
            ..self.clone()
        }
    }

    /// Returns the same principal, narrowed by `more` as well.
    #[must_use]
    pub fn narrowed(&self, more: &Contexts) -> Self {
        Self {
            contexts: self.contexts.and(more),
            ..self.clone()
        }
    }
}

/// Names of rules that narrow what a principal sees, sorted, none twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contexts(Option<Arc<[Arc<str>]>>);

impl Contexts {
    /// Returns the rules of these names.
    #[must_use]
    pub fn new<I>(names: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<Arc<str>>,
    {
        let names: BTreeSet<Arc<str>> = names.into_iter().map(Into::into).collect();
        Self((!names.is_empty()).then(|| names.into_iter().collect()))
    }

    /// Returns the rules of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (_, None) => self.clone(),
            (None, Some(_)) => other.clone(),
            (Some(own), Some(more)) => Self::new(own.iter().chain(more.iter()).map(Arc::clone)),
        }
    }

    /// Whether nothing is narrowed.
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

/// What a principal is in this gateway. Bound to the credential, never claimed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Holds the owner token: may do all, the API included.
    Owner,
    /// A program that the owner started: what the owner may over MCP, and never the API.
    OwnersAgent,
    /// Any local caller while authentication is switched off: MCP only.
    AnonymousLocal,
    /// One of the roles that the policy defines, or that it does not define.
    Named(Arc<str>),
    /// Nothing is granted but what the policy grants to those without a role.
    None,
}

/// Which names a call may use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All servers, by visible names `server__tool`.
    All,
    /// One server, by its own names.
    Server(Arc<str>),
    /// What one profile lets through of all servers, by visible names.
    Profile(Arc<str>),
}

impl Scope {
    /// Whether names here are those of all servers together.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::All | Self::Profile(_))
    }
}

/// What a call is for: what it names, and so which request of the protocol it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A tool to run.
    Tool(Arc<str>),
    /// A prompt to fill in.
    Prompt(Arc<str>),
    /// A resource to read, by its URI.
    Resource(Arc<str>),
    /// A prompt of which an argument is to be completed.
    CompletePrompt(Arc<str>),
    /// A template of resources of which an argument is to be completed, or a plain URI.
    CompleteResource(Arc<str>),
    /// A task that was made before.
    Task {
        /// Its id.
        id: Arc<str>,
        /// What is wanted of it.
        verb: TaskVerb,
    },
}

/// What is wanted of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskVerb {
    /// How it stands.
    Get,
    /// What came of it; waits for its end (legacy).
    Result,
    /// That it hears answers to what it asks (modern).
    Update,
    /// Its end.
    Cancel,
}

/// The kinds of things a server offers, as far as policy tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Something that runs.
    Tool,
    /// A text to fill in.
    Prompt,
    /// Something to read, by URI or by template.
    Resource,
    /// Something under way that outlives its request.
    Task,
}

impl Subject {
    /// Returns the method of the request.
    #[must_use]
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Prompt(_) => "prompts/get",
            Self::Resource(_) => "resources/read",
            Self::CompletePrompt(_) | Self::CompleteResource(_) => "completion/complete",
            Self::Task { verb, .. } => match verb {
                TaskVerb::Get => "tasks/get",
                TaskVerb::Result => "tasks/result",
                TaskVerb::Update => "tasks/update",
                TaskVerb::Cancel => "tasks/cancel",
            },
        }
    }

    /// Returns what is named: a name, a URI or the id of a task.
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

    /// Returns what kind of thing is named.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Tool(_) => Kind::Tool,
            Self::Prompt(_) | Self::CompletePrompt(_) => Kind::Prompt,
            Self::Resource(_) | Self::CompleteResource(_) => Kind::Resource,
            Self::Task { .. } => Kind::Task,
        }
    }
}

/// What is asked. The parameters stay the bytes the caller sent.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who asks.
    pub principal: Arc<Principal>,
    /// Where the name is to be looked up.
    pub scope: Scope,
    /// What it is for, by its name in that scope.
    pub subject: Subject,
    /// The parameters of the request, a JSON object.
    pub params: Bytes,
    /// Where in `params` the JSON string with that name, URI or id stands.
    pub name_at: Range<usize>,
    /// Whether `params` ask for a task instead of an answer.
    pub makes_task: bool,
    /// Where in `params` the caller's progress token stands.
    pub progress_at: Option<Range<usize>>,
    /// The id the answer carries, as the caller wrote it.
    pub id: Bytes,
    /// The caller's own limit; the server's limit holds as well.
    pub deadline: Option<Now>,
    /// Takes what the server says before it answers; absent where nobody listens.
    pub caller: Option<Arc<dyn CallerEnd>>,
    /// Where it stands in a trace; absent where nobody traces.
    pub trace: Option<Arc<Trace>>,
    /// The run it belongs to, which may make so many calls and no more; absent where none is
    /// counted.
    pub run: Option<Arc<Run>>,
    /// The idempotency key that its caller chose beside the arguments; absent where none was.
    pub key: Option<Arc<str>>,
    /// Present where `params` are those of the modern era; absent where of the other.
    pub stateless: Option<Box<Stateless>>,
}

impl Call {
    /// Whether it goes on with a request that was answered with a question.
    #[must_use]
    pub fn is_further_round(&self) -> bool {
        let stateless = self.stateless.as_ref();
        stateless.is_some_and(|stateless| stateless.retried)
    }

    /// Returns what the id of the task says that is asked about, where it says anything.
    #[must_use]
    pub fn sealed_task(&self) -> Option<&Sealed> {
        self.stateless.as_ref()?.task.as_ref()
    }

    /// Returns the era that `params` are written in, and that the caller understands.
    #[must_use]
    pub const fn era(&self) -> Era {
        match self.stateless {
            Some(_) => Era::Modern,
            None => Era::Legacy,
        }
    }
}

/// Whose limit ends the wait for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeLimit {
    /// The configured timeout of the tool or its server, or a limit of the link.
    Server,
    /// A deadline of the caller that is earlier than the server's timeout.
    Caller,
}

/// When a call must have its response, and whose limit that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDeadline {
    /// The end of the wait.
    pub at: Now,
    /// Whose limit it is.
    pub limit: TimeLimit,
}

impl CallDeadline {
    /// Returns the earlier of both; the server's where the caller has none or one as late.
    #[must_use]
    pub fn earlier(server: Now, caller: Option<Now>) -> Self {
        match caller {
            Some(at) if at < server => Self {
                at,
                limit: TimeLimit::Caller,
            },
            Some(_) | None => Self {
                at: server,
                limit: TimeLimit::Server,
            },
        }
    }

    /// Returns whose limit a timeout at `now` is. Before the deadline it is one of the link's own
    /// limits, such as the time to connect.
    #[must_use]
    pub fn limit_at(self, now: Now) -> TimeLimit {
        if now < self.at {
            TimeLimit::Server
        } else {
            self.limit
        }
    }
}

/// Where a call goes, and what is declared about running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The server's name.
    pub server: Arc<str>,
    /// The server's own name of it: a name, a URI or the id of a task.
    pub name: Arc<str>,
    /// What running it does.
    pub effect: Effect,
    /// Whether running it twice is said to be like running it once.
    pub idempotent: bool,
    /// How long it may take, where a person said so.
    pub timeout: Option<Duration>,
    /// The hash of its definition in canonical form; all zero where it has none.
    pub definition: [u8; 32],
    /// How it is queued while its server is away; never where absent.
    pub queue: Option<Arc<Queueing>>,
    /// Arguments that travel as headers as well, to a server of the modern era.
    pub mirrors: Mirrors,
}

impl Route {
    /// Returns the way to something that a server may have, whether it lists it or not.
    #[must_use]
    pub fn unlisted(server: &Arc<str>, name: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            name: Arc::clone(name),
            effect: Effect::Read,
            idempotent: true,
            timeout: None,
            definition: [0; 32],
            queue: None,
            mirrors: None,
        })
    }

    /// Whether its server has not listed it, so that it has no definition.
    #[must_use]
    pub fn is_unlisted(&self) -> bool {
        self.definition == [0; 32]
    }

    /// Whether a call that may have run can be made again without harm.
    #[must_use]
    pub const fn is_repeatable(&self) -> bool {
        matches!(self.effect, Effect::Read) || self.idempotent
    }
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
    /// The era it is written in: whoever gives it to a caller of the other one translates it.
    pub era: Era,
    /// The server that answered just now; absent where the gateway did, or the answer was kept.
    pub server: Option<Arc<str>>,
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
    /// The server answered the same call before, and said that the answer stays good for a while.
    Cached,
    /// The call is stored and will be delivered; nothing ran yet, as far as is known.
    Queued,
    /// The server answered the same write before, under the same idempotency key.
    Recorded,
}

impl Origin {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_deadline_names_earlier_limit() {
        let (server, hasty) = (Now(100), Now(60));
        let check = |caller, at, limit| {
            assert_eq!(
                CallDeadline::earlier(server, caller),
                CallDeadline { at, limit }
            );
        };
        check(None, server, TimeLimit::Server);
        check(Some(hasty), hasty, TimeLimit::Caller);
        check(Some(server), server, TimeLimit::Server);
        check(Some(Now(200)), server, TimeLimit::Server);
        let deadline = CallDeadline::earlier(server, Some(hasty));
        assert_eq!(deadline.limit_at(Now(59)), TimeLimit::Server);
        assert_eq!(deadline.limit_at(Now(60)), TimeLimit::Caller);
    }
}
