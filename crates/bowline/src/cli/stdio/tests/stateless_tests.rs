//! Stateless clients between a pipe and a scripted gateway.

use super::*;

const LISTEN: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"_meta":"#,
    r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"notifications":{}}}"#,
);

/// One event of a stream for the request `l`.
fn sse_event(method: &str, more: &str) -> String {
    let mark = r#""_meta":{"io.modelcontextprotocol/subscriptionId":"l"}"#;
    format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{{{mark}{more}}}}}\n\n")
}

fn ack_event(of: &str) -> String {
    let more = format!(",\"notifications\":{of}");
    sse_event("notifications/subscriptions/acknowledged", &more)
}

/// A client whose input stays open.
struct OpenClient {
    input: DuplexStream,
    lines: tokio::io::Lines<BufReader<DuplexStream>>,
    session: JoinSet<()>,
}

impl OpenClient {
    async fn start_with(shim: &Arc<StdioShim>, text: &str) -> Self {
        let (input, theirs) = tokio::io::duplex(1 << 16);
        let (ours, output) = tokio::io::duplex(1 << 16);
        let mut session = JoinSet::new();
        session.spawn(forward_lines(shim.clone(), theirs, output));
        let mut this = Self {
            input,
            lines: BufReader::new(ours).lines(),
            session,
        };
        this.send_text(text).await;
        this
    }

    async fn send_text(&mut self, text: &str) {
        let text = format!("{text}\n");
        self.input.write_all(text.as_bytes()).await.unwrap();
    }

    async fn next_message(&mut self) -> serde_json::Value {
        let line = self.lines.next_line().await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Closes the input, and returns the remaining output.
    async fn close_and_drain(self) -> Vec<String> {
        let Self {
            input,
            mut lines,
            mut session,
        } = self;
        drop(input);
        session.join_next().await;
        let mut rest = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            rest.push(line);
        }
        rest
    }
}

#[tokio::test]
async fn ended_listen_stream_reopens_with_changes() {
    let openings = Arc::new(AtomicUsize::new(0));
    let script: FakeScript = {
        let openings = openings.clone();
        Arc::new(move |asked| {
            assert_eq!(asked.header("mcp-method"), Some("subscriptions/listen"));
            assert_eq!(asked.header("mcp-session-id"), None);
            let all = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}"#;
            let less = r#"{"toolsListChanged":true}"#;
            let graceful = "data: {\"jsonrpc\":\"2.0\",\"id\":\"l\",\"result\":{}}\n\n";
            let text = match openings.fetch_add(1, Ordering::SeqCst) {
                // A broken stream, then an orderly end: a restarting gateway.
                0 => ack_event(all) + &sse_event("notifications/tools/list_changed", ""),
                1 => ack_event(all) + graceful,
                // The servers of the new gateway are not available yet.
                2 => ack_event(less),
                3 => ack_event(all),
                _ => return Some(response_bytes(401, &[], "")),
            };
            Some(response_bytes(200, &[STREAM], &text))
        })
    };
    let fake = FakeGateway::start([("POST /mcp", script)]);
    let mut client = OpenClient::start_with(&test_shim(&fake), LISTEN).await;
    let first = client.next_message().await;
    assert_eq!(first["params"]["notifications"]["toolsListChanged"], true);
    let mut told = Vec::new();
    for _ in 0..7 {
        let told_now = client.next_message().await;
        if told_now["method"] != "notifications/cancelled" && told_now["method"].is_string() {
            let mark = &told_now["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
            assert_eq!(mark, "l", "{told_now}");
        }
        told.push(match told_now["method"].as_str() {
            Some(method) => method.rsplit_once("notifications/").unwrap().1.to_owned(),
            None => format!("answer {}", told_now["id"]),
        });
    }
    assert_eq!(
        told,
        [
            "tools/list_changed",
            "tools/list_changed",
            "resources/updated",
            "tools/list_changed",
            "resources/updated",
            "cancelled",
            "answer \"l\"",
        ]
    );
    assert_eq!(client.close_and_drain().await, [""; 0]);
}

#[tokio::test]
async fn cancelled_request_ends_silently() {
    let script: FakeScript = Arc::new(|asked| match asked.header("mcp-method") {
        Some("subscriptions/listen") => Some(response_bytes(200, &[STREAM], &ack_event("{}"))),
        Some("tools/call") => None,
        other => panic!("{other:?}"),
    });
    let fake = FakeGateway::start([("POST /mcp", script)]);
    let call = LISTEN
        .replace("subscriptions/listen", "tools/call")
        .replace("\"l\"", "7");
    let cancel = |id: &str| {
        let params = format!("{{\"requestId\":{id}}}");
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
    };
    let mut client = OpenClient::start_with(&test_shim(&fake), LISTEN).await;
    client.next_message().await;
    client.send_text(&call).await;
    client.send_text(&cancel("7")).await;
    client.send_text(&cancel("\"l\"")).await;
    // If the cancelled call were still awaited, this would hang.
    assert_eq!(client.close_and_drain().await, [""; 0]);
}

#[tokio::test]
async fn refused_listen_stream_returns_gateway_error() {
    let refusal = r#"{"jsonrpc":"2.0","id":"l","error":{"code":-32602,"message":"no"}}"#;
    let script: FakeScript = Arc::new(move |_| Some(response_bytes(400, &[JSON], refusal)));
    let fake = FakeGateway::start([("POST /mcp", script)]);
    let shim = test_shim(&fake);
    let mut client = OpenClient::start_with(&shim, LISTEN).await;
    assert_eq!(client.next_message().await["error"]["code"], -32602);
    assert_eq!(client.close_and_drain().await, [""; 0]);
    fake.state.remove_run().unwrap();
    drop(fake);
    let mut client = OpenClient::start_with(&shim, LISTEN).await;
    let told = client.next_message().await;
    assert_eq!(told["error"]["data"]["execution"], "not_started", "{told}");
}
