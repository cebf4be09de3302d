//! The shim between a client on a pipe and a scripted gateway.

mod modern;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt as _, BufReader, DuplexStream};

use super::*;
use crate::cli::fake::{Fake, Script, response};
use crate::cli::{Format, failure::Exit as Code};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const JSON: (&str, &str) = ("content-type", "application/json");
const STREAM: (&str, &str) = ("content-type", "text/event-stream");

/// Answers like a gateway: a session, echoes, an event stream for `slow`.
fn gateway(session: &'static str) -> Script {
    Arc::new(move |asked| {
        let Some(Kind::Request { method, .. }) = message::kind(asked.body.as_bytes()) else {
            return Some(response(202, &[], ""));
        };
        Some(match method.as_str() {
            "initialize" => response(
                200,
                &[JSON, ("mcp-session-id", session)],
                "{\"jsonrpc\":\"2.0\",\"id\":0,\n\"result\":{\"protocolVersion\":\"2025-06-18\"}}",
            ),
            "slow" => response(
                200,
                &[STREAM],
                "id: 1\ndata:\n\ndata: {\"method\":\"notifications/progress\"}\n\n\
                 data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":5,\"result\":{}}\n\n",
            ),
            "cut" => response(
                200,
                &[STREAM],
                "data: {\"method\":\"notifications/progress\"}\n\n",
            ),
            "forbidden" => response(
                403,
                &[JSON],
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32003,"message":"not you"}}"#,
            ),
            _ => response(
                200,
                &[JSON],
                "{\"jsonrpc\":\"2.0\",\"id\":\"e\",\"result\":{}}",
            ),
        })
    })
}

fn no_stream() -> Script {
    Arc::new(|_| Some(response(405, &[], "")))
}

fn gone() -> Script {
    Arc::new(|_| Some(response(200, &[], "")))
}

fn shim(fake: &Fake) -> Arc<Shim> {
    let (context, ..) = fake.context(Format::Human);
    let finder = Finder::new(&context);
    let daemon = finder.find().unwrap();
    let starter = Starter {
        program: "/nonexistent".into(),
        args: Vec::new(),
    };
    Arc::new(Shim::new(finder, starter, "/mcp".into(), daemon))
}

/// What the client reads when it says all of `lines` and closes its end.
async fn said(shim: &Arc<Shim>, lines: &[&str]) -> Vec<String> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let input = format!("{}\n", lines.join("\n"));
    serve(shim.clone(), input.as_bytes(), theirs).await;
    read_all(ours).await
}

async fn read_all(output: DuplexStream) -> Vec<String> {
    let mut lines = BufReader::new(output).lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        found.push(line);
    }
    found
}

#[tokio::test]
async fn a_session_is_learned_used_and_left() {
    let fake = Fake::start([
        ("POST /mcp", gateway("s1")),
        ("GET /mcp", no_stream()),
        ("DELETE /mcp", gone()),
    ]);
    let shim = shim(&fake);
    let call = r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#;
    let out = said(&shim, &[INITIALIZE, INITIALIZED, call]).await;
    assert_eq!(
        out,
        [
            r#"{"jsonrpc":"2.0","id":0, "result":{"protocolVersion":"2025-06-18"}}"#,
            r#"{"jsonrpc":"2.0","id":"e","result":{}}"#,
        ]
    );
    shim.close().await;
    let requests = fake.requests();
    assert_eq!(requests[0].header("mcp-session-id"), None);
    let echo = requests.iter().find(|asked| asked.body == call).unwrap();
    assert_eq!(echo.header("mcp-session-id"), Some("s1"));
    assert_eq!(echo.header("mcp-protocol-version"), Some("2025-06-18"));
    let leave = requests
        .iter()
        .find(|asked| asked.line == "DELETE /mcp")
        .unwrap();
    assert_eq!(leave.header("mcp-session-id"), Some("s1"));
}

#[tokio::test]
async fn an_event_stream_becomes_lines_and_a_cut_one_an_error() {
    let fake = Fake::start([("POST /mcp", gateway("s1"))]);
    let shim = shim(&fake);
    let out = said(&shim, &[r#"{"jsonrpc":"2.0","id":5,"method":"slow"}"#]).await;
    assert_eq!(
        out,
        [
            r#"{"method":"notifications/progress"}"#,
            r#"{"jsonrpc":"2.0", "id":5,"result":{}}"#,
        ]
    );
    let out = said(&shim, &[r#"{"jsonrpc":"2.0","id":6,"method":"cut"}"#]).await;
    assert_eq!(out.len(), 2);
    assert!(
        out[1].contains(r#""id":6"#) && out[1].contains(r#""execution":"unknown""#),
        "{out:?}"
    );
}

#[tokio::test]
async fn a_stream_that_breaks_is_resumed_where_it_said_how_and_given_up_in_the_end() {
    let post: Script = Arc::new(|_| {
        let begun = "retry: 1\nid: a-0\ndata:\n\n\
                     id: a-1\ndata: {\"method\":\"notifications/progress\"}\n\n";
        Some(response(200, &[STREAM], begun))
    });
    let places = Arc::new(Mutex::new(Vec::new()));
    let get = |last: &'static str| -> Script {
        let places = places.clone();
        Arc::new(move |asked| {
            let place = asked.header("last-event-id").unwrap().to_owned();
            let mut places = places.lock().unwrap();
            places.push(place.clone());
            Some(match (place.as_str(), places.len()) {
                // It is not there for a moment.
                ("a-1", 1) => response(503, &[], ""),
                ("a-1", _) => response(200, &[STREAM], "id: a-2\ndata: {\"method\":\"m\"}\n\n"),
                _ if last.is_empty() => response(200, &[STREAM], ": alive\n\n"),
                _ => response(200, &[STREAM], last),
            })
        })
    };
    let call = r#"{"jsonrpc":"2.0","id":5,"method":"slow"}"#;
    let answer = "id: a-3\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{}}\n\n";
    let fake = Fake::start([("POST /mcp", post.clone()), ("GET /mcp", get(answer))]);
    let out = said(&shim(&fake), &[call]).await;
    assert_eq!(
        out,
        [
            r#"{"method":"notifications/progress"}"#,
            r#"{"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":5,"result":{}}"#,
        ]
    );
    assert_eq!(*places.lock().unwrap(), ["a-1", "a-1", "a-2"]);

    places.lock().unwrap().clear();
    let fake = Fake::start([("POST /mcp", post.clone()), ("GET /mcp", get(""))]);
    let out = said(&shim(&fake), &[call]).await;
    assert!(out[2].contains(r#""execution":"unknown""#), "{out:?}");
    assert_eq!(places.lock().unwrap().len(), 2 + 5, "as often as allowed");

    let unknown: Script = Arc::new(|_| Some(response(404, &[], "")));
    let fake = Fake::start([("POST /mcp", post), ("GET /mcp", unknown)]);
    let out = said(&shim(&fake), &[call]).await;
    assert!(out[1].contains(r#""execution":"unknown""#), "{out:?}");
    assert_eq!(
        fake.requests().len(),
        2,
        "a call that is forgotten is not asked for again"
    );
}

#[tokio::test]
async fn a_refusal_and_a_gateway_that_is_away_are_not_started() {
    let fake = Fake::start([("POST /mcp", gateway("s1"))]);
    let shim = shim(&fake);
    let out = said(&shim, &[r#"{"jsonrpc":"2.0","id":7,"method":"forbidden"}"#]).await;
    assert!(
        out[0].contains(r#""id":7,"error":{"code":-32003"#),
        "{out:?}"
    );
    assert!(
        out[0].contains("not you") && out[0].contains("not_started"),
        "{out:?}"
    );
    fake.state.remove_run().unwrap();
    drop(fake);
    let out = said(&shim, &[r#"{"jsonrpc":"2.0","id":8,"method":"echo"}"#]).await;
    assert!(
        out[0].contains(r#""id":8"#) && out[0].contains("not_started"),
        "{out:?}"
    );
}

#[tokio::test]
async fn lines_that_are_no_messages_are_answered_without_the_gateway() {
    let fake = Fake::start([]);
    let out = said(&shim(&fake), &["nonsense", "[1]", "{}"]).await;
    let codes: Vec<i64> = out
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|answer| answer["error"]["code"].as_i64().unwrap())
        .collect();
    assert_eq!(codes, [-32700, -32600, -32600]);
    assert_eq!(fake.requests().len(), 0);
}

#[tokio::test]
async fn a_forgotten_session_is_opened_again_once_and_unseen() {
    let openings = Arc::new(AtomicUsize::new(0));
    let script: Script = {
        let openings = openings.clone();
        Arc::new(move |asked| {
            if asked.body == INITIALIZE {
                let session = if openings.fetch_add(1, Ordering::SeqCst) == 0 {
                    "s1"
                } else {
                    "s2"
                };
                return gateway(session)(asked);
            }
            // The gateway was restarted with another key: it knows no `s1`.
            match asked.header("mcp-session-id") {
                Some("s1") => Some(response(404, &[], "")),
                _ => gateway("s2")(asked),
            }
        })
    };
    let fake = Fake::start([("POST /mcp", script)]);
    let shim = shim(&fake);
    let calls = [r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#; 5];
    let out = said(&shim, &[&[INITIALIZE][..], &calls[..]].concat()).await;
    assert_eq!(out.len(), 6);
    assert!(
        out[1..]
            .iter()
            .all(|line| line.contains(r#""id":"e","result""#)),
        "{out:?}"
    );
    assert_eq!(openings.load(Ordering::SeqCst), 2);
    assert!(
        fake.requests()
            .iter()
            .any(|asked| asked.body == INITIALIZED)
    );
}

#[tokio::test]
async fn a_gateway_that_moved_is_found_by_its_record() {
    let old = Fake::start([]);
    let new = Fake::start([("POST /mcp", gateway("s1"))]);
    let shim = shim(&old);
    let moved = crate::state::read_run(new.state.path()).unwrap().unwrap();
    old.state.write_run(&moved).unwrap();
    let state = old.state.clone();
    let directory = old.stop();
    let out = said(&shim, &[r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#]).await;
    assert_eq!(out, [r#"{"jsonrpc":"2.0","id":"e","result":{}}"#]);
    assert!(state.path().exists());
    drop(directory);
}

#[tokio::test]
async fn a_token_that_was_replaced_is_read_again() {
    let replaced = "n".repeat(64);
    let script: Script = {
        let wanted = format!("Bearer {replaced}");
        Arc::new(move |asked| match asked.header("authorization") {
            Some(given) if given == wanted => gateway("s1")(asked),
            _ => Some(response(401, &[], "")),
        })
    };
    let fake = Fake::start([("POST /mcp", script)]);
    let shim = shim(&fake);
    let call = r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#;
    let out = said(&shim, &[call]).await;
    assert!(out[0].contains("does not accept the token"), "{out:?}");
    std::fs::write(fake.state.token_file(), &replaced).unwrap();
    let out = said(&shim, &[call]).await;
    assert_eq!(out, [r#"{"jsonrpc":"2.0","id":"e","result":{}}"#]);
}

#[tokio::test]
async fn the_stream_of_notifications_is_opened_and_opened_again() {
    let asked_after = Arc::new(Mutex::new(Vec::new()));
    let stream: Script = {
        let asked_after = asked_after.clone();
        Arc::new(move |asked| {
            let mut seen = asked_after.lock().unwrap();
            seen.push(asked.header("last-event-id").map(str::to_owned));
            let event = format!("id: n{}\ndata: {{\"method\":\"n\"}}\n\n", seen.len());
            (seen.len() < 3).then(|| response(200, &[STREAM], &event))
        })
    };
    let fake = Fake::start([("POST /mcp", gateway("s1")), ("GET /mcp", stream)]);
    let shim = shim(&fake);
    let (mut client, input) = tokio::io::duplex(1 << 16);
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = JoinSet::new();
    session.spawn(serve(shim.clone(), input, theirs));
    client
        .write_all(format!("{INITIALIZE}\n{INITIALIZED}\n").as_bytes())
        .await
        .unwrap();
    let mut lines = BufReader::new(ours).lines();
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(lines.next_line().await.unwrap().unwrap());
    }
    assert_eq!(found[1..], [r#"{"method":"n"}"#, r#"{"method":"n"}"#]);
    drop(client);
    session.join_next().await;
    let seen = asked_after.lock().unwrap();
    assert_eq!(seen[..2], [None, Some("n1".to_owned())]);
}

#[tokio::test]
async fn a_client_that_reads_no_more_ends_the_shim() {
    let fake = Fake::start([("POST /mcp", gateway("s1"))]);
    let (mut client, input) = tokio::io::duplex(1 << 16);
    let (ours, theirs) = tokio::io::duplex(16);
    drop(ours);
    let mut session = JoinSet::new();
    session.spawn(serve(shim(&fake), input, theirs));
    client.write_all(b"nonsense\n").await.unwrap();
    // Its own end stays open; the closed output alone must end it.
    session.join_next().await.unwrap().unwrap();
    drop(client);
}

#[test]
fn a_fixed_address_without_a_gateway_starts_nothing() {
    let fake = Fake::start([]);
    let (mut context, ..) = fake.context(Format::Human);
    context.global.url = Some("https://example.com".into());
    assert_eq!(run(None, &mut context).unwrap_err().exit, Code::Usage);
}
