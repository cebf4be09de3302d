//! Clients of the gateway that look at every byte.

use std::net::SocketAddr;

use bowline_wire::object;
use bytes::Bytes;
use serde_json::{Value, json};

use super::echo::with_case;
use super::trip::{Event, TOKEN, Trip, Way};
use crate::harness::{Gateway, Http, Response};

/// A client's session of one revision.
pub(super) struct Client {
    pub(super) address: SocketAddr,
    pub(super) path: &'static str,
    pub(super) http: Http,
    headers: Vec<(String, String)>,
}

impl Client {
    pub(super) fn open(gateway: &Gateway, path: &'static str, revision: &str) -> Self {
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

    /// The headers of its requests.
    pub(super) fn headers(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(k, v)| (&**k, &**v)).collect()
    }

    fn post(&mut self, message: &Value) -> Response {
        self.say(message.to_string().as_bytes())
    }

    /// Posts one message.
    pub(super) fn say(&mut self, message: &[u8]) -> Response {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        self.http.post(self.path, &headers, message)
    }

    /// Ends its session.
    pub(super) fn end(&mut self) {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        self.http.send("DELETE", self.path, &headers, b"");
        let ended = self.http.read();
        assert!(matches!(ended.status, 200 | 204), "{}", ended.text());
    }

    /// Returns what a list holds, each as it is written.
    pub(super) fn list(&mut self, method: &str, member: &str) -> Vec<String> {
        let mut listed = Vec::new();
        let mut params = "{}".to_owned();
        loop {
            let (answer, _) = self.request("1", method, &params, &Trip::default());
            let result = object::field(&answer, "result").unwrap().of(&answer);
            let items = object::field(result, member).unwrap().of(result);
            listed.extend(object::items(items).map(|item| text(item.of(items))));
            match object::field(result, "nextCursor") {
                Some(cursor) => params = format!("{{\"cursor\":{}}}", text(cursor.of(result))),
                None => return listed,
            }
        }
    }

    /// Sends a request; returns its answer and what came before it.
    pub(super) fn request(
        &mut self,
        id: &str,
        method: &str,
        params: &str,
        trip: &Trip,
    ) -> (Bytes, Vec<Bytes>) {
        let extra = &trip.extra;
        let body = format!(
            r#"{{{extra}"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        );
        let mut headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        headers.push(("Content-Type", "application/json"));
        headers.push(("Accept", "application/json, text/event-stream"));
        self.http.send("POST", self.path, &headers, body.as_bytes());
        let mut asked = trip.on_the_way.iter().filter(|event| event.is_question());
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
                    let asked = asked.next().expect("a question that was not asked");
                    if let Way::Asked(member, answer) = &asked.way {
                        self.answer(&text(id.of(data)), member, answer);
                    }
                }
                came.push(Bytes::copy_from_slice(data));
            }
        }
        (came.pop().expect("an answer"), came)
    }

    /// Answers a question of the server on a connection of its own.
    fn answer(&self, id: &str, member: &str, answer: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{answer}}}"#);
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        let mut http = Http::connect(self.address);
        let taken = http.post(self.path, &headers, body.as_bytes());
        assert_eq!(taken.status, 202, "{}", taken.text());
    }

    /// Makes one trip; an error says what came back otherwise than it was sent.
    pub(super) fn travel(&mut self, at: usize, trip: &Trip, case: &str) -> Result<(), String> {
        let id = if at.is_multiple_of(3) {
            format!("\"id {at}\"")
        } else {
            at.to_string()
        };
        let params = with_case(&trip.sent(), case);
        let (answer, came) = self.request(&id, &trip.method, &params, trip);
        let extra = &trip.extra;
        let wanted = format!(
            r#"{{{extra}"jsonrpc":"2.0","id":{id},"{}":{}}}"#,
            trip.member, trip.answer
        );
        same(&answer, &wanted)?;
        let mut came = came.iter();
        for event in &trip.on_the_way {
            let mut next = || came.next().ok_or("too little came before the answer");
            match &event.way {
                Way::Told => same(next()?, &event.line(trip))?,
                Way::Aside | Way::Swallowed => {}
                Way::Asked(..) => event.is_asked_by(next()?)?,
                Way::Withdrawn(_) => {
                    let question = next()?;
                    event.is_asked_by(question)?;
                    let id = object::field(question, "id").map(|at| text(at.of(question)));
                    let id = id.unwrap_or_default();
                    let method = "notifications/cancelled";
                    let params = format!(r#"{{"requestId":{id}}}"#);
                    let wanted =
                        format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
                    same(next()?, &wanted)?;
                }
            }
        }
        match came.next() {
            Some(more) => Err(format!("this came as well: {}", text(more))),
            None => Ok(()),
        }
    }
}

impl Event {
    const fn is_question(&self) -> bool {
        matches!(self.way, Way::Asked(..) | Way::Withdrawn(_))
    }

    /// A notification as the client reads it.
    pub(super) fn line(&self, trip: &Trip) -> String {
        let (method, params) = (&self.method, self.params.replace(TOKEN, &trip.token));
        let extra = &trip.extra;
        format!(r#"{{{extra}"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
    }

    /// Holds a question against what the server asked; its id is the gateway's.
    fn is_asked_by(&self, question: &[u8]) -> Result<(), String> {
        let member = |key| object::field(question, key).map(|at| text(at.of(question)));
        let params = member("params").unwrap_or_default();
        if !unmarked(&params).any(|came| came == self.params) {
            return Err(format!("{}\ncame as\n{params}", self.params));
        }
        same(
            member("method").unwrap_or_default().as_bytes(),
            &format!("\"{}\"", self.method),
        )
    }
}

/// What a question may have been before it was given the name of its server, which is all that it
/// gains on its way.
fn unmarked(params: &str) -> impl Iterator<Item = String> {
    let marks = ["echo", "own"].map(|server| format!(r#""dev.bowline/server":"{server}""#));
    let ways = marks.into_iter().flat_map(|mark| {
        let meta = format!(r#""_meta":{{{mark}}}"#);
        let all = format!("{{{meta}}}");
        [all, format!("{meta},"), meta, format!("{mark},"), mark]
    });
    let ways = ways.filter(|way| params.contains(way.as_str()));
    ways.map(|way| params.replacen(&way, "", 1))
}

pub(super) fn same(came: &[u8], wanted: &str) -> Result<(), String> {
    let came = text(came);
    if came == wanted {
        return Ok(());
    }
    Err(format!("{wanted}\ncame as\n{came}"))
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
