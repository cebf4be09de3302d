//! Brings the questions of a server of the modern era to a caller that knows no rounds: the
//! request is answered with questions, the caller is asked, and the request is sent again with
//! the answers, until it has a result.

use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::error::Execution;
use bowline_core::pending::Sent;
use tokio::time::timeout_at;

use super::ask::{self, Input};
use super::params;
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
    mut request: Request,
    mut once: F,
) -> Result<Answer, LinkError>
where
    F: FnMut(Request) -> S + Send,
    S: Future<Output = Result<Answer, LinkError>> + Send,
{
    let abilities = request.caller.as_ref().map(|caller| caller.abilities());
    params::to_modern(&mut request, client, abilities.unwrap_or_default());
    let Some(caller) = request.caller.clone() else {
        let answer = once(request).await?;
        return match input(&answer) {
            Some(_) => Err(LinkError::Unanswered(NoAnswer::Nobody)),
            None => Ok(answer),
        };
    };
    // Kept for the next round: a copy shares its parameters.
    let mut answer = once(request.clone()).await?;
    let mut asked = Duration::ZERO;
    let mut addresses = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let Some(input) = input(&answer) else {
            ask::completed(&caller, &addresses);
            return Ok(answer);
        };
        let since = now();
        let patience = since + ASKED_MAX.saturating_sub(asked);
        let responses =
            timeout_at(patience, ask::all(server, &caller, &input, &mut addresses)).await;
        let responses = responses.map_err(|_| LinkError::Timeout {
            sent: Sent::Perhaps,
        })??;
        asked += now().saturating_duration_since(since);
        let mut next = request.clone();
        next.deadline += asked;
        params::answered(&mut next, responses.as_deref(), input.state);
        answer = once(next).await.map_err(begun)?;
    }
    match input(&answer) {
        None => {
            ask::completed(&caller, &addresses);
            Ok(answer)
        }
        Some(_) => Err(LinkError::Unanswered(NoAnswer::Rounds {
            rounds_max: ROUNDS_MAX,
        })),
    }
}

/// Returns what an answer asks, where it does.
fn input(answer: &Answer) -> Option<Input<'_>> {
    match answer.body {
        Body::Result => Input::read(answer.body_bytes()),
        Body::Error => None,
    }
}

/// What keeps a later round from being sent does not undo the rounds before it.
fn begun(error: LinkError) -> LinkError {
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
