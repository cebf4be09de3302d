//! A gateway in front of a server that does what it is told, and clients that look at every byte.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_wire::object;
use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::trip::{TOKEN, Trip};
use crate::harness::{Gateway, Http, server};

/// Connections that send at the same time.
const CLIENTS: usize = 4;

/// All clients share one process of it.
const SHARED: &str = "/servers/echo/mcp";
/// Each session has a process of it, so that it is certain whom a question is for.
const OWN: &str = "/servers/own/mcp";

/// The server with its gateway.
pub(super) struct Echo {
    dir: TempDir,
    shared: Vec<Mutex<Client>>,
    own: Vec<Mutex<Client>>,
    revision: String,
    /// Ends last.
    _gateway: Gateway,
}

/// A client's session of one revision.
struct Client {
    address: SocketAddr,
    path: &'static str,
    http: Http,
    headers: Vec<(String, String)>,
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
        let config = [
            server("echo", "python3".as_ref(), &args),
            server("own", "python3".as_ref(), &args),
            "isolation = \"session\"\n".to_owned(),
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
            revision: revision.to_owned(),
            _gateway: gateway,
        }
    }

    /// Returns what a list holds, each as it is written.
    pub(super) fn list(&self, method: &str, member: &str) -> Vec<String> {
        let mut client = self.shared[0].lock().unwrap();
        let mut listed = Vec::new();
        let mut params = "{}".to_owned();
        loop {
            let (answer, _) = client.request("1", method, &params, &Trip::default());
            let result = object::field(&answer, "result").unwrap().of(&answer);
            let items = object::field(result, member).unwrap().of(result);
            listed.extend(object::items(items).map(|item| text(item.of(items))));
            match object::field(result, "nextCursor") {
                Some(cursor) => params = format!("{{\"cursor\":{}}}", text(cursor.of(result))),
                None => return listed,
            }
        }
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
    pub(super) fn travel(&self, trips: &[Trip]) {
        let cases = self.write(trips);
        let next = AtomicUsize::new(0);
        let record = self.dir.path().join("record");
        let begun = std::fs::metadata(&record).unwrap().len();
        let failed = Mutex::new(Vec::new());
        let asks = trips.iter().flat_map(|trip| &trip.on_the_way);
        let clients = if asks.clone().any(|event| event.answer.is_some()) {
            &self.own
        } else {
            &self.shared
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
        let record = std::fs::read(record).unwrap();
        let begun = usize::try_from(begun).unwrap();
        arrived(revision, &record[begun..], trips, &cases);
    }

    /// Writes down what the server is to do, and returns the name of each case.
    fn write(&self, trips: &[Trip]) -> Vec<String> {
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
fn steps(at: usize, trip: &Trip) -> Vec<Value> {
    let mut steps = Vec::new();
    for event in &trip.on_the_way {
        let (method, params) = (&event.method, &event.params);
        if event.answer.is_some() {
            let id = format!("ask-{at}");
            let line =
                format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"{method}","params":{params}}}"#);
            steps.push(json!(["ask", id, line]));
        } else {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            steps.push(json!(["send", line]));
        }
    }
    let (member, answer) = (trip.member, &trip.answer);
    steps.push(json!([
        "send",
        format!(r#"{{"jsonrpc":"2.0","id":@ID@,"{member}":{answer}}}"#)
    ]));
    steps
}

/// Puts the name of a case into the params of its request.
fn with_case(params: &str, case: &str) -> String {
    format!(
        "{},\"x-case\":\"{case}\"}}",
        params.strip_suffix('}').unwrap()
    )
}

/// Holds what the server was sent against what was sent to it.
fn arrived(revision: &str, record: &[u8], trips: &[Trip], cases: &[String]) {
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
        let sent = with_case(&trip.params, case);
        let (before, after) = sent.split_once(TOKEN).unwrap_or((&sent, ""));
        let same = if trip.token.is_empty() {
            params == sent
        } else {
            params.starts_with(before) && params.ends_with(after)
        };
        assert!(same, "{revision}: {sent}\narrived as\n{params}");
        let answers = trip.on_the_way.iter().filter_map(|it| it.answer.as_ref());
        for (line, answer) in lines[1..].iter().zip(answers) {
            let result = object::field(line, "result").map(|at| text(at.of(line)));
            assert_eq!(result.as_ref(), Some(answer), "{revision}");
        }
        assert_eq!(
            lines.len(),
            1 + trip
                .on_the_way
                .iter()
                .filter(|it| it.answer.is_some())
                .count()
        );
    }
}

impl Client {
    fn open(gateway: &Gateway, path: &'static str, revision: &str) -> Self {
        let mut this = Self {
            address: gateway.address,
            path,
            http: Http::connect(gateway.address),
            headers: vec![("Authorization".into(), format!("Bearer {}", gateway.token))],
        };
        let opened = this.post(&json!({
            "jsonrpc": "2.0", "id": 0, "method": "initialize",
            "params": {
                "protocolVersion": revision,
                "capabilities": {
                    "elicitation": {"form": {}, "url": {}},
                    "roots": {},
                    "sampling": {"context": {}, "tools": {}},
                },
                "clientInfo": {"name": "it", "version": "1"},
            },
        }));
        let id = opened.header("mcp-session-id").unwrap().to_owned();
        let agreed = opened.json()["result"]["protocolVersion"]
            .as_str()
            .unwrap()
            .to_owned();
        this.headers.push(("Mcp-Session-Id".into(), id));
        this.headers.push(("MCP-Protocol-Version".into(), agreed));
        let opened = this.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(opened.status, 202);
        this
    }

    fn post(&mut self, message: &Value) -> crate::harness::Response {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        self.http
            .post(self.path, &headers, message.to_string().as_bytes())
    }

    /// Sends a request; returns its answer and what came before it.
    fn request(
        &mut self,
        id: &str,
        method: &str,
        params: &str,
        trip: &Trip,
    ) -> (Bytes, Vec<Bytes>) {
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let mut headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        headers.push(("Content-Type", "application/json"));
        headers.push(("Accept", "application/json, text/event-stream"));
        self.http.send("POST", self.path, &headers, body.as_bytes());
        let mut answers = trip.on_the_way.iter().filter_map(|it| it.answer.as_deref());
        let mut head = self.http.read_head();
        assert_eq!(head.status, 200, "{body}");
        if let Some(length) = head.header("content-length") {
            head.body = vec![0; length.parse().unwrap()];
            std::io::Read::read_exact(&mut self.http.stream, &mut head.body).unwrap();
            return (head.body.into(), Vec::new());
        }
        let (mut buffer, mut came) = (Vec::new(), Vec::new());
        while let Some(chunk) = self.http.read_chunk() {
            buffer.extend(chunk);
            while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = buffer.drain(..end + 2).collect();
                let mut lines = event.split(|byte| *byte == b'\n');
                // The first event of a newer revision says where to come back to, and no more.
                let data = lines.find_map(|line| line.strip_prefix(b"data: "));
                let Some(data) = data.filter(|data| !data.is_empty()) else {
                    continue;
                };
                let asks = object::field(data, "method").is_some();
                if let Some(id) = object::field(data, "id").filter(|_| asks) {
                    let answer = answers.next().unwrap_or("{}");
                    self.answer(&text(id.of(data)), answer);
                }
                came.push(Bytes::copy_from_slice(data));
            }
        }
        (came.pop().expect("an answer"), came)
    }

    /// Answers a question of the server on a connection of its own.
    fn answer(&self, id: &str, result: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        let mut http = Http::connect(self.address);
        let taken = http.post(self.path, &headers, body.as_bytes());
        assert_eq!(taken.status, 202, "{}", taken.text());
    }

    /// Makes one trip; an error says what came back otherwise than it was sent.
    fn travel(&mut self, at: usize, trip: &Trip, case: &str) -> Result<(), String> {
        let id = if at.is_multiple_of(3) {
            format!("\"id {at}\"")
        } else {
            at.to_string()
        };
        let params = with_case(&trip.params.replace(TOKEN, &trip.token), case);
        let (answer, came) = self.request(&id, &trip.method, &params, trip);
        let wanted = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"{}":{}}}"#,
            trip.member, trip.answer
        );
        same(&answer, &wanted)?;
        if came.len() != trip.on_the_way.len() {
            return Err(format!("{} messages came before the answer", came.len()));
        }
        for (came, event) in came.iter().zip(&trip.on_the_way) {
            let (method, params) = (&event.method, event.params.replace(TOKEN, &trip.token));
            if event.answer.is_none() {
                let wanted =
                    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
                same(came, &wanted)?;
            } else {
                let came = object::field(came, "params").map(|at| text(at.of(came)));
                same(came.unwrap_or_default().as_bytes(), &params)?;
            }
        }
        Ok(())
    }
}

fn same(came: &[u8], wanted: &str) -> Result<(), String> {
    let came = text(came);
    if came == wanted {
        return Ok(());
    }
    Err(format!("{wanted}\ncame as\n{came}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
