//! What happens to servers, told to those who watch.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, bowline, eventually, fixture, signal};

/// One who watches.
pub(crate) struct Watcher {
    http: Http,
    text: String,
}

/// One event as it came.
#[derive(Debug)]
pub(crate) struct Told {
    id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Watcher {
    pub(crate) fn start(gateway: &Gateway) -> Self {
        let (this, status) = Self::try_start(gateway);
        assert_eq!(status, 200);
        this
    }

    fn try_start(gateway: &Gateway) -> (Self, u16) {
        let mut http = Http::connect(gateway.address);
        let token = format!("Bearer {}", gateway.token);
        http.send("GET", "/api/v1/events", &[("Authorization", &token)], b"");
        let head = http.read_head();
        let text = String::new();
        (Self { http, text }, head.status)
    }

    /// The next event; nothing at the end of the stream.
    fn next(&mut self) -> Option<Told> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let told = parse(event);
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

    /// The next event of which this holds.
    pub(crate) fn until(&mut self, holds: impl Fn(&Told) -> bool) -> Told {
        loop {
            let told = self.next().expect("the stream goes on");
            if holds(&told) {
                return told;
            }
        }
    }
}

/// Reads an event; a comment is none.
fn parse(text: &str) -> Option<Told> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    Some(Told {
        id: field("id: ").map(|id| id.parse().unwrap()),
        name: field("event: ")?.to_owned(),
        data: serde_json::from_str(field("data: ")?).unwrap(),
    })
}

#[test]
fn a_watcher_is_told_how_things_stand_and_then_what_happens() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut watcher = Watcher::start(&gateway);
    let hello = watcher.next().unwrap();
    assert_eq!(hello.name, "hello");
    assert_eq!(hello.data["servers"][0]["name"], "one");
    assert_eq!(hello.data["servers"][0]["state"], "ready");
    let mut last = hello.id.unwrap();

    gateway.order("one", "stop");
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
    gateway.order("one", "start");
    watcher.until(|told| told.name == "catalog");
    let up = watcher.until(|told| told.data["state"] == "ready");
    assert_eq!(up.data["generation"], 2);

    let pid = gateway.status("one")["pid"].as_u64().unwrap();
    signal(u32::try_from(pid).unwrap(), "KILL");
    let down = watcher.until(|told| told.data["state"] == "backoff");
    let reason = down.data["reason"].as_str().unwrap();
    assert!(reason.contains("signal 9"), "{reason}");
}

#[test]
fn watchers_are_few_and_a_place_is_free_when_one_leaves() {
    let gateway = Gateway::up("");
    let mut watchers: Vec<_> = (0..64).map(|_| Watcher::start(&gateway)).collect();
    let (mut refused, status) = Watcher::try_start(&gateway);
    assert_eq!(status, 429);
    let mut body = vec![0; 256];
    let read = std::io::Read::read(&mut refused.http.stream, &mut body).unwrap();
    let body: Value = serde_json::from_slice(&body[..read]).unwrap();
    assert_eq!(body["error"]["code"], "too_many_watchers");
    watchers.pop();
    eventually("the place is free", || {
        let (_, status) = Watcher::try_start(&gateway);
        status == 200
    });
}

#[test]
fn only_the_owner_may_watch() {
    let gateway = Gateway::up_with("", &["--insecure-no-auth"]);
    let response = Http::connect(gateway.address).get("/api/v1/events", &[]);
    assert_eq!(response.status, 401);
}

#[test]
fn the_stream_ends_with_the_gateway_and_does_not_hold_it_up() {
    let mut gateway = Gateway::up(&fixture("one", &[]));
    let mut watcher = Watcher::start(&gateway);
    watcher.next().unwrap();
    assert!(gateway.stop());
    // Whatever was told before, it ends in order and is not cut off.
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut watcher.http.stream, &mut rest).unwrap();
    assert!(
        rest.ends_with("\r\n0\r\n\r\n") || rest == "0\r\n\r\n",
        "{rest:?}"
    );
}

#[test]
fn a_watched_status_follows_the_gateway_to_its_end() {
    let mut gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let watch = |args: &[&str]| {
        let mut child = Command::new(bowline())
            .arg("--state")
            .arg(gateway.state())
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
    gateway.order("one", "stop");
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
