//! The session with a server that speaks both ways. Such a server asks callers in the way of
//! their own era only, so that those of the legacy one that can be asked are brought to it there.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_wire::mcp::method;
use bowline_wire::object;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::client::HttpClient;
use super::talk::{Form, Talk};
use super::{HttpSpec, clock, listen, refusal, tasks};
use crate::link::{LinkEvent, Request};
use crate::stdio::ClientInfo;
use crate::stdio::handshake::Failure;

/// How long the handshake may take.
const SHAKE: Duration = Duration::from_secs(10);

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
    Open(Arc<Talk>),
    /// The server keeps no sessions.
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
pub(super) fn is_for_session(request: &Request) -> bool {
    let asks = matches!(
        &*request.method,
        method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ
    );
    let caller = request.caller.as_ref();
    asks && request.era == Era::Legacy
        && caller.is_some_and(|caller| caller.abilities().any())
        // A task is asked about later, by requests that go the other way.
        && object::field(request.params.as_deref().unwrap_or_default(), "task").is_none()
}

impl Elder {
    /// Returns the session, which is made if need be; nothing where the server keeps none.
    pub(super) async fn talk(&self, deadline: Instant) -> Option<Arc<Talk>> {
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
            State::Open(talk) => Some(talk),
            State::Closed | State::Wanted | State::Never => None,
        }
    }

    /// Returns the session where there is one.
    pub(super) fn open(&self) -> Option<Arc<Talk>> {
        match &*self.0.borrow() {
            State::Open(talk) => Some(Arc::clone(talk)),
            State::Closed | State::Wanted | State::Never => None,
        }
    }
}

/// Makes the session whenever it is needed, until the link is gone that it belongs to.
pub(super) async fn keep(elder: Arc<Elder>, link: Arc<Talk>, making: Making) {
    let keeping = async {
        let mut state = elder.0.subscribe();
        while state
            .wait_for(|state| matches!(state, State::Wanted))
            .await
            .is_ok()
        {
            let next = live(&elder, &link, &making).await;
            elder.0.send_replace(next);
        }
    };
    tokio::select! {
        biased;
        () = keeping => {}
        _ = link.ended() => {}
    }
    elder.0.send_replace(State::Never);
}

/// Makes a session and keeps it until it is over.
async fn live(elder: &Elder, link: &Talk, making: &Making) -> State {
    let how = (Form::Streamable, making.spec.url.clone());
    let (client, info) = (Arc::clone(&making.client), making.info.clone());
    let (talk, ends) = Talk::new(&making.spec, client, info, how, making.events.clone());
    match talk.shake(clock::after(SHAKE)).await {
        Ok(_) => {}
        Err(Failure::Link(error)) if refusal::is_transient(&error) => return State::Closed,
        Err(failure) => {
            let reason = failure.reason();
            debug!(server = %making.spec.server, %reason, "the server keeps no sessions");
            return State::Never;
        }
    }
    elder.0.send_replace(State::Open(Arc::clone(&talk)));
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
        () = &mut life => State::Closed,
        _ = link.over() => {
            talk.end();
            life.await;
            State::Never
        }
    }
}
