//! Brings the questions of a server of the modern era to a caller that knows no rounds: the
//! request is answered with questions, the caller is asked, and the request is sent again with
//! the answers, until it has a result.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::caller::CallerEnd;
use bowline_core::error::Execution;
use bowline_core::pending::Sent;
use bowline_wire::era::result::{self, ResultKind};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::replace;
use tokio::time::timeout_at;

use super::tasks::{self, Asking};
use super::{ask, params};
use crate::desk::{ASKED_MAX, now};
use crate::link::{Answer, LinkError, NoAnswer, Request};
use crate::stdio::ClientInfo;

/// How often a server may ask before it answers.
pub(crate) const ROUNDS_MAX: usize = 10;

/// Carries a request of the legacy era to a server of the modern one. `once` sends a request and
/// waits for its answer; it is called once for every round, always with a request of the modern
/// era. The time that a caller takes to answer does not count against the request.
pub(crate) async fn drive<F, S>(
    server: &str,
    client: &ClientInfo,
    request: Request,
    mut once: F,
) -> Result<Answer, LinkError>
where
    F: FnMut(Request) -> S + Send,
    S: Future<Output = Result<Answer, LinkError>> + Send,
{
    let of_task = Asking {
        server,
        client,
        request: &request,
    };
    match &*request.method {
        method::TASKS_RESULT => return tasks::result(of_task, &mut once).await,
        method::TASKS_CANCEL => return tasks::cancel(of_task, &mut once).await,
        _ => {}
    }
    let caller = request.caller.clone();
    let round = |front: &[u8], asked: Duration| {
        // A copy shares the parameters.
        let mut next = request.clone();
        let abilities = caller.as_ref().map(|caller| caller.abilities());
        params::to_round(&mut next, client, abilities.unwrap_or_default(), front);
        next.deadline += asked;
        next
    };
    let mut answer = once(round(b"", Duration::ZERO)).await?;
    let mut asked = Duration::ZERO;
    let mut addresses = Vec::new();
    for nth in 0..ROUNDS_MAX {
        if !asks(&answer)? {
            completed(caller.as_ref(), &answer, &addresses);
            return Ok(if nth > 0 { unkept(answer) } else { answer });
        }
        let since = now();
        let patience = since + ASKED_MAX.saturating_sub(asked);
        let body = answer.body_bytes();
        let front = match &caller {
            Some(caller) => {
                let asking = ask::all(server, caller, body, &mut addresses);
                timeout_at(patience, asking).await.map_err(|_| LATE)??
            }
            None => ask::nobody(body)?,
        };
        asked += now().saturating_duration_since(since);
        answer = once(round(&front, asked)).await.map_err(begun)?;
    }
    match asks(&answer)? {
        true => Err(LinkError::Unanswered(NoAnswer::Rounds {
            rounds_max: ROUNDS_MAX,
        })),
        false => {
            completed(caller.as_ref(), &answer, &addresses);
            Ok(unkept(answer))
        }
    }
}

const LATE: LinkError = LinkError::Timeout {
    sent: Sent::Perhaps,
};

/// Tells a caller that what its user was sent to is done, where the request is that asked for it.
fn completed(caller: Option<&Arc<dyn CallerEnd>>, answer: &Answer, addresses: &[String]) {
    if let Some(caller) = caller.filter(|_| answer.body == Body::Result) {
        ask::completed(caller, addresses);
    }
}

/// Says of a result that it is not to be kept: it rests on what its caller was asked, which no
/// other caller says.
fn unkept(answer: Answer) -> Answer {
    let body = answer.body_bytes();
    let is_whole = answer.body == Body::Result && result::kind(body).is_end();
    let Some(ttl_ms) = object::field(body, "ttlMs").filter(|_| is_whole) else {
        return answer;
    };
    let bytes = replace(&answer.bytes, ttl_ms.shift(answer.body_at.start), b"0");
    let end = (answer.body_at.end + 1).saturating_sub(ttl_ms.len());
    Answer {
        bytes: bytes.into(),
        body_at: answer.body_at.start..end,
        ..answer
    }
}

/// Whether an answer asks something; a kind of answer that nobody knows is none.
fn asks(answer: &Answer) -> Result<bool, LinkError> {
    if answer.body == Body::Error {
        return Ok(false);
    }
    match result::kind(answer.body_bytes()) {
        ResultKind::InputRequired => Ok(true),
        ResultKind::Complete | ResultKind::Absent | ResultKind::Task => Ok(false),
        ResultKind::Unknown => Err(LinkError::BadAnswer("its kind is not known".into())),
    }
}

/// What keeps a later round from being sent does not undo the rounds before it.
pub(super) fn begun(error: LinkError) -> LinkError {
    match error {
        LinkError::Closed(exit) => LinkError::Lost(exit),
        LinkError::Timeout { sent: Sent::No } => LinkError::Timeout {
            sent: Sent::Perhaps,
        },
        error if error.execution() == Execution::NotStarted => {
            LinkError::Unanswered(NoAnswer::NotSent(error.to_string().into()))
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::era::Era;

    use super::*;

    #[test]
    fn what_rests_on_the_words_of_one_caller_is_kept_for_no_other() {
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
            let answer = Answer {
                bytes: format!("{head}{result}}}").into(),
                body: Body::Result,
                body_at: head.len()..head.len() + result.len(),
                era: Era::Modern,
            };
            let answer = unkept(answer);
            assert_eq!(answer.body_bytes(), want.as_bytes());
            assert_eq!(answer.bytes, format!("{head}{want}}}"));
        }
    }
}
