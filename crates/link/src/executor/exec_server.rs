//! The gateway's end of one connection with an exec-server: another's executor, with its own wire.
//!
//! That wire has no cancel and no credit. Who stops reading is forgotten here, and what still comes
//! is thrown away; who reads too slowly loses the stream, and nobody else notices.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_wire::FrameError;
use bowline_wire::execserver::{
    self, BODY_BYTES_MAX, Delta, Id, Initialize, MESSAGE_BYTES_MAX, Refusal, Said, Verb, code,
};
use bytes::Bytes;
use foldhash::fast::RandomState;
use thiserror::Error;
use tokio::time::timeout;

use self::exchange::{Budget, Exchange, Kind, Took};
use super::{BROKE_PROTOCOL, Carried, Carrier, Errand, Offers, faults};
use crate::http::client::{HttpError, Response, Wait};
use crate::link::{BoxFuture, Spawner};
use crate::websocket::{Ended, Form, Incoming, Outgoing, SocketLimits};

mod ask;
mod exchange;
mod held;

/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Requests that wait for their answer, and streams that are open.
const STREAMS_MAX: usize = 1_024;

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

/// What the reader knows of.
#[derive(Debug, Default)]
struct Lines {
    table: Mutex<Table>,
    budget: Arc<Budget>,
    received_bytes: AtomicU64,
}

#[derive(Debug)]
struct Table {
    /// The number of the last request.
    last: i64,
    /// The number of the last stream.
    last_stream: u64,
    /// Who waits for an answer.
    calls: HashMap<i64, Arc<Exchange>, RandomState>,
    /// Of whose answers more comes.
    streams: HashMap<u64, Arc<Exchange>, RandomState>,
    ended: Option<Ended>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            last: FIRST,
            last_stream: 0,
            calls: HashMap::default(),
            streams: HashMap::default(),
            ended: None,
        }
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
        let table = lock(&self.shared.lines.table);
        Carried {
            streams: u64::try_from(table.streams.len()).unwrap_or(u64::MAX),
            opened: table.last_stream,
            sent_bytes: self.shared.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.shared.lines.received_bytes.load(Ordering::Relaxed),
        }
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

impl Lines {
    /// Adds a request that is about to be sent: what comes for it is kept from now on.
    fn add(&self, kind: Kind) -> Result<(i64, Arc<Exchange>), HttpError> {
        let mut table = lock(&self.table);
        if let Some(ended) = &table.ended {
            return Err(unsent(ended));
        }
        let open = table.streams.len().max(table.calls.len());
        if open >= STREAMS_MAX {
            return Err(faults::busy("too many answers are not read yet"));
        }
        table.last += 1;
        let call = table.last;
        let stream = match kind {
            Kind::Streamed => {
                table.last_stream += 1;
                table.last_stream
            }
            Kind::Whole => 0,
        };
        let exchange = Arc::new(Exchange::new(stream, Arc::clone(&self.budget)));
        table.calls.insert(call, Arc::clone(&exchange));
        if kind == Kind::Streamed {
            table.streams.insert(stream, Arc::clone(&exchange));
        }
        Ok((call, exchange))
    }

    /// Nobody waits for a request any more: what comes for it is nobody's.
    fn forget(&self, call: i64, stream: u64) {
        let mut table = lock(&self.table);
        let gone = (table.calls.remove(&call), table.streams.remove(&stream));
        drop(table);
        drop(gone);
    }

    /// Hands over the answer to a request, or that there is none.
    fn answer(&self, id: &Id, answer: Result<Bytes, Refusal>) {
        let Id::Number(number) = id else {
            return;
        };
        let exchange = {
            let mut table = lock(&self.table);
            let exchange = table.calls.remove(number);
            if let (Some(exchange), Err(_)) = (&exchange, &answer) {
                table.streams.remove(&exchange.stream());
            }
            exchange
        };
        if let Some(exchange) = exchange {
            exchange.answer(answer);
        }
    }

    /// Hands over a piece of a body. It never waits for who reads.
    fn delta(&self, params: &Bytes) -> Result<(), FrameError> {
        let delta = Delta::read(params)?;
        let Some(stream) = ask::stream_of(&delta.request_id) else {
            return Ok(());
        };
        let exchange = lock(&self.table).streams.get(&stream).cloned();
        let Some(exchange) = exchange else {
            return Ok(());
        };
        let count = u64::try_from(delta.len()).unwrap_or(u64::MAX);
        self.received_bytes.fetch_add(count, Ordering::Relaxed);
        if exchange.take(&delta)? == Took::Over {
            let gone = lock(&self.table).streams.remove(&stream);
            drop(gone);
        }
        Ok(())
    }

    /// Tells everybody that the connection is lost.
    fn cut(&self, ended: &Ended) {
        let (calls, streams) = {
            let mut table = lock(&self.table);
            if table.ended.is_some() {
                return;
            }
            table.ended = Some(ended.clone());
            let calls = std::mem::take(&mut table.calls);
            (calls, std::mem::take(&mut table.streams))
        };
        for exchange in calls.into_values().chain(streams.into_values()) {
            exchange.cut(ended);
        }
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
            let taken = Said::read(&message).and_then(|said| self.take(said));
            if let Err(error) = taken {
                let reason = error.to_string();
                self.outgoing.close(BROKE_PROTOCOL, &reason);
                return self.lines.cut(&Ended::Invalid(reason.into()));
            }
        }
    }

    fn take(&self, said: Said) -> Result<(), FrameError> {
        match said {
            Said::Notice {
                verb: Verb::Delta,
                params,
            } => self.lines.delta(&params)?,
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
