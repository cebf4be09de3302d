//! The error of the call path: every failure carries the execution status.

mod classify;
mod display_chain;
mod error_code;
mod error_redaction;
mod failure_class;
mod failure_report;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

pub use display_chain::display_chain;
pub use failure_class::{
    ExecutionStatus, FailureClass, FailureOrigin, RetryAdvice, is_gateway_status,
};
pub use failure_report::FailureReport;

use crate::shares::ShareError;
use crate::time::TimeLimit;

/// Why a call has no reply.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallError {
    /// The server is not configured.
    #[error("no server named `{server}`")]
    UnknownServer {
        /// The requested name.
        server: Arc<str>,
    },
    /// The tool does not exist or is not visible.
    #[error("no tool named `{tool}`")]
    UnknownTool {
        /// The requested name.
        tool: Arc<str>,
    },
    /// The prompt does not exist or is not visible.
    #[error("no prompt named `{prompt}`")]
    UnknownPrompt {
        /// The requested name.
        prompt: Arc<str>,
    },
    /// No known server has the resource.
    #[error("no resource at `{uri}`")]
    UnknownResource {
        /// The requested URI.
        uri: Arc<str>,
    },
    /// The principal has no such task.
    #[error("no task `{task}`")]
    UnknownTask {
        /// The requested id.
        task: Arc<str>,
    },
    /// Several servers gave the principal a task with this id.
    #[error("several servers have a task `{task}`")]
    AmbiguousTask {
        /// The requested id.
        task: Arc<str>,
        /// A server with the id.
        server: Arc<str>,
    },
    /// The `Mcp-Param-*` headers contradict the arguments.
    #[error("the headers do not repeat the arguments of `{tool}` of server `{server}`")]
    HeaderMismatch {
        /// The server.
        server: Arc<str>,
        /// The upstream name of the tool.
        tool: Arc<str>,
    },
    /// A name in the parameters differs only in case from a protocol name, and some servers match
    /// names case-insensitively.
    #[error(
        "a name in the call of `{tool}` of server `{server}` differs in case only from another"
    )]
    AmbiguousNames {
        /// The server.
        server: Arc<str>,
        /// The upstream name of the tool.
        tool: Arc<str>,
    },
    /// The policy denied the call.
    #[error("principal `{principal}` may not use `{name}` of server `{server}`: {reason}")]
    Denied {
        /// The calling principal.
        principal: Arc<str>,
        /// The server of the feature.
        server: Arc<str>,
        /// The upstream name of the feature.
        name: Arc<str>,
        /// The deciding rule.
        reason: Arc<str>,
    },
    /// The call limit of the principal or the run is reached.
    #[error("principal `{principal}` has made {spent} of {allowed} calls ({limit})")]
    BudgetExceeded {
        /// The calling principal.
        principal: Arc<str>,
        /// The reached limit: `budget` or `run`.
        limit: &'static str,
        /// The limit.
        allowed: u64,
        /// Calls made so far.
        spent: u64,
        /// Time until the next period; absent if never.
        after: Option<Duration>,
    },
    /// The call rate of the principal is exceeded.
    #[error("principal `{principal}` makes calls faster than it may")]
    RateExceeded {
        /// The calling principal.
        principal: Arc<str>,
        /// Time until the next call is allowed.
        after: Duration,
    },
    /// The definition of the tool differs from the approved definition.
    #[error("the definition of `{tool}` of server `{server}` is not the one that was approved")]
    PinChanged {
        /// The server.
        server: Arc<str>,
        /// The upstream name of the tool.
        tool: Arc<str>,
    },
    /// The idempotency key belongs to a different call of the same tool.
    #[error("the idempotency key of `{tool}` of server `{server}` belongs to another call")]
    KeyConflict {
        /// The server.
        server: Arc<str>,
        /// The upstream name of the tool.
        tool: Arc<str>,
    },
    /// The durable write of the call failed, so the call was not sent.
    #[error("the call of `{tool}` of server `{server}` could not be stored: {reason}")]
    NotStored {
        /// The server.
        server: Arc<str>,
        /// The upstream name of the tool.
        tool: Arc<str>,
        /// The journal's error.
        reason: Arc<str>,
    },
    /// The outbox of the server is full.
    #[error("{limit} calls wait for server `{server}` already")]
    OutboxFull {
        /// The server.
        server: Arc<str>,
        /// The limit of queued calls.
        limit: u64,
    },
    /// The structured content violates the tool's `outputSchema`.
    #[error("the answer of `{tool}` of server `{server}` does not match its schema: {reason}")]
    BadOutput {
        /// The server.
        server: Arc<str>,
        /// The upstream name of the tool.
        tool: Arc<str>,
        /// The violation and its position.
        reason: Arc<str>,
    },
    /// The session has reached its subscription limit.
    #[error("the session already has {limit} subscriptions")]
    TooManySubscriptions {
        /// The limit.
        limit: usize,
    },
    /// The share of the principal, or the total, is exhausted.
    #[error("{cause}")]
    ShareExceeded {
        /// The resource and the limit.
        cause: ShareError,
        /// Whether the call ran before the response exceeded the share.
        execution: ExecutionStatus,
    },
    /// The session ended while the call was in flight.
    #[error("the session of the call was ended")]
    SessionEnded {
        /// Whether the request was sent.
        execution: ExecutionStatus,
    },
    /// The server refused a request made by the gateway on behalf of a client.
    #[error("server `{server}` refused the request")]
    Refused {
        /// The server.
        server: Arc<str>,
        /// The JSON-RPC error object, as sent by the server.
        error: Bytes,
    },
    /// The principal has reached the limit of calls in flight.
    #[error("principal `{principal}` already has {limit} calls in flight")]
    TooManyCalls {
        /// The calling principal.
        principal: Arc<str>,
        /// The limit.
        limit: u32,
    },
    /// The server has reached the limit of calls in flight.
    #[error("server `{server}` already has {limit} calls in flight")]
    ServerBusy {
        /// The server.
        server: Arc<str>,
        /// The limit.
        limit: usize,
    },
    /// The deadline passed in the server's queue.
    #[error(
        "the call waited {waited_ms} ms for one of the {limit} calls in flight at server \
         `{server}` to end"
    )]
    QueuedTooLong {
        /// The server.
        server: Arc<str>,
        /// The server's limit of calls in flight.
        limit: usize,
        /// Time in the queue.
        waited_ms: u64,
    },
    /// The server was stopped by an operator.
    #[error("server `{server}` is stopped")]
    Stopped {
        /// The server.
        server: Arc<str>,
    },
    /// The server exceeded the restart budget.
    #[error("server `{server}` was ejected after too many restarts: {reason}")]
    Ejected {
        /// The server.
        server: Arc<str>,
        /// The last failure.
        reason: Arc<str>,
    },
    /// The circuit breaker is open.
    #[error("server `{server}` is resting after repeated failures")]
    CircuitOpen {
        /// The server.
        server: Arc<str>,
        /// Remaining cooldown.
        cooldown: Duration,
    },
    /// The server failed to start; the next attempt is scheduled.
    #[error("server `{server}` could not be started: {reason}")]
    StartFailed {
        /// The server.
        server: Arc<str>,
        /// The failure.
        reason: Arc<str>,
        /// Time until the next attempt.
        retry_after: Duration,
    },
    /// The server's program does not exist; retried later.
    #[error("server `{server}` could not be started: {reason}")]
    ProgramNotFound {
        /// The server.
        server: Arc<str>,
        /// The failure, with the name of the program.
        reason: Arc<str>,
        /// Time until the next attempt.
        retry_after: Duration,
    },
    /// The server did not start before the deadline.
    #[error("server `{server}` did not start in time")]
    StartTimeout {
        /// The server.
        server: Arc<str>,
    },
    /// The request was not sent.
    #[error("the request could not be handed to server `{server}`: {reason}")]
    SendFailed {
        /// The server.
        server: Arc<str>,
        /// The cause.
        reason: Arc<str>,
    },
    /// The connection was lost after the request was sent.
    #[error("server `{server}` went away during the call: {reason}")]
    ConnectionLost {
        /// The server.
        server: Arc<str>,
        /// The cause.
        reason: Arc<str>,
        /// The generation of the lost link; `None` if the link is still up.
        generation: Option<u64>,
    },
    /// No response before the deadline.
    #[error("server `{server}` did not answer within {after_ms} ms")]
    Timeout {
        /// The server.
        server: Arc<str>,
        /// The elapsed time.
        after_ms: u64,
        /// Whether the request was sent.
        execution: ExecutionStatus,
        /// The exceeded limit; only the server's own limit counts against the server.
        limit: TimeLimit,
    },
    /// The server requires different credentials.
    #[error("server `{server}` wants other credentials{}", challenge_suffix(.challenge.as_ref()))]
    AuthRequired {
        /// The server.
        server: Arc<str>,
        /// The server's authentication challenge.
        challenge: Option<Arc<str>>,
    },
    /// The server requires more rights than the credentials have.
    #[error("server `{server}` wants more rights{}", challenge_suffix(.challenge.as_ref()))]
    ScopeRequired {
        /// The server.
        server: Arc<str>,
        /// The server's challenge, naming the rights.
        challenge: Option<Arc<str>>,
    },
    /// The server throttles requests.
    #[error("server `{server}` takes no more requests for now (status {status})")]
    Throttled {
        /// The server.
        server: Arc<str>,
        /// The HTTP status.
        status: u16,
        /// The `Retry-After` of the server.
        after: Option<Duration>,
        /// Whether the request may have been processed.
        execution: ExecutionStatus,
    },
    /// The server or a proxy responded with an HTTP status instead of a message.
    #[error("server `{server}` did not serve the request: {reason}")]
    HttpStatus {
        /// The server.
        server: Arc<str>,
        /// The HTTP status.
        status: u16,
        /// The status and the start of the body.
        reason: Arc<str>,
    },
    /// The response is no JSON-RPC message, or a redirect.
    #[error("server `{server}` did not answer with a message: {reason}")]
    NotAMessage {
        /// The server.
        server: Arc<str>,
        /// The received content.
        reason: Arc<str>,
    },
    /// The response exceeds the size limit.
    #[error("the answer of server `{server}` is larger than {bytes_max} bytes")]
    ResponseTooLarge {
        /// The server.
        server: Arc<str>,
        /// The limit.
        bytes_max: usize,
    },
    /// The response cannot be parsed.
    #[error("the answer of server `{server}` is not valid: {reason}")]
    BadResponse {
        /// The server.
        server: Arc<str>,
        /// The parse error.
        reason: Arc<str>,
    },
    /// A server request to the client was not answered.
    #[error("server `{server}` needs input for this call: {reason}")]
    InputUnanswered {
        /// The server.
        server: Arc<str>,
        /// The missing input.
        reason: Arc<str>,
    },
    /// The client cancelled the call.
    #[error("the call was cancelled by its caller")]
    Cancelled {
        /// Whether the request was sent.
        execution: ExecutionStatus,
    },
    /// The client's `requestState` is not valid for this request.
    #[error("the requestState is not taken: {reason}")]
    InputRefused {
        /// The violation.
        reason: &'static str,
        /// Execution status of the original call.
        execution: ExecutionStatus,
    },
    /// The gateway restarted while the call waited for the client's input.
    #[error("the gateway was restarted while the call waited for these answers")]
    InputLost,
    /// Failure reported by the peer that has the server, or by the executor in front of the server.
    #[error(
        "{} server `{server}`{} {}",
        .failure.subject_prefix(),
        .failure.reason_separator(),
        .failure.reason
    )]
    RemoteFailure {
        /// The server.
        server: Arc<str>,
        /// The reported failure.
        failure: Arc<FailureReport>,
    },
    /// The gateway is shutting down.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

fn challenge_suffix(challenge: Option<&Arc<str>>) -> String {
    challenge.map_or_else(String::new, |text| format!(": {text}"))
}
