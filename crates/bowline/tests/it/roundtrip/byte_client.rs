//! Byte-exact clients of the gateway.

use std::net::SocketAddr;

use bowline_testkit::gateway::{Gateway, HttpConnection, Response};
use bowline_wire::object;
use bytes::Bytes;
use serde_json::{Value, json};

use super::echo_gateway::insert_case_name;
use super::round_trip::{MessageHandling, RoundTrip, TOKEN, TripMessage};

/// A client session of a revision.
pub(super) struct ByteClient {
    pub(super) address: SocketAddr,
    pub(super) path: &'static str,
    pub(super) http: HttpConnection,
    headers: Vec<(String, String)>,
}

impl ByteClient {
    pub(super) fn open(gateway: &Gateway, path: &'static str, revision: &str) -> Self {
        let mut this = Self {
            address: gateway.address,
            path,
            http: HttpConnection::connect(gateway.address),
            headers: vec![("Authorization".into(), format!("Bearer {}", gateway.token))],
        };
        let opened = this.post_json(&json!({
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
        let opened =
            this.post_json(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(opened.status, 202);
        this
    }

    /// The request headers.
    pub(super) fn request_headers(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(k, v)| (&**k, &**v)).collect()
    }

    fn post_json(&mut self, message: &Value) -> Response {
        self.post_bytes(message.to_string().as_bytes())
    }

    /// Posts a message.
    pub(super) fn post_bytes(&mut self, message: &[u8]) -> Response {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        self.http.post(self.path, &headers, message)
    }

    /// Ends the session.
    pub(super) fn end_session(&mut self) {
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        self.http.send_request("DELETE", self.path, &headers, b"");
        let ended = self.http.read_response();
        assert!(matches!(ended.status, 200 | 204), "{}", ended.text());
    }

    /// Returns the items of a list as raw text.
    pub(super) fn list_items(&mut self, method: &str, member: &str) -> Vec<String> {
        let mut listed = Vec::new();
        let mut params = "{}".to_owned();
        loop {
            let (answer, _) = self.send_request("1", method, &params, &RoundTrip::default());
            let result = object::field(&answer, "result").unwrap().slice(&answer);
            let items = object::field(result, member).unwrap().slice(result);
            listed.extend(object::items(items).map(|item| utf8_text(item.slice(items))));
            match object::field(result, "nextCursor") {
                Some(cursor) => {
                    params = format!("{{\"cursor\":{}}}", utf8_text(cursor.slice(result)))
                }
                None => return listed,
            }
        }
    }

    /// Sends a request; returns the response and the preceding messages.
    pub(super) fn send_request(
        &mut self,
        id: &str,
        method: &str,
        params: &str,
        trip: &RoundTrip,
    ) -> (Bytes, Vec<Bytes>) {
        let extra = &trip.extra;
        let body = format!(
            r#"{{{extra}"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
        );
        let mut headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        headers.push(("Content-Type", "application/json"));
        headers.push(("Accept", "application/json, text/event-stream"));
        self.http
            .send_request("POST", self.path, &headers, body.as_bytes());
        let mut asked = trip
            .messages
            .iter()
            .filter(|event| event.is_server_request());
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
                // The priming event of newer revisions carries only an event id.
                let data = lines.find_map(|line| line.strip_prefix(b"data: "));
                let Some(data) = data.filter(|data| !data.is_empty()) else {
                    continue;
                };
                let asks = object::field(data, "method").is_some();
                if let Some(id) = object::field(data, "id").filter(|_| asks) {
                    let asked = asked.next().expect("a question that was not asked");
                    if let MessageHandling::Answered(member, answer) = &asked.handling {
                        self.answer_request(&utf8_text(id.slice(data)), member, answer);
                    }
                }
                came.push(Bytes::copy_from_slice(data));
            }
        }
        (came.pop().expect("an answer"), came)
    }

    /// Answers a server request on a new connection.
    fn answer_request(&self, id: &str, member: &str, answer: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"{member}":{answer}}}"#);
        let headers: Vec<_> = self.headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        let mut http = HttpConnection::connect(self.address);
        let taken = http.post(self.path, &headers, body.as_bytes());
        assert_eq!(taken.status, 202, "{}", taken.text());
    }

    /// Makes one trip; an error describes the difference to the expected messages.
    pub(super) fn run_trip(
        &mut self,
        at: usize,
        trip: &RoundTrip,
        case: &str,
    ) -> Result<(), String> {
        let id = if at.is_multiple_of(3) {
            format!("\"id {at}\"")
        } else {
            at.to_string()
        };
        let params = insert_case_name(&trip.client_params(), case);
        let (answer, came) = self.send_request(&id, &trip.method, &params, trip);
        let extra = &trip.extra;
        let wanted = format!(
            r#"{{{extra}"jsonrpc":"2.0","id":{id},"{}":{}}}"#,
            trip.member, trip.response
        );
        check_equal(&answer, &wanted)?;
        let mut came = came.iter();
        for event in &trip.messages {
            let mut next = || came.next().ok_or("too little came before the answer");
            match &event.handling {
                MessageHandling::OnCallStream => {
                    check_equal(next()?, &event.to_notification(trip))?
                }
                MessageHandling::OnSessionStream | MessageHandling::Suppressed => {}
                MessageHandling::Answered(..) => event.check_server_request(next()?)?,
                MessageHandling::Cancelled(_) => {
                    let question = next()?;
                    event.check_server_request(question)?;
                    let id = object::field(question, "id").map(|at| utf8_text(at.slice(question)));
                    let id = id.unwrap_or_default();
                    let method = "notifications/cancelled";
                    let params = format!(r#"{{"requestId":{id}}}"#);
                    let wanted =
                        format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
                    check_equal(next()?, &wanted)?;
                }
            }
        }
        match came.next() {
            Some(more) => Err(format!("this came as well: {}", utf8_text(more))),
            None => Ok(()),
        }
    }
}

impl TripMessage {
    const fn is_server_request(&self) -> bool {
        matches!(
            self.handling,
            MessageHandling::Answered(..) | MessageHandling::Cancelled(_)
        )
    }

    /// The notification expected by the client.
    pub(super) fn to_notification(&self, trip: &RoundTrip) -> String {
        let (method, params) = (&self.method, self.params.replace(TOKEN, &trip.token));
        let extra = &trip.extra;
        format!(r#"{{{extra}"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
    }

    /// Compares a received and a sent server request; the id is the gateway's.
    fn check_server_request(&self, question: &[u8]) -> Result<(), String> {
        let member = |key| object::field(question, key).map(|at| utf8_text(at.slice(question)));
        let params = member("params").unwrap_or_default();
        if !without_server_name(&params).any(|came| came == self.params) {
            return Err(format!("{}\ncame as\n{params}", self.params));
        }
        check_equal(
            member("method").unwrap_or_default().as_bytes(),
            &format!("\"{}\"", self.method),
        )
    }
}

/// Possible originals of a server request before the gateway added the server name, its only
/// change.
fn without_server_name(params: &str) -> impl Iterator<Item = String> {
    let marks = ["echo", "own"].map(|server| format!(r#""dev.bowline/server":"{server}""#));
    let ways = marks.into_iter().flat_map(|mark| {
        let meta = format!(r#""_meta":{{{mark}}}"#);
        let all = format!("{{{meta}}}");
        [all, format!("{meta},"), meta, format!("{mark},"), mark]
    });
    let ways = ways.filter(|way| params.contains(way.as_str()));
    ways.map(|way| params.replacen(&way, "", 1))
}

pub(super) fn check_equal(came: &[u8], wanted: &str) -> Result<(), String> {
    let came = utf8_text(came);
    if came == wanted {
        return Ok(());
    }
    Err(format!("{wanted}\ncame as\n{came}"))
}

pub(super) fn utf8_text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
