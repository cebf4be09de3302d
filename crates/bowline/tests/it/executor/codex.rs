//! The real Codex exec-server as an executor, if installed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_host::executor::connection::{
    ExecServerConnection, ExecServerOpenError, ExecutorConnection as _, ExecutorRequest,
    exec_server_limits,
};
use bowline_host::executor::frames::SecretHeader;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use bowline_link::websocket::dial;
use bowline_runtime::TaskTracker;
use bowline_testkit::gateway::{FixtureServer, Gateway, executor_server_config};
use bowline_testkit::{poll_for, send_signal, test_deadline};
use http::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::peers::PeerManifest;

/// A Codex exec-server in a separate process and directory.
#[derive(Debug)]
struct CodexExecServer {
    child: Child,
    home: TempDir,
    url: String,
}

impl CodexExecServer {
    fn start(peers: &PeerManifest) -> Self {
        let home = TempDir::new().unwrap();
        let (child, url) = spawn_codex(peers, home.path(), "ws://127.0.0.1:0");
        Self { child, home, url }
    }

    fn restart(&mut self, peers: &PeerManifest) {
        self.stop();
        let url = self.url.clone();
        (self.child, self.url) = spawn_codex(peers, self.home.path(), &url);
    }

    fn stop(&mut self) {
        send_signal(self.child.id(), "TERM");
        self.child.wait().unwrap();
    }

    fn endpoint(&self) -> HttpEndpoint {
        HttpEndpoint::parse(&self.url.replacen("ws://", "http://", 1)).unwrap()
    }
}

impl Drop for CodexExecServer {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.stop();
        }
    }
}

fn spawn_codex(peers: &PeerManifest, home: &Path, url: &str) -> (Child, String) {
    let mut child = Command::new(peers.peer_path("/node"))
        .arg(peers.peer_path("/agents/codex"))
        .args([
            "exec-server",
            "--concurrent-requests",
            "64",
            "--listen",
            url,
        ])
        .env("HOME", home)
        .env("CODEX_HOME", home)
        .env("TRACKER", "s3cret")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let url = line.trim_end().to_owned();
    assert!(url.starts_with("ws://127.0.0.1:"), "no URL: {line:?}");
    (child, url)
}

fn start_codex(test: &str) -> Option<(PeerManifest, CodexExecServer)> {
    let peers = PeerManifest::load(test, &["/agents/codex"])?;
    let codex = CodexExecServer::start(&peers);
    Some((peers, codex))
}

#[test]
fn codex_exec_server_calls_server() {
    let test = "codex_exec_server_calls_server";
    let Some((peers, mut codex)) = start_codex(test) else {
        return;
    };
    let served = FixtureServer::start(&[]);
    let url = json!(codex.url);
    let config = executor_server_config("far", &served, "codex")
        + &format!("[executors.codex]\nurl = {url}\nprotocol = \"exec-server\"\n");
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("far__echo", &json!({"message": "hi"})),
        "hi"
    );
    let big = session.call_text("far__big", &json!({"bytes": 5_000_000}));
    assert_eq!(big.len(), 5_000_000);
    let shown = gateway.executor_status("codex");
    assert_eq!(shown["protocol"], "exec-server", "{shown}");
    let software = shown["software"].as_str().unwrap();
    assert!(software.starts_with("codex exec-server "), "{software}");
    // The exec-server restarts at the same address during the session.
    codex.restart(&peers);
    gateway.wait_for_executor("codex", true);
    gateway.wait_for_state("far", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("far__echo", &json!({"message": "again"})),
        "again"
    );
}

/// A server that responds to each request in turn with the given bytes; returns the request heads.
fn start_upstream(answers: Vec<Vec<u8>>) -> (HttpEndpoint, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/path", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let answered = answers.iter().map(|answer| {
            let (mut stream, _) = listener.accept().unwrap();
            let head = read_request(&mut stream);
            stream.write_all(answer).unwrap();
            head
        });
        answered.collect()
    });
    (HttpEndpoint::parse(&url).unwrap(), serving)
}

/// Reads a request with the declared body.
fn read_request(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        read.push(byte[0]);
    }
    let head = String::from_utf8(read).unwrap().to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    head + std::str::from_utf8(&body).unwrap()
}

async fn open_session(
    codex: &CodexExecServer,
    resume: Option<Arc<str>>,
) -> Result<ExecServerConnection, ExecServerOpenError> {
    let (endpoint, limits) = (codex.endpoint(), exec_server_limits());
    let tasks = TaskTracker::default();
    let dialling = dial(&endpoint, None, test_deadline(), limits, &tasks);
    let socket = Box::pin(dialling).await.unwrap();
    ExecServerConnection::open(socket, "bowline", resume, &tasks).await
}

fn http_request(to: &HttpEndpoint) -> ExecutorRequest<'_> {
    ExecutorRequest {
        server: "far",
        request: HttpRequest::new(Method::POST, to),
        secret_headers: &[],
    }
}

fn response_wait() -> SendOptions<'static> {
    SendOptions {
        connect_by: Some(test_deadline()),
        first_byte_by: Some(test_deadline()),
        on_send: &|| (),
    }
}

async fn send_through(
    client: &ExecServerConnection,
    to: &HttpEndpoint,
) -> Result<HttpResponse, HttpError> {
    client.send_request(http_request(to), response_wait()).await
}

#[tokio::test]
async fn codex_exec_server_understands_requests() {
    let test = "codex_exec_server_understands_requests";
    let Some((_peers, codex)) = start_codex(test) else {
        return;
    };
    let client = open_session(&codex, None).await.unwrap();
    let ok = b"HTTP/1.1 200 OK\r\nconnection: close\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 2\r\n\
        \r\nok";
    let moved = b"HTTP/1.1 302 Found\r\nconnection: close\r\nlocation: /x\r\ncontent-length: 0\
        \r\n\r\n";
    let cut = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\ncut";
    let (to, serving) =
        start_upstream(vec![ok.to_vec(), ok.to_vec(), moved.to_vec(), cut.to_vec()]);
    let fills = [SecretHeader {
        header: "authorization".into(),
        before: "Bearer ".into(),
        secret: "TRACKER".into(),
        after: "".into(),
    }];
    let mut first = http_request(&to);
    first.secret_headers = &fills;
    first.request.body = RequestBody::Whole(b"asked");
    let mut response = client.send_request(first, response_wait()).await.unwrap();
    let lines = String::from_utf8(response.headers.lines().to_vec()).unwrap();
    assert!(lines.contains("x-a: 1\r\nx-a: 2\r\n"), "{lines}");
    assert_eq!(response.body.read_whole(100).await.unwrap(), &b"ok"[..]);
    let mut whole = client
        .fetch_whole(http_request(&to), response_wait(), 100)
        .await
        .unwrap();
    assert_eq!(whole.body.read_whole(100).await.unwrap(), &b"ok"[..]);
    let moved = send_through(&client, &to).await.unwrap();
    assert_eq!(moved.status, 302);
    let mut cut = send_through(&client, &to).await.unwrap();
    assert_eq!(cut.body.next_chunk().await.unwrap().unwrap(), &b"cut"[..]);
    let error = cut.body.next_chunk().await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Lost(_)), "{error:?}");
    let heads = serving.join().unwrap();
    assert!(
        heads[0].contains("authorization: bearer s3cret\r\n"),
        "{}",
        heads[0]
    );
    assert!(heads[0].ends_with("asked"), "{}", heads[0]);
    assert_eq!(client.traffic().opened, 3);
}

#[tokio::test]
async fn codex_exec_server_refusals_and_sessions_are_understood() {
    let test = "codex_exec_server_refusals_and_sessions_are_understood";
    let Some((_peers, codex)) = start_codex(test) else {
        return;
    };
    let client = open_session(&codex, None).await.unwrap();
    let nobody = HttpEndpoint::parse("http://127.0.0.1:1/").unwrap();
    // The single error code of Codex does not distinguish unsent requests.
    let error = send_through(&client, &nobody).await.unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    let fills = [SecretHeader {
        header: "x".into(),
        before: "".into(),
        secret: "AWS_SECRET_ACCESS_KEY".into(),
        after: "".into(),
    }];
    let mut protected = http_request(&nobody);
    protected.secret_headers = &fills;
    let error = client
        .send_request(protected, response_wait())
        .await
        .unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    let session = Arc::clone(client.session_id());
    let taken = open_session(&codex, Some(Arc::clone(&session))).await;
    assert_eq!(taken.unwrap_err(), ExecServerOpenError::Attached);
    let unknown = open_session(&codex, Some("unknown".into()))
        .await
        .unwrap_err();
    assert!(
        matches!(unknown, ExecServerOpenError::Refused { code: -32600, .. }),
        "{unknown:?}"
    );
    drop(client);
    // The exec-server notices the end of the old connection later and announces it to nobody.
    let description = "the exec-server notices the end of the connection";
    let resumed = poll_for(description, async || {
        match open_session(&codex, Some(Arc::clone(&session))).await {
            Err(ExecServerOpenError::Attached) => None,
            other => Some(other),
        }
    });
    assert_eq!(resumed.await.unwrap().session_id(), &session);
}
