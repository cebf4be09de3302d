//! A servant between a scripted gateway and scripted servers.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::egress::Rule;
use bowline_core::flow::FlowLimits;
use bowline_host::executor::{Offer, Servant, ServeError};
use bowline_host::ports::SystemClock;
use bowline_host::tasks::Tasks;
use bowline_link::websocket::{Ended, Incoming, Outgoing, Side, join};
use bowline_wire::executor::{Asked, Fault, Frame, Hello, Open, Opened, VERSION};
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Longer than anything here takes; a hang is told by it.
const SOON: Duration = Duration::from_secs(20);

pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("in time")
}

/// Two ends of one connection.
pub(super) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialling = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dialling, listener.accept());
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap().0);
    dialled.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (dialled, accepted)
}

pub(super) fn servant(offer: Offer) -> (Servant, Tasks) {
    let tasks = Tasks::default();
    let clock = Arc::new(SystemClock::start());
    (Servant::new(offer, tasks.clone(), clock), tasks)
}

#[expect(clippy::disallowed_methods, reason = "tests")]
pub(super) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(task)
}

#[expect(clippy::disallowed_methods, reason = "tests")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Shows a figure to who wants to see it.
#[expect(clippy::print_stdout, reason = "tests")]
pub(super) fn tell(figure: &str) {
    println!("{figure}");
}

pub(super) fn tasks() -> Tasks {
    Tasks::default()
}

/// A gateway that says what it is told to say.
pub(super) struct Gateway {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) attending: JoinHandle<ServeError>,
}

impl Gateway {
    /// Connects, and has heard nothing yet.
    pub(super) async fn connect(servant: &Servant, tasks: &Tasks, offer: &Offer) -> Self {
        let (ours, theirs) = pair().await;
        let limits = offer.limits.socket;
        let io = join(theirs, Side::Client, Bytes::new(), limits, tasks);
        let (outgoing, incoming) = join(ours, Side::Server, Bytes::new(), limits, tasks);
        let servant = servant.clone();
        let attending = spawn(async move { servant.attend(io).await });
        Self {
            outgoing,
            incoming,
            attending,
        }
    }

    /// Connects and shakes hands.
    pub(super) async fn open(
        (servant, tasks): &(Servant, Tasks),
        offer: &Offer,
        session: &str,
    ) -> (Self, Hello, Opened) {
        let mut gateway = Self::connect(servant, tasks, offer).await;
        let hello = match gateway.next().await {
            Frame::Hello(hello) => hello,
            other => panic!("{other:?}"),
        };
        let open = Open {
            v: VERSION,
            session: session.into(),
            marks: Vec::new(),
        };
        gateway.say(Frame::Open(open)).await;
        match gateway.next().await {
            Frame::Opened(opened) => (gateway, hello, opened),
            other => panic!("{other:?}"),
        }
    }

    /// Connects to a new servant.
    pub(super) async fn new(offer: Offer) -> Self {
        let servant = servant(offer.clone());
        Self::open(&servant, &offer, "one").await.0
    }

    pub(super) async fn say(&self, frame: Frame) {
        soon(self.outgoing.send(frame.to_bytes())).await.unwrap();
    }

    pub(super) async fn ask(&self, stream: u64, asked: Asked) {
        self.say(Frame::Request { stream, asked }).await;
    }

    pub(super) async fn send(&self, stream: u64, offset: u64, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.say(Frame::Data {
            stream,
            offset,
            bytes,
        })
        .await;
    }

    pub(super) async fn end(&self, stream: u64, offset: u64, trailers: &'static str) {
        let trailers = Bytes::from_static(trailers.as_bytes());
        self.say(Frame::End {
            stream,
            offset,
            trailers,
        })
        .await;
    }

    pub(super) async fn credit(&self, stream: u64, bytes: u64) {
        self.say(Frame::Credit { stream, bytes }).await;
    }

    pub(super) async fn next(&mut self) -> Frame {
        let message = soon(self.incoming.next()).await.unwrap();
        Frame::read(&message).unwrap()
    }

    /// Goes away without a word; what attends it ends.
    pub(super) fn leave(self) -> JoinHandle<ServeError> {
        self.outgoing.close(1011, "");
        self.attending
    }

    /// Waits for the end of the connection.
    pub(super) async fn ended(&mut self) -> Ended {
        loop {
            if let Err(ended) = soon(self.incoming.next()).await {
                return ended;
            }
        }
    }

    /// Waits for the head of an answer; credit may come before.
    pub(super) async fn status(&mut self, number: u64) -> u16 {
        loop {
            match self.next().await {
                Frame::Answer { stream, answered } if stream == number => return answered.status,
                Frame::Credit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits for the next piece of an answer.
    pub(super) async fn piece(&mut self, number: u64) -> (u64, Bytes) {
        match self.next().await {
            Frame::Data {
                stream,
                offset,
                bytes,
            } if stream == number => (offset, bytes),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of a stream that fails.
    pub(super) async fn fault(&mut self, number: u64) -> Fault {
        loop {
            match self.next().await {
                Frame::Failed { stream, fault } if stream == number => return fault,
                Frame::End { stream, .. } if stream == number => panic!("it did not fail"),
                _ => {}
            }
        }
    }

    /// Reads the answer of the only stream to its end, and checks every offset.
    pub(super) async fn body(&mut self, number: u64) -> (Vec<u8>, Bytes) {
        let mut body = Vec::new();
        loop {
            match self.next().await {
                Frame::Data {
                    stream,
                    offset,
                    bytes,
                } if stream == number => {
                    assert_eq!(offset, body.len() as u64);
                    body.extend_from_slice(&bytes);
                }
                Frame::End {
                    stream,
                    offset,
                    trailers,
                } if stream == number => {
                    assert_eq!(offset, body.len() as u64);
                    return (body, trailers);
                }
                Frame::Credit { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A request without a body, and with room for an answer.
pub(super) fn get(url: &str) -> Asked {
    Asked {
        server: "tracker".into(),
        credit: FlowLimits::default().first_bytes,
        length: Some(0),
        method: "GET".into(),
        url: url.into(),
        ..Asked::default()
    }
}

/// A server that does what it is told to do.
pub(super) struct Upstream {
    pub(super) listener: TcpListener,
    pub(super) url: String,
}

impl Upstream {
    pub(super) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// Returns who may go there, as an offer says it.
    pub(super) fn offer(&self) -> Offer {
        let rule = format!("localhost:{}", self.listener.local_addr().unwrap().port());
        let mut offer = Offer::new("office");
        offer.egress.all = vec![Rule::parse(&rule).unwrap()];
        offer
    }

    /// Checks that nobody has come.
    pub(super) async fn was_left_alone(&self) {
        let mut next = pin!(self.listener.accept());
        let came = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_ready()));
        assert!(!came.await, "somebody came");
    }

    /// Takes a connection and reads the head of the request on it.
    pub(super) async fn taken(&self) -> (TcpStream, String) {
        let (mut stream, _) = soon(self.listener.accept()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let head = head(&mut stream).await;
        (stream, head)
    }
}

/// Reads the head of a request.
pub(super) async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    soon(async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    })
    .await;
    String::from_utf8(head).unwrap()
}

pub(super) async fn write(stream: &mut TcpStream, bytes: impl AsRef<[u8]>) {
    soon(stream.write_all(bytes.as_ref())).await.unwrap();
}

pub(super) async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    soon(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Waits until the other side has closed its end.
pub(super) async fn closed(stream: &mut TcpStream) {
    soon(async {
        let mut nothing = vec![0; 64 * 1024];
        while let Ok(1..) = stream.read(&mut nothing).await {}
    })
    .await;
}
