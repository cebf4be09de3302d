//! A gateway in front of a server that does what it is told, and what it was sent.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_wire::object;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{Client, text};
use super::rows::List;
use super::trip::{NAME, Road, TOKEN, Trip, Way};
use crate::harness::{Gateway, server};

/// Connections that send at the same time.
const CLIENTS: usize = 4;

/// All clients share one process of it.
pub(super) const SHARED: &str = "/servers/echo/mcp";
/// Each session has a process of it, so that it is certain whom a question is for.
const OWN: &str = "/servers/own/mcp";
const ALL: &str = "/mcp";

/// The server with its gateway.
pub(super) struct Echo {
    dir: TempDir,
    pub(super) shared: Vec<Mutex<Client>>,
    own: Vec<Mutex<Client>>,
    all: Vec<Mutex<Client>>,
    pub(super) revision: String,
    /// Ends last.
    pub(super) gateway: Gateway,
}

impl Echo {
    /// Starts it with these lists.
    pub(super) fn up(lists: &Value, revision: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["cases", "record"] {
            File::create(at(name)).unwrap();
        }
        std::fs::write(at("lists"), lists.to_string()).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/echo.py");
        let args = [script, at("cases"), at("record"), at("lists")];
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        // Without pins: what is odd about these definitions is not to be marked in them.
        let config = [
            server("echo", "python3".as_ref(), &args),
            "pin = \"off\"\ncheck_output = false\n".to_owned(),
            server("own", "python3".as_ref(), &args),
            "pin = \"off\"\ncheck_output = false\nisolation = \"session\"\n".to_owned(),
        ];
        let gateway = Gateway::up(&config.concat());
        gateway.wait_for("echo", "ready");
        gateway.wait_for("own", "ready");
        let open = |path| {
            let client = |_| Mutex::new(Client::open(&gateway, path, revision));
            (0..CLIENTS).map(client).collect()
        };
        Self {
            dir,
            shared: open(SHARED),
            own: open(OWN),
            all: open(ALL),
            revision: revision.to_owned(),
            gateway,
        }
    }

    /// Holds a list against what the server offers: at the server byte for byte, at all servers
    /// but for the names.
    pub(super) fn lists(&self, list: &List, offered: &[String]) {
        let (method, revision) = (list.method, &self.revision);
        let listed = self.list(method, list.member);
        assert_eq!(listed, offered, "{method} of {revision}");
        if list.key != "name" {
            return;
        }
        let listed = self.all[0].lock().unwrap().list(method, list.member);
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

    /// Returns what a list holds, each as it is written.
    pub(super) fn list(&self, method: &str, member: &str) -> Vec<String> {
        self.shared[0].lock().unwrap().list(method, member)
    }

    /// Sends what the gateway answers itself; each ends in a result.
    pub(super) fn own(&self, method: &str, all: &[String]) {
        let mut client = self.shared[0].lock().unwrap();
        for params in all {
            let (answer, _) = client.request("1", method, params, &Trip::default());
            let result = object::field(&answer, "result").map(|at| text(at.of(&answer)));
            let whole = text(&answer);
            assert_eq!(result.as_deref(), Some("{}"), "{method} {params}: {whole}");
        }
    }

    /// Sends trips through and looks at both ends of each.
    pub(super) fn travel(&self, road: Road, trips: &[Trip]) {
        let cases = self.write(trips);
        let next = AtomicUsize::new(0);
        let begun = self.recorded().len();
        let failed = Mutex::new(Vec::new());
        let clients = match road {
            Road::Server => &self.shared,
            Road::Own => &self.own,
            Road::All => &self.all,
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
                        if let Err(fault) = client.travel(at, trip, case) {
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
        arrived(revision, &self.recorded()[begun..], trips, &cases);
    }

    /// What the server was sent so far.
    pub(super) fn recorded(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("record")).unwrap()
    }

    /// Writes down what the server is to do, and returns the name of each case.
    pub(super) fn write(&self, trips: &[Trip]) -> Vec<String> {
        let path = self.dir.path().join("cases");
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        let mut offset = file.metadata().unwrap().len();
        let mut all = Vec::new();
        let names = trips
            .iter()
            .enumerate()
            .map(|(at, trip)| {
                let steps = json!(steps(at, trip)).to_string();
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

/// What the server does on a trip.
pub(super) fn steps(at: usize, trip: &Trip) -> Vec<Value> {
    let mut steps = Vec::new();
    let extra = &trip.extra;
    for event in &trip.on_the_way {
        let id = format!("ask-{at}");
        let line = |id: &str, method: &str, params: &str| {
            let id = match id {
                "" => String::new(),
                id => format!("\"id\":\"{id}\","),
            };
            format!(r#"{{{extra}"jsonrpc":"2.0",{id}"method":"{method}","params":{params}}}"#)
        };
        let question = line(&id, &event.method, &event.params);
        match &event.way {
            Way::Told | Way::Aside | Way::Swallowed => {
                steps.push(json!(["send", line("", &event.method, &event.params)]));
            }
            Way::Asked(..) => steps.push(json!(["ask", id, question])),
            Way::Withdrawn(params) => {
                steps.push(json!(["send", question]));
                let cancelled = line("", "notifications/cancelled", params);
                steps.push(json!(["send", cancelled]));
            }
        }
    }
    let (member, answer) = (trip.member, &trip.answer);
    steps.push(json!([
        "send",
        format!(r#"{{{extra}"jsonrpc":"2.0","id":@ID@,"{member}":{answer}}}"#)
    ]));
    steps
}

/// Puts the name of a case into the params of its request.
pub(super) fn with_case(params: &str, case: &str) -> String {
    let params = params.trim_end().strip_suffix('}').unwrap();
    let comma = if params.trim_end().ends_with('{') {
        ""
    } else {
        ","
    };
    format!("{params}{comma}\"x-case\":\"{case}\"}}")
}

/// Holds what the server was sent against what was sent to it.
pub(super) fn arrived(revision: &str, record: &[u8], trips: &[Trip], cases: &[String]) {
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
        let params = text(object::field(lines[0], "params").unwrap().of(lines[0]));
        let sent = with_case(&trip.params, case).replace(NAME, &trip.name.1);
        let (before, after) = sent.split_once(TOKEN).unwrap_or((&sent, ""));
        let same = if trip.token.is_empty() {
            params == sent
        } else {
            params.starts_with(before) && params.ends_with(after)
        };
        assert!(same, "{revision}: {sent}\narrived as\n{params}");
        let answers = trip.on_the_way.iter().filter_map(|event| match &event.way {
            Way::Asked(member, answer) => Some((*member, answer)),
            _ => None,
        });
        assert_eq!(lines.len(), 1 + answers.clone().count());
        for (line, (member, answer)) in lines[1..].iter().zip(answers) {
            let came = object::field(line, member).map(|at| text(at.of(line)));
            assert_eq!(came.as_ref(), Some(answer), "{revision}");
        }
    }
}
