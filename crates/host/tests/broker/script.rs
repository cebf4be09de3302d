//! A broker that does what a test says, over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_host::broker::{Client, ClientOptions, Credential, Reconnect, RemoteTools};
use bowline_host::tasks::Tasks;
use bowline_link::websocket::{Ended, Incoming, Outgoing, Side, SocketLimits, accept_key, join};
use bowline_wire::broker::{
    Answer, Ask, Draft, Frame, From, Hello, Item, Letter, REPLY, Request, Said, Welcome,
};
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

/// Nothing in these tests takes so long unless it hangs.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Where peers come in, one after the other.
#[derive(Debug)]
pub(crate) struct Broker {
    listener: TcpListener,
    tasks: Tasks,
    limits: SocketLimits,
}

/// One connection, as the broker sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) outgoing: Outgoing,
    incoming: Incoming,
    /// What the peer's request said, in lower case.
    pub(crate) head: String,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        Self::at(([127, 0, 0, 1], 0).into()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        Self {
            listener: TcpListener::bind(address).await.unwrap(),
            tasks: Tasks::default(),
            limits: SocketLimits::default(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Takes the next connection as it is.
    pub(crate) async fn stream(&self) -> TcpStream {
        timeout(LONG, self.listener.accept())
            .await
            .unwrap()
            .unwrap()
            .0
    }

    /// Whether a connection waits to be taken.
    pub(crate) async fn is_dialled_within(&self, wait: Duration) -> bool {
        timeout(wait, self.listener.accept()).await.is_ok()
    }

    /// Takes the next connection and shakes hands.
    pub(crate) async fn peer(&self) -> Peer {
        let mut stream = self.stream().await;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let line = |line: &&str| line.to_ascii_lowercase().starts_with("sec-websocket-key:");
        let key = head.lines().find(line).unwrap().split_once(':').unwrap().1;
        let accept = accept_key(key.trim().as_bytes());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-accept: {accept}\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (side, limits) = (Side::Server, self.limits);
        let (outgoing, incoming) = join(stream, side, Bytes::new(), limits, &self.tasks);
        Peer {
            outgoing,
            incoming,
            head: head.to_ascii_lowercase(),
        }
    }

    /// Takes the next connection, lets it in, and says what there is.
    pub(crate) async fn let_in(&self, items: &[Item]) -> Peer {
        let mut peer = self.peer().await;
        peer.greet().await;
        peer.list(items, 1).await;
        peer
    }
}

impl Peer {
    /// Returns the next frame.
    pub(crate) async fn next(&mut self) -> Frame {
        let bytes = timeout(LONG, self.incoming.next()).await.unwrap().unwrap();
        Frame::read(&bytes).unwrap()
    }

    /// Returns the next frame if one comes in that time.
    pub(crate) async fn next_within(&mut self, wait: Duration) -> Option<Frame> {
        let bytes = timeout(wait, self.incoming.next()).await.ok()?.unwrap();
        Some(Frame::read(&bytes).unwrap())
    }

    /// Waits for the end.
    pub(crate) async fn end(mut self) -> Ended {
        loop {
            if let Err(ended) = timeout(LONG, self.incoming.next()).await.unwrap() {
                return ended;
            }
        }
    }

    pub(crate) async fn say(&self, frame: &Frame) {
        self.outgoing.send(frame.to_bytes()).await.unwrap();
    }

    pub(crate) async fn greet(&mut self) -> Hello {
        let Frame::Hello(hello) = self.next().await else {
            panic!("no hello")
        };
        self.welcome(256).await;
        assert_eq!(self.next().await, Frame::Subscribe);
        hello
    }

    pub(crate) async fn welcome(&self, requests_max: usize) {
        let welcome = Welcome {
            mailbox: "w#mcp".into(),
            role: Some("reader".into()),
            heartbeat_ms: 10_000,
            requests_max,
        };
        self.say(&Frame::Welcome(welcome)).await;
        self.say(&Frame::BrokerIdentity { id: "b".into() }).await;
    }

    /// Answers the request for the manifest.
    pub(crate) async fn list(&mut self, items: &[Item], revision: u64) {
        let (id, ask) = self.request().await;
        assert_eq!(ask, Ask::Manifest);
        let items = items.to_vec();
        self.respond(&id, &Answer::Manifest { items, revision })
            .await;
    }

    /// Returns the next live request.
    pub(crate) async fn request(&mut self) -> (Arc<str>, Ask) {
        let Frame::Request(Request { id, body, .. }) = self.next().await else {
            panic!("no request")
        };
        (id, Ask::read(&body).unwrap())
    }

    pub(crate) async fn respond(&self, id: &Arc<str>, answer: &Answer) {
        self.say(&Frame::Response {
            id: Arc::clone(id),
            body: answer.to_bytes(Said::Brief),
        })
        .await;
    }

    /// Returns the next message to be stored, for the hub.
    pub(crate) async fn delivery(&mut self) -> Letter {
        let Frame::Deliver { to, letter } = self.next().await else {
            panic!("no delivery")
        };
        assert_eq!(&*to, "hub");
        letter
    }

    pub(crate) async fn receipt(&self, letter: &Letter) {
        let id = Arc::clone(&letter.id);
        self.say(&Frame::Delivered { id }).await;
    }

    /// Sends a reply from `from` to the request of this id, under an id of its own.
    pub(crate) async fn reply(&self, from: &str, id: &str, request: &str, body: &[u8]) {
        let letter = Letter::new(&Draft {
            id,
            kind: REPLY,
            body,
            correlation_id: Some(request),
            ttl_ms: None,
            created_at_ms: 0,
        });
        let from = From {
            session_id: from.into(),
            ..From::default()
        };
        self.say(&Frame::Message(letter.stamped(&from))).await;
    }

    /// Sends a message of some kind.
    pub(crate) async fn message(&self, id: &str, kind: &str) {
        let letter = Letter::new(&Draft {
            id,
            kind,
            body: b"{}",
            correlation_id: None,
            ttl_ms: None,
            created_at_ms: 0,
        });
        self.say(&Frame::Message(letter)).await;
    }

    /// Sees a message become a dead letter, which is no acknowledgement.
    pub(crate) async fn buries(&mut self, message: &str) {
        let Frame::Nak { id, dead, .. } = self.next().await else {
            panic!("{message} was not buried")
        };
        assert_eq!((&*id, dead.is_some()), (message, true));
    }

    /// Gives the receipt of a request and its answer, and waits for the acknowledgement.
    pub(crate) async fn serve(&mut self, letter: &Letter, answer: &Answer) {
        self.receipt(letter).await;
        let id = format!("re.{}", letter.id);
        let body = answer.to_bytes(Said::Whole);
        self.reply("hub", &id, &letter.id, &body).await;
        assert_eq!(self.next().await, Frame::Ack { id: id.into() });
    }
}

/// Carries bytes between a client and a broker, until it is cut without a word.
#[derive(Debug)]
pub(crate) struct Wire {
    listener: TcpListener,
    broker: SocketAddr,
}

impl Wire {
    pub(crate) async fn to(broker: SocketAddr) -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            broker,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// Carries the next connection. Once cut, nothing passes, and both ends stay open.
    pub(crate) async fn carry(&self, tasks: &Tasks, mut cut: watch::Receiver<bool>) {
        let (mut near, _) = timeout(LONG, self.listener.accept())
            .await
            .unwrap()
            .unwrap();
        let mut far = TcpStream::connect(self.broker).await.unwrap();
        tasks.spawn("wire", async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                _ = cut.wait_for(|cut| *cut) => {}
            }
            // Held until the client gives up its end.
            let mut left = [0; 1];
            while near.peek(&mut left).await.is_ok_and(|bytes| bytes > 0) {
                near.read_exact(&mut left).await.unwrap();
            }
        });
    }
}

/// A tool of a manifest.
pub(crate) fn item(name: &str, repeatable: bool) -> Item {
    let definition = format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
    Item {
        name: name.into(),
        server: Some("s".into()),
        tool: Some(name.into()),
        repeatable,
        definition: definition.into(),
    }
}

pub(crate) fn output(text: &str) -> Answer {
    let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    Answer::Output {
        result: result.into(),
        again: false,
        era: Era::Legacy,
    }
}

/// Options whose waits are short.
pub(crate) fn quick() -> ClientOptions {
    let mut options = ClientOptions::default();
    options.reconnect = Reconnect {
        steady: Duration::ZERO,
        ..options.reconnect
    };
    options
}

pub(crate) fn client(broker: &Broker, options: ClientOptions) -> Client {
    Client::start(&broker.url(), Credential::fixed("secret"), options, None).unwrap()
}

/// Connects an executor that is offered these tools.
pub(crate) async fn tools(broker: &Broker, items: &[Item]) -> (RemoteTools, Peer) {
    tools_with(broker, items, quick()).await
}

pub(crate) async fn tools_with(
    broker: &Broker,
    items: &[Item],
    options: ClientOptions,
) -> (RemoteTools, Peer) {
    let credential = Credential::fixed("secret");
    let url = broker.url();
    let connect = RemoteTools::connect_with(&url, credential, LONG, options);
    let (tools, peer) = tokio::join!(connect, broker.let_in(items));
    (tools.unwrap(), peer)
}
