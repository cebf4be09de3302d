//! What does not go with a call: news of one thing, what clients only say, how sessions begin.

use bowline_wire::object;

use super::client::{Client, same, text};
use super::echo::{Echo, SHARED, with_case};
use super::trip::{Road, Trip};
use crate::harness::Http;
use crate::streams::next_event;

impl Echo {
    /// Lets the server speak of a resource and of a task, and reads it on the stream of the session
    /// that asked about them. `task` is the answer of the call that makes the task.
    pub(super) fn news(&self, trips: &[Trip], task: Option<String>) {
        let mut client = Client::open(&self.gateway, SHARED, &self.revision);
        let mut stream = Http::connect(client.address);
        let mut headers = client.headers();
        headers.push(("Accept", "text/event-stream"));
        stream.send("GET", client.path, &headers, b"");
        assert_eq!(stream.read_head().status, 200);
        let wanted = r#"{"uri":"x://t"}"#;
        let (subscribed, _) = client.request("1", "resources/subscribe", wanted, &Trip::default());
        assert!(object::field(&subscribed, "result").is_some());
        if let Some(answer) = task {
            let making = Trip {
                method: "tools/call".to_owned(),
                params: r#"{"name":"t","task":{}}"#.to_owned(),
                member: "result",
                answer,
                ..Trip::default()
            };
            let cases = self.write(std::slice::from_ref(&making));
            client.travel(0, &making, &cases[0]).unwrap();
        }
        let cases = self.write(trips);
        for (at, (trip, case)) in trips.iter().zip(&cases).enumerate() {
            client.travel(at, trip, case).unwrap();
            for event in &trip.on_the_way {
                let heard = loop {
                    let event = next_event(&mut stream).expect("the stream goes on");
                    match event.data {
                        Some(data) if !data.is_empty() => break data,
                        _ => {}
                    }
                };
                same(heard.as_bytes(), &event.line(trip)).unwrap();
            }
        }
        client.end();
    }

    /// Says what no server hears, and sees that none did.
    pub(super) fn unheard(&self, method: &str, all: &[String]) {
        let silent: Vec<_> = all.iter().map(|_| Trip::default()).collect();
        let cases = self.write(&silent);
        let begun = self.recorded().len();
        let mut client = Client::open(&self.gateway, SHARED, &self.revision);
        for (params, case) in all.iter().zip(&cases) {
            let params = with_case(params, case);
            let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            let said = client.say(body.as_bytes());
            assert_eq!(said.status, 202, "{body}: {}", said.text());
        }
        client.end();
        // What was sent before a call arrived before it.
        let call = Trip {
            method: "tools/call".to_owned(),
            params: r#"{"name":"t"}"#.to_owned(),
            member: "result",
            answer: r#"{"content":[]}"#.to_owned(),
            ..Trip::default()
        };
        self.travel(Road::Server, &[call]);
        let recorded = text(&self.recorded()[begun..]);
        assert_eq!(recorded.lines().count(), 1, "{method}: {recorded}");
    }

    /// Opens a session with these params and ends it; returns the result of `initialize`.
    pub(super) fn greet(&self, params: &str) -> String {
        let mut http = Http::connect(self.gateway.address);
        let token = format!("Bearer {}", self.gateway.token);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"h","method":"initialize","params":{params}}}"#);
        let headers = [("Authorization", token.as_str())];
        let opened = http.post(SHARED, &headers, body.as_bytes());
        assert_eq!(opened.status, 200, "{body}: {}", opened.text());
        let result = object::field(&opened.body, "result");
        let result = result.unwrap_or_else(|| panic!("{body}: {}", opened.text()));
        let result = text(result.of(&opened.body));
        let id = opened.header("mcp-session-id").unwrap().to_owned();
        let headers = [headers[0], ("Mcp-Session-Id", id.as_str())];
        http.send("DELETE", SHARED, &headers, b"");
        let ended = http.read();
        assert!(matches!(ended.status, 200 | 204), "{}", ended.text());
        result
    }
}
