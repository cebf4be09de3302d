//! A scripted broker over real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_broker::frames::{
    BrokerFrame, BrokerHello, BrokerRequest, BrokerResponse, BrokerWelcome, LiveRequest,
    MailboxMessage, ManifestItem, MessageBody, MessageDraft, MessageSender, REPLY_KIND, ResultForm,
};
use bowline_broker::{
    BrokerClient, BrokerClientOptions, CredentialSource, ReconnectPolicy, RemoteTools,
};
use bowline_core::era::Era;
use bowline_link::websocket::{
    DisconnectReason, WebSocketLimits, WebSocketReceiver, WebSocketRole, WebSocketSender,
    accept_key, open_websocket,
};
use bowline_runtime::TaskTracker;
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::{WAIT_MAX, listen_on_loopback, read_head, wait_bounded};

/// Accepts clients, in order.
#[derive(Debug)]
pub struct ScriptedBroker {
    listener: TcpListener,
    tasks: TaskTracker,
    limits: WebSocketLimits,
}

/// One connection, on the broker's side.
#[derive(Debug)]
pub struct ScriptedBrokerPeer {
    pub outgoing: WebSocketSender,
    incoming: WebSocketReceiver,
    /// The HTTP request head of the client, in lower case.
    pub head: String,
}

impl ScriptedBroker {
    pub async fn start() -> Self {
        Self::bind_at(([127, 0, 0, 1], 0).into()).await
    }

    pub async fn bind_at(address: SocketAddr) -> Self {
        Self {
            listener: TcpListener::bind(address).await.unwrap(),
            tasks: TaskTracker::default(),
            limits: WebSocketLimits::default(),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Accepts the next raw connection.
    pub async fn stream(&self) -> TcpStream {
        wait_bounded(self.listener.accept()).await.unwrap().0
    }

    /// Whether a connection arrives within the time.
    pub async fn is_dialled_within(&self, wait: Duration) -> bool {
        timeout(wait, self.listener.accept()).await.is_ok()
    }

    /// Accepts the next connection and upgrades to a WebSocket.
    pub async fn peer(&self) -> ScriptedBrokerPeer {
        let mut stream = self.stream().await;
        let head = read_head(&mut stream).await;
        let line = |line: &&str| line.to_ascii_lowercase().starts_with("sec-websocket-key:");
        let key = head.lines().find(line).unwrap().split_once(':').unwrap().1;
        let accept = accept_key(key.trim().as_bytes());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-accept: {accept}\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (side, limits) = (WebSocketRole::Server, self.limits);
        let socket = open_websocket(stream, side, Bytes::new(), limits, &self.tasks);
        ScriptedBrokerPeer {
            outgoing: socket.sender,
            incoming: socket.receiver,
            head: head.to_ascii_lowercase(),
        }
    }

    /// Accepts the next client and sends the manifest.
    pub async fn accept_client(&self, items: &[ManifestItem]) -> ScriptedBrokerPeer {
        let mut peer = self.peer().await;
        peer.handshake().await;
        peer.respond_manifest(items, 1).await;
        peer
    }
}

impl ScriptedBrokerPeer {
    /// Returns the next frame.
    pub async fn next(&mut self) -> BrokerFrame {
        let bytes = wait_bounded(self.incoming.next()).await.unwrap();
        BrokerFrame::parse(&bytes).unwrap()
    }

    /// Returns the next frame within the time, if any.
    pub async fn next_within(&mut self, wait: Duration) -> Option<BrokerFrame> {
        let bytes = timeout(wait, self.incoming.next()).await.ok()?.unwrap();
        Some(BrokerFrame::parse(&bytes).unwrap())
    }

    /// Waits for the end.
    pub async fn end(mut self) -> DisconnectReason {
        loop {
            if let Err(ended) = wait_bounded(self.incoming.next()).await {
                return ended;
            }
        }
    }

    pub async fn send_frame(&self, frame: &BrokerFrame) {
        self.outgoing.send(frame.to_bytes()).await.unwrap();
    }

    pub async fn handshake(&mut self) -> BrokerHello {
        let BrokerFrame::Hello(hello) = self.next().await else {
            panic!("no hello")
        };
        self.welcome(256).await;
        assert_eq!(self.next().await, BrokerFrame::Subscribe);
        hello
    }

    pub async fn welcome(&self, requests_max: usize) {
        let welcome = BrokerWelcome {
            mailbox: "w#mcp".into(),
            role: Some("reader".into()),
            heartbeat_ms: 10_000,
            requests_max,
        };
        self.send_frame(&BrokerFrame::Welcome(welcome)).await;
        self.send_frame(&BrokerFrame::BrokerIdentity { id: "b".into() })
            .await;
    }

    /// Responds to the manifest request.
    pub async fn respond_manifest(&mut self, items: &[ManifestItem], revision: u64) {
        let (id, ask) = self.request().await;
        assert_eq!(ask, BrokerRequest::Manifest);
        let items = items.to_vec();
        self.respond(&id, &BrokerResponse::Manifest { items, revision })
            .await;
    }

    /// Returns the next live request.
    pub async fn request(&mut self) -> (Arc<str>, BrokerRequest) {
        let BrokerFrame::Request(LiveRequest { id, body, .. }) = self.next().await else {
            panic!("no request")
        };
        (id, BrokerRequest::parse(&body).unwrap())
    }

    pub async fn respond(&self, id: &Arc<str>, answer: &BrokerResponse) {
        self.send_frame(&BrokerFrame::Response {
            id: Arc::clone(id),
            body: answer.to_bytes(ResultForm::Brief),
        })
        .await;
    }

    /// Returns the next delivered message to the hub.
    pub async fn delivery(&mut self) -> MailboxMessage {
        let BrokerFrame::Deliver { to, message } = self.next().await else {
            panic!("no delivery")
        };
        assert_eq!(&*to, "hub");
        message
    }

    pub async fn receipt(&self, letter: &MailboxMessage) {
        let id = Arc::clone(&letter.id);
        self.send_frame(&BrokerFrame::Delivered { id }).await;
    }

    /// Sends a reply from `from` to this request, with a fresh message id.
    pub async fn reply(&self, from: &str, id: &str, request: &str, body: &[u8]) {
        let letter = MailboxMessage::new(&MessageDraft {
            id,
            kind: REPLY_KIND,
            body: MessageBody::Json(body),
            correlation_id: Some(request),
            ttl_ms: None,
            created_at_ms: 0,
        });
        let from = MessageSender {
            session_id: from.into(),
            ..MessageSender::default()
        };
        self.send_frame(&BrokerFrame::Message(letter.with_sender(from)))
            .await;
    }

    /// Sends a message of a kind.
    pub async fn message(&self, id: &str, kind: &str) {
        let letter = MailboxMessage::new(&MessageDraft {
            id,
            kind,
            body: MessageBody::Json(b"{}"),
            correlation_id: None,
            ttl_ms: None,
            created_at_ms: 0,
        });
        self.send_frame(&BrokerFrame::Message(letter)).await;
    }

    /// Expects a message to be rejected as a dead letter, without an ack.
    pub async fn assert_dead_letter(&mut self, message: &str) {
        let BrokerFrame::Nak {
            id,
            dead_letter_reason,
            ..
        } = self.next().await
        else {
            panic!("{message} was not buried")
        };
        assert_eq!((&*id, dead_letter_reason.is_some()), (message, true));
    }

    /// Sends the receipt and the reply of a request, and waits for the ack.
    pub async fn serve(&mut self, letter: &MailboxMessage, answer: &BrokerResponse) {
        self.receipt(letter).await;
        let id = format!("re.{}", letter.id);
        let body = answer.to_bytes(ResultForm::Whole);
        self.reply("hub", &id, &letter.id, &body).await;
        assert_eq!(self.next().await, BrokerFrame::Ack { id: id.into() });
    }
}

/// Proxies bytes between a client and a broker, until cut silently.
#[derive(Debug)]
pub struct CuttableProxy {
    listener: TcpListener,
    broker: SocketAddr,
}

impl CuttableProxy {
    pub async fn proxy_to(broker: SocketAddr) -> Self {
        Self {
            listener: listen_on_loopback().await,
            broker,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.listener.local_addr().unwrap())
    }

    /// Proxies the next connection. After the cut nothing passes, and both ends stay open.
    pub async fn forward_until_cut(&self, tasks: &TaskTracker, mut cut: watch::Receiver<bool>) {
        let (mut near, _) = wait_bounded(self.listener.accept()).await.unwrap();
        let mut far = TcpStream::connect(self.broker).await.unwrap();
        tasks.spawn("wire", async move {
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                _ = cut.wait_for(|cut| *cut) => {}
            }
            // Held until the client closes.
            let mut left = [0; 1];
            while near.peek(&mut left).await.is_ok_and(|bytes| bytes > 0) {
                near.read_exact(&mut left).await.unwrap();
            }
        });
    }
}

/// A manifest item.
pub fn item(name: &str, repeatable: bool) -> ManifestItem {
    let definition = format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
    ManifestItem {
        name: name.into(),
        server: Some("s".into()),
        tool: Some(name.into()),
        is_repeatable: repeatable,
        definition: definition.into(),
    }
}

pub fn output(text: &str) -> BrokerResponse {
    let result = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    BrokerResponse::Output {
        result: result.into(),
        from_journal: false,
        era: Era::Legacy,
    }
}

/// Client options with short waits.
pub fn quick_options() -> BrokerClientOptions {
    let mut options = BrokerClientOptions::default();
    options.reconnect = ReconnectPolicy {
        steady: Duration::ZERO,
        ..options.reconnect
    };
    options
}

pub fn client(broker: &ScriptedBroker, options: BrokerClientOptions) -> BrokerClient {
    BrokerClient::start(
        &broker.url(),
        CredentialSource::from_token("secret"),
        options,
        None,
    )
    .unwrap()
}

/// Connects remote tools with these manifest items.
pub async fn tools(
    broker: &ScriptedBroker,
    items: &[ManifestItem],
) -> (RemoteTools, ScriptedBrokerPeer) {
    tools_with(broker, items, quick_options()).await
}

pub async fn tools_with(
    broker: &ScriptedBroker,
    items: &[ManifestItem],
    options: BrokerClientOptions,
) -> (RemoteTools, ScriptedBrokerPeer) {
    let credential = CredentialSource::from_token("secret");
    let url = broker.url();
    let connect = RemoteTools::connect_with(&url, credential, WAIT_MAX, options);
    let (tools, peer) = tokio::join!(connect, broker.accept_client(items));
    (tools.unwrap(), peer)
}
