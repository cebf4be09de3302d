//! Rounds of input requests for legacy clients of a modern server: the server responds with input
//! requests, the client answers, and the request is repeated with the answers until it completes.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::ExecutionStatus;
use bowline_core::pending_table::SendState;
use bowline_wire::era::result_translation::{self, ResultKind};
use bowline_wire::mcp::method;
use bowline_wire::{MemberList, ObjectEditor, object};
use tokio::time::timeout_at;

use super::legacy_tasks::{self, TaskQuery};
use super::{era_params, input_requests};
use crate::demux::{CLIENT_WAIT_MAX, now};
use crate::link::{InputRequestError, LinkError, LinkRequest};
use crate::stdio::ClientInfo;

/// Rounds per request.
pub(crate) const ROUNDS_MAX: usize = 10;

/// Sends a legacy request to a modern server. `send_once` sends one modern request and waits for
/// its response; called for every round. Time that the client takes does not count against the
/// deadline.
pub(crate) async fn request_with_rounds<F, S>(
    server: &str,
    client: &ClientInfo,
    request: LinkRequest,
    mut send_once: F,
) -> Result<ServerResponse, LinkError>
where
    F: FnMut(LinkRequest) -> S + Send,
    S: Future<Output = Result<ServerResponse, LinkError>> + Send,
{
    let task_query = TaskQuery {
        server,
        client,
        request: &request,
    };
    match &*request.method {
        method::TASKS_RESULT => {
            return legacy_tasks::wait_task_result(task_query, &mut send_once).await;
        }
        method::TASKS_CANCEL => return legacy_tasks::cancel_task(task_query, &mut send_once).await,
        _ => {}
    }
    let caller = request.message.client.clone();
    let round = |front: MemberList, client_time: Duration| {
        // The clone shares the parameter bytes.
        let mut next = request.clone();
        let capabilities = caller.as_ref().map(|caller| caller.capabilities());
        era_params::to_round(&mut next, client, capabilities.unwrap_or_default(), front);
        next.deadline += client_time;
        next
    };
    let mut response = send_once(round(MemberList::default(), Duration::ZERO)).await?;
    let mut client_time = Duration::ZERO;
    let mut elicitations = Vec::new();
    for nth in 0..ROUNDS_MAX {
        if !requires_input(&response)? {
            notify_completed(caller.as_ref(), &response, &elicitations);
            return Ok(if nth > 0 {
                without_ttl(response)
            } else {
                response
            });
        }
        let since = now();
        let client_deadline = since + CLIENT_WAIT_MAX.saturating_sub(client_time);
        let body = response.body_bytes();
        let front = match &caller {
            Some(caller) => {
                let collecting =
                    input_requests::collect_responses(server, caller, body, &mut elicitations);
                timeout_at(client_deadline, collecting)
                    .await
                    .map_err(|_| TIMED_OUT)??
            }
            None => input_requests::continue_without_client(body)?,
        };
        client_time += now().saturating_duration_since(since);
        response = send_once(round(front, client_time))
            .await
            .map_err(to_started_error)?;
    }
    match requires_input(&response)? {
        true => Err(LinkError::InputFailed(InputRequestError::Rounds {
            rounds_max: ROUNDS_MAX,
        })),
        false => {
            notify_completed(caller.as_ref(), &response, &elicitations);
            Ok(without_ttl(response))
        }
    }
}

const TIMED_OUT: LinkError = LinkError::Timeout {
    sent: SendState::MaybeSent,
};

/// Notifies the client of completed URL elicitations, if the request succeeded.
fn notify_completed(
    caller: Option<&Arc<dyn ClientHandle>>,
    response: &ServerResponse,
    elicitation_ids: &[String],
) {
    if let Some(caller) = caller.filter(|_| response.body == BodyKind::Result) {
        input_requests::notify_elicitations_complete(caller, elicitation_ids);
    }
}

/// Sets `ttlMs` to 0: the result depends on answers of a client and must not be cached.
fn without_ttl(response: ServerResponse) -> ServerResponse {
    let body = response.body_bytes();
    let is_whole =
        response.body == BodyKind::Result && result_translation::result_kind(body).is_final();
    let Some(ttl_ms) = object::field(body, "ttlMs").filter(|_| is_whole) else {
        return response;
    };
    let mut editor = ObjectEditor::new(&response.bytes);
    editor.replace(ttl_ms.shift(response.body_at.start), &b"0"[..]);
    let body_at = editor.moved_range(&response.body_at);
    ServerResponse {
        bytes: editor.finish().into(),
        body_at,
        ..response
    }
}

/// Whether a response requires input; an unknown result kind is an error.
fn requires_input(response: &ServerResponse) -> Result<bool, LinkError> {
    if response.body == BodyKind::Error {
        return Ok(false);
    }
    match result_translation::result_kind(response.body_bytes()) {
        ResultKind::InputRequired => Ok(true),
        ResultKind::Complete | ResultKind::Absent | ResultKind::Task => Ok(false),
        ResultKind::Unknown => Err(LinkError::BadResponse("its kind is not known".into())),
    }
}

/// Maps a send failure of a later round: earlier rounds may have run.
pub(super) fn to_started_error(error: LinkError) -> LinkError {
    match error {
        LinkError::Closed(exit) => LinkError::Lost(exit),
        LinkError::Timeout {
            sent: SendState::NotSent,
        } => LinkError::Timeout {
            sent: SendState::MaybeSent,
        },
        error if error.execution() == ExecutionStatus::NotStarted => {
            LinkError::InputFailed(InputRequestError::NotSent(error.to_string().into()))
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::era::Era;

    use super::*;

    #[test]
    fn continued_result_is_not_cacheable() {
        let head = r#"{"jsonrpc":"2.0","id":1,"result":"#;
        for (result, want) in [
            (
                r#"{"ttlMs":60000,"cacheScope":"public"}"#,
                r#"{"ttlMs":0,"cacheScope":"public"}"#,
            ),
            (
                r#"{"ttlMs" : 5,"resultType":"complete"}"#,
                r#"{"ttlMs" : 0,"resultType":"complete"}"#,
            ),
            (r#"{"content":[]}"#, r#"{"content":[]}"#),
            (
                r#"{"ttlMs":5,"resultType":"task"}"#,
                r#"{"ttlMs":5,"resultType":"task"}"#,
            ),
        ] {
            let answer = ServerResponse {
                bytes: format!("{head}{result}}}").into(),
                body: BodyKind::Result,
                body_at: head.len()..head.len() + result.len(),
                era: Era::Modern,
            };
            let answer = without_ttl(answer);
            assert_eq!(answer.body_bytes(), want.as_bytes());
            assert_eq!(answer.bytes, format!("{head}{want}}}"));
        }
    }
}
