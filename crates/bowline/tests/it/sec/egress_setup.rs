//! Setup for egress attacks: requests from the gateway or from an executor, and hostile servers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bowline_testkit::gateway::{Executor, Gateway, Session};
use serde_json::{Value, json};

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOrigin {
    /// The gateway.
    Direct,
    /// A joined executor.
    Executor,
}

pub(crate) const REQUEST_ORIGINS: [RequestOrigin; 2] =
    [RequestOrigin::Direct, RequestOrigin::Executor];

/// A gateway, and the executor if any.
#[derive(Debug)]
pub(crate) struct EgressSetup {
    pub(crate) gateway: Gateway,
    pub(crate) executor: Option<Executor>,
}

impl EgressSetup {
    /// A gateway with the server `s`; `more` lines follow its URL.
    pub(crate) fn start(road: RequestOrigin, url: &str, more: &str) -> Self {
        Self::start_with_allow(road, url, more, &[url_address(url).to_string()])
    }

    /// Like `start`, with the given addresses allowed at the executor.
    pub(crate) fn start_with_allow(
        road: RequestOrigin,
        url: &str,
        more: &str,
        allow: &[String],
    ) -> Self {
        let via = match road {
            RequestOrigin::Direct => "",
            RequestOrigin::Executor => "via = \"executor:office\"\n",
        };
        let config = format!("[servers.s]\nurl = {}\n{via}{more}", json!(url));
        let gateway = Gateway::start(&config);
        let args: Vec<&str> = allow.iter().flat_map(|rule| ["--allow", rule]).collect();
        let join = || Executor::join(&gateway, "office", &gateway.token, "", &args);
        let executor = (road == RequestOrigin::Executor).then(join);
        Self { gateway, executor }
    }

    /// A session, once the server is up.
    pub(crate) fn open_session(&self) -> Session {
        self.gateway.wait_for_state("s", "ready");
        self.gateway.open_session("/servers/s/mcp")
    }

    /// The processes that server output passes through.
    pub(crate) fn process_ids(&self) -> Vec<u32> {
        let executor = self.executor.as_ref().map(Executor::pid);
        executor.into_iter().chain([self.gateway.pid()]).collect()
    }
}

/// Returns the socket address in a URL.
pub(crate) fn url_address(url: &str) -> SocketAddr {
    let authority = url.split('/').nth(2).unwrap();
    authority.parse().unwrap()
}

/// A listener that must not be contacted, on every address of this machine.
#[derive(Debug)]
pub(crate) struct ForbiddenListener {
    listener: TcpListener,
    pub(crate) port: u16,
}

impl ForbiddenListener {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    /// The first accepted connection is the test's own, so no other came before.
    pub(crate) fn assert_untouched(&self) {
        let own = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let (_, first) = self.listener.accept().unwrap();
        assert_eq!(first.port(), own.local_addr().unwrap().port());
    }
}

/// The server's reaction to a call, given the connection and the id of the call.
type HostileHandler = dyn Fn(&mut HostileConnection<'_>, &str) + Send + Sync;

/// A connection to the caller.
#[derive(Debug)]
pub(crate) struct HostileConnection<'a> {
    stream: &'a mut TcpStream,
    bytes_written: &'a AtomicUsize,
}

impl HostileConnection<'_> {
    /// Writes bytes; returns whether the peer still reads.
    pub(crate) fn write_is_read(&mut self, bytes: &[u8]) -> bool {
        let heard = self.stream.write_all(bytes).is_ok();
        if heard {
            self.bytes_written.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        heard
    }
}

/// A server with a valid handshake and hostile call responses.
#[derive(Debug)]
pub(crate) struct HostileServer {
    pub(crate) url: String,
    written_count: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl HostileServer {
    /// Calls of `good` get valid responses; all others go to `deed`.
    pub(crate) fn start(
        deed: impl Fn(&mut HostileConnection<'_>, &str) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let written_count = Arc::<AtomicUsize>::default();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let deed: Arc<HostileHandler> = Arc::new(deed);
        let kept = (Arc::clone(&written_count), Arc::clone(&heads));
        // The thread lives as long as the test process; no join.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (deed, (poured, heads)) = (Arc::clone(&deed), kept.clone());
                std::thread::spawn(move || serve_connection(stream, &*deed, &poured, &heads));
            }
        });
        Self {
            url,
            written_count,
            heads,
        }
    }

    /// Number of bytes written by the handlers.
    pub(crate) fn bytes_written(&self) -> usize {
        self.written_count.load(Ordering::Relaxed)
    }

    /// The heads of all requests.
    pub(crate) fn request_heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve_connection(
    mut stream: TcpStream,
    deed: &HostileHandler,
    poured: &AtomicUsize,
    heads: &Mutex<Vec<String>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        heads.lock().unwrap().push(head);
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let is_call = message["method"] == "tools/call" && message["params"]["name"] != "good";
        if is_call {
            let mut victim = HostileConnection {
                stream: &mut stream,
                bytes_written: poured,
            };
            deed(&mut victim, &message["id"].to_string());
            return None;
        }
        let (status, body) = good_response(&message);
        let kind = "Content-Type: application/json\r\nMcp-Session-Id: one";
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status} S\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn good_response(message: &Value) -> (u16, String) {
    let id = &message["id"];
    let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "hostile", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": [tool("good"), tool("bad")]}),
        Some("tools/call") => json!({"content": [{"type": "text", "text": "well"}]}),
        Some(_) if id.is_null() => return (202, String::new()),
        Some("ping") => json!({}),
        Some(_) => {
            let error = json!({"code": -32601, "message": "no such method"});
            let refused = json!({"jsonrpc": "2.0", "id": id, "error": error});
            return (200, refused.to_string());
        }
        None => return (405, String::new()),
    };
    (
        200,
        json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
    )
}
