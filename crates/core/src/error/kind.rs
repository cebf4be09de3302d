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
    /// All there are.
    pub const ALL: [Self; 14] = [
        Self::Denied,
        Self::NotFound,
        Self::Invalid,
        Self::Unavailable,
        Self::ConnectFailed,
        Self::SendFailed,
        Self::ConnectionLost,
        Self::Timeout,
        Self::AuthRequired,
        Self::ScopeRequired,
        Self::Throttled,
        Self::ProtocolError,
        Self::Truncated,
        Self::Cancelled,
    ];

    /// Reads the word used on the wire.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }

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
    /// All there are.
    pub const ALL: [Self; 3] = [Self::NotStarted, Self::Unknown, Self::Completed];

    /// Reads the word used on the wire.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ran| ran.as_str() == word)
    }

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

impl Retry {
    /// Returns the word used on the wire; the wait of [`Retry::After`] is told beside it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Safe => "safe",
            Self::After(_) => "after",
        }
    }
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
    /// In an executor, or on the way to or from it.
    Executor,
}

impl Origin {
    /// All there are.
    pub const ALL: [Self; 6] = [
        Self::Gateway,
        Self::Policy,
        Self::Transport,
        Self::Upstream,
        Self::Broker,
        Self::Executor,
    ];

    /// Reads the word used on the wire.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.as_str() == word)
    }

    /// Returns the word used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Policy => "policy",
            Self::Transport => "transport",
            Self::Upstream => "upstream",
            Self::Broker => "broker",
            Self::Executor => "executor",
        }
    }
}

/// Whether an HTTP status is said by somebody in front of a server that is away. Every other is an
/// answer.
#[must_use]
pub const fn is_away(status: u16) -> bool {
    matches!(status, 502..=504)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_reads_back_and_no_other_is_one() {
        for class in Class::ALL {
            assert_eq!(Class::parse(class.as_str()), Some(class));
        }
        for ran in Execution::ALL {
            assert_eq!(Execution::parse(ran.as_str()), Some(ran));
        }
        for origin in Origin::ALL {
            assert_eq!(Origin::parse(origin.as_str()), Some(origin));
        }
        assert_eq!(Class::parse("Denied"), None);
        assert_eq!(Execution::parse(""), None);
        assert_eq!(Origin::parse("tool"), None);
    }
}
