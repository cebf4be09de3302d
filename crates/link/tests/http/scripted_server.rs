//! HTTP server with scripted responses, byte by byte.

use bowline_testkit::{spawn_task, wait_bounded};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// A listener on a free port.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    pub(crate) origin: String,
    posts: mpsc::Receiver<SeenRequest>,
    gets: mpsc::Receiver<SeenRequest>,
    deletes: mpsc::Receiver<SeenRequest>,
    accepting: JoinHandle<()>,
}

/// A request without a response yet.
#[derive(Debug)]
pub(crate) struct SeenRequest {
    pub(crate) path: String,
    pub(crate) body: String,
    head: String,
    writer: OwnedWriteHalf,
    back: oneshot::Sender<OwnedWriteHalf>,
    gone: oneshot::Receiver<()>,
    /// Connection number.
    pub(crate) connection: u64,
}

#[derive(Clone, Debug)]
struct RequestQueues {
    posts: mpsc::Sender<SeenRequest>,
    gets: mpsc::Sender<SeenRequest>,
    deletes: mpsc::Sender<SeenRequest>,
}

impl ScriptedServer {
    pub(crate) async fn start() -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn start_on(listener: TcpListener) -> Self {
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let (posts, posts_end) = mpsc::channel(256);
        let (gets, gets_end) = mpsc::channel(256);
        let (deletes, deletes_end) = mpsc::channel(256);
        let ways = RequestQueues {
            posts,
            gets,
            deletes,
        };
        let accepting = spawn_task(async move {
            let mut connection = 0;
            while let Ok((stream, _)) = listener.accept().await {
                connection += 1;
                spawn_task(serve_connection(stream, ways.clone(), connection));
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

    pub(crate) async fn next_post(&mut self) -> SeenRequest {
        wait_bounded(self.posts.recv()).await.unwrap()
    }

    pub(crate) async fn next_get(&mut self) -> SeenRequest {
        wait_bounded(self.gets.recv()).await.unwrap()
    }

    pub(crate) async fn next_delete(&mut self) -> SeenRequest {
        wait_bounded(self.deletes.recv()).await.unwrap()
    }

    /// Whether no POST waits.
    pub(crate) fn has_no_post(&mut self) -> bool {
        self.posts.try_recv().is_err()
    }

    /// Whether no GET waits.
    pub(crate) fn has_no_get(&mut self) -> bool {
        self.gets.try_recv().is_err()
    }

    /// Whether no DELETE waits.
    pub(crate) fn has_no_delete(&mut self) -> bool {
        self.deletes.try_recv().is_err()
    }

    /// Stops accepting connections.
    pub(crate) async fn stop(&mut self) {
        self.accepting.abort();
        let ended = (&mut self.accepting).await;
        assert!(ended.is_err());
    }

    /// Answers the handshake with a session id, and refuses the GET stream.
    pub(crate) async fn complete_handshake(&mut self, session: &str) {
        self.answer_initialize(session).await;
        self.next_post().await.respond_accepted().await;
        self.next_get().await.respond_status(405).await;
    }

    /// Answers `initialize`.
    pub(crate) async fn answer_initialize(&mut self, session: &str) {
        let init = self.next_post().await;
        assert!(init.body.contains(r#""method":"initialize""#), "{init:?}");
        let session = match session {
            "" => String::new(),
            session => format!("Mcp-Session-Id: {session}\r\n"),
        };
        let body = initialize_result(&init.id());
        init.respond(
            200,
            &format!("Content-Type: application/json\r\n{session}"),
            &body,
        )
        .await;
    }
}

/// Returns the response to `initialize`.
pub(crate) fn initialize_result(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-06-18","capabilities":{{}},"serverInfo":{{"name":"t","version":"1.2"}}}}}}"#
    )
}

pub(crate) fn result_body(id: &str, value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{value}}}"#)
}

impl SeenRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Returns the names of all headers.
    pub(crate) fn header_names(&self) -> Vec<String> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.map(|(name, _)| name.to_lowercase()).collect()
    }

    /// Returns the JSON-RPC id.
    pub(crate) fn id(&self) -> String {
        let start = self.body.find(r#""id":"#).expect("an id") + 5;
        let digits = self.body[start..].chars();
        digits.take_while(char::is_ascii_digit).collect()
    }

    pub(crate) async fn respond(self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} S\r\n{headers}Content-Length: {length}\r\n\r\n");
        self.respond_raw(&format!("{head}{body}")).await;
    }

    /// Writes a response, then reads the next request of the connection.
    pub(crate) async fn respond_raw(mut self, bytes: &str) {
        self.write_open(bytes).await;
        let _ = self.back.send(self.writer);
    }

    pub(crate) async fn respond_json(self, body: &str) {
        self.respond(200, "Content-Type: application/json\r\n", body)
            .await;
    }

    /// Responds with a result.
    pub(crate) async fn respond_result(self, value: &str) {
        let body = result_body(&self.id(), value);
        self.respond_json(&body).await;
    }

    pub(crate) async fn respond_accepted(self) {
        self.respond(202, "", "").await;
    }

    pub(crate) async fn respond_status(self, status: u16) {
        self.respond(status, "", "").await;
    }

    /// Writes without ending the response.
    pub(crate) async fn write_open(&mut self, bytes: &str) {
        let written = self.writer.write_all(bytes.as_bytes()).await;
        written.expect("the client reads");
    }

    /// Writes bytes that the client may not read; `false` after a disconnect.
    pub(crate) async fn try_write(&mut self, bytes: &str) -> bool {
        self.try_write_bytes(bytes.as_bytes()).await
    }

    pub(crate) async fn try_write_bytes(&mut self, bytes: &[u8]) -> bool {
        self.writer.write_all(bytes).await.is_ok()
    }

    /// Starts an event stream.
    pub(crate) async fn start_stream(&mut self) {
        self.write_open("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            .await;
        self.write_open("Transfer-Encoding: chunked\r\n\r\n").await;
    }

    /// Writes an event of these lines.
    pub(crate) async fn write_event(&mut self, lines: &str) {
        let text = format!("{lines}\n\n");
        self.write_open(&format!("{:x}\r\n{text}\r\n", text.len()))
            .await;
    }

    /// Ends the stream.
    pub(crate) async fn end_stream(self) {
        self.respond_raw("0\r\n\r\n").await;
    }

    /// Waits until the client closes the connection.
    pub(crate) async fn wait_closed(&mut self) {
        let _ = wait_bounded(&mut self.gone).await;
    }
}

async fn serve_connection(stream: TcpStream, ways: RequestQueues, connection: u64) {
    let (mut reader, mut writer) = stream.into_split();
    while let Some((head, body)) = read_request(&mut reader).await {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let way = match method {
            "POST" => &ways.posts,
            "GET" => &ways.gets,
            _ => &ways.deletes,
        };
        let (back, mut returned) = oneshot::channel();
        let (left, gone) = oneshot::channel::<()>();
        let seen = SeenRequest {
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
                        // Clients do not pipeline requests.
                        _ => left = None,
                    }
                }
            }
        };
    }
}

async fn read_request(reader: &mut OwnedReadHalf) -> Option<(String, String)> {
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
