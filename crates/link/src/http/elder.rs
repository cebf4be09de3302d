//! The session with a server that speaks both ways. Most tools of such a server can ask in the way
//! of the legacy era only, so that callers that can be asked are brought to it there.

use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_wire::era::input::Round;
use bowline_wire::era::meta::{Said, takes_tasks};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::client::HttpClient;
use super::session::Held;
use super::talk::{Form, Talk};
use super::{HttpSpec, clock, listen, refusal, tasks};
use crate::link::{Answer, LinkError, LinkEvent, Request, ServerInfo};
use crate::stdio::ClientInfo;
use crate::stdio::handshake::Failure;

/// How long the handshake may take.
const SHAKE: Duration = Duration::from_secs(10);

/// How long a server may take to hear a log level, before the call is made that wants it.
const TELL: Duration = Duration::from_secs(2);

/// How long calls go without a session after the first handshake that failed; twice as long after
/// each one more.
const REST: Duration = Duration::from_secs(30);

/// So many handshakes may fail one after another; then the server is taken for one that keeps no
/// sessions. Something before it may hold up or turn away what it does not know.
const FAILURES_MAX: u32 = 4;

/// Makes the session when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Elder(watch::Sender<State>);

#[derive(Clone, Debug, Default)]
enum State {
    /// Nobody needs it, or it was lost.
    #[default]
    Closed,
    /// Somebody waits for it.
    Wanted,
    Open(Arc<Session>),
    /// The last handshake failed, and nobody waits for another one yet.
    Resting,
    /// The server keeps no sessions.
    Never,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lived {
    /// It was there, and is no more.
    Over,
    /// It did not come to be, which may be by chance.
    Failed,
    /// It did not come to be and never will, or nobody needs it any more.
    Never,
}

/// What a session is made of.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) spec: HttpSpec,
    pub(super) client: Arc<dyn HttpClient>,
    pub(super) info: ClientInfo,
    pub(super) events: mpsc::Sender<LinkEvent>,
}

/// Whether a server may ask during this request, in a way that only a session carries.
fn is_for_session(request: &Request) -> bool {
    let asks = matches!(
        &*request.method,
        method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ
    );
    let can_be_asked = |caller: &Arc<dyn CallerEnd>| caller.abilities().any();
    if !asks || !request.caller.as_ref().is_some_and(can_be_asked) {
        return false;
    }
    let params = request.params.as_deref().unwrap_or_default();
    match request.era {
        // A task is asked about later, by requests that go the other way.
        Era::Legacy => object::field(params, "task").is_none(),
        // What may become a task, and what goes on with a question of this era, stays in it.
        Era::Modern => {
            let said = Said::read(params).capabilities.map(|at| at.of(params));
            !said.is_some_and(takes_tasks) && !Round::read(params).is_further()
        }
    }
}

impl Elder {
    /// Whether a request had better go over the session.
    pub(super) fn is_for(&self, request: &Request) -> bool {
        !matches!(&*self.0.borrow(), State::Never) && is_for_session(request)
    }

    /// Returns the session, which is made if need be; nothing where the server keeps none.
    pub(super) async fn session(&self, deadline: Instant) -> Option<Arc<Session>> {
        self.0.send_if_modified(|state| {
            let closed = matches!(state, State::Closed);
            if closed {
                *state = State::Wanted;
            }
            closed
        });
        let mut state = self.0.subscribe();
        let settled = state.wait_for(|state| !matches!(state, State::Wanted));
        match timeout_at(deadline, settled).await.ok()?.ok()?.clone() {
            State::Open(session) => Some(session),
            State::Closed | State::Wanted | State::Resting | State::Never => None,
        }
    }

    /// Returns the session where there is one.
    pub(super) fn open(&self) -> Option<Arc<Talk>> {
        match &*self.0.borrow() {
            State::Open(session) => Some(Arc::clone(&session.talk)),
            State::Closed | State::Wanted | State::Resting | State::Never => None,
        }
    }
}

/// A session that is open.
#[derive(Debug)]
pub(super) struct Session {
    talk: Arc<Talk>,
    /// Whether the server takes a log level.
    takes_level: bool,
    /// The most verbose level that it was told, and in which session: after a new handshake it
    /// does not know it any more.
    told: Mutex<Option<(Weak<Held>, Level)>>,
}

impl Session {
    fn new(talk: Arc<Talk>, info: &ServerInfo) -> Self {
        let capabilities = object::field(&info.initialize, "capabilities");
        let capabilities = capabilities.map_or(&b""[..], |at| at.of(&info.initialize));
        Self {
            talk,
            takes_level: object::field(capabilities, "logging").is_some(),
            told: Mutex::default(),
        }
    }

    /// Carries a request, once the server says as much as its caller wants to hear.
    pub(super) async fn request(&self, request: Request) -> Result<Answer, LinkError> {
        let level = request.caller.as_ref().and_then(|caller| caller.level());
        if let Some(level) = level.filter(|_| self.takes_level) {
            self.tell(level, request.deadline).await;
        }
        self.talk.request(request).await
    }

    /// Tells the server a level that is more verbose than what it was told before. Others may
    /// want to hear more than this caller, who hears only what it wants.
    async fn tell(&self, level: Level, deadline: Instant) {
        let held = Arc::downgrade(&*self.talk.session.borrow());
        let is_told = lock(&self.told)
            .as_ref()
            .is_some_and(|(when, told)| when.ptr_eq(&held) && *told <= level);
        if is_told {
            return;
        }
        let mut params = b"{\"level\":".to_vec();
        write_string(&mut params, level.as_str());
        params.push(b'}');
        let until = deadline.min(clock::after(TELL));
        let request = Request::own(method::LOGGING_SET_LEVEL, Some(params.into()), until);
        match self.talk.request(request).await {
            // A server that refuses it would do so each time.
            Ok(_) => *lock(&self.told) = Some((held, level)),
            Err(error) => {
                let server = &self.talk.spec.server;
                debug!(%server, %error, "the log level was not taken");
            }
        }
    }
}

/// Makes the session whenever it is needed, until the link is gone that it belongs to. A session
/// that is there then is ended before this is.
pub(super) async fn keep(elder: Arc<Elder>, link: Arc<Talk>, making: Making) {
    let mut state = elder.0.subscribe();
    let mut failures = 0;
    loop {
        let wanted = tokio::select! {
            biased;
            _ = link.over() => false,
            wanted = state.wait_for(|state| matches!(state, State::Wanted)) => wanted.is_ok(),
        };
        if !wanted {
            break;
        }
        match live(&elder, &link, &making).await {
            Lived::Over => failures = 0,
            Lived::Failed => {
                failures += 1;
                let Some(rest) = rest(failures) else {
                    debug!(server = %making.spec.server, "the server makes no sessions");
                    break;
                };
                elder.0.send_replace(State::Resting);
                tokio::select! {
                    biased;
                    _ = link.over() => break,
                    () = sleep(rest) => {}
                }
            }
            Lived::Never => break,
        }
        elder.0.send_replace(State::Closed);
    }
    elder.0.send_replace(State::Never);
}

/// Returns how long nobody waits for a session after so many failures; nothing where nobody does
/// ever again.
fn rest(failures: u32) -> Option<Duration> {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1))?;
    (failures < FAILURES_MAX).then(|| REST.saturating_mul(doubled))
}

/// Makes a session and keeps it until it is over.
async fn live(elder: &Elder, link: &Talk, making: &Making) -> Lived {
    let how = (Form::Streamable, making.spec.url.clone());
    let (client, info) = (Arc::clone(&making.client), making.info.clone());
    let (talk, ends) = Talk::new(&making.spec, client, info, how, making.events.clone());
    let shaken = tokio::select! {
        biased;
        _ = link.over() => return Lived::Never,
        shaken = talk.shake(clock::after(SHAKE)) => shaken,
    };
    let info = match shaken {
        Ok(info) => info,
        Err(Failure::Link(error)) if refusal::is_transient(&error) => return Lived::Failed,
        Err(failure) => {
            let reason = failure.reason();
            debug!(server = %making.spec.server, %reason, "the server keeps no sessions");
            return Lived::Never;
        }
    };
    let session = Session::new(Arc::clone(&talk), &info);
    elder.0.send_replace(State::Open(Arc::new(session)));
    let mut life = pin!(async {
        tokio::join!(
            listen::listen(Arc::clone(&talk)),
            tasks::post(Arc::clone(&talk), ends.outbox),
            tasks::rest(Arc::clone(&talk), ends.rests),
            tasks::keep(Arc::clone(&talk)),
        );
    });
    tokio::select! {
        biased;
        () = &mut life => Lived::Over,
        _ = link.over() => {
            talk.end();
            life.await;
            Lived::Never
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_fails_is_waited_for_ever_less_often_and_then_never() {
        let rests: Vec<_> = (1..=5).map(rest).collect();
        let seconds = [Some(30), Some(60), Some(120), None, None];
        assert_eq!(rests, seconds.map(|wait| wait.map(Duration::from_secs)));
    }
}
