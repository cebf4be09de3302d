//! A gateway in front of a scripted, recording server.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_testkit::gateway::{Gateway, server_config};
use bowline_wire::object;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::byte_client::{ByteClient, utf8_text};
use super::round_trip::{MessageHandling, NAME, RoundTrip, TOKEN, TripEndpoint};
use super::trip_specs::ListSpec;

/// Concurrent connections.
const CLIENTS: usize = 4;

/// The endpoint of the server with a shared process.
pub(super) const SHARED: &str = "/servers/echo/mcp";
/// The endpoint of the server with one process per session, so a server request is unambiguous.
const PER_SESSION: &str = "/servers/own/mcp";
const ALL: &str = "/mcp";

/// The server with a gateway.
pub(super) struct EchoGateway {
    dir: TempDir,
    pub(super) shared: Vec<Mutex<ByteClient>>,
    per_session: Vec<Mutex<ByteClient>>,
    all_servers: Vec<Mutex<ByteClient>>,
    pub(super) revision: String,
    /// Dropped last.
    pub(super) gateway: Gateway,
}

impl EchoGateway {
    /// Starts the server with the given lists.
    pub(super) fn start(lists: &Value, revision: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["cases", "record"] {
            File::create(at(name)).unwrap();
        }
        std::fs::write(at("lists"), lists.to_string()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/echo.py");
        let args = [script, at("cases"), at("record"), at("lists")];
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        // Without pins: suspicious definitions must not be marked here.
        let config = [
            server_config("echo", "python3".as_ref(), &args),
            "pin = \"off\"\ncheck_output = false\n".to_owned(),
            server_config("own", "python3".as_ref(), &args),
            "pin = \"off\"\ncheck_output = false\nisolation = \"session\"\n".to_owned(),
        ];
        let gateway = Gateway::start(&config.concat());
        gateway.wait_for_state("echo", "ready");
        gateway.wait_for_state("own", "ready");
        let open = |path| {
            let client = |_| Mutex::new(ByteClient::open(&gateway, path, revision));
            (0..CLIENTS).map(client).collect()
        };
        Self {
            dir,
            shared: open(SHARED),
            per_session: open(PER_SESSION),
            all_servers: open(ALL),
            revision: revision.to_owned(),
            gateway,
        }
    }

    /// Compares a list with the server's items: byte for byte at the server's endpoint, except for
    /// names at the shared endpoint.
    pub(super) fn assert_lists_equal(&self, list: &ListSpec, offered: &[String]) {
        let (method, revision) = (list.method, &self.revision);
        let listed = self.list_items(method, list.member);
        assert_eq!(listed, offered, "{method} of {revision}");
        if list.key != "name" {
            return;
        }
        let listed = self.all_servers[0]
            .lock()
            .unwrap()
            .list_items(method, list.member);
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
        assert_eq!(listed, wanted, "{method} of {revision} at all servers");
    }

    /// Returns the items of a list as raw text.
    pub(super) fn list_items(&self, method: &str, member: &str) -> Vec<String> {
        self.shared[0].lock().unwrap().list_items(method, member)
    }

    /// Sends requests for the gateway itself; each must return a result.
    pub(super) fn assert_gateway_results(&self, method: &str, all: &[String]) {
        let mut client = self.shared[0].lock().unwrap();
        for params in all {
            let (answer, _) = client.send_request("1", method, params, &RoundTrip::default());
            let result = object::field(&answer, "result").map(|at| utf8_text(at.slice(&answer)));
            let whole = utf8_text(&answer);
            assert_eq!(result.as_deref(), Some("{}"), "{method} {params}: {whole}");
        }
    }

    /// Sends trips through the gateway and checks both ends.
    pub(super) fn assert_trips(&self, road: TripEndpoint, trips: &[RoundTrip]) {
        let cases = self.write_script(trips);
        let next = AtomicUsize::new(0);
        let begun = self.read_record().len();
        let failed = Mutex::new(Vec::new());
        let clients = match road {
            TripEndpoint::Server => &self.shared,
            TripEndpoint::PerSession => &self.per_session,
            TripEndpoint::All => &self.all_servers,
        };
        std::thread::scope(|scope| {
            for client in clients {
                scope.spawn(|| {
                    let mut client = client.lock().unwrap();
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((trip, case)) = trips.get(at).zip(cases.get(at)) else {
                            break;
                        };
                        if let Err(fault) = client.run_trip(at, trip, case) {
                            failed.lock().unwrap().push(format!("{fault}\n{trip:?}"));
                        }
                    }
                });
            }
        });
        let (failed, revision) = (failed.into_inner().unwrap(), &self.revision);
        assert!(
            failed.is_empty(),
            "{revision}: {} of them\n{}",
            failed.len(),
            failed[0]
        );
        assert_arrived(revision, &self.read_record()[begun..], trips, &cases);
    }

    /// The bytes received by the server.
    pub(super) fn read_record(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("record")).unwrap()
    }

    /// Writes the server's script, and returns the name of each case.
    pub(super) fn write_script(&self, trips: &[RoundTrip]) -> Vec<String> {
        let path = self.dir.path().join("cases");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        let mut offset = file.metadata().unwrap().len();
        let mut all = Vec::new();
        let names = trips
            .iter()
            .enumerate()
            .map(|(at, trip)| {
                let steps = json!(script_steps(at, trip)).to_string();
                all.extend_from_slice(steps.as_bytes());
                let name = format!("{offset}:{}", steps.len());
                offset += steps.len() as u64;
                name
            })
            .collect();
        file.write_all(&all).unwrap();
        names
    }
}

/// The server's steps in a trip.
pub(super) fn script_steps(at: usize, trip: &RoundTrip) -> Vec<Value> {
    let mut steps = Vec::new();
    let extra = &trip.extra;
    for event in &trip.messages {
        let id = format!("ask-{at}");
        let line = |id: &str, method: &str, params: &str| {
            let id = match id {
                "" => String::new(),
                id => format!("\"id\":\"{id}\","),
            };
            format!(r#"{{{extra}"jsonrpc":"2.0",{id}"method":"{method}","params":{params}}}"#)
        };
        let question = line(&id, &event.method, &event.params);
        match &event.handling {
            MessageHandling::OnCallStream
            | MessageHandling::OnSessionStream
            | MessageHandling::Suppressed => {
                steps.push(json!(["send", line("", &event.method, &event.params)]));
            }
            MessageHandling::Answered(..) => steps.push(json!(["ask", id, question])),
            MessageHandling::Cancelled(params) => {
                steps.push(json!(["send", question]));
                let cancelled = line("", "notifications/cancelled", params);
                steps.push(json!(["send", cancelled]));
            }
        }
    }
    let (member, answer) = (trip.member, &trip.response);
    steps.push(json!([
        "send",
        format!(r#"{{{extra}"jsonrpc":"2.0","id":@ID@,"{member}":{answer}}}"#)
    ]));
    steps
}

/// Inserts the case name into the params of a request.
pub(super) fn insert_case_name(params: &str, case: &str) -> String {
    let params = params.trim_end().strip_suffix('}').unwrap();
    let comma = if params.trim_end().ends_with('{') {
        ""
    } else {
        ","
    };
    format!("{params}{comma}\"x-case\":\"{case}\"}}")
}

/// Compares the received requests with the sent ones.
pub(super) fn assert_arrived(revision: &str, record: &[u8], trips: &[RoundTrip], cases: &[String]) {
    let mut lines: HashMap<&str, Vec<&[u8]>> = HashMap::new();
    for line in record
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let tab = line.iter().position(|byte| *byte == b'\t').unwrap();
        let name = std::str::from_utf8(&line[..tab]).unwrap();
        lines.entry(name).or_default().push(&line[tab + 1..]);
    }
    for (trip, case) in trips.iter().zip(cases) {
        let lines = &lines[case.as_str()];
        let params = utf8_text(object::field(lines[0], "params").unwrap().slice(lines[0]));
        let sent = insert_case_name(&trip.params, case).replace(NAME, &trip.name.1);
        let (before, after) = sent.split_once(TOKEN).unwrap_or((&sent, ""));
        let same = if trip.token.is_empty() {
            params == sent
        } else {
            params.starts_with(before) && params.ends_with(after)
        };
        assert!(same, "{revision}: {sent}\narrived as\n{params}");
        let answers = trip
            .messages
            .iter()
            .filter_map(|event| match &event.handling {
                MessageHandling::Answered(member, answer) => Some((*member, answer)),
                _ => None,
            });
        assert_eq!(lines.len(), 1 + answers.clone().count());
        for (line, (member, answer)) in lines[1..].iter().zip(answers) {
            let came = object::field(line, member).map(|at| utf8_text(at.slice(line)));
            assert_eq!(came.as_ref(), Some(answer), "{revision}");
        }
    }
}
