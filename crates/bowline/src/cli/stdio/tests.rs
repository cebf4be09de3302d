//! The shim between a client on a pipe and a scripted gateway.

mod stateless_tests;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::task::JoinSet;

use super::*;
use crate::cli::fake_gateway::{FakeGateway, FakeScript, response_bytes};
use crate::cli::{OutputFormat, failure::CliExit as Code};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const JSON: (&str, &str) = ("content-type", "application/json");
const STREAM: (&str, &str) = ("content-type", "text/event-stream");

/// Returns the method of a request; `None` for a notification.
fn requested_method(body: &str) -> Option<String> {
    let message: serde_json::Value = serde_json::from_str(body).ok()?;
    message.get("id")?;
    Some(message.get("method")?.as_str()?.to_owned())
}

/// Responds like a gateway: a session, echoes, an event stream for `slow`.
fn scripted_gateway(session: &'static str) -> FakeScript {
    Arc::new(move |asked| {
        let Some(method) = requested_method(&asked.body) else {
            return Some(response_bytes(202, &[], ""));
        };
        Some(match method.as_str() {
            "initialize" => response_bytes(
                200,
                &[JSON, ("mcp-session-id", session)],
                "{\"jsonrpc\":\"2.0\",\"id\":0,\n\"result\":{\"protocolVersion\":\"2025-06-18\"}}",
            ),
            "slow" => response_bytes(
                200,
                &[STREAM],
                "id: 1\ndata:\n\ndata: {\"method\":\"notifications/progress\"}\n\n\
                 data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":5,\"result\":{}}\n\n",
            ),
            "cut" => response_bytes(
                200,
                &[STREAM],
                "data: {\"method\":\"notifications/progress\"}\n\n",
            ),
            "forbidden" => response_bytes(
                403,
                &[JSON],
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32003,"message":"not you"}}"#,
            ),
            _ => response_bytes(
                200,
                &[JSON],
                "{\"jsonrpc\":\"2.0\",\"id\":\"e\",\"result\":{}}",
            ),
        })
    })
}

fn refuse_stream() -> FakeScript {
    Arc::new(|_| Some(response_bytes(405, &[], "")))
}

fn session_not_found() -> FakeScript {
    Arc::new(|_| Some(response_bytes(200, &[], "")))
}

fn test_shim(fake: &FakeGateway) -> Arc<StdioShim> {
    let (context, ..) = fake.command_context(OutputFormat::Human);
    let finder = GatewayFinder::new(&context);
    let daemon = finder.find_gateway().unwrap();
    let starter = GatewayStarter {
        program: "/nonexistent".into(),
        args: Vec::new(),
    };
    let locator = ShimGatewayLocator { finder, starter };
    create_shim(locator, "/mcp".into(), daemon).unwrap()
}

/// Sends `lines`, closes the input, and returns the output of the shim.
async fn exchange_lines(shim: &Arc<StdioShim>, lines: &[&str]) -> Vec<String> {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let input = format!("{}\n", lines.join("\n"));
    forward_lines(shim.clone(), input.as_bytes(), theirs).await;
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
async fn session_is_opened_used_and_deleted() {
    let fake = FakeGateway::start([
        ("POST /mcp", scripted_gateway("s1")),
        ("GET /mcp", refuse_stream()),
        ("DELETE /mcp", session_not_found()),
    ]);
    let shim = test_shim(&fake);
    let call = r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#;
    let out = exchange_lines(&shim, &[INITIALIZE, INITIALIZED, call]).await;
    assert_eq!(
        out,
        [
            r#"{"jsonrpc":"2.0","id":0, "result":{"protocolVersion":"2025-06-18"}}"#,
            r#"{"jsonrpc":"2.0","id":"e","result":{}}"#,
        ]
    );
    shim.delete_session().await;
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
async fn event_stream_becomes_lines_or_error() {
    let fake = FakeGateway::start([("POST /mcp", scripted_gateway("s1"))]);
    let shim = test_shim(&fake);
    let out = exchange_lines(&shim, &[r#"{"jsonrpc":"2.0","id":5,"method":"slow"}"#]).await;
    assert_eq!(
        out,
        [
            r#"{"method":"notifications/progress"}"#,
            r#"{"jsonrpc":"2.0", "id":5,"result":{}}"#,
        ]
    );
    let out = exchange_lines(&shim, &[r#"{"jsonrpc":"2.0","id":6,"method":"cut"}"#]).await;
    assert_eq!(out.len(), 2);
    assert!(
        out[1].contains(r#""id":6"#) && out[1].contains(r#""execution":"unknown""#),
        "{out:?}"
    );
}

#[tokio::test]
async fn broken_stream_is_resumed_then_given_up() {
    let post: FakeScript = Arc::new(|_| {
        let begun = "retry: 1\nid: a-0\ndata:\n\n\
                     id: a-1\ndata: {\"method\":\"notifications/progress\"}\n\n";
        Some(response_bytes(200, &[STREAM], begun))
    });
    let places = Arc::new(Mutex::new(Vec::new()));
    let get = |last: &'static str| -> FakeScript {
        let places = places.clone();
        Arc::new(move |asked| {
            let place = asked.header("last-event-id").unwrap().to_owned();
            let mut places = places.lock().unwrap();
            places.push(place.clone());
            Some(match (place.as_str(), places.len()) {
                // Unavailable for a moment.
                ("a-1", 1) => response_bytes(503, &[], ""),
                ("a-1", _) => {
                    response_bytes(200, &[STREAM], "id: a-2\ndata: {\"method\":\"m\"}\n\n")
                }
                _ if last.is_empty() => response_bytes(200, &[STREAM], ": alive\n\n"),
                _ => response_bytes(200, &[STREAM], last),
            })
        })
    };
    let call = r#"{"jsonrpc":"2.0","id":5,"method":"slow"}"#;
    let answer = "id: a-3\ndata: {\"jsonrpc\":\"2.0\",\"id\":5,\"result\":{}}\n\n";
    let fake = FakeGateway::start([("POST /mcp", post.clone()), ("GET /mcp", get(answer))]);
    let out = exchange_lines(&test_shim(&fake), &[call]).await;
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
    let fake = FakeGateway::start([("POST /mcp", post.clone()), ("GET /mcp", get(""))]);
    let out = exchange_lines(&test_shim(&fake), &[call]).await;
    assert!(out[2].contains(r#""execution":"unknown""#), "{out:?}");
    assert_eq!(places.lock().unwrap().len(), 2 + 5, "as often as allowed");

    let unknown: FakeScript = Arc::new(|_| Some(response_bytes(404, &[], "")));
    let fake = FakeGateway::start([("POST /mcp", post), ("GET /mcp", unknown)]);
    let out = exchange_lines(&test_shim(&fake), &[call]).await;
    assert!(out[1].contains(r#""execution":"unknown""#), "{out:?}");
    assert_eq!(
        fake.requests().len(),
        2,
        "a call that is forgotten is not asked for again"
    );
}

#[tokio::test]
async fn refused_or_unreachable_is_not_started() {
    let fake = FakeGateway::start([("POST /mcp", scripted_gateway("s1"))]);
    let shim = test_shim(&fake);
    let out = exchange_lines(&shim, &[r#"{"jsonrpc":"2.0","id":7,"method":"forbidden"}"#]).await;
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
    let out = exchange_lines(&shim, &[r#"{"jsonrpc":"2.0","id":8,"method":"echo"}"#]).await;
    assert!(
        out[0].contains(r#""id":8"#) && out[0].contains("not_started"),
        "{out:?}"
    );
}

#[tokio::test]
async fn malformed_lines_get_local_errors() {
    let fake = FakeGateway::start([]);
    let out = exchange_lines(&test_shim(&fake), &["nonsense", "[1]", "{}"]).await;
    let codes: Vec<i64> = out
        .iter()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|answer| answer["error"]["code"].as_i64().unwrap())
        .collect();
    assert_eq!(codes, [-32700, -32600, -32600]);
    assert_eq!(fake.requests().len(), 0);
}

#[tokio::test]
async fn forgotten_session_is_renewed_once() {
    let openings = Arc::new(AtomicUsize::new(0));
    let script: FakeScript = {
        let openings = openings.clone();
        Arc::new(move |asked| {
            if asked.body == INITIALIZE {
                let session = if openings.fetch_add(1, Ordering::SeqCst) == 0 {
                    "s1"
                } else {
                    "s2"
                };
                return scripted_gateway(session)(asked);
            }
            // The gateway was restarted with another key, so `s1` is unknown.
            match asked.header("mcp-session-id") {
                Some("s1") => Some(response_bytes(404, &[], "")),
                _ => scripted_gateway("s2")(asked),
            }
        })
    };
    let fake = FakeGateway::start([("POST /mcp", script)]);
    let shim = test_shim(&fake);
    let calls = [r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#; 5];
    let out = exchange_lines(&shim, &[&[INITIALIZE][..], &calls[..]].concat()).await;
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
async fn moved_gateway_is_found_by_record() {
    let old = FakeGateway::start([]);
    let new = FakeGateway::start([("POST /mcp", scripted_gateway("s1"))]);
    let shim = test_shim(&old);
    let moved = bowline_config::state::read_run(new.state.path())
        .unwrap()
        .unwrap();
    old.state.write_run(&moved).unwrap();
    let state = old.state.clone();
    let directory = old.stop();
    let out = exchange_lines(&shim, &[r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#]).await;
    assert_eq!(out, [r#"{"jsonrpc":"2.0","id":"e","result":{}}"#]);
    assert!(state.path().exists());
    drop(directory);
}

#[tokio::test]
async fn rotated_token_is_read_again() {
    let replaced = "n".repeat(64);
    let script: FakeScript = {
        let wanted = format!("Bearer {replaced}");
        Arc::new(move |asked| match asked.header("authorization") {
            Some(given) if given == wanted => scripted_gateway("s1")(asked),
            _ => Some(response_bytes(401, &[], "")),
        })
    };
    let fake = FakeGateway::start([("POST /mcp", script)]);
    let shim = test_shim(&fake);
    let call = r#"{"jsonrpc":"2.0","id":"e","method":"echo"}"#;
    let out = exchange_lines(&shim, &[call]).await;
    assert!(out[0].contains("does not accept the token"), "{out:?}");
    std::fs::write(fake.state.token_file(), &replaced).unwrap();
    let out = exchange_lines(&shim, &[call]).await;
    assert_eq!(out, [r#"{"jsonrpc":"2.0","id":"e","result":{}}"#]);
}

#[tokio::test]
async fn notification_stream_is_reopened() {
    let asked_after = Arc::new(Mutex::new(Vec::new()));
    let stream: FakeScript = {
        let asked_after = asked_after.clone();
        Arc::new(move |asked| {
            let mut seen = asked_after.lock().unwrap();
            seen.push(asked.header("last-event-id").map(str::to_owned));
            let event = format!("id: n{}\ndata: {{\"method\":\"n\"}}\n\n", seen.len());
            (seen.len() < 3).then(|| response_bytes(200, &[STREAM], &event))
        })
    };
    let fake = FakeGateway::start([("POST /mcp", scripted_gateway("s1")), ("GET /mcp", stream)]);
    let shim = test_shim(&fake);
    let (mut client, input) = tokio::io::duplex(1 << 16);
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let mut session = JoinSet::new();
    session.spawn(forward_lines(shim.clone(), input, theirs));
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
async fn closed_output_ends_shim() {
    let fake = FakeGateway::start([("POST /mcp", scripted_gateway("s1"))]);
    let (mut client, input) = tokio::io::duplex(1 << 16);
    let (ours, theirs) = tokio::io::duplex(16);
    drop(ours);
    let mut session = JoinSet::new();
    session.spawn(forward_lines(test_shim(&fake), input, theirs));
    client.write_all(b"nonsense\n").await.unwrap();
    // The input stays open; the closed output alone must end the shim.
    session.join_next().await.unwrap().unwrap();
    drop(client);
}

#[test]
fn explicit_url_starts_no_gateway() {
    let fake = FakeGateway::start([]);
    let (mut context, ..) = fake.command_context(OutputFormat::Human);
    context.global.url = Some("https://example.com".into());
    assert_eq!(run(None, &mut context).unwrap_err().exit, Code::Usage);
}
