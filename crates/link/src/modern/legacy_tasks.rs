//! Legacy task requests at a modern server: polls the task until the end, and answers the input
//! requests.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::ClientCapabilities;
use bowline_core::pending_table::SendState;
use bowline_wire::MemberList;
use bowline_wire::era::input_required;
use bowline_wire::era::task_translation::{ParsedTask, TaskStatus};
use bowline_wire::mcp::method;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::input_rounds::{ROUNDS_MAX, to_started_error};
use super::{era_params, input_requests};
use crate::demux::{CLIENT_WAIT_MAX, now};
use crate::link::{InputRequestError, LinkError, LinkRequest};
use crate::stdio::ClientInfo;

/// Default poll interval.
const POLL_DEFAULT: Duration = Duration::from_secs(1);
/// Bounds of the poll interval of a server.
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(10);

/// A task request of a legacy client.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskQuery<'a> {
    pub(super) server: &'a str,
    pub(super) client: &'a ClientInfo,
    pub(super) request: &'a LinkRequest,
}

impl TaskQuery<'_> {
    /// Returns a modern request about the same task.
    fn to_request(
        self,
        method: &'static str,
        front: MemberList,
        client_time: Duration,
    ) -> LinkRequest {
        let mut next = self.request.clone();
        next.method = Cow::Borrowed(method);
        next.deadline += client_time;
        let caller = self.request.message.client.as_ref();
        let capabilities =
            caller.map_or_else(ClientCapabilities::default, |caller| caller.capabilities());
        era_params::to_round(&mut next, self.client, capabilities, front);
        next
    }
}

/// Cancels a task, and returns the final state.
pub(super) async fn cancel_task<F, S>(
    query: TaskQuery<'_>,
    send_once: &mut F,
) -> Result<ServerResponse, LinkError>
where
    F: FnMut(LinkRequest) -> S + Send,
    S: Future<Output = Result<ServerResponse, LinkError>> + Send,
{
    let write = |method| query.to_request(method, MemberList::default(), Duration::ZERO);
    let response = send_once(write(method::TASKS_CANCEL)).await?;
    if response.body == BodyKind::Error || ParsedTask::parse(response.body_bytes()).is_some() {
        return Ok(response);
    }
    send_once(write(method::TASKS_GET))
        .await
        .map_err(to_started_error)
}

/// Polls a task until the end, and returns the result; the client answers input requests. Client
/// time does not count.
pub(super) async fn wait_task_result<F, S>(
    query: TaskQuery<'_>,
    send_once: &mut F,
) -> Result<ServerResponse, LinkError>
where
    F: FnMut(LinkRequest) -> S + Send,
    S: Future<Output = Result<ServerResponse, LinkError>> + Send,
{
    let mut client_time = Duration::ZERO;
    let mut noted_keys = HashSet::new();
    let mut elicitations = Vec::new();
    let mut rounds = 0;
    loop {
        let front = MemberList::default();
        let response = send_once(query.to_request(method::TASKS_GET, front, client_time)).await?;
        if response.body == BodyKind::Error {
            return Ok(response);
        }
        let body = response.body_bytes();
        let Some(task) = ParsedTask::parse(body) else {
            return Err(LinkError::BadResponse("it is no task".into()));
        };
        let caller = query.request.message.client.as_ref();
        if task.status.is_terminal() {
            if let Some(caller) = caller.filter(|_| task.status == TaskStatus::Completed) {
                input_requests::notify_elicitations_complete(caller, &elicitations);
            }
            return Ok(response);
        }
        if task.status == TaskStatus::InputRequired
            && note_new_requests(body, &task, &mut noted_keys)?
        {
            let caller = caller.ok_or(LinkError::InputFailed(InputRequestError::NoClient))?;
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(LinkError::InputFailed(InputRequestError::Rounds {
                    rounds_max: ROUNDS_MAX,
                }));
            }
            let since = now();
            let client_deadline = since + CLIENT_WAIT_MAX.saturating_sub(client_time);
            let collecting =
                input_requests::collect_responses(query.server, caller, body, &mut elicitations);
            let front = timeout_at(client_deadline, collecting)
                .await
                .map_err(|_| timeout_error())??;
            client_time += now().saturating_duration_since(since);
            let update = query.to_request(method::TASKS_UPDATE, front, client_time);
            let update_response = send_once(update).await.map_err(to_started_error)?;
            if update_response.body == BodyKind::Error {
                return Ok(update_response);
            }
        }
        wait_next_poll(task.poll_ms, query.request.deadline + client_time).await?;
    }
}

/// Whether a task has new input requests; records all. An answered request may remain listed for a
/// while.
fn note_new_requests(
    body: &[u8],
    task: &ParsedTask<'_>,
    noted_keys: &mut HashSet<Box<str>>,
) -> Result<bool, LinkError> {
    let Some(at) = task.input_requests else {
        return Ok(false);
    };
    let requests = input_required::parse_input_requests(body, at);
    let requests = requests.map_err(|bad| LinkError::BadResponse(bad.to_string().into()))?;
    if requests.is_empty() || requests.iter().any(|one| noted_keys.contains(&*one.key)) {
        return Ok(false);
    }
    noted_keys.extend(requests.iter().map(|one| Box::from(&*one.key)));
    Ok(true)
}

/// Waits for the next poll; fails at the deadline.
async fn wait_next_poll(poll_ms: Option<u64>, deadline: Instant) -> Result<(), LinkError> {
    let wait = poll_ms.map_or(POLL_DEFAULT, Duration::from_millis);
    let next = now() + wait.clamp(POLL_MIN, POLL_MAX);
    sleep_until(next.min(deadline)).await;
    match next < deadline {
        true => Ok(()),
        false => Err(timeout_error()),
    }
}

const fn timeout_error() -> LinkError {
    LinkError::Timeout {
        sent: SendState::MaybeSent,
    }
}

#[cfg(test)]
mod tests;
