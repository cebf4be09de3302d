//! A gateway in front of the same server twice: on a pipe, and over HTTP.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_testkit::gateway::{Gateway, server_config};
use bowline_wire::object;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::byte_client::{check_equal, utf8_text};
use super::super::echo_gateway::{insert_case_name, script_steps};
use super::super::round_trip::{MessageHandling, NAME, RoundTrip, TOKEN, TripEndpoint};
use super::super::trip_specs::ListSpec;
use super::REVISION;
use super::modern_byte_client::{ModernByteClient, RequestText};

/// Concurrent connections.
const CLIENTS: usize = 4;

/// The params of a request without options.
const META: &str = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}"#;

/// The servers with a gateway.
pub(super) struct EchoServers {
    pub(super) gateway: Gateway,
    dir: TempDir,
    _http_server: EchoHttpServer,
}

/// The HTTP server; ends at end of input.
struct EchoHttpServer(Child);

impl Drop for EchoHttpServer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl EchoServers {
    pub(super) fn start(lists: &Value) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["cases", "record"] {
            File::create(at(name)).unwrap();
        }
        std::fs::write(at("lists"), lists.to_string()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/echo_modern.py");
        let args = [script, at("cases"), at("record"), at("lists")];
        let (served, port) = start_http_server(&args);
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        // Without pins: suspicious definitions must not be marked here.
        let rest = "pin = \"off\"\ncheck_output = false\n";
        let url = format!("http://127.0.0.1:{port}/mcp");
        let config = [
            server_config("echo", "python3".as_ref(), &args),
            rest.to_owned(),
            format!("[servers.own]\nurl = {}\n{rest}", json!(url)),
        ];
        let gateway = Gateway::start(&config.concat());
        gateway.wait_for_state("echo", "ready");
        gateway.wait_for_state("own", "ready");
        Self {
            gateway,
            dir,
            _http_server: served,
        }
    }

    pub(super) fn open_client(&self, road: TripEndpoint) -> ModernByteClient {
        let path = match road {
            TripEndpoint::Server => "/servers/echo/mcp",
            TripEndpoint::PerSession => "/servers/own/mcp",
            TripEndpoint::All => "/mcp",
        };
        ModernByteClient::new(&self.gateway, path)
    }

    /// Compares a list with the items of both servers: byte for byte, except for names at the
    /// shared endpoint. Returns the number of items.
    pub(super) fn assert_lists_equal(&self, list: &ListSpec, offered: &[String]) -> usize {
        for road in [TripEndpoint::Server, TripEndpoint::PerSession] {
            let (listed, [left_ms, scope]) = self.list_items(road, list);
            assert_eq!(listed, offered, "{} ({road:?})", list.method);
            // The remaining part of the server's one-minute TTL.
            let left_ms: u64 = left_ms.parse().unwrap();
            assert!(left_ms <= 60_000, "{} {left_ms}", list.method);
            assert_eq!(scope, "\"public\"", "{}", list.method);
        }
        if list.key == "name" {
            let (listed, _) = self.list_items(TripEndpoint::All, list);
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

    fn list_items(&self, road: TripEndpoint, list: &ListSpec) -> (Vec<String>, [String; 2]) {
        let mut client = self.open_client(road);
        let mut listed = Vec::new();
        let mut params = META.to_owned();
        loop {
            let (answer, _) = client.send_request(&RequestText {
                extra: "",
                id: "1",
                method: list.method,
                params: &params,
            });
            let result = object::field(&answer, "result");
            let result = result
                .unwrap_or_else(|| panic!("{}", utf8_text(&answer)))
                .slice(&answer);
            let items = object::field(result, list.member).unwrap().slice(result);
            listed.extend(object::items(items).map(|item| utf8_text(item.slice(items))));
            let Some(cursor) = object::field(result, "nextCursor") else {
                let hint = |key| object::field(result, key).map(|at| utf8_text(at.slice(result)));
                let hints = ["ttlMs", "cacheScope"].map(|key| hint(key).unwrap_or_default());
                return (listed, hints);
            };
            let cursor = utf8_text(cursor.slice(result));
            let rest = META.strip_prefix('{').unwrap();
            params = format!("{{\"cursor\":{cursor},{rest}");
        }
    }

    /// Sends requests for the gateway itself, and checks each result.
    pub(super) fn assert_gateway_results(
        &self,
        all: &[(String, String)],
        hold: impl Fn(&str),
    ) -> usize {
        let mut client = self.open_client(TripEndpoint::Server);
        for (at, (method, params)) in all.iter().enumerate() {
            let (answer, _) = client.send_request(&RequestText {
                extra: "",
                id: "1",
                method,
                params,
            });
            let result = object::field(&answer, "result").map(|at| utf8_text(at.slice(&answer)));
            let result = result.unwrap_or_else(|| panic!("{params}: {}", utf8_text(&answer)));
            if at < super::super::round_trip::CHECKED {
                hold(&result);
            }
        }
        all.len()
    }

    /// Sends notifications without forwarding.
    pub(super) fn assert_unheard(&self, method: &str, all: &[String]) -> usize {
        let before = self.read_record().len();
        for road in [TripEndpoint::Server, TripEndpoint::PerSession] {
            let mut client = self.open_client(road);
            for params in all {
                client.send_notification(method, &insert_case_name(params, "0:0"));
            }
        }
        assert_eq!(self.read_record().len(), before);
        all.len() * 2
    }

    /// Sends trips through the gateway and checks both ends.
    pub(super) fn assert_trips(&self, road: TripEndpoint, trips: &[RoundTrip]) -> usize {
        // On a shared pipe a log line would be ambiguous.
        let is_log = |trip: &RoundTrip| {
            let mut events = trip.messages.iter();
            events.any(|event| event.method == "notifications/message")
        };
        let clients = match trips.iter().any(is_log) {
            true => 1,
            false => CLIENTS,
        };
        let cases = self.write_script(trips);
        let next = AtomicUsize::new(0);
        let begun = self.read_record().len();
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    let mut client = self.open_client(road);
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((trip, case)) = trips.get(at).zip(cases.get(at)) else {
                            break;
                        };
                        if let Err(fault) = run_trip(&mut client, at, trip, case) {
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
        let record = self.read_record();
        let lines = received_by_case(&record[begun..]);
        for (trip, case) in trips.iter().zip(&cases) {
            let came = &lines[case.as_str()];
            assert_eq!(came.len(), 1, "{trip:?} was sent more than once");
            assert_arrived(road, &came[0], trip, case);
        }
        trips.len()
    }

    /// The bytes received by the servers.
    pub(super) fn read_record(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("record")).unwrap()
    }

    /// Writes a server's script, and returns the name of each case.
    pub(super) fn write_script(&self, trips: &[RoundTrip]) -> Vec<String> {
        let path = self.dir.path().join("cases");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        let mut offset = file.metadata().unwrap().len();
        let mut all = Vec::new();
        let mut name = |(at, trip)| {
            let steps = json!(script_steps(at, trip)).to_string();
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

/// Starts the HTTP server and reads the port.
fn start_http_server(args: &[PathBuf]) -> (EchoHttpServer, u16) {
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
    (EchoHttpServer(child), port)
}

/// Makes one trip; an error describes the difference to the expected messages.
fn run_trip(
    client: &mut ModernByteClient,
    at: usize,
    trip: &RoundTrip,
    case: &str,
) -> Result<(), String> {
    let id = if at.is_multiple_of(3) {
        format!("\"id {at}\"")
    } else {
        at.to_string()
    };
    let (answer, came) = client.send_request(&RequestText {
        extra: &trip.extra,
        id: &id,
        method: &trip.method,
        params: &insert_case_name(&trip.client_params(), case),
    });
    let (extra, member, body) = (&trip.extra, trip.member, &trip.response);
    let wanted = format!(r#"{{{extra}"jsonrpc":"2.0","id":{id},"{member}":{body}}}"#);
    check_equal(&answer, &wanted)?;
    let mut came = came.iter();
    for event in &trip.messages {
        if matches!(event.handling, MessageHandling::OnCallStream) {
            let next = came.next().ok_or("too little came before the answer")?;
            check_equal(next, &event.to_notification(trip))?;
        }
    }
    match came.next() {
        Some(more) => Err(format!("this came as well: {}", utf8_text(more))),
        None => Ok(()),
    }
}

/// A received message: headers and text.
pub(super) struct ReceivedMessage<'a> {
    pub(super) headers: &'a [u8],
    pub(super) message: &'a [u8],
}

/// Returns the received messages by case name.
pub(super) fn received_by_case(record: &[u8]) -> HashMap<&str, Vec<ReceivedMessage<'_>>> {
    let mut lines: HashMap<&str, Vec<ReceivedMessage<'_>>> = HashMap::new();
    let all = record.split(|byte| *byte == b'\n');
    for line in all.filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(3, |byte| *byte == b'\t');
        let name = std::str::from_utf8(parts.next().unwrap()).unwrap();
        lines.entry(name).or_default().push(ReceivedMessage {
            headers: parts.next().unwrap(),
            message: parts.next().unwrap(),
        });
    }
    lines
}

/// Compares a received and a sent request.
fn assert_arrived(road: TripEndpoint, came: &ReceivedMessage<'_>, trip: &RoundTrip, case: &str) {
    let params = object::field(came.message, "params").unwrap();
    let params = utf8_text(params.slice(came.message));
    let sent = insert_case_name(&trip.params, case).replace(NAME, &trip.name.1);
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
