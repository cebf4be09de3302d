//! A server whose every answer is written by the test, byte by byte.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::spawn;

/// How long a test waits for what must happen.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A listener on a free port of this machine.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) origin: String,
    posts: mpsc::Receiver<Seen>,
    gets: mpsc::Receiver<Seen>,
    deletes: mpsc::Receiver<Seen>,
    accepting: JoinHandle<()>,
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) body: String,
    head: String,
    writer: OwnedWriteHalf,
    back: oneshot::Sender<OwnedWriteHalf>,
    gone: oneshot::Receiver<()>,
    /// Tells connections apart.
    pub(crate) connection: u64,
}

#[derive(Clone, Debug)]
struct Ways {
    posts: mpsc::Sender<Seen>,
    gets: mpsc::Sender<Seen>,
    deletes: mpsc::Sender<Seen>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn start_on(listener: TcpListener) -> Self {
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let (posts, posts_end) = mpsc::channel(256);
        let (gets, gets_end) = mpsc::channel(256);
        let (deletes, deletes_end) = mpsc::channel(256);
        let ways = Ways {
            posts,
            gets,
            deletes,
        };
        let accepting = spawn(async move {
            let mut connection = 0;
            while let Ok((stream, _)) = listener.accept().await {
                connection += 1;
                spawn(serve(stream, ways.clone(), connection));
            }
        });
        Self {
            origin,
            posts: posts_end,
            gets: gets_end,
            deletes: deletes_end,
            accepting,
        }
    }

    pub(crate) async fn post(&mut self) -> Seen {
        soon(self.posts.recv()).await.unwrap()
    }

    pub(crate) async fn get(&mut self) -> Seen {
        soon(self.gets.recv()).await.unwrap()
    }

    pub(crate) async fn delete(&mut self) -> Seen {
        soon(self.deletes.recv()).await.unwrap()
    }

    /// Whether no post waits.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.posts.try_recv().is_err()
    }

    /// Whether nobody asked for a stream.
    pub(crate) fn has_no_get(&mut self) -> bool {
        self.gets.try_recv().is_err()
    }

    /// Whether nobody ended a session.
    pub(crate) fn has_no_delete(&mut self) -> bool {
        self.deletes.try_recv().is_err()
    }

    /// Takes no more connections.
    pub(crate) async fn stop(&mut self) {
        self.accepting.abort();
        let ended = (&mut self.accepting).await;
        assert!(ended.is_err());
    }

    /// Answers the handshake under a session, and refuses the stream.
    pub(crate) async fn shakes(&mut self, session: &str) {
        self.initializes(session).await;
        self.post().await.accepted().await;
        self.get().await.status(405).await;
    }

    /// Answers `initialize`.
    pub(crate) async fn initializes(&mut self, session: &str) {
        let init = self.post().await;
        assert!(init.body.contains(r#""method":"initialize""#), "{init:?}");
        let session = match session {
            "" => String::new(),
            session => format!("Mcp-Session-Id: {session}\r\n"),
        };
        let body = hello(&init.id());
        init.answer(
            200,
            &format!("Content-Type: application/json\r\n{session}"),
            &body,
        )
        .await;
    }
}

/// What a server says to `initialize`.
pub(crate) fn hello(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-06-18","capabilities":{{}},"serverInfo":{{"name":"t","version":"1.2"}}}}}}"#
    )
}

pub(crate) fn result(id: &str, value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{value}}}"#)
}

pub(crate) async fn soon<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, wait).await.expect("in time")
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The names of all headers.
    pub(crate) fn header_names(&self) -> Vec<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(name, _)| name.to_lowercase()).collect()
    }

    /// The JSON-RPC id.
    pub(crate) fn id(&self) -> String {
        let start = self.body.find(r#""id":"#).expect("an id") + 5;
        let digits = self.body[start..].chars();
        digits.take_while(char::is_ascii_digit).collect()
    }

    pub(crate) async fn answer(self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} S\r\n{headers}Content-Length: {length}\r\n\r\n");
        self.raw(&format!("{head}{body}")).await;
    }

    /// Writes an answer and reads the next request of the connection.
    pub(crate) async fn raw(mut self, bytes: &str) {
        self.writes(bytes).await;
        let _ = self.back.send(self.writer);
    }

    pub(crate) async fn json(self, body: &str) {
        self.answer(200, "Content-Type: application/json\r\n", body)
            .await;
    }

    /// Answers with a result.
    pub(crate) async fn result(self, value: &str) {
        let body = result(&self.id(), value);
        self.json(&body).await;
    }

    pub(crate) async fn accepted(self) {
        self.answer(202, "", "").await;
    }

    pub(crate) async fn status(self, status: u16) {
        self.answer(status, "", "").await;
    }

    /// Writes and keeps the answer open.
    pub(crate) async fn writes(&mut self, bytes: &str) {
        let written = self.writer.write_all(bytes.as_bytes()).await;
        written.expect("the client reads");
    }

    /// Writes what the client may not read to its end; `false` when it has gone.
    pub(crate) async fn pours(&mut self, bytes: &str) -> bool {
        self.pours_bytes(bytes.as_bytes()).await
    }

    pub(crate) async fn pours_bytes(&mut self, bytes: &[u8]) -> bool {
        self.writer.write_all(bytes).await.is_ok()
    }

    /// Begins a stream.
    pub(crate) async fn streams(&mut self) {
        self.writes("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            .await;
        self.writes("Transfer-Encoding: chunked\r\n\r\n").await;
    }

    /// Writes lines of a stream and an empty one.
    pub(crate) async fn event(&mut self, lines: &str) {
        let text = format!("{lines}\n\n");
        self.writes(&format!("{:x}\r\n{text}\r\n", text.len()))
            .await;
    }

    /// Ends a stream in order.
    pub(crate) async fn ends(self) {
        self.raw("0\r\n\r\n").await;
    }

    /// Waits until the client closes the connection.
    pub(crate) async fn is_left(&mut self) {
        let _ = soon(&mut self.gone).await;
    }
}

async fn serve(stream: TcpStream, ways: Ways, connection: u64) {
    let (mut reader, mut writer) = stream.into_split();
    while let Some((head, body)) = read(&mut reader).await {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let way = match method {
            "POST" => &ways.posts,
            "GET" => &ways.gets,
            _ => &ways.deletes,
        };
        let (back, mut returned) = oneshot::channel();
        let (left, gone) = oneshot::channel::<()>();
        let seen = Seen {
            path: path.to_owned(),
            body,
            head: head.clone(),
            writer,
            back,
            gone,
            connection,
        };
        if way.send(seen).await.is_err() {
            return;
        }
        let mut left = Some(left);
        writer = loop {
            tokio::select! {
                biased;
                back = &mut returned => match back {
                    Ok(writer) => break writer,
                    Err(_) => return,
                },
                _ = reader.readable(), if left.is_some() => {
                    let mut byte = [0];
                    match reader.try_read(&mut byte) {
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        // Nobody sends before it has its answer.
                        _ => left = None,
                    }
                }
            }
        };
    }
}

async fn read(reader: &mut OwnedReadHalf) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if reader.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        let is_length = key.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().unwrap())
    });
    let mut body = bytes.split_off(head_end);
    while body.len() < length.unwrap_or(0) {
        if reader.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, String::from_utf8(body).unwrap()))
}
