//! Messages outside calls: notifications about one resource or task, client notifications, session
//! starts.

use bowline_testkit::gateway::HttpConnection;
use bowline_wire::object;

use super::byte_client::{ByteClient, check_equal, utf8_text};
use super::echo_gateway::{EchoGateway, SHARED, insert_case_name};
use super::round_trip::{RoundTrip, TripEndpoint};
use crate::streams::next_event;

impl EchoGateway {
    /// Makes the server send notifications about a resource and a task, and reads the subscribed
    /// session's stream. `task` is the response of the task-creating call.
    pub(super) fn assert_session_notifications(&self, trips: &[RoundTrip], task: Option<String>) {
        let mut client = ByteClient::open(&self.gateway, SHARED, &self.revision);
        let mut stream = HttpConnection::connect(client.address);
        let mut headers = client.request_headers();
        headers.push(("Accept", "text/event-stream"));
        stream.send_request("GET", client.path, &headers, b"");
        assert_eq!(stream.read_head().status, 200);
        let wanted = r#"{"uri":"x://t"}"#;
        let (subscribed, _) =
            client.send_request("1", "resources/subscribe", wanted, &RoundTrip::default());
        assert!(object::field(&subscribed, "result").is_some());
        if let Some(answer) = task {
            let making = RoundTrip {
                method: "tools/call".to_owned(),
                params: r#"{"name":"t","task":{}}"#.to_owned(),
                member: "result",
                response: answer,
                ..RoundTrip::default()
            };
            let cases = self.write_script(std::slice::from_ref(&making));
            client.run_trip(0, &making, &cases[0]).unwrap();
        }
        let cases = self.write_script(trips);
        for (at, (trip, case)) in trips.iter().zip(&cases).enumerate() {
            client.run_trip(at, trip, case).unwrap();
            for event in &trip.messages {
                let heard = loop {
                    let event = next_event(&mut stream).expect("the stream goes on");
                    match event.data {
                        Some(data) if !data.is_empty() => break data,
                        _ => {}
                    }
                };
                check_equal(heard.as_bytes(), &event.to_notification(trip)).unwrap();
            }
        }
        client.end_session();
    }

    /// Sends notifications that must not reach a server, and checks that none did.
    pub(super) fn assert_unheard(&self, method: &str, all: &[String]) {
        let silent: Vec<_> = all.iter().map(|_| RoundTrip::default()).collect();
        let cases = self.write_script(&silent);
        let begun = self.read_record().len();
        let mut client = ByteClient::open(&self.gateway, SHARED, &self.revision);
        for (params, case) in all.iter().zip(&cases) {
            let params = insert_case_name(params, case);
            let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
            let said = client.post_bytes(body.as_bytes());
            assert_eq!(said.status, 202, "{body}: {}", said.text());
        }
        client.end_session();
        // Messages sent before a call arrive before the call.
        let call = RoundTrip {
            method: "tools/call".to_owned(),
            params: r#"{"name":"t"}"#.to_owned(),
            member: "result",
            response: r#"{"content":[]}"#.to_owned(),
            ..RoundTrip::default()
        };
        self.assert_trips(TripEndpoint::Server, &[call]);
        let recorded = utf8_text(&self.read_record()[begun..]);
        assert_eq!(recorded.lines().count(), 1, "{method}: {recorded}");
    }

    /// Opens and ends a session with the given params; returns the result of `initialize`.
    pub(super) fn open_and_end_session(&self, params: &str) -> String {
        let mut http = HttpConnection::connect(self.gateway.address);
        let token = format!("Bearer {}", self.gateway.token);
        let body =
            format!(r#"{{"jsonrpc":"2.0","id":"h","method":"initialize","params":{params}}}"#);
        let headers = [("Authorization", token.as_str())];
        let opened = http.post(SHARED, &headers, body.as_bytes());
        assert_eq!(opened.status, 200, "{body}: {}", opened.text());
        let result = object::field(&opened.body, "result");
        let result = result.unwrap_or_else(|| panic!("{body}: {}", opened.text()));
        let result = utf8_text(result.slice(&opened.body));
        let id = opened.header("mcp-session-id").unwrap().to_owned();
        let headers = [headers[0], ("Mcp-Session-Id", id.as_str())];
        http.send_request("DELETE", SHARED, &headers, b"");
        let ended = http.read_response();
        assert!(matches!(ended.status, 200 | 204), "{}", ended.text());
        result
    }
}
