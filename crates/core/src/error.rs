//! The one error of the call path: every failure says whether the call may have run.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

/// What kind of failure it was; breaker, outbox and retry look at nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Policy, budget or authentication said no.
    Denied,
    /// No such server or tool, decided here.
    NotFound,
    /// The request is malformed.
    Invalid,
    /// The server is stopped, starting, resting or ejected.
    Unavailable,
    /// The server could not be started or reached.
    ConnectFailed,
    /// The request never left.
    SendFailed,
    /// The server died or hung up after the request left.
    ConnectionLost,
    /// No answer in time.
    Timeout,
    /// Too many calls at once.
    Throttled,
    /// The server broke the protocol.
    ProtocolError,
    /// The answer was too large to pass on.
    Truncated,
    /// The caller took the call back.
    Cancelled,
}

impl Class {
    /// Returns the word used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::NotFound => "not_found",
            Self::Invalid => "invalid",
            Self::Unavailable => "unavailable",
            Self::ConnectFailed => "connect_failed",
            Self::SendFailed => "send_failed",
            Self::ConnectionLost => "connection_lost",
            Self::Timeout => "timeout",
            Self::Throttled => "throttled",
            Self::ProtocolError => "protocol_error",
            Self::Truncated => "truncated",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether a failure of this class speaks against the server's health.
    #[must_use]
    pub const fn counts_against_server(self) -> bool {
        match self {
            Self::ConnectFailed | Self::SendFailed | Self::ConnectionLost | Self::Timeout => true,
            Self::Denied
            | Self::NotFound
            | Self::Invalid
            | Self::Unavailable
            | Self::Throttled
            | Self::ProtocolError
            | Self::Truncated
            | Self::Cancelled => false,
        }
    }
}

/// What is known about whether the tool ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// It did not run: any call may be tried again.
    NotStarted,
    /// It may have run: only a call that is safe to repeat may be tried again.
    Unknown,
    /// It ran.
    Completed,
}

impl Execution {
    /// Returns the word used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Unknown => "unknown",
            Self::Completed => "completed",
        }
    }
}

/// Whether trying again makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It would end the same way, or might run the tool twice.
    Never,
    /// The same request may be sent again at once.
    Safe,
    /// The same request may be sent again after a while.
    After(Duration),
}

/// Where a failure arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In this gateway.
    Gateway,
    /// In its policy.
    Policy,
    /// On the way to or from the server.
    Transport,
    /// In the server.
    Upstream,
}

impl Origin {
    /// Returns the word used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Policy => "policy",
            Self::Transport => "transport",
            Self::Upstream => "upstream",
        }
    }
}

/// Why a call has no reply.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// No server of that name is configured.
    #[error("no server named `{server}`")]
    UnknownServer {
        /// The name asked for.
        server: Arc<str>,
    },
    /// The server has no such tool, or no visible name matches.
    #[error("no tool named `{tool}`")]
    UnknownTool {
        /// The name asked for.
        tool: Arc<str>,
    },
    /// The server has no such prompt, or no visible name matches.
    #[error("no prompt named `{prompt}`")]
    UnknownPrompt {
        /// The name asked for.
        prompt: Arc<str>,
    },
    /// No server is known to have the resource.
    #[error("no resource at `{uri}`")]
    UnknownResource {
        /// The URI asked for.
        uri: Arc<str>,
    },
    /// The principal made no such task.
    #[error("no task `{task}`")]
    UnknownTask {
        /// The id asked for.
        task: Arc<str>,
    },
    /// Several servers gave the principal a task of this id.
    #[error("several servers have a task `{task}`")]
    AmbiguousTask {
        /// The id asked for.
        task: Arc<str>,
        /// One of the servers.
        server: Arc<str>,
    },
    /// Policy said no.
    #[error("principal `{principal}` may not use `{name}` of server `{server}`")]
    Denied {
        /// Who asked.
        principal: Arc<str>,
        /// The server that has it.
        server: Arc<str>,
        /// The server's own name of it.
        name: Arc<str>,
    },
    /// The session is subscribed to as many resources as it may be.
    #[error("the session already has {limit} subscriptions")]
    TooManySubscriptions {
        /// How many it may have.
        limit: usize,
    },
    /// The server answered a request that the gateway made on a caller's behalf with an error.
    #[error("server `{server}` refused the request")]
    Refused {
        /// The server.
        server: Arc<str>,
        /// The JSON-RPC error object as the server wrote it.
        error: Bytes,
    },
    /// The principal has as many calls in flight as it may.
    #[error("principal `{principal}` already has {limit} calls in flight")]
    TooManyCalls {
        /// Who asked.
        principal: Arc<str>,
        /// How many it may have.
        limit: u32,
    },
    /// The server has as many calls in flight as it may.
    #[error("server `{server}` already has {limit} calls in flight")]
    ServerBusy {
        /// The server.
        server: Arc<str>,
        /// How many it may have.
        limit: usize,
    },
    /// A person stopped the server.
    #[error("server `{server}` is stopped")]
    Stopped {
        /// The server.
        server: Arc<str>,
    },
    /// The server was restarted too often.
    #[error("server `{server}` was ejected after too many restarts: {reason}")]
    Ejected {
        /// The server.
        server: Arc<str>,
        /// What it failed with last.
        reason: Arc<str>,
    },
    /// The breaker is open.
    #[error("server `{server}` is resting after repeated failures")]
    Resting {
        /// The server.
        server: Arc<str>,
        /// How long the rest still lasts.
        rest: Duration,
    },
    /// The server could not be started; the next try is due later.
    #[error("server `{server}` could not be started: {reason}")]
    StartFailed {
        /// The server.
        server: Arc<str>,
        /// What it failed with.
        reason: Arc<str>,
        /// When the next try is due.
        next: Duration,
    },
    /// The server was still starting when the time was up.
    #[error("server `{server}` did not start in time")]
    StartTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// The request never left for the server.
    #[error("the request could not be handed to server `{server}`: {reason}")]
    SendFailed {
        /// The server.
        server: Arc<str>,
        /// What stood in the way.
        reason: Arc<str>,
    },
    /// The server went away with the request in its hands.
    #[error("server `{server}` went away during the call: {reason}")]
    ConnectionLost {
        /// The server.
        server: Arc<str>,
        /// How it went.
        reason: Arc<str>,
        /// Which of the server's links was lost.
        generation: u64,
    },
    /// No answer in time.
    #[error("server `{server}` did not answer within {after_ms} ms")]
    Timeout {
        /// The server.
        server: Arc<str>,
        /// How long was waited.
        after_ms: u64,
        /// Whether the request had left.
        execution: Execution,
    },
    /// The answer broke a limit.
    #[error("the answer of server `{server}` is larger than {bytes_max} bytes")]
    AnswerTooLarge {
        /// The server.
        server: Arc<str>,
        /// The limit.
        bytes_max: usize,
    },
    /// The answer could not be read.
    #[error("the answer of server `{server}` is not valid: {reason}")]
    BadAnswer {
        /// The server.
        server: Arc<str>,
        /// What was wrong with it.
        reason: Arc<str>,
    },
    /// The caller took the call back.
    #[error("the call was cancelled by its caller")]
    Cancelled {
        /// Whether the request had left.
        execution: Execution,
    },
    /// The gateway is going down.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

impl CallError {
    /// Returns the class, by which machines decide.
    #[must_use]
    pub const fn class(&self) -> Class {
        match self {
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. } => Class::NotFound,
            Self::AmbiguousTask { .. } => Class::Invalid,
            Self::Denied { .. } => Class::Denied,
            Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::TooManySubscriptions { .. } => Class::Throttled,
            Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::Resting { .. }
            | Self::StartTimeout { .. }
            | Self::ShuttingDown => Class::Unavailable,
            Self::StartFailed { .. } => Class::ConnectFailed,
            Self::SendFailed { .. } => Class::SendFailed,
            Self::ConnectionLost { .. } => Class::ConnectionLost,
            Self::Timeout { .. } => Class::Timeout,
            Self::AnswerTooLarge { .. } => Class::Truncated,
            Self::BadAnswer { .. } | Self::Refused { .. } => Class::ProtocolError,
            Self::Cancelled { .. } => Class::Cancelled,
        }
    }

    /// Returns what is known about whether the tool ran.
    #[must_use]
    pub const fn execution(&self) -> Execution {
        match self {
            Self::Timeout { execution, .. } | Self::Cancelled { execution } => *execution,
            Self::ConnectionLost { .. } => Execution::Unknown,
            Self::AnswerTooLarge { .. } | Self::BadAnswer { .. } | Self::Refused { .. } => {
                Execution::Completed
            }
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::AmbiguousTask { .. }
            | Self::TooManySubscriptions { .. }
            | Self::Denied { .. }
            | Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::Resting { .. }
            | Self::StartFailed { .. }
            | Self::StartTimeout { .. }
            | Self::SendFailed { .. }
            | Self::ShuttingDown => Execution::NotStarted,
        }
    }

    /// Returns whether trying again makes sense.
    #[must_use]
    pub const fn retry(&self) -> Retry {
        match self {
            Self::Resting { rest, .. } => Retry::After(*rest),
            Self::StartFailed { next, .. } => Retry::After(*next),
            Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::StartTimeout { .. }
            | Self::SendFailed { .. }
            | Self::ShuttingDown => Retry::Safe,
            Self::Timeout { execution, .. } => match execution {
                Execution::NotStarted => Retry::Safe,
                Execution::Unknown | Execution::Completed => Retry::Never,
            },
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::AmbiguousTask { .. }
            | Self::TooManySubscriptions { .. }
            | Self::Denied { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::ConnectionLost { .. }
            | Self::AnswerTooLarge { .. }
            | Self::BadAnswer { .. }
            | Self::Refused { .. }
            | Self::Cancelled { .. } => Retry::Never,
        }
    }

    /// Returns where the failure arose.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        match self {
            Self::Denied { .. } => Origin::Policy,
            Self::StartFailed { .. }
            | Self::StartTimeout { .. }
            | Self::AnswerTooLarge { .. }
            | Self::BadAnswer { .. }
            | Self::Refused { .. } => Origin::Upstream,
            Self::SendFailed { .. } | Self::ConnectionLost { .. } | Self::Timeout { .. } => {
                Origin::Transport
            }
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::AmbiguousTask { .. }
            | Self::TooManySubscriptions { .. }
            | Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::Stopped { .. }
            | Self::Ejected { .. }
            | Self::Resting { .. }
            | Self::Cancelled { .. }
            | Self::ShuttingDown => Origin::Gateway,
        }
    }
}
