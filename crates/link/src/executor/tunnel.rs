//! The gateway's end of one connection with an executor that speaks our protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bowline_wire::executor::{Asked, Frame, FrameError, Hello, Open, VERSION};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::exchange::Exchange;
use super::session::{Attached, Session};
use super::voice::Voice;
use super::{Carried, Carrier, Errand, Offers, faults};
use crate::http::client::{HttpError, Outgoing as Request, Response, Wait, write_line};
use crate::http::clock;
use crate::link::{BoxFuture, Spawner};
use crate::websocket::{Ended, Incoming, Outgoing};

mod answer;
mod upload;

use upload::Started;

/// How long each step of the handshake may take.
const STEP: Duration = Duration::from_secs(5);

/// How long a request may wait for a place where its caller does not say.
const PLACE_WAIT: Duration = Duration::from_secs(10);

/// The close code of a connection whose name another one has now.
pub const FENCED: u16 = 4001;

/// The close code of a connection whose credential is over.
pub const CREDENTIAL_OVER: u16 = 4002;

/// The close code of an executor that is not let in.
pub const REFUSED: u16 = 4003;

/// The close code of a peer that broke the protocol.
pub const BROKE_PROTOCOL: u16 = 4004;

/// The close code of a side that goes down.
pub const GOING_DOWN: u16 = 1001;

/// Why a handshake came to nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GreetError {
    /// The connection ended.
    #[error("the connection ended in the handshake")]
    Ended(#[from] Ended),
    /// What came is no frame.
    #[error("what came is not valid")]
    Frame(#[from] FrameError),
    /// What came is a frame that has no place here.
    #[error("the handshake was not kept")]
    Unexpected,
    /// The executor speaks another revision.
    #[error("the executor speaks revision {0}")]
    Version(u64),
    /// It took too long.
    #[error("no handshake in time")]
    Timeout,
}

impl GreetError {
    /// Closes a connection whose handshake came to nothing, and says why.
    pub fn tell(&self, outgoing: &Outgoing) {
        outgoing.close(BROKE_PROTOCOL, &self.to_string());
    }
}

/// Waits for an executor to say who it is.
///
/// # Errors
/// It did not, or not what it must say.
pub async fn greet(incoming: &mut Incoming) -> Result<Hello, GreetError> {
    match next(incoming).await? {
        Frame::Hello(hello) if hello.v == VERSION => Ok(hello),
        Frame::Hello(hello) => Err(GreetError::Version(hello.v)),
        _ => Err(GreetError::Unexpected),
    }
}

async fn next(incoming: &mut Incoming) -> Result<Frame, GreetError> {
    let message = timeout(STEP, incoming.next()).await;
    let message = message.map_err(|_late| GreetError::Timeout)??;
    Ok(Frame::read(&message)?)
}

/// One connection with an executor. It is closed when nobody holds it or a body that came over it.
#[derive(Debug)]
pub struct Tunnel {
    shared: Arc<Shared>,
    offers: Offers,
}

/// What a connection and the bodies that come over it share.
#[derive(Debug)]
struct Shared {
    session: Arc<Session>,
    /// Which of its session's connections it is.
    connection: u64,
    voice: Voice,
    /// Bytes of a request that the executor takes at once.
    credit: u64,
    /// Streams that the executor takes.
    places: Arc<Semaphore>,
    received: Arc<AtomicU64>,
    /// How many streams its session had before.
    before: u64,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.voice.close(1000, "");
    }
}

impl Tunnel {
    /// Opens a session, or goes on with one, with an executor that said who it is.
    ///
    /// # Errors
    /// The executor did not keep the handshake.
    pub async fn open(
        hello: &Hello,
        attached: Attached,
        (outgoing, mut incoming): (Outgoing, Incoming),
        spawner: &dyn Spawner,
    ) -> Result<Self, GreetError> {
        let session = &attached.session;
        let open = Frame::Open(Open {
            v: VERSION,
            session: Arc::clone(session.id()),
            marks: session.marks(),
        });
        let sent = timeout(STEP, outgoing.send(open.to_bytes())).await;
        sent.map_err(|_late| GreetError::Timeout)??;
        let Frame::Opened(opened) = next(&mut incoming).await? else {
            return Err(GreetError::Unexpected);
        };
        let voice = Voice::new(outgoing, spawner);
        let marks = match opened.resumed {
            true => opened.marks,
            false => Vec::new(),
        };
        attached.resume(&marks, &voice);
        let Attached {
            session,
            connection,
        } = attached;
        let received = Arc::<AtomicU64>::default();
        let reader = Reader {
            incoming,
            session: Arc::clone(&session),
            connection,
            voice: voice.clone(),
            received: Arc::clone(&received),
        };
        spawner.spawn("executor reader", Box::pin(reader.run()));
        let places = match hello.streams_max {
            0 => session.limits().streams_max,
            theirs => theirs.min(session.limits().streams_max),
        };
        let places = usize::try_from(places).unwrap_or(Semaphore::MAX_PERMITS);
        let shared = Shared {
            connection,
            voice,
            credit: hello.credit,
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            received,
            before: session.numbers(),
            session,
        };
        let offers = Offers {
            software: Arc::clone(&hello.software),
            servers: hello.servers.clone(),
            secrets: hello.secrets.clone(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            offers,
        })
    }

    /// Returns the session that it carries.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.shared.session
    }

    /// Returns what is said over it.
    pub(crate) fn voice(&self) -> &Voice {
        &self.shared.voice
    }

    /// Returns which of its session's connections it is.
    pub(crate) fn connection(&self) -> u64 {
        self.shared.connection
    }

    /// Waits for a place for one more stream.
    pub(crate) async fn place(
        &self,
        until: Option<Instant>,
    ) -> Result<OwnedSemaphorePermit, HttpError> {
        let until = until.unwrap_or_else(|| clock::after(PLACE_WAIT));
        let place = Arc::clone(&self.shared.places).acquire_owned();
        tokio::select! {
            biased;
            place = timeout_at(until, place) => match place {
                Ok(Ok(place)) => Ok(place),
                Ok(Err(_)) | Err(_) => Err(faults::busy("the executor has too many streams open")),
            },
            ended = self.shared.voice.over() => Err(unsent(&ended)),
        }
    }

    async fn perform(&self, errand: Errand<'_>, wait: Wait<'_>) -> Result<Response, HttpError> {
        let place = self.place(wait.connect).await?;
        let shared = &self.shared;
        let window = shared.session.budget().open();
        let window = window.ok_or_else(|| faults::busy("too many answers are not read yet"))?;
        let asked = asked(&errand, &wait, window.size());
        let number = shared.session.number();
        let session = Arc::clone(&shared.session);
        let exchange = Arc::new(Exchange::new(number, session, window, shared.credit, place));
        let mut held = answer::Held {
            exchange: Arc::clone(&exchange),
            shared: Arc::clone(shared),
            was_sent: false,
        };
        let added = shared.session.add(shared.connection, number, exchange);
        added.map_err(|ended| unsent(&ended))?;
        (wait.leaving)();
        let request = Frame::Request {
            stream: number,
            asked,
        };
        let sending = shared.voice.send(&request);
        match within(wait.connect, sending).await {
            Some(sent) => sent.map_err(|ended| unsent(&ended))?,
            None => return Err(HttpError::ConnectTimeout),
        }
        held.was_sent = true;
        let mut upload = Started::new(&held.exchange, &shared.voice, errand.request.body);
        let exchange = Arc::clone(&held.exchange);
        let mut is_sent = false;
        let answered = poll_fn(|cx| {
            if let Poll::Ready(answered) = exchange.poll_head(cx) {
                return Poll::Ready(answered);
            }
            if !is_sent && let Poll::Ready(sent) = upload.poll(cx) {
                is_sent = true;
                if let Err(broken) = sent {
                    return Poll::Ready(Err(broken));
                }
            }
            Poll::Pending
        });
        let Some(answered) = within(wait.first_byte, answered).await else {
            return Err(HttpError::FirstByteTimeout);
        };
        let rest = upload.rest().filter(|_| !is_sent);
        held.response(&answered?, rest)
    }
}

/// Waits for something until then, or for as long as it takes.
async fn within<T>(until: Option<Instant>, what: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(what.await),
        Some(until) => timeout_at(until, what).await.ok(),
    }
}

fn unsent(ended: &Ended) -> HttpError {
    faults::away(&format!("the executor is not connected any more: {ended}"))
}

fn asked(errand: &Errand<'_>, wait: &Wait<'_>, credit: u64) -> Asked {
    let request: &Request<'_> = &errand.request;
    let mut lines = request.lines.as_bytes().to_vec();
    for (name, value) in &request.headers {
        write_line(&mut lines, name, value);
    }
    let left = |until: Instant| {
        let left = until.saturating_duration_since(clock::now());
        bowline_core::time::millis(left)
    };
    Asked {
        server: errand.server.into(),
        credit,
        connect_ms: wait.connect.map(left),
        first_byte_ms: wait.first_byte.map(left),
        length: request.body.length(),
        fills: errand.fills.to_vec(),
        method: request.method.as_str().into(),
        url: request.to.uri().to_string().into(),
        lines: lines.into(),
    }
}

impl Carrier for Tunnel {
    fn carry<'a>(
        &'a self,
        errand: Errand<'a>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>> {
        Box::pin(self.perform(errand, wait))
    }

    fn offers(&self) -> &Offers {
        &self.offers
    }

    fn carried(&self) -> Carried {
        let session = &self.shared.session;
        Carried {
            streams: u64::try_from(session.open_streams()).unwrap_or(u64::MAX),
            opened: session.numbers().saturating_sub(self.shared.before),
            sent_bytes: self.shared.voice.sent_bytes(),
            received_bytes: self.shared.received.load(Ordering::Relaxed),
        }
    }

    fn ended(&self) -> Option<Ended> {
        self.shared.voice.ended()
    }

    fn over(&self) -> BoxFuture<'_, Ended> {
        Box::pin(self.shared.voice.over())
    }

    fn close(&self, code: u16, reason: &str) {
        self.shared.voice.close(code, reason);
    }
}

/// Reads what comes, and hands it to the stream that it is for. It never waits for who reads.
#[derive(Debug)]
struct Reader {
    incoming: Incoming,
    session: Arc<Session>,
    connection: u64,
    voice: Voice,
    received: Arc<AtomicU64>,
}

/// However it ends, nobody waits for it any more.
impl Drop for Reader {
    fn drop(&mut self) {
        let ended = self.voice.ended().unwrap_or(Ended::Local);
        self.session.cut(self.connection, &ended);
    }
}

impl Reader {
    async fn run(mut self) {
        loop {
            let message = match self.incoming.next().await {
                Ok(message) => message,
                Err(ended) => return self.session.cut(self.connection, &ended),
            };
            let Ok(frame) = Frame::read(&message) else {
                return self.refuse("what came is no frame");
            };
            let number = match &frame {
                Frame::Data { stream, bytes, .. } => {
                    let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    self.received.fetch_add(count, Ordering::Relaxed);
                    *stream
                }
                Frame::Answer { stream, .. }
                | Frame::End { stream, .. }
                | Frame::Credit { stream, .. }
                | Frame::Failed { stream, .. }
                | Frame::Started { stream, .. }
                | Frame::Stderr { stream, .. }
                | Frame::Exited { stream, .. } => *stream,
                Frame::Hello(_)
                | Frame::Open(_)
                | Frame::Opened(_)
                | Frame::Request { .. }
                | Frame::Cancel { .. }
                | Frame::Start { .. }
                | Frame::Stop { .. } => return self.refuse("an executor does not say that"),
            };
            self.session
                .deliver(self.connection, number, frame, &self.voice);
        }
    }

    fn refuse(&self, reason: &str) {
        self.voice.close(BROKE_PROTOCOL, reason);
        let invalid = Ended::Invalid(reason.into());
        self.session.cut(self.connection, &invalid);
    }
}
