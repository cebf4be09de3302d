//! The one error of the call path: every failure says whether the call may have run.

mod clean;
mod code;
mod failure;
mod judge;
mod kind;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

pub use failure::Failure;
pub use kind::{Class, Execution, Origin, Retry, is_away};
pub use whole::whole;

use crate::call::TimeLimit;
use crate::shares::ShareError;

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
    /// The headers of a request do not say of its arguments what the arguments say.
    #[error("the headers do not repeat the arguments of `{tool}` of server `{server}`")]
    HeaderMismatch {
        /// The server.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: Arc<str>,
    },
    /// A name in the parameters differs in case only from one that the gateway goes by, and some
    /// servers read names without regard to case.
    #[error(
        "a name in the call of `{tool}` of server `{server}` differs in case only from another"
    )]
    AmbiguousNames {
        /// The server.
        server: Arc<str>,
        /// Its name of the tool.
        tool: Arc<str>,
    },
    /// Policy said no.
    #[error("principal `{principal}` may not use `{name}` of server `{server}`: {reason}")]
    Denied {
        /// Who asked.
        principal: Arc<str>,
        /// The server that has it.
        server: Arc<str>,
        /// The server's own name of it.
        name: Arc<str>,
        /// By which rule.
        reason: Arc<str>,
    },
    /// The principal or its run has made as many calls as it may.
    #[error("principal `{principal}` has made {spent} of {allowed} calls ({limit})")]
    BudgetSpent {
        /// Who asked.
        principal: Arc<str>,
        /// Which of its limits: `budget` or `run`.
        limit: &'static str,
        /// How many it may make.
        allowed: u64,
        /// How many it has made.
        spent: u64,
        /// When it may make more; never where absent.
        after: Option<Duration>,
    },
    /// The principal makes calls faster than it may.
    #[error("principal `{principal}` makes calls faster than it may")]
    TooFast {
        /// Who asked.
        principal: Arc<str>,
        /// When it may make the next.
        after: Duration,
    },
    /// The definition of the tool is another than the one that was approved.
    #[error("the definition of `{tool}` of server `{server}` is not the one that was approved")]
    PinChanged {
        /// The server.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: Arc<str>,
    },
    /// The idempotency key belongs to another call of the same tool.
    #[error("the idempotency key of `{tool}` of server `{server}` belongs to another call")]
    KeyConflict {
        /// The server.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: Arc<str>,
    },
    /// A call that must not be lost could not be written down, so it was not sent.
    #[error("the call of `{tool}` of server `{server}` could not be stored: {reason}")]
    NotStored {
        /// The server.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: Arc<str>,
        /// What the journal said.
        reason: Arc<str>,
    },
    /// As many calls wait for the server as may.
    #[error("{limit} calls wait for server `{server}` already")]
    OutboxFull {
        /// The server.
        server: Arc<str>,
        /// How many may wait.
        limit: u64,
    },
    /// The structured content is not what the tool's `outputSchema` says.
    #[error("the answer of `{tool}` of server `{server}` does not match its schema: {reason}")]
    BadOutput {
        /// The server.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: Arc<str>,
        /// What does not match, and where.
        reason: Arc<str>,
    },
    /// The session is subscribed to as many resources as it may be.
    #[error("the session already has {limit} subscriptions")]
    TooManySubscriptions {
        /// How many it may have.
        limit: usize,
    },
    /// The principal, or all together, hold as much of a resource as they may.
    #[error("{cause}")]
    ShareExceeded {
        /// Of what, and how much there may be.
        cause: ShareError,
        /// Whether the call ran before there was no room for its response.
        execution: Execution,
    },
    /// The session of the call was ended while the call was in flight.
    #[error("the session of the call was ended")]
    SessionEnded {
        /// Whether the request had left.
        execution: Execution,
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
    /// The call's time was over before the server had a place for it.
    #[error(
        "the call waited {waited_ms} ms for one of the {limit} calls in flight at server \
         `{server}` to end"
    )]
    QueuedTooLong {
        /// The server.
        server: Arc<str>,
        /// How many calls it may have in flight.
        limit: usize,
        /// How long the call waited.
        waited_ms: u64,
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
    /// The program of the server does not exist; it is looked for again later.
    #[error("server `{server}` could not be started: {reason}")]
    ProgramNotFound {
        /// The server.
        server: Arc<str>,
        /// What it failed with, with the name of the program.
        reason: Arc<str>,
        /// When it is looked for again.
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
        /// Which of the server's links was lost; none where the link itself still stands.
        generation: Option<u64>,
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
        /// Whose limit passed: only the server's own speaks against the server.
        limit: TimeLimit,
    },
    /// The server wants other credentials than those it was sent.
    #[error("server `{server}` wants other credentials{}", said(.challenge.as_ref()))]
    AuthRequired {
        /// The server.
        server: Arc<str>,
        /// What it said about how to get them.
        challenge: Option<Arc<str>>,
    },
    /// The server wants more rights than these credentials have.
    #[error("server `{server}` wants more rights{}", said(.challenge.as_ref()))]
    ScopeRequired {
        /// The server.
        server: Arc<str>,
        /// What it said about which.
        challenge: Option<Arc<str>>,
    },
    /// The server takes no more requests for now.
    #[error("server `{server}` takes no more requests for now (status {status})")]
    Throttled {
        /// The server.
        server: Arc<str>,
        /// The HTTP status it said so with.
        status: u16,
        /// How long it asked us to wait.
        after: Option<Duration>,
        /// Whether the request may have come through.
        execution: Execution,
    },
    /// The server, or something in front of it, answered with a status in place of a message.
    #[error("server `{server}` did not serve the request: {reason}")]
    HttpStatus {
        /// The server.
        server: Arc<str>,
        /// The HTTP status.
        status: u16,
        /// The status and the start of what came with it.
        reason: Arc<str>,
    },
    /// What came back is no message, or leads elsewhere.
    #[error("server `{server}` did not answer with a message: {reason}")]
    NoMessage {
        /// The server.
        server: Arc<str>,
        /// What came instead.
        reason: Arc<str>,
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
    /// The server asked its caller something that was not answered.
    #[error("server `{server}` needs input for this call: {reason}")]
    InputUnanswered {
        /// The server.
        server: Arc<str>,
        /// What is missing.
        reason: Arc<str>,
    },
    /// The caller took the call back.
    #[error("the call was cancelled by its caller")]
    Cancelled {
        /// Whether the request had left.
        execution: Execution,
    },
    /// The caller brings answers to questions with a state that is not good for this request.
    #[error("the requestState is not taken: {reason}")]
    InputRefused {
        /// What is wrong with it.
        reason: &'static str,
        /// What is known of the call that it was given for.
        execution: Execution,
    },
    /// The caller brings answers to a call that waited for them in a process that is no more.
    #[error("the gateway was restarted while the call waited for these answers")]
    InputLost,
    /// A peer that has the server, or the executor before it, says why there is no reply.
    #[error("{} server `{server}`{} {}", .failure.before(), .failure.says(), .failure.reason)]
    Elsewhere {
        /// The server.
        server: Arc<str>,
        /// What it said.
        failure: Arc<Failure>,
    },
    /// The gateway is going down.
    #[error("the gateway is shutting down")]
    ShuttingDown,
}

fn said(challenge: Option<&Arc<str>>) -> String {
    challenge.map_or_else(String::new, |said| format!(": {said}"))
}
