//! The gateway's end of one connection with an exec-server: another's executor, with its own wire.
//!
//! That wire has no cancel and no credit. What comes for a request that was dropped is thrown away.
//! While all answers together hold as many bytes as they may, the socket is not read, so that the
//! exec-server waits for the readers. A reader that stops, or is so slow that the others wait too
//! long, loses its answer with an overflow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_wire::FrameError;
use bowline_wire::execserver::{
    self, BODY_BYTES_MAX, Id, Initialize, MESSAGE_BYTES_MAX, Refusal, Said, Verb, code,
};
use bytes::Bytes;
use thiserror::Error;
use tokio::time::timeout;

use self::exchange::Kind;
use self::lines::Lines;
use super::{BROKE_PROTOCOL, Carried, Carrier, Errand, Offers};
use crate::http::client::{HttpError, Response, Wait};
use crate::link::{BoxFuture, Spawner};
use crate::websocket::{Ended, Form, Incoming, Outgoing, SocketLimits};

mod ask;
mod exchange;
mod held;
mod lines;

/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The number of the first request.
const FIRST: i64 = 1;

/// What the software of the other side is called where it says its version.
const SOFTWARE: &str = "codex exec-server";

/// Why a handshake came to nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The connection ended.
    #[error("the connection ended in the handshake")]
    Ended(#[from] Ended),
    /// What came is no message.
    #[error("what came is not valid")]
    Frame(#[from] FrameError),
    /// Another connection has the session, perhaps one that is not known to be dead yet.
    #[error("another connection has the session")]
    Attached,
    /// The exec-server does not want us, or does not know the session.
    #[error("the handshake was refused with {code}: {message}")]
    Refused {
        /// The code.
        code: i64,
        /// What it said.
        message: Arc<str>,
    },
    /// It took too long.
    #[error("no handshake in time")]
    Timeout,
}

/// Returns the bounds of a connection that speaks this wire.
#[must_use]
pub fn socket_limits() -> SocketLimits {
    SocketLimits {
        form: Form::TextOrBytes,
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..SocketLimits::default()
    }
}

/// One connection with an exec-server. It is closed when nobody holds it or a body that came over
/// it.
#[derive(Debug)]
pub struct ExecServer {
    shared: Arc<Shared>,
    offers: Offers,
    session: Arc<str>,
}

/// What a connection and the bodies that come over it share.
#[derive(Debug)]
struct Shared {
    outgoing: Outgoing,
    lines: Arc<Lines>,
    sent_bytes: AtomicU64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.outgoing.close(1000, "");
    }
}

impl ExecServer {
    /// Shakes hands with an exec-server over a connection that was dialled. A session that an
    /// earlier connection had is taken over.
    ///
    /// # Errors
    /// The exec-server did not keep the handshake, or does not know the session.
    pub async fn open(
        (outgoing, mut incoming): (Outgoing, Incoming),
        client: &str,
        resume: Option<Arc<str>>,
        spawner: &dyn Spawner,
    ) -> Result<Self, OpenError> {
        let first = Initialize {
            client: client.into(),
            resume,
        };
        let shaking = async {
            outgoing.send(execserver::initialize(FIRST, &first)).await?;
            let answer = greeting(&mut incoming).await?;
            outgoing.send(execserver::initialized()).await?;
            Ok::<_, OpenError>(execserver::session(&answer)?)
        };
        let shaken = timeout(HANDSHAKE, shaking).await;
        let (session, version) = shaken.map_err(|_late| OpenError::Timeout)??;
        let lines = Arc::<Lines>::default();
        let reader = Reader {
            incoming,
            outgoing: outgoing.clone(),
            lines: Arc::clone(&lines),
        };
        spawner.spawn("exec-server reader", Box::pin(reader.run()));
        let software = version.map(|version| format!("{SOFTWARE} {version}").into());
        let shared = Shared {
            outgoing,
            lines,
            sent_bytes: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
            offers: Offers {
                software: software.unwrap_or_else(|| SOFTWARE.into()),
                ..Offers::default()
            },
            session,
        })
    }

    /// Returns the session: what a later connection goes on with.
    #[must_use]
    pub const fn session(&self) -> &Arc<str> {
        &self.session
    }
}

/// Waits for the answer to the first request.
async fn greeting(incoming: &mut Incoming) -> Result<Bytes, OpenError> {
    loop {
        match Said::read(&incoming.next().await?)? {
            Said::Result { id, result } if id == Id::Number(FIRST) => return Ok(result),
            Said::Refused { refusal, .. } if refusal.code == code::SESSION_ATTACHED => {
                return Err(OpenError::Attached);
            }
            Said::Refused { refusal, .. } => {
                return Err(OpenError::Refused {
                    code: refusal.code,
                    message: refusal.message,
                });
            }
            Said::Request { .. } | Said::Notice { .. } | Said::Result { .. } => {}
        }
    }
}

impl Shared {
    async fn perform(
        self: &Arc<Self>,
        errand: Errand<'_>,
        wait: Wait<'_>,
        kind: Kind,
    ) -> Result<Response, HttpError> {
        let (mut body, request) = ask::body(errand.request).await?;
        let (call, exchange) = self.lines.add(kind)?;
        let held = held::Held::new(Arc::clone(self), call, exchange);
        let timeout = match kind {
            Kind::Streamed => None,
            // It covers all of an answer, which is what a caller of a whole one waits for.
            Kind::Whole => wait.first_byte,
        };
        let stream = held.exchange.stream();
        let message = ask::message(
            &request,
            body.as_deref(),
            errand.fills,
            call,
            stream,
            timeout,
        )?;
        let sent = body.take().map_or(0, |body| body.len());
        (wait.leaving)();
        let sending = self.outgoing.send(message);
        match ask::within(wait.connect, sending).await {
            Some(sent) => sent.map_err(|ended| unsent(&ended))?,
            None => return Err(HttpError::ConnectTimeout),
        }
        let sent = u64::try_from(sent).unwrap_or(u64::MAX);
        self.sent_bytes.fetch_add(sent, Ordering::Relaxed);
        match ask::within(wait.first_byte, held.exchange.head()).await {
            Some(answered) => held.response(answered?, kind),
            None => Err(HttpError::FirstByteTimeout),
        }
    }
}

fn unsent(ended: &Ended) -> HttpError {
    HttpError::Unreachable(format!("the executor is not connected any more: {ended}").into())
}

impl Carrier for ExecServer {
    fn carry<'a>(
        &'a self,
        errand: Errand<'a>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>> {
        Box::pin(self.shared.perform(errand, wait, Kind::Streamed))
    }

    fn fetch<'a>(
        &'a self,
        errand: Errand<'a>,
        wait: Wait<'a>,
        bytes_max: usize,
    ) -> BoxFuture<'a, Result<Response, HttpError>> {
        Box::pin(async move {
            let mut response = self.shared.perform(errand, wait, Kind::Whole).await?;
            response.body = response
                .body
                .whole(bytes_max.min(BODY_BYTES_MAX))
                .await?
                .into();
            Ok(response)
        })
    }

    fn offers(&self) -> &Offers {
        &self.offers
    }

    fn carried(&self) -> Carried {
        let sent_bytes = self.shared.sent_bytes.load(Ordering::Relaxed);
        self.shared.lines.carried(sent_bytes)
    }

    fn ended(&self) -> Option<Ended> {
        self.shared.outgoing.ended()
    }

    fn over(&self) -> BoxFuture<'_, Ended> {
        Box::pin(self.shared.outgoing.over())
    }

    fn close(&self, code: u16, reason: &str) {
        self.shared.outgoing.close(code, reason);
    }
}

/// Reads what comes, and hands it to whom it is for.
#[derive(Debug)]
struct Reader {
    incoming: Incoming,
    outgoing: Outgoing,
    lines: Arc<Lines>,
}

/// However it ends, nobody waits for it any more.
impl Drop for Reader {
    fn drop(&mut self) {
        let ended = self.outgoing.ended().unwrap_or(Ended::Local);
        self.lines.cut(&ended);
    }
}

impl Reader {
    async fn run(mut self) {
        loop {
            let message = match self.incoming.next().await {
                Ok(message) => message,
                Err(ended) => return self.lines.cut(&ended),
            };
            let taken = match Said::read(&message) {
                Ok(said) => self.take(said).await,
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                let reason = error.to_string();
                self.outgoing.close(BROKE_PROTOCOL, &reason);
                return self.lines.cut(&Ended::Invalid(reason.into()));
            }
        }
    }

    async fn take(&mut self, said: Said) -> Result<(), FrameError> {
        match said {
            Said::Notice {
                verb: Verb::Delta,
                params,
            } => self.lines.delta(&params).await?,
            Said::Notice { .. } => {}
            Said::Result { id, result } => self.lines.answer(&id, Ok(result)),
            Said::Refused { id, refusal } => self.lines.answer(&id, Err(refusal)),
            Said::Request { id, verb, .. } => {
                let refusal = Refusal {
                    code: code::METHOD,
                    message: format!("`{}` is not offered", verb.as_str()).into(),
                    fault: None,
                };
                // Who asks faster than it reads gets no answer.
                let _ = self.outgoing.try_send(execserver::refused(&id, &refusal));
            }
        }
        Ok(())
    }
}
