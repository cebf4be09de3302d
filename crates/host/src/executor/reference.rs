//! Serves clients that speak the wire of exec-servers: HTTP requests, and nothing else.
//!
//! Processes and files are not offered: nothing from the network names a command here.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_link::BoxFuture;
use bowline_link::executor::{BROKE_PROTOCOL, GOING_DOWN, exec_server_limits};
use bowline_link::websocket::{Ended, Incoming, Outgoing};
use bowline_wire::execserver::{self, Asked, Id, Initialize, Refusal, Said, Verb, code};
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use self::request::Request;
use self::sessions::{Attached, NoSession, Sessions};
use super::engine::Engine;
use super::listen::{Attend, Door, ListenError, listen_with};
use super::offer::Offer;
use super::servant::{Servant, Standing};
use crate::ports::SystemClock;
use crate::tasks::Tasks;

mod follow;
mod request;
mod sessions;

/// How long a client may take until it says that it is ready.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Bytes of whole bodies that one connection holds, of requests and of answers.
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Offers what this machine has to whoever dials `listener` and speaks the wire of exec-servers,
/// until `shutdown` ends.
///
/// # Errors
/// Nobody can be let in.
pub async fn listen_as_exec_server(
    listener: TcpListener,
    door: Door,
    offer: Offer,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let servant = Servant::new(
        as_exec_server(offer),
        Tasks::default(),
        Arc::new(SystemClock::start()),
    );
    let reference = Arc::new(Reference::new(&servant));
    listen_with(listener, door, reference, &servant, shutdown).await
}

/// Returns an offer whose connections are bounded as this wire wants it.
#[must_use]
pub fn as_exec_server(mut offer: Offer) -> Offer {
    let queue_bytes_max = offer.limits.socket.queue_bytes_max;
    offer.limits.socket = exec_server_limits();
    offer.limits.socket.queue_bytes_max = queue_bytes_max;
    offer
}

/// Serves clients of exec-servers with what a servant has.
#[derive(Debug)]
pub struct Reference {
    servant: Servant,
    sessions: Arc<Sessions>,
}

impl Reference {
    /// Returns one that nobody has asked for anything. Connections must be made with the bounds of
    /// [`as_exec_server`].
    #[must_use]
    pub fn new(servant: &Servant) -> Self {
        let keep = servant.offer().limits.keep;
        Self {
            servant: servant.clone(),
            sessions: Sessions::new(keep, servant.tasks().clone()),
        }
    }
}

impl Attend for Reference {
    fn attend(&self, (outgoing, incoming): (Outgoing, Incoming)) -> BoxFuture<'_, ()> {
        let shared = Shared {
            engine: Arc::clone(self.servant.engine()),
            outgoing,
            active: Mutex::default(),
            bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
        };
        let streams_max = self.servant.offer().limits.flow.streams_max;
        let streams_max = usize::try_from(streams_max).unwrap_or(usize::MAX);
        let connection = Connection {
            shared: Arc::new(shared),
            sessions: Arc::clone(&self.sessions),
            tasks: self.servant.tasks().clone(),
            places: Arc::new(Semaphore::new(streams_max.min(Semaphore::MAX_PERMITS))),
            stop: watch::Sender::default(),
            phase: Phase::New,
        };
        Box::pin(async move {
            let ended = connection.serve(incoming, &self.servant).await;
            self.servant
                .stand(Standing::Away("the client is gone".into()));
            tracing::info!(
                error = &ended as &dyn std::error::Error,
                "a client of the exec-server is gone"
            );
        })
    }
}

/// What a connection and its requests share.
#[derive(Debug)]
struct Shared {
    engine: Arc<Engine>,
    outgoing: Outgoing,
    /// The streams of which more is to be sent, by the names that the client gave them.
    active: Mutex<HashSet<Arc<str>>>,
    /// Room for whole bodies.
    bodies: Arc<Semaphore>,
}

/// How far a client is.
#[derive(Debug)]
enum Phase {
    /// It said nothing.
    New,
    /// It was told its session.
    Greeted(Attached),
    /// It may ask.
    Ready { _session: Attached },
}

/// One connection. Without it, no request of its is carried on.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    tasks: Tasks,
    /// Requests that it may have at once.
    places: Arc<Semaphore>,
    /// Ends its requests when it is dropped.
    stop: watch::Sender<()>,
    phase: Phase,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.outgoing.close(GOING_DOWN, "");
    }
}

impl Connection {
    async fn serve(mut self, mut incoming: Incoming, servant: &Servant) -> Ended {
        let shaken = timeout(HANDSHAKE, async {
            while !matches!(self.phase, Phase::Ready { .. }) {
                self.step(&mut incoming).await?;
            }
            Ok(())
        });
        match shaken.await {
            Ok(Ok(())) => {}
            Ok(Err(ended)) => return ended,
            Err(_late) => return self.broke("no handshake in time"),
        }
        servant.stand(Standing::Connected);
        loop {
            if let Err(ended) = self.step(&mut incoming).await {
                return ended;
            }
        }
    }

    /// Does what one message says.
    async fn step(&mut self, incoming: &mut Incoming) -> Result<(), Ended> {
        let message = incoming.next().await?;
        match Said::read(&message) {
            Ok(said) => self.take(said).await,
            // One that cannot be read hurts nobody else.
            Err(error) => {
                self.shared
                    .outgoing
                    .send(execserver::malformed(error))
                    .await
            }
        }
    }

    async fn take(&mut self, said: Said) -> Result<(), Ended> {
        match said {
            Said::Request { id, verb, params } => {
                let answer = match verb {
                    Verb::Initialize => self.initialize(&id, &params),
                    Verb::Request => match self.request(&id, &params) {
                        Ok(()) => return Ok(()),
                        Err(refusal) => Err(refusal),
                    },
                    Verb::Status => self.ready().map(|()| execserver::ready(&id)),
                    Verb::Initialized | Verb::Delta | Verb::Other(_) => {
                        let reason = format!("`{}` is not offered", verb.as_str());
                        Err(refusal(code::METHOD, &reason))
                    }
                };
                let answer = answer.unwrap_or_else(|refusal| execserver::refused(&id, &refusal));
                self.shared.outgoing.send(answer).await
            }
            Said::Notice {
                verb: Verb::Initialized,
                ..
            } => match std::mem::replace(&mut self.phase, Phase::New) {
                Phase::New => Err(self.broke("`initialized` comes before `initialize`")),
                Phase::Greeted(session) | Phase::Ready { _session: session } => {
                    self.phase = Phase::Ready { _session: session };
                    Ok(())
                }
            },
            Said::Notice { .. } => Err(self.broke("there is no such notification")),
            Said::Result { .. } | Said::Refused { .. } => Err(self.broke("nothing was asked")),
        }
    }

    /// Ends a connection whose client does not keep to the wire.
    fn broke(&self, reason: &str) -> Ended {
        self.shared.outgoing.close(BROKE_PROTOCOL, reason);
        Ended::Invalid(reason.into())
    }

    fn initialize(&mut self, id: &Id, params: &Bytes) -> Result<Bytes, Refusal> {
        if !matches!(self.phase, Phase::New) {
            let reason = "initialize may only be sent once per connection";
            return Err(refusal(code::INVALID_REQUEST, reason));
        }
        let first = Initialize::read(params)
            .map_err(|error| refusal(code::INVALID_PARAMS, &error.to_string()))?;
        let session = match first.resume {
            None => self.sessions.open(),
            Some(known) => self.sessions.resume(&known).map_err(|why| match why {
                NoSession::Unknown => {
                    let reason = format!("unknown session id {known}");
                    refusal(code::INVALID_REQUEST, &reason)
                }
                NoSession::Attached => {
                    let reason = format!("session {known} is already attached");
                    refusal(code::SESSION_ATTACHED, &reason)
                }
            })?,
        };
        let answer = execserver::opened(id, session.id());
        self.phase = Phase::Greeted(session);
        Ok(answer)
    }

    /// Whether the client may ask for something.
    fn ready(&self) -> Result<(), Refusal> {
        let reason = match &self.phase {
            Phase::New => "client must call initialize first",
            Phase::Greeted(_) => "client must send initialized first",
            Phase::Ready { .. } => return Ok(()),
        };
        Err(refusal(code::INVALID_REQUEST, reason))
    }

    /// Takes a request on; it answers by itself.
    fn request(&self, id: &Id, params: &Bytes) -> Result<(), Refusal> {
        self.ready()?;
        let asked = Asked::read(params)
            .map_err(|error| refusal(code::INVALID_PARAMS, &error.to_string()))?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_full| request::busy("too many requests at once"))?;
        let weight = asked.body.as_ref().map_or(0, Bytes::len);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.shared.bodies).try_acquire_many_owned(weight);
        let room = room.map_err(|_full| request::busy("too many bodies at once"))?;
        let active = match asked.is_streamed {
            true => Some(self.shared.activate(&asked.request_id)?),
            false => None,
        };
        let request = Request {
            shared: Arc::clone(&self.shared),
            id: id.clone(),
            active,
        };
        let mut stop = self.stop.subscribe();
        self.tasks.spawn("exec-server request", async move {
            let _held = (place, room);
            tokio::select! {
                biased;
                _ = stop.changed() => {}
                () = request.run(asked) => {}
            }
        });
        Ok(())
    }
}

/// A stream that has its name for itself.
#[derive(Debug)]
struct Active {
    shared: Arc<Shared>,
    name: Arc<str>,
}

impl Drop for Active {
    fn drop(&mut self) {
        lock(&self.shared.active).remove(&self.name);
    }
}

impl Shared {
    fn activate(self: &Arc<Self>, name: &Arc<str>) -> Result<Active, Refusal> {
        if !lock(&self.active).insert(Arc::clone(name)) {
            let reason = format!("http/request requestId `{name}` is already active");
            return Err(refusal(code::INVALID_PARAMS, &reason));
        }
        Ok(Active {
            shared: Arc::clone(self),
            name: Arc::clone(name),
        })
    }
}

fn refusal(code: i64, message: &str) -> Refusal {
    Refusal {
        code,
        message: message.into(),
        fault: None,
    }
}
