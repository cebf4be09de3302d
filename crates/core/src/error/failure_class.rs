//! The vocabulary of failures: class, execution status, retry advice, origin.

use std::time::Duration;

/// The failure class; breaker, outbox and retry decide by the class alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Denied by policy, budget or authentication.
    Denied,
    /// Unknown server or feature, decided by the gateway.
    NotFound,
    /// The request is malformed.
    Invalid,
    /// The server is stopped, starting, ejected, or the circuit is open.
    Unavailable,
    /// The server could not be started or reached.
    ConnectFailed,
    /// The request was not sent.
    SendFailed,
    /// The connection was lost after the request was sent.
    ConnectionLost,
    /// No response before the deadline.
    Timeout,
    /// The server requires authentication.
    AuthRequired,
    /// The server requires more rights for the authenticated caller.
    ScopeRequired,
    /// Too many calls at once, or in too short a time.
    Throttled,
    /// The server violated the protocol.
    ProtocolError,
    /// The response exceeded the size limit.
    Truncated,
    /// The client cancelled the call.
    Cancelled,
}

impl FailureClass {
    /// Every class.
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

    /// Parses the wire word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }

    /// Returns the wire word.
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

    /// Whether a failure of this class counts against the server's health.
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

/// Whether the tool ran, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutionStatus {
    /// The tool did not run: any call may be retried.
    NotStarted,
    /// The tool may have run: only repeatable calls may be retried.
    Unknown,
    /// The tool ran.
    Completed,
}

impl ExecutionStatus {
    /// Every status.
    pub const ALL: [Self; 3] = [Self::NotStarted, Self::Unknown, Self::Completed];

    /// Parses the wire word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ran| ran.as_str() == word)
    }

    /// Returns the wire word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Unknown => "unknown",
            Self::Completed => "completed",
        }
    }
}

/// Whether a retry makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// A retry would fail again, or might run the tool twice.
    Never,
    /// The same request may be sent again at once.
    Safe,
    /// The same request may be sent again after a delay.
    After(Duration),
}

impl RetryAdvice {
    /// Returns the wire word; the delay of [`RetryAdvice::After`] is a separate member.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Safe => "safe",
            Self::After(_) => "after",
        }
    }
}

/// The origin of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureOrigin {
    /// The gateway.
    Gateway,
    /// The gateway's policy.
    Policy,
    /// The transport to or from the server.
    Transport,
    /// The server.
    Upstream,
    /// A broker, or a peer behind a broker.
    Broker,
    /// An executor, or the transport to or from an executor.
    Executor,
}

impl FailureOrigin {
    /// Every origin.
    pub const ALL: [Self; 6] = [
        Self::Gateway,
        Self::Policy,
        Self::Transport,
        Self::Upstream,
        Self::Broker,
        Self::Executor,
    ];

    /// Parses the wire word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| origin.as_str() == word)
    }

    /// Returns the wire word.
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

/// Whether an HTTP status comes from a proxy in front of an unreachable server. Any status
/// outside 502 to 504 is a response of the server.
#[must_use]
pub const fn is_gateway_status(status: u16) -> bool {
    matches!(status, 502..=504)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_words_round_trip() {
        for class in FailureClass::ALL {
            assert_eq!(FailureClass::parse(class.as_str()), Some(class));
        }
        for ran in ExecutionStatus::ALL {
            assert_eq!(ExecutionStatus::parse(ran.as_str()), Some(ran));
        }
        for origin in FailureOrigin::ALL {
            assert_eq!(FailureOrigin::parse(origin.as_str()), Some(origin));
        }
        assert_eq!(FailureClass::parse("Denied"), None);
        assert_eq!(ExecutionStatus::parse(""), None);
        assert_eq!(FailureOrigin::parse("tool"), None);
    }
}
