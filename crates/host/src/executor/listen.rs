//! An executor that is dialled by its gateway.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::BoxFuture;
use bowline_link::websocket::{Incoming, Outgoing, accept};
use http::header::{AUTHORIZATION, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::offer::Offer;
use super::servant::Servant;
use crate::address;
use crate::credential::Credential;
use crate::ports::SystemClock;
use crate::tasks::Tasks;

/// Connections at once, whether or not they are let in.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may take to end once it was told.
const FAREWELL: Duration = Duration::from_secs(1);

/// The wait after the system had no connection to give.
const REST: Duration = Duration::from_millis(100);

/// Who is let in.
#[derive(Clone, Debug)]
pub enum Door {
    /// Whoever has this token; it is read for every caller.
    Token(Credential),
    /// Everybody on this machine.
    Open,
}

/// Why nobody can be let in.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Everybody would be let in, from other machines too.
    #[error("without a token, only callers on this machine are let in")]
    Exposed,
    /// The address cannot be told.
    #[error("the address cannot be told")]
    Address(#[source] io::Error),
}

/// Serves those who were let in.
pub trait Attend: fmt::Debug + Send + Sync {
    /// Serves one connection until it is over.
    fn attend(&self, io: (Outgoing, Incoming)) -> BoxFuture<'_, ()>;
}

impl Attend for Servant {
    fn attend(&self, io: (Outgoing, Incoming)) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let ended = Self::attend(self, io).await;
            tracing::info!(
                error = &ended as &dyn std::error::Error,
                "a gateway is gone"
            );
        })
    }
}

/// Offers what this machine has to the gateway that dials `listener`, until `shutdown` ends.
///
/// # Errors
/// Nobody can be let in.
pub async fn listen(
    listener: TcpListener,
    door: Door,
    offer: Offer,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let clock = Arc::new(SystemClock::start());
    let servant = Servant::new(offer, Tasks::default(), clock);
    let attend = Arc::new(servant.clone()) as Arc<dyn Attend>;
    listen_with(listener, door, attend, &servant, shutdown).await
}

/// The same, with who serves said: `attend` may speak another protocol over what `servant` has.
/// [`Servant::standing`] tells how it goes.
///
/// # Errors
/// Nobody can be let in.
pub async fn listen_with(
    listener: TcpListener,
    door: Door,
    attend: Arc<dyn Attend>,
    servant: &Servant,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let here = listener.local_addr().map_err(ListenError::Address)?;
    if matches!(door, Door::Open) && !here.ip().is_loopback() {
        return Err(ListenError::Exposed);
    }
    let entrance = Arc::new(Entrance {
        door,
        attend,
        servant: servant.clone(),
    });
    let taking = entrance.take_in(listener);
    tokio::select! {
        biased;
        () = pin!(shutdown) => {}
        () = taking => {}
    }
    servant.close().await;
    Ok(())
}

/// Where callers come in.
#[derive(Debug)]
struct Entrance {
    door: Door,
    attend: Arc<dyn Attend>,
    servant: Servant,
}

impl Entrance {
    async fn take_in(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "no caller");
                    sleep(REST).await;
                    continue;
                }
            };
            let entrance = Arc::clone(&self);
            self.servant.tasks().spawn("executor caller", async move {
                let _place = place;
                tokio::select! {
                    biased;
                    () = entrance.meet(stream) => {}
                    () = entrance.let_go() => {}
                }
            });
        }
    }

    /// Waits until it is closed, and all was told that can be: without its reader, a connection
    /// is let go of.
    async fn let_go(&self) {
        self.servant.closed().await;
        sleep(FAREWELL).await;
    }

    /// Serves one caller, if it is let in.
    async fn meet(&self, stream: TcpStream) {
        // A frame must not wait for the next one.
        let _unlikely = stream.set_nodelay(true);
        let clock = self.servant.clock();
        let limits = self.servant.offer().limits;
        let deadline = clock.instant(clock.now().plus(limits.step));
        let Ok(caller) = accept(stream, deadline).await else {
            return;
        };
        let answer = match self.judge(&caller.parts) {
            Verdict::In => {
                let io = caller.upgrade(limits.socket, self.servant.tasks()).await;
                if let Ok(io) = io {
                    self.attend.attend(io).await;
                }
                return;
            }
            Verdict::Ready => caller.answer(StatusCode::OK, "ready\n"),
            Verdict::NotHere => caller.answer(StatusCode::NOT_FOUND, "not found\n"),
            Verdict::Browser => caller.answer(StatusCode::FORBIDDEN, "not from a browser\n"),
            Verdict::Stranger => caller.answer(StatusCode::UNAUTHORIZED, "a token is needed\n"),
        };
        // Who is refused need not hear it.
        let _ = answer.await;
    }

    fn judge(&self, parts: &Parts) -> Verdict {
        if parts.headers.contains_key(ORIGIN) {
            tracing::warn!("a browser was not let in");
            return Verdict::Browser;
        }
        let path = parts.uri.path();
        if path == "/readyz" && parts.method == Method::GET {
            return Verdict::Ready;
        }
        if path != "/" && path != address::EXECUTOR {
            return Verdict::NotHere;
        }
        match self.knows(parts) {
            true => Verdict::In,
            false => {
                tracing::warn!("a caller without the token was not let in");
                Verdict::Stranger
            }
        }
    }

    fn knows(&self, parts: &Parts) -> bool {
        let Door::Token(credential) = &self.door else {
            return true;
        };
        let token = match credential.read() {
            Ok(token) => token,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the token is not read"
                );
                return false;
            }
        };
        let token = token.trim().as_bytes();
        let mut said = parts.headers.get_all(AUTHORIZATION).iter();
        let (Some(said), None) = (said.next(), said.next()) else {
            return false;
        };
        let said = said.as_bytes();
        let bearer = said.split_at_checked("bearer ".len());
        let bearer = bearer.filter(|(word, _)| word.eq_ignore_ascii_case(b"bearer "));
        // An empty token is no secret.
        !token.is_empty() && bearer.is_some_and(|(_, said)| bool::from(said.ct_eq(token)))
    }
}

/// What becomes of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    In,
    Ready,
    NotHere,
    Browser,
    Stranger,
}
