//! Redacts secrets in errors.

use std::sync::Arc;

use super::CallError;
use crate::redact::Redactor;

impl CallError {
    /// Returns the error with secrets redacted: error texts of servers may repeat credentials from
    /// the request or the environment.
    #[must_use]
    pub fn redact(mut self, secrets: &Redactor) -> Self {
        if let Some(text) = self.peer_text_mut() {
            *text = secrets.redact_shared(text);
        }
        self
    }

    /// Returns the peer's text repeated by the error, if any.
    fn peer_text_mut(&mut self) -> Option<&mut Arc<str>> {
        match self {
            Self::Ejected { reason, .. }
            | Self::StartFailed { reason, .. }
            | Self::ProgramNotFound { reason, .. }
            | Self::SendFailed { reason, .. }
            | Self::ConnectionLost { reason, .. }
            | Self::HttpStatus { reason, .. }
            | Self::NotAMessage { reason, .. }
            | Self::BadResponse { reason, .. }
            | Self::BadOutput { reason, .. }
            | Self::InputUnanswered { reason, .. }
            | Self::NotStored { reason, .. } => Some(reason),
            Self::AuthRequired { challenge, .. } | Self::ScopeRequired { challenge, .. } => {
                challenge.as_mut()
            }
            Self::RemoteFailure { failure, .. } => Some(&mut Arc::make_mut(failure).reason),
            // The server's own response, passed to the client unchanged.
            Self::Refused { .. } => None,
            Self::UnknownServer { .. }
            | Self::UnknownTool { .. }
            | Self::UnknownPrompt { .. }
            | Self::UnknownResource { .. }
            | Self::UnknownTask { .. }
            | Self::AmbiguousTask { .. }
            | Self::HeaderMismatch { .. }
            | Self::AmbiguousNames { .. }
            | Self::Denied { .. }
            | Self::BudgetExceeded { .. }
            | Self::RateExceeded { .. }
            | Self::PinChanged { .. }
            | Self::KeyConflict { .. }
            | Self::OutboxFull { .. }
            | Self::TooManySubscriptions { .. }
            | Self::ShareExceeded { .. }
            | Self::SessionEnded { .. }
            | Self::TooManyCalls { .. }
            | Self::ServerBusy { .. }
            | Self::QueuedTooLong { .. }
            | Self::Stopped { .. }
            | Self::CircuitOpen { .. }
            | Self::StartTimeout { .. }
            | Self::Timeout { .. }
            | Self::Throttled { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Cancelled { .. }
            | Self::InputRefused { .. }
            | Self::InputLost
            | Self::ShuttingDown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_text_is_redacted_in_errors() {
        let secrets = Redactor::new([("KEY", "hunter22")]);
        let said: Arc<str> = "you sent hunter22".into();
        for error in [
            CallError::HttpStatus {
                server: "s".into(),
                status: 500,
                reason: Arc::clone(&said),
            },
            CallError::AuthRequired {
                server: "s".into(),
                challenge: Some(said),
            },
        ] {
            let told = error.redact(&secrets).to_string();
            assert!(told.contains("you sent ‹KEY›"), "{told}");
        }
        assert_eq!(
            CallError::ShuttingDown.redact(&secrets),
            CallError::ShuttingDown
        );
    }
}
