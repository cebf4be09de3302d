//! Error responses for failed calls: a message for models and data for programs.

use std::time::Duration;

use bowline_api::error::ErrorBody;
use bowline_core::error::{CallError, ExecutionStatus, FailureClass, FailureOrigin, RetryAdvice};
use bowline_core::time::to_millis;
use bowline_wire::jsonrpc::{Envelope, write_error};
use bowline_wire::mcp::code;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value, json};

/// Every error code, for tests and tidy; each has a page in `docs/errors/`.
#[cfg(test)]
pub(crate) const CODES: [&str; 52] = [
    "server_not_found",
    "tool_not_found",
    "prompt_not_found",
    "resource_not_found",
    "task_not_found",
    "task_ambiguous",
    "too_many_subscriptions",
    "share_exceeded",
    "session_ended",
    "server_refused",
    "header_mismatch",
    "ambiguous_names",
    "policy_denied",
    "budget_exceeded",
    "rate_exceeded",
    "pin_changed",
    "idempotency_conflict",
    "not_stored",
    "outbox_full",
    "bad_output",
    "too_many_calls",
    "server_busy",
    "server_stopped",
    "server_ejected",
    "circuit_open",
    "start_failed",
    "program_not_found",
    "start_timeout",
    "send_failed",
    "connection_lost",
    "timeout",
    "auth_required",
    "scope_required",
    "throttled",
    "http_status",
    "no_message",
    "answer_too_large",
    "bad_answer",
    "input_unanswered",
    "cancelled",
    "input_refused",
    "input_lost",
    "remote_error",
    // Sent over the broker, and used as `peer_code` of `remote_error`. A call lost in a restart is
    // also `outcome_unknown`.
    "expired",
    "outcome_unknown",
    "bad_request",
    "tool_failed",
    "peer_error",
    // Likewise for executors.
    "egress_denied",
    "executor_refused",
    "executor_busy",
    "executor_away",
];

/// JSON-RPC code of the gateway's own refusals and failures, outside the reserved range.
pub(crate) const CALL_FAILED: i64 = -31_000;

/// JSON-RPC code of requests without a valid credential.
pub(crate) const UNAUTHORIZED: i64 = -32_001;

/// JSON-RPC code of unknown resources.
pub(crate) const RESOURCE_NOT_FOUND: i64 = -32_002;

/// Retry delay for a principal that has exhausted a resource share.
const SHARE_RETRY: Duration = Duration::from_secs(5);

/// Returns the HTTP status of an API error.
#[must_use]
pub(crate) const fn http_status(error: &CallError) -> StatusCode {
    match error {
        CallError::UnknownServer { .. }
        | CallError::UnknownTool { .. }
        | CallError::UnknownPrompt { .. }
        | CallError::UnknownResource { .. }
        | CallError::UnknownTask { .. } => StatusCode::NOT_FOUND,
        CallError::AmbiguousTask { .. }
        | CallError::KeyConflict { .. }
        | CallError::InputRefused { .. } => StatusCode::CONFLICT,
        CallError::HeaderMismatch { .. } | CallError::AmbiguousNames { .. } => {
            StatusCode::BAD_REQUEST
        }
        CallError::Denied { .. } | CallError::PinChanged { .. } => StatusCode::FORBIDDEN,
        CallError::TooManyCalls { .. }
        | CallError::BudgetExceeded { .. }
        | CallError::RateExceeded { .. }
        | CallError::ServerBusy { .. }
        | CallError::QueuedTooLong { .. }
        | CallError::OutboxFull { .. }
        | CallError::ShareExceeded { .. }
        | CallError::TooManySubscriptions { .. } => StatusCode::TOO_MANY_REQUESTS,
        CallError::Stopped { .. }
        | CallError::Ejected { .. }
        | CallError::CircuitOpen { .. }
        | CallError::StartFailed { .. }
        | CallError::ProgramNotFound { .. }
        | CallError::SendFailed { .. }
        | CallError::Cancelled { .. }
        | CallError::SessionEnded { .. }
        | CallError::InputLost
        | CallError::NotStored { .. }
        | CallError::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        CallError::StartTimeout { .. } | CallError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        CallError::Throttled { .. } => StatusCode::SERVICE_UNAVAILABLE,
        // Not 401 or 403, because the gateway itself accepted the caller's credential.
        CallError::AuthRequired { .. }
        | CallError::ScopeRequired { .. }
        | CallError::HttpStatus { .. }
        | CallError::NotAMessage { .. }
        | CallError::ConnectionLost { .. }
        | CallError::ResponseTooLarge { .. }
        | CallError::BadResponse { .. }
        | CallError::BadOutput { .. }
        | CallError::InputUnanswered { .. }
        | CallError::RemoteFailure { .. }
        | CallError::Refused { .. } => StatusCode::BAD_GATEWAY,
    }
}

/// A call refused by a rate, budget or share limit; HTTP 429 with `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyRequests {
    /// Delay before a retry; absent if no retry can succeed.
    pub after: Option<Duration>,
}

impl TooManyRequests {
    /// Returns the limit information of an error, if a limit caused the error.
    #[must_use]
    pub(crate) const fn from_error(error: &CallError) -> Option<Self> {
        match error {
            CallError::RateExceeded { after, .. } => Some(Self {
                after: Some(*after),
            }),
            CallError::BudgetExceeded { after, .. } => Some(Self { after: *after }),
            CallError::ShareExceeded { .. } => Some(Self {
                after: Some(SHARE_RETRY),
            }),
            _ => None,
        }
    }

    /// Returns the delay in whole seconds, rounded up, at least 1.
    #[must_use]
    pub(crate) fn retry_after_seconds(self) -> Option<u64> {
        self.after.map(|after| {
            let partial_second = u64::from(after.subsec_nanos() > 0);
            after.as_secs().saturating_add(partial_second).max(1)
        })
    }
}

/// Returns the recommended next step in a sentence.
#[must_use]
pub(crate) fn advice_text(error: &CallError) -> String {
    match error {
        CallError::UnknownServer { .. } => "`bowline ls` shows the servers.".to_owned(),
        CallError::UnknownTool { .. } => "List the tools again; names may have changed.".to_owned(),
        CallError::UnknownPrompt { .. } => OTHER_PROMPTS.to_owned(),
        CallError::UnknownResource { .. } => OTHER_RESOURCES.to_owned(),
        CallError::UnknownTask { .. } => TASK_FORGOTTEN.to_owned(),
        CallError::AmbiguousTask { server, .. } => {
            format!("Ask for it at `/servers/{server}/mcp`, or at the other server's endpoint.")
        }
        CallError::TooManySubscriptions { .. } => FEWER_SUBSCRIPTIONS.to_owned(),
        CallError::HeaderMismatch { .. } => OTHER_HEADERS.to_owned(),
        CallError::AmbiguousNames { .. } => OTHER_NAMES.to_owned(),
        CallError::Refused { .. } => "The server said why; do not repeat it as it is.".to_owned(),
        CallError::Denied { .. } => "Do not try again; ask the owner of the gateway.".to_owned(),
        CallError::BudgetExceeded { after, .. } => budget_advice(*after),
        CallError::RateExceeded { after, .. } => budget_advice(Some(*after)),
        CallError::PinChanged { server, .. } => pin_advice(server),
        CallError::KeyConflict { .. } => OTHER_KEY.to_owned(),
        CallError::NotStored { .. } => NOT_STORED.to_owned(),
        CallError::OutboxFull { .. } => OUTBOX_FULL.to_owned(),
        CallError::TooManyCalls { .. }
        | CallError::ServerBusy { .. }
        | CallError::QueuedTooLong { .. } => {
            "The call did not run; wait for some calls to end and repeat it.".to_owned()
        }
        CallError::Stopped { server } => {
            format!("A person stopped it; `bowline start {server}` runs it again.")
        }
        CallError::Ejected { server, .. } => {
            format!("See `bowline logs {server}`; `bowline restart {server}` tries again.")
        }
        CallError::StartFailed { server, .. } | CallError::StartTimeout { server } => {
            format!("See `bowline logs {server}`.")
        }
        CallError::ProgramNotFound { server, .. } => format!(
            "The call did not run; the owner of the gateway can install the program or correct \
             `command`, then `bowline restart {server}`."
        ),
        CallError::CircuitOpen { .. } => "Try again after the rest.".to_owned(),
        CallError::SendFailed { .. } | CallError::ShuttingDown => {
            "The call did not run and may be repeated.".to_owned()
        }
        CallError::AuthRequired { server, .. } | CallError::ScopeRequired { server, .. } => {
            format!(
                "The call did not run; ask the owner of the gateway to mend the credentials of \
                 `{server}`."
            )
        }
        CallError::ConnectionLost { .. }
        | CallError::HttpStatus { .. }
        | CallError::InputLost
        | CallError::NotAMessage { .. } => OUTCOME_UNKNOWN.to_owned(),
        CallError::InputUnanswered { .. } => UNANSWERED.to_owned(),
        CallError::Throttled {
            execution: ExecutionStatus::NotStarted,
            ..
        } => "The call did not run; wait and repeat it.".to_owned(),
        CallError::Timeout { execution, .. }
        | CallError::Throttled { execution, .. }
        | CallError::InputRefused { execution, .. }
        | CallError::SessionEnded { execution }
        | CallError::Cancelled { execution } => repeat_advice(*execution).to_owned(),
        CallError::ShareExceeded { execution, .. } => share_advice(*execution).to_owned(),
        CallError::RemoteFailure { failure, .. } => execution_advice(failure.execution).to_owned(),
        CallError::ResponseTooLarge { .. } => ASK_LESS.to_owned(),
        CallError::BadResponse { .. } | CallError::BadOutput { .. } => {
            execution_advice(ExecutionStatus::Completed).to_owned()
        }
    }
}

/// Advice for an exhausted share: the share refused the request, or its response.
const fn share_advice(execution: ExecutionStatus) -> &'static str {
    match execution {
        ExecutionStatus::NotStarted | ExecutionStatus::Unknown => SHARE_EXCEEDED,
        ExecutionStatus::Completed => UNDELIVERED,
    }
}

/// Advice on repeating a call without a response.
const fn repeat_advice(execution: ExecutionStatus) -> &'static str {
    match execution {
        ExecutionStatus::NotStarted => "The call did not run and may be repeated.",
        ExecutionStatus::Unknown | ExecutionStatus::Completed => OUTCOME_UNKNOWN,
    }
}

/// States the execution status without further advice.
const fn execution_advice(execution: ExecutionStatus) -> &'static str {
    match execution {
        ExecutionStatus::NotStarted => "The call did not run.",
        ExecutionStatus::Unknown => OUTCOME_UNKNOWN,
        ExecutionStatus::Completed => "The call did run; do not repeat it.",
    }
}

fn budget_advice(after: Option<Duration>) -> String {
    match after {
        Some(_) => "The call did not run; wait and repeat it.".to_owned(),
        None => "The call did not run; end this run, it may make no more calls.".to_owned(),
    }
}

fn pin_advice(server: &str) -> String {
    format!(
        "The call did not run; the owner of the gateway can look at `bowline pin diff {server}` \
         and accept it."
    )
}

const OTHER_PROMPTS: &str = "List the prompts again; names may have changed.";

const OTHER_RESOURCES: &str = "List the resources again; they may have changed.";

const TASK_FORGOTTEN: &str = "It is over and forgotten, or was never made; do not ask again.";

const OTHER_NAMES: &str = "Write each name as the schema of the tool does, and once only.";

const FEWER_SUBSCRIPTIONS: &str = "End subscriptions that are no longer needed, then repeat it.";

const OTHER_HEADERS: &str =
    "The call did not run; list the tools again and repeat it with their headers.";

const UNANSWERED: &str = "The server asked for input in place of an answer and did not get it; \
     use a client that can answer, or call without what needs it.";

const OTHER_KEY: &str = "The call did not run; take another idempotency key for another call.";

const NOT_STORED: &str = "The call did not run and is not queued; tell the owner of the gateway.";

const OUTBOX_FULL: &str =
    "The call did not run and is not queued; wait until others are delivered.";

const SHARE_EXCEEDED: &str = "Nothing was done; let go of some of what is held, then repeat it.";

const UNDELIVERED: &str =
    "The call did run, and its response was let go; read what waits, do not repeat it blindly.";

const ASK_LESS: &str = "The call did run; ask for less, do not repeat it as it is.";

const FORGOTTEN_CALL: &str = "The response to this call is not kept: the gateway was restarted \
     while the call was in flight, or it ended too long ago.";

const OUTCOME_UNKNOWN: &str =
    "The call may have run; do not repeat it without checking what it did.";

/// Returns the machine-readable part of an error.
#[must_use]
pub(crate) fn error_data(error: &CallError) -> Map<String, Value> {
    let mut data = Map::new();
    data.insert("code".to_owned(), error.code().into());
    data.insert("class".to_owned(), error.failure_class().as_str().into());
    data.insert(
        "execution".to_owned(),
        error.execution_status().as_str().into(),
    );
    data.insert("origin".to_owned(), error.failure_origin().as_str().into());
    let retry = error.retry_advice();
    data.insert("retry".to_owned(), retry.as_str().into());
    if let RetryAdvice::After(wait) = retry {
        data.insert("retry_after_ms".to_owned(), to_millis(wait).into());
    }
    match error {
        CallError::AuthRequired {
            challenge: Some(challenge),
            ..
        }
        | CallError::ScopeRequired {
            challenge: Some(challenge),
            ..
        } => {
            data.insert("challenge".to_owned(), (**challenge).into());
        }
        CallError::HttpStatus { status, .. } => {
            data.insert("status".to_owned(), (*status).into());
        }
        CallError::RemoteFailure { failure, .. } => {
            data.insert("peer_code".to_owned(), (*failure.code).into());
        }
        CallError::BudgetExceeded {
            limit,
            allowed,
            spent,
            ..
        } => {
            data.insert("limit".to_owned(), (*limit).into());
            data.insert("allowed".to_owned(), (*allowed).into());
            data.insert("spent".to_owned(), (*spent).into());
        }
        CallError::ShareExceeded { cause, .. } => {
            data.insert("limit".to_owned(), cause.resource().name().into());
            data.insert("allowed".to_owned(), cause.limit().into());
        }
        // `retry_after_ms` also helps callers that must not repeat blindly.
        CallError::Throttled { status, after, .. } => {
            data.insert("status".to_owned(), (*status).into());
            if let Some(after) = after {
                data.insert("retry_after_ms".to_owned(), to_millis(*after).into());
            }
        }
        _ => {}
    }
    data
}

/// Writes an error response to the request `id`.
#[must_use]
pub(crate) fn error_response(id: &[u8], error: &CallError) -> Bytes {
    let number = match error {
        // Server errors are relayed unchanged.
        CallError::Refused { error, .. } => return server_error_response(id, error),
        // The protocol's code for unknown names.
        CallError::UnknownTool { .. }
        | CallError::UnknownServer { .. }
        | CallError::UnknownPrompt { .. }
        | CallError::UnknownTask { .. }
        | CallError::InputRefused { .. }
        | CallError::AmbiguousNames { .. }
        | CallError::AmbiguousTask { .. } => code::INVALID_PARAMS,
        CallError::UnknownResource { .. } => RESOURCE_NOT_FOUND,
        CallError::HeaderMismatch { .. } => code::HEADER_MISMATCH,
        _ => CALL_FAILED,
    };
    let message = format!("{}. {}", capitalize(&error.to_string()), advice_text(error));
    let data = Value::Object(error_data(error)).to_string();
    let mut out = Vec::with_capacity(message.len() + data.len() + 96);
    write_error(&mut out, Some(id), number, &message, Some(data.as_bytes()));
    out.into()
}

/// Writes the response to a call with an unknowable outcome.
#[must_use]
pub(crate) fn outcome_unknown_response(id: &[u8]) -> Bytes {
    let message = format!("{FORGOTTEN_CALL} {OUTCOME_UNKNOWN}");
    let data = json!({
        "code": "outcome_unknown",
        "class": FailureClass::ConnectionLost.as_str(),
        "execution": ExecutionStatus::Unknown.as_str(),
        "origin": FailureOrigin::Gateway.as_str(),
        "retry": RetryAdvice::Never.as_str(),
    });
    let data = data.to_string();
    let mut out = Vec::new();
    write_error(
        &mut out,
        Some(id),
        CALL_FAILED,
        &message,
        Some(data.as_bytes()),
    );
    out.into()
}

/// Writes a server's error object as the response to the request `id`.
#[must_use]
pub(crate) fn server_error_response(id: &[u8], error: &[u8]) -> Bytes {
    Envelope::Error { id: Some(id) }.to_vec(error).into()
}

/// Returns an error in the API format.
#[must_use]
pub(crate) fn to_error_body(error: &CallError, suggestions: Vec<String>) -> ErrorBody {
    let mut details = error_data(error);
    details.remove("code");
    ErrorBody {
        code: error.code().to_owned(),
        message: error.to_string(),
        hint: Some(advice_text(error)),
        suggestions,
        details,
    }
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn retry_after_rounds_up_to_seconds() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (59_999, 60)] {
            let error = CallError::RateExceeded {
                principal: Arc::from("ann"),
                after: Duration::from_millis(millis),
            };
            let wait = TooManyRequests::from_error(&error)
                .unwrap()
                .retry_after_seconds();
            assert_eq!(wait, Some(seconds), "{millis}");
        }
        let error = CallError::BudgetExceeded {
            principal: Arc::from("ann"),
            limit: "run",
            allowed: 1,
            spent: 1,
            after: None,
        };
        assert_eq!(
            TooManyRequests::from_error(&error)
                .unwrap()
                .retry_after_seconds(),
            None,
            "no wait helps"
        );
        assert_eq!(TooManyRequests::from_error(&CallError::ShuttingDown), None);
        let told = error_data(&error);
        let told = ["code", "limit", "allowed", "spent"].map(|key| told[key].clone());
        assert_eq!(json!(told), json!(["budget_exceeded", "run", 1, 1]));
    }

    #[test]
    fn unknown_outcome_in_message_and_data() {
        let error = CallError::ConnectionLost {
            server: Arc::from("files"),
            reason: Arc::from("exit code 1"),
            generation: Some(1),
        };
        let answer: Value = serde_json::from_slice(&error_response(b"\"a\"", &error)).unwrap();
        assert_eq!(answer["id"], "a");
        assert_eq!(answer["error"]["data"]["execution"], "unknown");
        assert_eq!(answer["error"]["data"]["retry"], "never");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("may have run"), "{message}");
        assert!(CODES.contains(&error.code()));
    }
}
