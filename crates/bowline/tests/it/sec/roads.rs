//! The two ways by which a request leaves for a server over HTTP, and servers that mean harm.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::executor::Executor;
use crate::harness::{Gateway, Session};

/// How requests leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Road {
    /// From the gateway.
    Direct,
    /// From an executor that joined it.
    Executor,
}

pub(crate) const ROADS: [Road; 2] = [Road::Direct, Road::Executor];

/// A gateway, and the executor where there is one.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) gateway: Gateway,
    pub(crate) executor: Option<Executor>,
}

impl Scene {
    /// A gateway whose server `s` is there; more lines may follow its address.
    pub(crate) fn new(road: Road, url: &str, more: &str) -> Self {
        Self::allowing(road, url, more, &[address_of(url).to_string()])
    }

    /// The same, where the executor may go there.
    pub(crate) fn allowing(road: Road, url: &str, more: &str, allow: &[String]) -> Self {
        let via = match road {
            Road::Direct => "",
            Road::Executor => "via = \"executor:office\"\n",
        };
        let config = format!("[servers.s]\nurl = {}\n{via}{more}", json!(url));
        let gateway = Gateway::up(&config);
        let args: Vec<&str> = allow.iter().flat_map(|rule| ["--allow", rule]).collect();
        let join = || Executor::join(&gateway, ("office", &gateway.token), "", &args);
        let executor = (road == Road::Executor).then(join);
        Self { gateway, executor }
    }

    /// A session with the server, once it is there.
    pub(crate) fn session(&self) -> Session {
        self.gateway.wait_for("s", "ready");
        self.gateway.session("/servers/s/mcp")
    }

    /// The processes that what a server sends goes through.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let executor = self.executor.as_ref().map(Executor::pid);
        executor.into_iter().chain([self.gateway.pid()]).collect()
    }
}

/// Returns the address in a URL that has one.
pub(crate) fn address_of(url: &str) -> SocketAddr {
    let authority = url.split('/').nth(2).unwrap();
    authority.parse().unwrap()
}

/// Somebody who must not be reached, at every address of this machine.
#[derive(Debug)]
pub(crate) struct Forbidden {
    listener: TcpListener,
    pub(crate) port: u16,
}

impl Forbidden {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { listener, port }
    }

    /// The first in the queue is the connection of who asks, so nobody was before.
    pub(crate) fn is_untouched(&self) {
        let own = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let (_, first) = self.listener.accept().unwrap();
        assert_eq!(first.port(), own.local_addr().unwrap().port());
    }
}

/// What a server does with a call: it has the connection, and the id of the call.
type Deed = dyn Fn(&mut Victim<'_>, &str) + Send + Sync;

/// A connection to whoever called.
#[derive(Debug)]
pub(crate) struct Victim<'a> {
    stream: &'a mut TcpStream,
    poured: &'a AtomicUsize,
}

impl Victim<'_> {
    /// Writes; whether somebody still reads.
    pub(crate) fn hears(&mut self, bytes: &[u8]) -> bool {
        let heard = self.stream.write_all(bytes).is_ok();
        if heard {
            self.poured.fetch_add(bytes.len(), Ordering::Relaxed);
        }
        heard
    }
}

/// A server that answers the handshake as it should, and calls as it likes.
#[derive(Debug)]
pub(crate) struct Hostile {
    pub(crate) url: String,
    poured: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Hostile {
    /// Calls of `good` are answered well, and all others by this deed.
    pub(crate) fn start(deed: impl Fn(&mut Victim<'_>, &str) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let poured = Arc::<AtomicUsize>::default();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let deed: Arc<Deed> = Arc::new(deed);
        let kept = (Arc::clone(&poured), Arc::clone(&heads));
        // Lives as long as the test's process; nobody waits for it.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (deed, (poured, heads)) = (Arc::clone(&deed), kept.clone());
                std::thread::spawn(move || serve(stream, &*deed, &poured, &heads));
            }
        });
        Self { url, poured, heads }
    }

    /// How many bytes were written by deeds.
    pub(crate) fn poured(&self) -> usize {
        self.poured.load(Ordering::Relaxed)
    }

    /// The heads of all requests.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(
    mut stream: TcpStream,
    deed: &Deed,
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
            let mut victim = Victim {
                stream: &mut stream,
                poured,
            };
            deed(&mut victim, &message["id"].to_string());
            return None;
        }
        let (status, body) = good(&message);
        let kind = "Content-Type: application/json\r\nMcp-Session-Id: one";
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {status} S\r\n{kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn good(message: &Value) -> (u16, String) {
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
