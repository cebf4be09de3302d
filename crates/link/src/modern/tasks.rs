//! What callers of the legacy era ask of tasks, where the server's are of the modern one: there a
//! task is looked at until it has ended, and its questions are answered on the way.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::caller::Abilities;
use bowline_core::pending::Sent;
use bowline_wire::era::input;
use bowline_wire::era::tasks::{Status, Task};
use bowline_wire::mcp::method;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::rounds::{ROUNDS_MAX, begun};
use super::{ask, params};
use crate::desk::{ASKED_MAX, now};
use crate::link::{Answer, LinkError, NoAnswer, Request};
use crate::stdio::ClientInfo;

/// How long to wait between two looks at a task, where its server does not say.
const POLL_DEFAULT: Duration = Duration::from_secs(1);
/// The least and the most that a server can have us wait.
const POLL_MIN: Duration = Duration::from_millis(100);
const POLL_MAX: Duration = Duration::from_secs(10);

/// Who asks of a task, and of which server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking<'a> {
    pub(super) server: &'a str,
    pub(super) client: &'a ClientInfo,
    pub(super) request: &'a Request,
}

impl Asking<'_> {
    /// Writes the request as another of the same task.
    fn as_method(&self, method: &'static str, front: &[u8], asked: Duration) -> Request {
        let mut next = self.request.clone();
        next.method = Cow::Borrowed(method);
        next.deadline += asked;
        let caller = self.request.caller.as_ref();
        let abilities = caller.map_or_else(Abilities::default, |caller| caller.abilities());
        params::to_round(&mut next, self.client, abilities, front);
        next
    }
}

/// Ends a task, and says how it stands then.
pub(super) async fn cancel<F, S>(asking: Asking<'_>, once: &mut F) -> Result<Answer, LinkError>
where
    F: FnMut(Request) -> S + Send,
    S: Future<Output = Result<Answer, LinkError>> + Send,
{
    let write = |method| asking.as_method(method, b"", Duration::ZERO);
    let answer = once(write(method::TASKS_CANCEL)).await?;
    if answer.body == Body::Error || Task::read(answer.body_bytes()).is_some() {
        return Ok(answer);
    }
    once(write(method::TASKS_GET)).await.map_err(begun)
}

/// Waits until a task has ended, and answers how it did; what it asks meanwhile is put to the
/// caller. The time that the caller takes does not count.
pub(super) async fn result<F, S>(asking: Asking<'_>, once: &mut F) -> Result<Answer, LinkError>
where
    F: FnMut(Request) -> S + Send,
    S: Future<Output = Result<Answer, LinkError>> + Send,
{
    let mut asked = Duration::ZERO;
    let mut known = HashSet::new();
    let mut addresses = Vec::new();
    let mut rounds = 0;
    loop {
        let answer = once(asking.as_method(method::TASKS_GET, b"", asked)).await?;
        if answer.body == Body::Error {
            return Ok(answer);
        }
        let body = answer.body_bytes();
        let Some(task) = Task::read(body) else {
            return Err(LinkError::BadAnswer("it is no task".into()));
        };
        let caller = asking.request.caller.as_ref();
        if task.status.is_end() {
            if let Some(caller) = caller.filter(|_| task.status == Status::Completed) {
                ask::completed(caller, &addresses);
            }
            return Ok(answer);
        }
        if task.status == Status::InputRequired && is_new(body, &task, &mut known)? {
            let caller = caller.ok_or(LinkError::Unanswered(NoAnswer::Nobody))?;
            rounds += 1;
            if rounds > ROUNDS_MAX {
                return Err(LinkError::Unanswered(NoAnswer::Rounds {
                    rounds_max: ROUNDS_MAX,
                }));
            }
            let since = now();
            let patience = since + ASKED_MAX.saturating_sub(asked);
            let all = ask::all(asking.server, caller, body, &mut addresses);
            let front = timeout_at(patience, all).await.map_err(|_| late())??;
            asked += now().saturating_duration_since(since);
            let update = asking.as_method(method::TASKS_UPDATE, &front, asked);
            let told = once(update).await.map_err(begun)?;
            if told.body == Body::Error {
                return Ok(told);
            }
        }
        pause(task.poll_ms, asking.request.deadline + asked).await?;
    }
}

/// Whether a task asks something that was not asked yet. One that was may still stand there for a
/// while after its answer.
fn is_new(body: &[u8], task: &Task<'_>, known: &mut HashSet<Box<str>>) -> Result<bool, LinkError> {
    let Some(at) = task.requests else {
        return Ok(false);
    };
    let asked = input::asked(body, at);
    let asked = asked.map_err(|bad| LinkError::BadAnswer(bad.to_string().into()))?;
    if asked.is_empty() || asked.iter().any(|one| known.contains(&*one.key)) {
        return Ok(false);
    }
    known.extend(asked.iter().map(|one| Box::from(&*one.key)));
    Ok(true)
}

/// Waits for the next look; fails when the time is up before it.
async fn pause(poll_ms: Option<u64>, deadline: Instant) -> Result<(), LinkError> {
    let wait = poll_ms.map_or(POLL_DEFAULT, Duration::from_millis);
    let next = now() + wait.clamp(POLL_MIN, POLL_MAX);
    sleep_until(next.min(deadline)).await;
    match next < deadline {
        true => Ok(()),
        false => Err(late()),
    }
}

const fn late() -> LinkError {
    LinkError::Timeout {
        sent: Sent::Perhaps,
    }
}

#[cfg(test)]
mod tests;
