//! The words of an error: what kind, whether the tool ran, whether to repeat it, where from.

use std::time::Duration;

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
    /// The server wants to know who asks.
    AuthRequired,
    /// The server knows who asks, and wants more rights.
    ScopeRequired,
    /// Too many calls at once, or in too short a time.
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
            Self::AuthRequired => "auth_required",
            Self::ScopeRequired => "scope_required",
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
            | Self::AuthRequired
            | Self::ScopeRequired
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
    /// In a broker, or in a peer behind it.
    Broker,
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
            Self::Broker => "broker",
        }
    }
}

/// Whether an HTTP status is said by somebody in front of a server that is away. Every other is an
/// answer.
#[must_use]
pub const fn is_away(status: u16) -> bool {
    matches!(status, 502..=504)
}
