//! Keeps one connection: busy while something is asked, quiet and small while nothing is.
//!
//! The HTTP server holds buffers for as long as it has a connection, and closes one on which no
//! head arrives in time, be it idle or slow. So it is given the stream when there is something to
//! read and gives it back when nothing is under way; in between only the socket is held.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::Edge;
use super::body::{Answer, EdgeBody};
use super::door::Local;
use super::guard::{Guarded, Pulse};
use super::hold::Hold;
use super::linger;
use super::listen::answer;
use super::stream::Guard;
use super::unread::Unread;
use super::upgrade::{self, Upgrade};

/// How long a caller may take to send a request's head, its first included.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's head.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How long a connection on which something was asked is kept while nothing is.
pub const IDLE_MAX: Duration = Duration::from_secs(300);

/// The same for a connection that has not proved who it is.
pub const UNPROVEN_IDLE_MAX: Duration = Duration::from_secs(10);

/// How often a busy connection is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// A connection becomes quiet at once until it has seen so many requests; then it has shown that
/// more will follow, and becomes quiet only when none did between two looks.
const EAGER_REQUESTS: u32 = 8;

/// A connection that brings bytes so often, and no request with them, is ended.
const FRUITLESS_MAX: u32 = 4;

type Stream = Guarded<Unread<TcpStream>>;

/// What is under way on one connection, as the service sees it.
#[derive(Debug, Default)]
struct Work {
    /// Requests given to the service, counted round and round.
    asked: AtomicU32,
    /// Requests without an answer, and answers that are still being streamed.
    open: AtomicU32,
}

/// One piece of work; over when dropped.
#[derive(Debug)]
struct Open(Arc<Work>);

impl Open {
    fn new(work: &Arc<Work>) -> Self {
        work.asked.fetch_add(1, Relaxed);
        work.open.fetch_add(1, Relaxed);
        Self(Arc::clone(work))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

impl Guard for Open {}

/// Serves a connection to its end, or to that of the token it was proved with.
pub async fn keep(edge: Arc<Edge>, stream: TcpStream, stop: watch::Receiver<bool>) {
    let Ok(from) = stream.peer_addr() else { return };
    let place = edge.connection_pool.enter(from.ip());
    let way = place.signal();
    let held = edge.holds.begin(from, place);
    let hold = held.hold();
    let after = tokio::select! {
        // First, so that streams whose session was ended are ended in order.
        biased;
        after = attend(&edge, hold, stream, stop) => after,
        () = hold.closed() => None,
        () = way.asked() => None,
    };
    if let Some((upgrade, io)) = after {
        // Boxed, so that connections of HTTP do not keep room for what comes after it.
        Box::pin(upgrade::keep(&edge, hold, io, *upgrade)).await;
    }
}

/// A connection that is no longer one of HTTP: what it is, its stream, and what was read of it.
type Upgraded = (Box<Upgrade>, (TcpStream, Bytes));

async fn attend(
    edge: &Arc<Edge>,
    hold: &Arc<Hold>,
    stream: TcpStream,
    mut stop: watch::Receiver<bool>,
) -> Option<Upgraded> {
    // Without it small answers wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok()?;
    let heads = Arc::clone(&edge.large_heads);
    let mut stream = Guarded::new(Unread::new(stream)).counting_heads(heads);
    let pulse = stream.pulse();
    let keeper = Keeper {
        edge: Arc::clone(edge),
        hold: Arc::clone(hold),
        local: Arc::new(Local::new(local)),
        pulse,
        work: Arc::default(),
    };
    let mut patience = HEAD_TIMEOUT;
    let mut asked = 0;
    let mut fruitless = 0;
    while fruitless < FRUITLESS_MAX && keeper.wait(&stream, patience, &mut stop).await {
        // Boxed, so that a quiet connection does not keep room for a busy one.
        match Box::pin(keeper.serve(stream, &mut stop)).await {
            After::Quiet(back) => stream = back,
            After::Upgraded(upgraded) => return Some(upgraded),
            After::Unread(socket) => {
                Box::pin(keeper.linger(&socket, &mut stop)).await;
                return None;
            }
            After::Over => return None,
        }
        let so_far = keeper.work.asked.load(Relaxed);
        if so_far == asked {
            // Empty lines, which may stand before a request, and no request.
            fruitless += 1;
        } else {
            asked = so_far;
            fruitless = 0;
            patience = match hold.is_proven() {
                true => IDLE_MAX,
                false => UNPROVEN_IDLE_MAX,
            };
        }
    }
    None
}

/// What a connection is after it was busy.
enum After {
    /// Quiet, and one of HTTP still.
    Quiet(Stream),
    /// Something else.
    Upgraded(Upgraded),
    /// Answered and shut for writing, while the caller still sends the body of its request.
    Unread(TcpStream),
    /// Nothing.
    Over,
}

/// Waits until it is time to stop; whoever could say so being gone means the same.
pub(super) async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// What happens next on a busy connection.
enum Next {
    /// It is over.
    Ended,
    /// Nothing is under way.
    Quiet,
    /// Time to look at it.
    Look,
    /// The gateway goes down.
    Stop,
}

/// What a connection needs for all its life.
#[derive(Debug)]
struct Keeper {
    edge: Arc<Edge>,
    hold: Arc<Hold>,
    local: Arc<Local>,
    pulse: Arc<Pulse>,
    work: Arc<Work>,
}

impl Keeper {
    /// Waits until there is something to read; `false` when the connection should end instead.
    async fn wait(
        &self,
        stream: &Stream,
        patience: Duration,
        stop: &mut watch::Receiver<bool>,
    ) -> bool {
        tokio::select! {
            biased;
            readable = stream.get_ref().get_ref().readable() => readable.is_ok(),
            () = told(stop) => false,
            () = tokio::time::sleep(patience) => false,
        }
    }

    /// Serves requests until none is under way, and gives the stream back.
    async fn serve(&self, stream: Stream, stop: &mut watch::Receiver<bool>) -> After {
        let service = service_fn(|request| {
            let (edge, local) = (Arc::clone(&self.edge), Arc::clone(&self.local));
            let hold = Arc::clone(&self.hold);
            let pulse = Arc::clone(&self.pulse);
            let open = Open::new(&self.work);
            async move {
                let answer = answer(&edge, request, (&local, &hold)).await;
                if hold.is_proven() {
                    pulse.prove();
                }
                Ok::<_, Infallible>(held(answer, open))
            }
        });
        let mut serving = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut looks = tokio::time::interval(LOOK);
        looks.reset();
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::default();
        let mut stopping = false;
        loop {
            let next = tokio::select! {
                biased;
                next = poll_fn(|cx| match Pin::new(&mut serving).poll(cx) {
                    Poll::Ready(ended) => {
                        if let Err(error) = ended {
                            let error = &error as &dyn std::error::Error;
                            tracing::debug!(error, "connection ended");
                        }
                        Poll::Ready(Next::Ended)
                    }
                    Poll::Pending if self.is_eager() && self.is_quiet() => Poll::Ready(Next::Quiet),
                    Poll::Pending => Poll::Pending,
                }) => next,
                _ = looks.tick() => Next::Look,
                () = told(stop), if !stopping => Next::Stop,
            };
            match next {
                Next::Ended => return self.ended(serving.into_parts()),
                Next::Quiet => break,
                Next::Look if watch.is_slow(&self.pulse) => return After::Over,
                Next::Look if !stopping && watch.is_unused(&self.pulse) && self.is_quiet() => break,
                Next::Look => {}
                Next::Stop => {
                    stopping = true;
                    Pin::new(&mut serving).graceful_shutdown();
                }
            }
        }
        After::Quiet(serving.into_parts().io.into_inner())
    }

    /// A connection that HTTP is done with may go on as something else.
    fn ended<S>(&self, parts: http1::Parts<TokioIo<Stream>, S>) -> After {
        let stream = parts.io.into_inner().into_inner();
        let Some(stream) = stream.map(Unread::into_inner) else {
            return After::Over;
        };
        match self.hold.upgrade() {
            Some(upgrade) => After::Upgraded((upgrade, (stream, parts.read_buf))),
            None if self.pulse.is_in_body() => After::Unread(stream),
            None => After::Over,
        }
    }

    /// Reads on after the last answer, so that the caller gets it; ends when the gateway stops.
    async fn linger(&self, socket: &TcpStream, stop: &mut watch::Receiver<bool>) {
        tokio::select! {
            () = linger::discard(&self.edge, &self.hold, socket) => {}
            () = told(stop) => {}
        }
    }

    /// Whether every request that came was answered, and nothing else has begun to arrive.
    fn is_quiet(&self) -> bool {
        self.pulse.is_between()
            && self.work.open.load(Relaxed) == 0
            && self.work.asked.load(Relaxed) == self.pulse.heads()
    }

    fn is_eager(&self) -> bool {
        self.work.asked.load(Relaxed) < EAGER_REQUESTS
    }
}

/// What one look at a busy connection remembers for the next.
#[derive(Debug, Default)]
struct Watch {
    reads: u32,
    heads: u32,
    /// Looks in a row at the same unfinished head.
    slow_looks: u32,
}

impl Watch {
    /// Whether nothing was read since the last look.
    fn is_unused(&mut self, pulse: &Pulse) -> bool {
        let before = std::mem::replace(&mut self.reads, pulse.reads());
        before == pulse.reads()
    }

    /// Whether a head has been arriving for too long.
    fn is_slow(&mut self, pulse: &Pulse) -> bool {
        let before = std::mem::replace(&mut self.heads, pulse.heads());
        self.slow_looks = if pulse.is_in_head() && before == pulse.heads() {
            self.slow_looks + 1
        } else {
            0
        };
        LOOK * self.slow_looks >= HEAD_TIMEOUT
    }
}

/// Lets an answer that is streamed count as work for as long as it lives. One that is whole is
/// written, or waits to be, in the moment it is given out.
fn held(mut answer: Answer, open: Open) -> Answer {
    match answer.body_mut() {
        EdgeBody::Events(events) => events.keep(Box::new(open)),
        EdgeBody::Watcher(watcher) => watcher.keep(Box::new(open)),
        EdgeBody::Large(large) => large.keep(Box::new(open)),
        EdgeBody::Whole(_) | EdgeBody::Api(_) => {}
    }
    answer
}
