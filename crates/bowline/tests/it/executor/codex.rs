//! The real Codex exec-server as an executor, where it is installed.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_host::tasks::Tasks;
use bowline_link::executor::{Carrier as _, Errand, ExecServer, OpenError, exec_server_limits};
use bowline_link::http::client::{HttpError, Outgoing, Response, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::dial;
use bowline_wire::executor::Fill;
use http::Method;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::harness::executor::through;
use crate::harness::served::Served;
use crate::harness::{Gateway, signal};
use crate::peers::Peers;

/// A Codex exec-server in its own process and directory.
#[derive(Debug)]
struct Codex {
    child: Child,
    home: TempDir,
    url: String,
}

impl Codex {
    fn start(peers: &Peers) -> Self {
        let home = TempDir::new().unwrap();
        let (child, url) = launch(peers, home.path(), "ws://127.0.0.1:0");
        Self { child, home, url }
    }

    fn restart(&mut self, peers: &Peers) {
        self.stop();
        let url = self.url.clone();
        (self.child, self.url) = launch(peers, self.home.path(), &url);
    }

    fn stop(&mut self) {
        signal(self.child.id(), "TERM");
        self.child.wait().unwrap();
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::parse(&self.url.replacen("ws://", "http://", 1)).unwrap()
    }
}

impl Drop for Codex {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.stop();
        }
    }
}

fn launch(peers: &Peers, home: &Path, url: &str) -> (Child, String) {
    let mut child = Command::new(peers.path("/node"))
        .arg(peers.path("/agents/codex"))
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

fn codex(test: &str) -> Option<(Peers, Codex)> {
    let peers = Peers::of(test, &["/agents/codex"])?;
    let codex = Codex::start(&peers);
    Some((peers, codex))
}

#[test]
fn a_server_is_called_through_the_real_codex_exec_server() {
    let test = "a_server_is_called_through_the_real_codex_exec_server";
    let Some((peers, mut codex)) = codex(test) else {
        return;
    };
    let served = Served::start(&[]);
    let url = json!(codex.url);
    let config = through("far", &served, "codex")
        + &format!("[executors.codex]\nurl = {url}\nprotocol = \"exec-server\"\n");
    let gateway = Gateway::up(&config);
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("far__echo", &json!({"message": "hi"})), "hi");
    let big = session.text("far__big", &json!({"bytes": 5_000_000}));
    assert_eq!(big.len(), 5_000_000);
    let shown = gateway.executor("codex");
    assert_eq!(shown["protocol"], "exec-server", "{shown}");
    let software = shown["software"].as_str().unwrap();
    assert!(software.starts_with("codex exec-server "), "{software}");
    // It goes away in mid-session and comes back where it was.
    codex.restart(&peers);
    gateway.until_executor("codex", true);
    gateway.wait_for("far", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(
        session.text("far__echo", &json!({"message": "again"})),
        "again"
    );
}

/// A server that takes one request after the other and answers each with bytes; tells their heads.
fn upstream(answers: Vec<Vec<u8>>) -> (Endpoint, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/path", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let answered = answers.iter().map(|answer| {
            let (mut stream, _) = listener.accept().unwrap();
            let head = request(&mut stream);
            stream.write_all(answer).unwrap();
            head
        });
        answered.collect()
    });
    (Endpoint::parse(&url).unwrap(), serving)
}

/// Reads a request with the body that it says it has.
fn request(stream: &mut TcpStream) -> String {
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

fn soon() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "the tests' own deadline")]
    let now = Instant::now();
    now + Duration::from_secs(20)
}

async fn opened(codex: &Codex, resume: Option<Arc<str>>) -> Result<ExecServer, OpenError> {
    let (endpoint, limits) = (codex.endpoint(), exec_server_limits());
    let tasks = Tasks::default();
    let dialling = dial(&endpoint, None, soon(), limits, &tasks);
    let io = Box::pin(dialling).await.unwrap();
    ExecServer::open(io, "bowline", resume, &tasks).await
}

fn errand(to: &Endpoint) -> Errand<'_> {
    Errand {
        server: "far",
        request: Outgoing::new(Method::POST, to),
        fills: &[],
    }
}

fn wait() -> Wait<'static> {
    Wait {
        connect: Some(soon()),
        first_byte: Some(soon()),
        leaving: &|| (),
    }
}

async fn carried(client: &ExecServer, to: &Endpoint) -> Result<Response, HttpError> {
    client.carry(errand(to), wait()).await
}

#[tokio::test]
async fn the_real_codex_exec_server_understands_what_is_asked() {
    let test = "the_real_codex_exec_server_understands_what_is_asked";
    let Some((_peers, codex)) = codex(test) else {
        return;
    };
    let client = opened(&codex, None).await.unwrap();
    let ok = b"HTTP/1.1 200 OK\r\nconnection: close\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 2\r\n\
        \r\nok";
    let moved = b"HTTP/1.1 302 Found\r\nconnection: close\r\nlocation: /x\r\ncontent-length: 0\
        \r\n\r\n";
    let cut = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\ncut";
    let (to, serving) = upstream(vec![ok.to_vec(), ok.to_vec(), moved.to_vec(), cut.to_vec()]);
    let fills = [Fill {
        header: "authorization".into(),
        before: "Bearer ".into(),
        secret: "TRACKER".into(),
        after: "".into(),
    }];
    let mut first = errand(&to);
    first.fills = &fills;
    first.request.body = Upload::Whole(b"asked");
    let mut response = client.carry(first, wait()).await.unwrap();
    let lines = String::from_utf8(response.headers.lines().to_vec()).unwrap();
    assert!(lines.contains("x-a: 1\r\nx-a: 2\r\n"), "{lines}");
    assert_eq!(response.body.whole(100).await.unwrap(), &b"ok"[..]);
    let mut whole = client.fetch(errand(&to), wait(), 100).await.unwrap();
    assert_eq!(whole.body.whole(100).await.unwrap(), &b"ok"[..]);
    let moved = carried(&client, &to).await.unwrap();
    assert_eq!(moved.status, 302);
    let mut cut = carried(&client, &to).await.unwrap();
    assert_eq!(cut.body.chunk().await.unwrap().unwrap(), &b"cut"[..]);
    let error = cut.body.chunk().await.unwrap().unwrap_err();
    assert!(matches!(error, HttpError::Lost(_)), "{error:?}");
    let heads = serving.join().unwrap();
    assert!(
        heads[0].contains("authorization: bearer s3cret\r\n"),
        "{}",
        heads[0]
    );
    assert!(heads[0].ends_with("asked"), "{}", heads[0]);
    assert_eq!(client.carried().opened, 3);
}

#[tokio::test]
async fn refusals_and_sessions_of_the_real_codex_exec_server_are_understood() {
    let test = "refusals_and_sessions_of_the_real_codex_exec_server_are_understood";
    let Some((_peers, codex)) = codex(test) else {
        return;
    };
    let client = opened(&codex, None).await.unwrap();
    let nobody = Endpoint::parse("http://127.0.0.1:1/").unwrap();
    // Its one code for all failures does not tell that nothing left.
    let error = carried(&client, &nobody).await.unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown);
    let fills = [Fill {
        header: "x".into(),
        before: "".into(),
        secret: "AWS_SECRET_ACCESS_KEY".into(),
        after: "".into(),
    }];
    let mut protected = errand(&nobody);
    protected.fills = &fills;
    let error = client.carry(protected, wait()).await.unwrap_err();
    assert_eq!(error.execution(), Execution::NotStarted);
    let session = Arc::clone(client.session());
    let taken = opened(&codex, Some(Arc::clone(&session))).await;
    assert_eq!(taken.unwrap_err(), OpenError::Attached);
    let unknown = opened(&codex, Some("unknown".into())).await.unwrap_err();
    assert!(
        matches!(unknown, OpenError::Refused { code: -32600, .. }),
        "{unknown:?}"
    );
    drop(client);
    // Its end is noticed a little later.
    let resumed = tokio::time::timeout_at(soon(), async {
        loop {
            match opened(&codex, Some(Arc::clone(&session))).await {
                Err(OpenError::Attached) => tokio::task::yield_now().await,
                other => return other,
            }
        }
    });
    assert_eq!(resumed.await.unwrap().unwrap().session(), &session);
}
