//! What an executor does for a gateway, over one connection after the other.

mod exchange;
mod streams;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_core::hex::hex;
use bowline_core::sync::lock;
use bowline_link::executor::{BROKE_PROTOCOL, FENCED, GOING_DOWN, Voice};
use bowline_link::websocket::{Ended, Incoming, Outgoing};
use bowline_wire::executor::{
    Asked, Fault, FaultCode, Frame, FrameError, Hello, Open, Opened, VERSION,
};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::engine::Engine;
use super::offer::Offer;
use super::servers::Servers;
use crate::ports::Clock;
use crate::tasks::Tasks;

use self::exchange::Exchange;
use self::streams::{NotTaken, Stopped, Streams};

/// How often connections with servers are looked at.
const TIDY_EVERY: Duration = Duration::from_secs(10);

/// How long a gateway may take to read what it is told at the end.
const FAREWELL: Duration = Duration::from_secs(1);

/// What an executor calls its software.
const SOFTWARE: &str = concat!("bowline/", env!("CARGO_PKG_VERSION"));

/// Bytes of the name of a server of a gateway.
const SERVER_BYTES_MAX: usize = 256;

/// Performs what gateways ask for. Cheap to clone; serves one session at a time.
#[derive(Clone, Debug)]
pub struct Servant(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    offer: Offer,
    /// Changes with every start.
    instance: Arc<str>,
    engine: Arc<Engine>,
    place: Mutex<Place>,
    standing: watch::Sender<Standing>,
    tasks: Tasks,
}

/// Who is served.
#[derive(Debug, Default)]
struct Place {
    session: Option<Arc<Session>>,
    /// The connection that carries it.
    attached: Option<Carrying>,
    /// Which connection was the last.
    connection: u64,
    /// Nobody is served any more.
    is_closed: bool,
}

/// A connection that carries the session.
#[derive(Debug)]
struct Carrying {
    connection: u64,
    voice: Voice,
    streams: Arc<Streams>,
}

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// No gateway was there yet.
    #[default]
    Waiting,
    /// A gateway has opened a session.
    Connected,
    /// The gateway is gone, or cannot be reached, and this is why.
    Away(Arc<str>),
    /// The gateway does not want us, as far as can be seen; it is tried again all the same.
    Refused {
        /// The status of HTTP, where it did not even shake hands.
        status: Option<u16>,
        /// Why.
        reason: Arc<str>,
    },
    /// It is closed here.
    Closed,
}

/// What a gateway opened, and may come back to.
#[derive(Debug)]
struct Session {
    id: Arc<str>,
    servers: Servers,
}

/// Why a connection is over.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ServeError {
    /// It ended.
    #[error("the connection ended")]
    Ended(#[from] Ended),
    /// The gateway said what is no frame.
    #[error("what the gateway says is not valid")]
    Frame(#[from] FrameError),
    /// The gateway said something that has no place there.
    #[error("the gateway did not keep to the protocol: {0}")]
    Unexpected(&'static str),
    /// The gateway speaks another revision.
    #[error("the gateway speaks revision {0}")]
    Version(u64),
    /// The handshake took too long.
    #[error("no handshake in time")]
    Timeout,
    /// Another connection carries what this one did.
    #[error("another connection took its place")]
    Fenced,
}

impl ServeError {
    /// Tells a gateway that broke the protocol, and ends the connection.
    fn tell(&self, outgoing: &Outgoing) {
        match self {
            Self::Ended(_) | Self::Fenced => {}
            Self::Frame(_) | Self::Unexpected(_) | Self::Version(_) | Self::Timeout => {
                outgoing.close(BROKE_PROTOCOL, &self.to_string());
            }
        }
    }
}

impl Servant {
    /// Returns a servant that nobody has asked for anything.
    #[must_use]
    pub fn new(offer: Offer, tasks: Tasks, clock: Arc<dyn Clock>) -> Self {
        let mut random = [0; 16];
        // Without random numbers two starts look like one, and nothing of the first is here.
        let _unlikely = getrandom::fill(&mut random);
        Self(Arc::new(Inner {
            instance: hex(&random).into(),
            engine: Arc::new(Engine::new(&offer, clock)),
            place: Mutex::default(),
            standing: watch::Sender::default(),
            offer,
            tasks,
        }))
    }

    /// Serves the gateway at the other end of a connection until that is over.
    ///
    /// # Errors
    /// Always: it says why the connection is over.
    pub async fn attend(&self, (outgoing, incoming): (Outgoing, Incoming)) -> ServeError {
        let told = outgoing.clone();
        let served = self.serve(outgoing, incoming).await;
        let Err(error) = served;
        error.tell(&told);
        error
    }

    async fn serve(
        &self,
        outgoing: Outgoing,
        mut incoming: Incoming,
    ) -> Result<std::convert::Infallible, ServeError> {
        let step = self.0.offer.limits.step;
        let open = timeout(step, self.greet(&outgoing, &mut incoming));
        let open = open.await.map_err(|_late| ServeError::Timeout)??;
        let told = outgoing.clone();
        let voice = Voice::new(outgoing, &self.0.tasks);
        let attached = self.open(&open, &voice)?;
        let opened = Frame::Opened(Opened {
            resumed: attached.resumed,
            marks: attached.session.servers.resume(&open.marks),
        });
        let said = timeout(step, voice.send(&opened)).await;
        said.map_err(|_late| ServeError::Timeout)??;
        attached.session.servers.attach(&voice);
        self.stand(Standing::Connected);
        let Err(error) = attached.read(&mut incoming).await;
        if attached.is_fenced() {
            return Err(ServeError::Fenced);
        }
        // Before the connection is closed because nobody serves it.
        error.tell(&told);
        Err(error)
    }

    /// Says who we are, and hears what the gateway opens.
    async fn greet(
        &self,
        outgoing: &Outgoing,
        incoming: &mut Incoming,
    ) -> Result<Open, ServeError> {
        let offer = &self.0.offer;
        let hello = Frame::Hello(Hello {
            v: VERSION,
            name: Arc::clone(&offer.name),
            instance: Arc::clone(&self.0.instance),
            software: SOFTWARE.into(),
            servers: offer.servers.keys().cloned().collect(),
            secrets: offer.secrets.names(),
            streams_max: offer.limits.flow.streams_max,
            credit: offer.limits.flow.floor(),
        });
        outgoing.send(hello.to_bytes()).await?;
        match Frame::read(&incoming.next().await?)? {
            Frame::Open(open) if open.v == VERSION => Ok(open),
            Frame::Open(open) => Err(ServeError::Version(open.v)),
            _ => Err(ServeError::Unexpected("the session must be opened first")),
        }
    }

    /// Opens a session or goes on with the one that is here. Another one ends, with all it held.
    fn open(&self, open: &Open, voice: &Voice) -> Result<Attached, ServeError> {
        let streams = Streams::new(self.0.offer.limits.flow, voice.clone());
        let streams = Arc::new(streams);
        let mut place = lock(&self.0.place);
        if place.is_closed {
            voice.close(GOING_DOWN, "");
            return Err(ServeError::Ended(Ended::Local));
        }
        place.connection += 1;
        let connection = place.connection;
        let before = place.attached.replace(Carrying {
            connection,
            voice: voice.clone(),
            streams: Arc::clone(&streams),
        });
        let known = place.session.take_if(|known| known.id == open.session);
        let other = place.session.take();
        let resumed = known.is_some();
        let session = known.unwrap_or_else(|| {
            Arc::new(Session {
                id: Arc::clone(&open.session),
                servers: Servers::new(&self.0.offer, &self.0.tasks),
            })
        });
        place.session = Some(Arc::clone(&session));
        drop(place);
        if let Some(before) = before {
            before.streams.clear();
            let reason = "another connection took its place";
            before.voice.close(FENCED, reason);
            session.servers.detach();
        }
        if let Some(other) = other {
            other.servers.kill();
        }
        Ok(Attached {
            servant: self.clone(),
            session,
            connection,
            resumed,
            voice: voice.clone(),
            streams,
        })
    }

    /// Ends a session that nobody came back to.
    async fn keep(self, session: Arc<Session>, connection: u64) {
        tokio::select! {
            biased;
            () = self.closed() => return,
            () = sleep(self.0.offer.limits.keep) => {}
        }
        let mut place = lock(&self.0.place);
        if place.connection != connection || place.attached.is_some() {
            return;
        }
        place.session = None;
        drop(place);
        session.servers.kill();
        self.0.engine.tidy();
    }

    /// Sees how it goes.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.0.standing.subscribe()
    }

    /// Notes how it goes, unless it is closed.
    pub(super) fn stand(&self, how: Standing) {
        self.0.standing.send_if_modified(|standing| {
            let is_new = *standing != Standing::Closed && *standing != how;
            if is_new {
                *standing = how;
            }
            is_new
        });
    }

    /// Waits until it is closed.
    pub(super) async fn closed(&self) {
        let mut standing = self.standing();
        // The sender is ours, so the channel cannot close under us.
        let _ = standing.wait_for(|how| *how == Standing::Closed).await;
    }

    /// Goes down: what runs ends, and whoever is connected is told.
    pub async fn close(&self) {
        let (session, attached) = {
            let mut place = lock(&self.0.place);
            place.is_closed = true;
            (place.session.take(), place.attached.take())
        };
        // Nothing more is said once the connection is closed.
        if let Some(session) = session {
            session.servers.kill();
        }
        if let Some(attached) = &attached {
            attached.streams.fail(&Fault {
                code: FaultCode::Closing,
                execution: Execution::Unknown,
                reason: "the executor goes down".into(),
            });
            attached.voice.close(GOING_DOWN, "");
        }
        // Whoever waits for this lets go of the connection, which must have been told by now.
        self.stand(Standing::Closed);
        if let Some(attached) = attached {
            let _ = timeout(FAREWELL, attached.voice.over()).await;
        }
    }

    /// Returns what is offered.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.0.offer
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        self.0.engine.clock()
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }
}

/// A connection that carries a session. Without it, no request of its is carried on.
#[derive(Debug)]
struct Attached {
    servant: Servant,
    session: Arc<Session>,
    connection: u64,
    resumed: bool,
    voice: Voice,
    streams: Arc<Streams>,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.streams.clear();
        self.voice.close(GOING_DOWN, "");
        let inner = &self.servant.0;
        let mut place = lock(&inner.place);
        let ours = |carrying: &mut Carrying| carrying.connection == self.connection;
        if place.attached.take_if(ours).is_none() {
            return;
        }
        drop(place);
        self.servant
            .stand(Standing::Away("the gateway is gone".into()));
        self.session.servers.detach();
        let keeping = self
            .servant
            .clone()
            .keep(Arc::clone(&self.session), self.connection);
        inner.tasks.spawn("executor session", keeping);
    }
}

impl Attached {
    fn is_fenced(&self) -> bool {
        lock(&self.servant.0.place).connection != self.connection
    }

    /// Does what the gateway says until the connection ends.
    async fn read(&self, incoming: &mut Incoming) -> Result<std::convert::Infallible, ServeError> {
        let mut tidy = tokio::time::interval(TIDY_EVERY);
        tidy.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                biased;
                message = incoming.next() => message?,
                _ = tidy.tick() => {
                    self.servant.0.engine.tidy();
                    continue;
                }
            };
            self.take(Frame::read(&message)?)?;
        }
    }

    /// Does what one frame says, without waiting.
    fn take(&self, frame: Frame) -> Result<(), ServeError> {
        match frame {
            Frame::Request { stream, asked } => return self.request(stream, asked),
            Frame::Data {
                stream,
                offset,
                ref bytes,
            } => {
                if let Some(stream) = self.streams.get(stream) {
                    self.streams.data(&stream, offset, bytes.clone());
                    return Ok(());
                }
            }
            Frame::End {
                stream,
                offset,
                ref trailers,
            } => {
                if let Some(stream) = self.streams.get(stream) {
                    self.streams.end(&stream, offset, trailers.clone());
                    return Ok(());
                }
            }
            Frame::Credit { stream, bytes } => {
                if let Some(stream) = self.streams.get(stream) {
                    stream.credit(bytes);
                    return Ok(());
                }
            }
            Frame::Cancel { stream } => {
                if let Some(stream) = self.streams.get(stream) {
                    self.streams.stop(&stream, Stopped::Cancelled);
                    return Ok(());
                }
            }
            Frame::Start { .. } | Frame::Stop { .. } => {}
            Frame::Hello(_)
            | Frame::Open(_)
            | Frame::Opened(_)
            | Frame::Answer { .. }
            | Frame::Failed { .. }
            | Frame::Started { .. }
            | Frame::Stderr { .. }
            | Frame::Exited { .. } => {
                return Err(ServeError::Unexpected("that is not the gateway's to say"));
            }
        }
        // It is a server's, or nobody's any more.
        self.session.servers.take(&frame, &self.voice);
        Ok(())
    }

    /// Takes a request on.
    fn request(&self, number: u64, asked: Asked) -> Result<(), ServeError> {
        let refuse = |code, reason: &str| {
            self.voice.say(&Frame::Failed {
                stream: number,
                fault: Fault {
                    code,
                    execution: Execution::NotStarted,
                    reason: reason.into(),
                },
            });
            Ok(())
        };
        if asked.server.len() > SERVER_BYTES_MAX {
            return refuse(FaultCode::Invalid, "the name of the server is too long");
        }
        let stream = match self.streams.open(number, &asked) {
            Ok(stream) => stream,
            Err(NotTaken::Busy) => return refuse(FaultCode::Busy, "too many requests at once"),
            Err(NotTaken::Over) => return refuse(FaultCode::Closing, "the executor goes down"),
            Err(NotTaken::InUse) => {
                return Err(ServeError::Unexpected("a stream is asked for twice"));
            }
        };
        let inner = &self.servant.0;
        let exchange = Exchange {
            streams: Arc::clone(&self.streams),
            stream,
            voice: self.voice.clone(),
            engine: Arc::clone(&inner.engine),
        };
        inner.tasks.spawn("executor request", exchange.run(asked));
        Ok(())
    }
}
