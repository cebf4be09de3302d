//! A gateway in front of the same server twice: on a pipe, and over HTTP.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_wire::object;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::client::{same, text};
use super::super::echo::{steps, with_case};
use super::super::rows::List;
use super::super::trip::{NAME, Road, TOKEN, Trip, Way};
use super::REVISION;
use super::client::{Asking, Client};
use crate::harness::{Gateway, server};

/// Connections that send at the same time.
const CLIENTS: usize = 4;

/// The parameters of a request that wants nothing in particular.
const META: &str = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;

/// The servers with their gateway.
pub(super) struct Peers {
    pub(super) gateway: Gateway,
    dir: TempDir,
    _served: Served,
}

/// The server over HTTP; ends with its input.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Peers {
    pub(super) fn up(lists: &Value) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["cases", "record"] {
            File::create(at(name)).unwrap();
        }
        std::fs::write(at("lists"), lists.to_string()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/echo_modern.py");
        let args = [script, at("cases"), at("record"), at("lists")];
        let (served, port) = serve(&args);
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        // Without pins: what is odd about these definitions is not to be marked in them.
        let rest = "pin = \"off\"\ncheck_output = false\n";
        let url = format!("http://127.0.0.1:{port}/mcp");
        let config = [
            server("echo", "python3".as_ref(), &args),
            rest.to_owned(),
            format!("[servers.own]\nurl = {}\n{rest}", json!(url)),
        ];
        let gateway = Gateway::up(&config.concat());
        gateway.wait_for("echo", "ready");
        gateway.wait_for("own", "ready");
        Self {
            gateway,
            dir,
            _served: served,
        }
    }

    pub(super) fn client(&self, road: Road) -> Client {
        let path = match road {
            Road::Server => "/servers/echo/mcp",
            Road::Own => "/servers/own/mcp",
            Road::All => "/mcp",
        };
        Client::new(&self.gateway, path)
    }

    /// Holds a list of both servers against what they offer: byte for byte, and at all servers
    /// but for the names. Returns how many were seen.
    pub(super) fn lists(&self, list: &List, offered: &[String]) -> usize {
        for road in [Road::Server, Road::Own] {
            let (listed, [left_ms, scope]) = self.list(road, list);
            assert_eq!(listed, offered, "{} ({road:?})", list.method);
            // What is left of the minute that the server says.
            let left_ms: u64 = left_ms.parse().unwrap();
            assert!(left_ms <= 60_000, "{} {left_ms}", list.method);
            assert_eq!(scope, "\"public\"", "{}", list.method);
        }
        if list.key == "name" {
            let (listed, _) = self.list(Road::All, list);
            let visible = |server: &'static str| {
                let all = offered.iter().enumerate();
                all.map(move |(at, text)| {
                    let own = match at {
                        0 => list.first.to_owned(),
                        at => list.others.replace('@', &at.to_string()),
                    };
                    text.replacen(&format!("\"{own}\""), &format!("\"{server}__{own}\""), 1)
                })
            };
            let wanted: Vec<_> = visible("echo").chain(visible("own")).collect();
            assert_eq!(listed, wanted, "{} at all servers", list.method);
        }
        offered.len() * 2
    }

    fn list(&self, road: Road, list: &List) -> (Vec<String>, [String; 2]) {
        let mut client = self.client(road);
        let mut listed = Vec::new();
        let mut params = META.to_owned();
        loop {
            let (answer, _) = client.request(&Asking {
                extra: "",
                id: "1",
                method: list.method,
                params: &params,
            });
            let result = object::field(&answer, "result");
            let result = result
                .unwrap_or_else(|| panic!("{}", text(&answer)))
                .of(&answer);
            let items = object::field(result, list.member).unwrap().of(result);
            listed.extend(object::items(items).map(|item| text(item.of(items))));
            let Some(cursor) = object::field(result, "nextCursor") else {
                let hint = |key| object::field(result, key).map(|at| text(at.of(result)));
                let hints = ["ttlMs", "cacheScope"].map(|key| hint(key).unwrap_or_default());
                return (listed, hints);
            };
            let cursor = text(cursor.of(result));
            let rest = META.strip_prefix('{').unwrap();
            params = format!("{{\"cursor\":{cursor},{rest}");
        }
    }

    /// Sends what the gateway answers itself, and holds each result.
    pub(super) fn own(&self, all: &[(String, String)], hold: impl Fn(&str)) -> usize {
        let mut client = self.client(Road::Server);
        for (at, (method, params)) in all.iter().enumerate() {
            let (answer, _) = client.request(&Asking {
                extra: "",
                id: "1",
                method,
                params,
            });
            let result = object::field(&answer, "result").map(|at| text(at.of(&answer)));
            let result = result.unwrap_or_else(|| panic!("{params}: {}", text(&answer)));
            if at < super::super::trip::CHECKED {
                hold(&result);
            }
        }
        all.len()
    }

    /// Says what no server hears.
    pub(super) fn unheard(&self, method: &str, all: &[String]) -> usize {
        let before = self.recorded().len();
        for road in [Road::Server, Road::Own] {
            let mut client = self.client(road);
            for params in all {
                client.say(method, &with_case(params, "0:0"));
            }
        }
        assert_eq!(self.recorded().len(), before);
        all.len() * 2
    }

    /// Sends trips through and looks at both ends of each.
    pub(super) fn travel(&self, road: Road, trips: &[Trip]) -> usize {
        // On a pipe that several share, nobody could say whose a line of the log is.
        let is_log = |trip: &Trip| {
            let mut events = trip.on_the_way.iter();
            events.any(|event| event.method == "notifications/message")
        };
        let clients = match trips.iter().any(is_log) {
            true => 1,
            false => CLIENTS,
        };
        let cases = self.write(trips);
        let next = AtomicUsize::new(0);
        let begun = self.recorded().len();
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    let mut client = self.client(road);
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((trip, case)) = trips.get(at).zip(cases.get(at)) else {
                            break;
                        };
                        if let Err(fault) = travel(&mut client, at, trip, case) {
                            failed.lock().unwrap().push(format!("{fault}\n{trip:?}"));
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap();
        let count = failed.len();
        assert!(
            failed.is_empty(),
            "{road:?}: {count} of them\n{}",
            failed[0]
        );
        let record = self.recorded();
        let lines = lines(&record[begun..]);
        for (trip, case) in trips.iter().zip(&cases) {
            let came = &lines[case.as_str()];
            assert_eq!(came.len(), 1, "{trip:?} was sent more than once");
            arrived(road, &came[0], trip, case);
        }
        trips.len()
    }

    /// What the servers were sent so far.
    pub(super) fn recorded(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("record")).unwrap()
    }

    /// Writes down what a server is to do, and returns the name of each case.
    pub(super) fn write(&self, trips: &[Trip]) -> Vec<String> {
        let path = self.dir.path().join("cases");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        let mut offset = file.metadata().unwrap().len();
        let mut all = Vec::new();
        let mut name = |(at, trip)| {
            let steps = json!(steps(at, trip)).to_string();
            all.extend_from_slice(steps.as_bytes());
            let name = format!("{offset}:{}", steps.len());
            offset += steps.len() as u64;
            name
        };
        let names = trips.iter().enumerate().map(&mut name).collect();
        file.write_all(&all).unwrap();
        names
    }
}

/// Starts the server over HTTP and reads its port.
fn serve(args: &[PathBuf]) -> (Served, u16) {
    let mut child = Command::new("python3")
        .args(args)
        .arg("http")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let port = line.trim().parse().unwrap();
    (Served(child), port)
}

/// Makes one trip; an error says what came back otherwise than it was sent.
fn travel(client: &mut Client, at: usize, trip: &Trip, case: &str) -> Result<(), String> {
    let id = if at.is_multiple_of(3) {
        format!("\"id {at}\"")
    } else {
        at.to_string()
    };
    let (answer, came) = client.request(&Asking {
        extra: &trip.extra,
        id: &id,
        method: &trip.method,
        params: &with_case(&trip.sent(), case),
    });
    let (extra, member, body) = (&trip.extra, trip.member, &trip.answer);
    let wanted = format!(r#"{{{extra}"jsonrpc":"2.0","id":{id},"{member}":{body}}}"#);
    same(&answer, &wanted)?;
    let mut came = came.iter();
    for event in &trip.on_the_way {
        if matches!(event.way, Way::Told) {
            let next = came.next().ok_or("too little came before the answer")?;
            same(next, &event.line(trip))?;
        }
    }
    match came.next() {
        Some(more) => Err(format!("this came as well: {}", text(more))),
        None => Ok(()),
    }
}

/// One message that a server was sent: its headers, and its text.
pub(super) struct Came<'a> {
    pub(super) headers: &'a [u8],
    pub(super) message: &'a [u8],
}

/// Returns what the servers were sent, by the names of cases.
pub(super) fn lines(record: &[u8]) -> HashMap<&str, Vec<Came<'_>>> {
    let mut lines: HashMap<&str, Vec<Came<'_>>> = HashMap::new();
    let all = record.split(|byte| *byte == b'\n');
    for line in all.filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(3, |byte| *byte == b'\t');
        let name = std::str::from_utf8(parts.next().unwrap()).unwrap();
        lines.entry(name).or_default().push(Came {
            headers: parts.next().unwrap(),
            message: parts.next().unwrap(),
        });
    }
    lines
}

/// Holds what a server was sent against what was sent to it.
fn arrived(road: Road, came: &Came<'_>, trip: &Trip, case: &str) {
    let params = object::field(came.message, "params").unwrap();
    let params = text(params.of(came.message));
    let sent = with_case(&trip.params, case).replace(NAME, &trip.name.1);
    let (before, after) = sent.split_once(TOKEN).unwrap_or((&sent, ""));
    let same = if trip.token.is_empty() {
        params == sent
    } else {
        params.starts_with(before) && params.ends_with(after)
    };
    assert!(same, "{road:?}: {sent}\narrived as\n{params}");
    if came.headers.is_empty() {
        return;
    }
    let headers: Value = serde_json::from_slice(came.headers).unwrap();
    assert_eq!(headers["MCP-Protocol-Version"], REVISION);
    assert_eq!(headers["Mcp-Method"], trip.method.as_str());
    assert_eq!(headers["Mcp-Session-Id"], Value::Null);
    let named: Value = serde_json::from_str(&trip.name.1).unwrap();
    let wanted = match trip.method.as_str() {
        "completion/complete" => Value::Null,
        _ => named,
    };
    assert_eq!(headers["Mcp-Name"], wanted, "{trip:?}");
}
