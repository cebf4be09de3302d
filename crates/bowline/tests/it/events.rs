//! The event stream of server changes.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use bowline_testkit::gateway::{Gateway, HttpConnection, bowline_binary, fixture_config};
use bowline_testkit::{send_signal, wait_until};
use serde_json::{Value, json};

/// A client of the event stream.
pub(crate) struct EventWatcher {
    http: HttpConnection,
    text: String,
}

/// A received event.
#[derive(Debug)]
pub(crate) struct WatchedEvent {
    id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl EventWatcher {
    pub(crate) fn start(gateway: &Gateway) -> Self {
        let (this, status) = Self::try_start(gateway);
        assert_eq!(status, 200);
        this
    }

    fn try_start(gateway: &Gateway) -> (Self, u16) {
        let mut http = HttpConnection::connect(gateway.address);
        let token = format!("Bearer {}", gateway.token);
        http.send_request("GET", "/api/v1/events", &[("Authorization", &token)], b"");
        let head = http.read_head();
        let text = String::new();
        (Self { http, text }, head.status)
    }

    /// The next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<WatchedEvent> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let told = parse_event(event);
                self.text = rest.to_owned();
                if let Some(told) = told {
                    return Some(told);
                }
                continue;
            }
            let chunk = self.http.read_chunk()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The next matching event.
    pub(crate) fn next_matching(&mut self, holds: impl Fn(&WatchedEvent) -> bool) -> WatchedEvent {
        loop {
            let told = self.next().expect("the stream goes on");
            if holds(&told) {
                return told;
            }
        }
    }
}

/// Parses an event; a comment is no event.
fn parse_event(text: &str) -> Option<WatchedEvent> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    Some(WatchedEvent {
        id: field("id: ").map(|id| id.parse().unwrap()),
        name: field("event: ")?.to_owned(),
        data: serde_json::from_str(field("data: ")?).unwrap(),
    })
}

#[test]
fn watcher_gets_snapshot_then_events() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut watcher = EventWatcher::start(&gateway);
    let hello = watcher.next().unwrap();
    assert_eq!(hello.name, "hello");
    assert_eq!(hello.data["servers"][0]["name"], "one");
    assert_eq!(hello.data["servers"][0]["state"], "ready");
    let mut last = hello.id.unwrap();

    gateway.control_server("one", "stop");
    let mut states = Vec::new();
    while states.last() != Some(&json!("stopped")) {
        let told = watcher.next().unwrap();
        assert_eq!(told.id, Some(last + 1), "none is missing: {told:?}");
        assert_eq!(told.data["seq"], last + 1);
        assert_eq!(told.data["event"], told.name.as_str());
        last += 1;
        if told.name == "state" {
            assert_eq!(told.data["server"], "one");
            states.push(told.data["state"].clone());
        }
    }
    gateway.control_server("one", "start");
    watcher.next_matching(|told| told.name == "catalog");
    let up = watcher.next_matching(|told| told.data["state"] == "ready");
    assert_eq!(up.data["generation"], 2);

    let pid = gateway.server_status("one")["pid"].as_u64().unwrap();
    send_signal(u32::try_from(pid).unwrap(), "KILL");
    let down = watcher.next_matching(|told| told.data["state"] == "backoff");
    let reason = down.data["reason"].as_str().unwrap();
    assert!(reason.contains("signal 9"), "{reason}");
}

#[test]
fn watchers_are_capped_and_freed_on_leave() {
    let gateway = Gateway::start("");
    let mut watchers: Vec<_> = (0..64).map(|_| EventWatcher::start(&gateway)).collect();
    let (mut refused, status) = EventWatcher::try_start(&gateway);
    assert_eq!(status, 429);
    let mut body = vec![0; 256];
    let read = std::io::Read::read(&mut refused.http.stream, &mut body).unwrap();
    let body: Value = serde_json::from_slice(&body[..read]).unwrap();
    assert_eq!(body["error"]["code"], "too_many_watchers");
    watchers.pop();
    wait_until("the place is free", || {
        let (_, status) = EventWatcher::try_start(&gateway);
        status == 200
    });
}

#[test]
fn only_owner_may_watch() {
    let gateway = Gateway::start_with_args("", &["--insecure-no-auth"]);
    let response = HttpConnection::connect(gateway.address).get("/api/v1/events", &[]);
    assert_eq!(response.status, 401);
}

#[test]
fn event_stream_does_not_delay_stop() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    let mut watcher = EventWatcher::start(&gateway);
    watcher.next().unwrap();
    assert!(gateway.stop());
    // The stream ends in order, after all earlier events.
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut watcher.http.stream, &mut rest).unwrap();
    assert!(
        rest.ends_with("\r\n0\r\n\r\n") || rest == "0\r\n\r\n",
        "{rest:?}"
    );
}

#[test]
fn status_watch_follows_gateway_to_its_end() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let watch = |args: &[&str]| {
        let mut child = Command::new(bowline_binary())
            .arg("--state")
            .arg(gateway.state_dir())
            .args(["status", "--watch"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map(Result::unwrap))
    };
    let (mut json_child, mut json_lines) = watch(&["--json"]);
    let (mut human_child, mut human_lines) = watch(&[]);
    let first: Value = serde_json::from_str(&json_lines.next().unwrap()).unwrap();
    assert_eq!(first["event"], "hello");
    assert!(human_lines.any(|line| line.starts_with("one") && line.contains("● ready")));
    gateway.control_server("one", "stop");
    let stopped = json_lines
        .map(|line| serde_json::from_str::<Value>(&line).unwrap())
        .find(|event| event["state"] == "stopped");
    assert_eq!(stopped.unwrap()["server"], "one");
    assert!(human_lines.any(|line| line.starts_with("one") && line.contains("○ stopped")));
    assert!(gateway.stop());
    assert!(json_child.wait().unwrap().success());
    human_lines.for_each(drop);
    assert!(human_child.wait().unwrap().success());
}
