//! Takes secrets out of what an error says.

use std::sync::Arc;

use super::CallError;
use crate::redact::Redactor;

impl CallError {
    /// Returns the same error without these secrets: what a server says in place of an answer, or
    /// on its way down, may repeat what it was sent or started with.
    #[must_use]
    pub fn cleaned(mut self, secrets: &Redactor) -> Self {
        if let Some(said) = self.said() {
            *said = secrets.clean_shared(said);
        }
        self
    }

    /// Returns what others said, where an error repeats it.
    fn said(&mut self) -> Option<&mut Arc<str>> {
        match self {
            Self::Ejected { reason, .. }
            | Self::StartFailed { reason, .. }
            | Self::ProgramNotFound { reason, .. }
            | Self::SendFailed { reason, .. }
            | Self::ConnectionLost { reason, .. }
            | Self::HttpStatus { reason, .. }
            | Self::NoMessage { reason, .. }
            | Self::BadAnswer { reason, .. }
            | Self::BadOutput { reason, .. }
            | Self::InputUnanswered { reason, .. }
            | Self::NotStored { reason, .. } => Some(reason),
            Self::AuthRequired { challenge, .. } | Self::ScopeRequired { challenge, .. } => {
                challenge.as_mut()
            }
            Self::Elsewhere { failure, .. } => Some(&mut Arc::make_mut(failure).reason),
            // The server's own answer, which is for the caller as it is.
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
            | Self::BudgetSpent { .. }
            | Self::TooFast { .. }
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
            | Self::Resting { .. }
            | Self::StartTimeout { .. }
            | Self::Timeout { .. }
            | Self::Throttled { .. }
            | Self::AnswerTooLarge { .. }
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
    fn what_a_server_said_is_told_without_secrets() {
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
            let told = error.cleaned(&secrets).to_string();
            assert!(told.contains("you sent ‹KEY›"), "{told}");
        }
        assert_eq!(
            CallError::ShuttingDown.cleaned(&secrets),
            CallError::ShuttingDown
        );
    }
}
