//! Clients without a session, between a pipe and a scripted gateway.

use super::*;

const LISTEN: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"_meta":"#,
    r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"notifications":{}}}"#,
);

/// One event of a stream, marked as one of the request `l`.
fn event(method: &str, more: &str) -> String {
    let mark = r#""_meta":{"io.modelcontextprotocol/subscriptionId":"l"}"#;
    format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{{{mark}{more}}}}}\n\n")
}

fn promise(of: &str) -> String {
    let more = format!(",\"notifications\":{of}");
    event("notifications/subscriptions/acknowledged", &more)
}

/// A client whose end stays open.
struct Open {
    input: DuplexStream,
    lines: tokio::io::Lines<BufReader<DuplexStream>>,
    session: JoinSet<()>,
}

impl Open {
    async fn says(shim: &Arc<Shim>, text: &str) -> Self {
        let (input, theirs) = tokio::io::duplex(1 << 16);
        let (ours, output) = tokio::io::duplex(1 << 16);
        let mut session = JoinSet::new();
        session.spawn(serve(shim.clone(), theirs, output));
        let mut this = Self {
            input,
            lines: BufReader::new(ours).lines(),
            session,
        };
        this.say(text).await;
        this
    }

    async fn say(&mut self, text: &str) {
        let text = format!("{text}\n");
        self.input.write_all(text.as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> serde_json::Value {
        let line = self.lines.next_line().await.unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Says no more, and returns what is still told.
    async fn end(self) -> Vec<String> {
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
async fn a_stream_that_ends_is_opened_again_and_what_was_missed_is_told_as_changed() {
    let openings = Arc::new(AtomicUsize::new(0));
    let script: Script = {
        let openings = openings.clone();
        Arc::new(move |asked| {
            assert_eq!(asked.header("mcp-method"), Some("subscriptions/listen"));
            assert_eq!(asked.header("mcp-session-id"), None);
            let all = r#"{"toolsListChanged":true,"resourceSubscriptions":["a:b"]}"#;
            let less = r#"{"toolsListChanged":true}"#;
            let graceful = "data: {\"jsonrpc\":\"2.0\",\"id\":\"l\",\"result\":{}}\n\n";
            let text = match openings.fetch_add(1, Ordering::SeqCst) {
                // It breaks, then ends in order: a gateway that is started anew.
                0 => promise(all) + &event("notifications/tools/list_changed", ""),
                1 => promise(all) + graceful,
                // Its servers are not there yet.
                2 => promise(less),
                3 => promise(all),
                _ => return Some(response(401, &[], "")),
            };
            Some(response(200, &[STREAM], &text))
        })
    };
    let fake = Fake::start([("POST /mcp", script)]);
    let mut client = Open::says(&shim(&fake), LISTEN).await;
    let first = client.next().await;
    assert_eq!(first["params"]["notifications"]["toolsListChanged"], true);
    let mut told = Vec::new();
    for _ in 0..7 {
        let told_now = client.next().await;
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
    assert_eq!(client.end().await, [""; 0]);
}

#[tokio::test]
async fn what_is_no_longer_wanted_ends_without_a_word_and_the_rest_goes_on() {
    let script: Script = Arc::new(|asked| match asked.header("mcp-method") {
        Some("subscriptions/listen") => Some(response(200, &[STREAM], &promise("{}"))),
        Some("tools/call") => None,
        other => panic!("{other:?}"),
    });
    let fake = Fake::start([("POST /mcp", script)]);
    let call = LISTEN
        .replace("subscriptions/listen", "tools/call")
        .replace("\"l\"", "7");
    let cancel = |id: &str| {
        let params = format!("{{\"requestId\":{id}}}");
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#)
    };
    let mut client = Open::says(&shim(&fake), LISTEN).await;
    client.next().await;
    client.say(&call).await;
    client.say(&cancel("7")).await;
    client.say(&cancel("\"l\"")).await;
    // Were the call still waited for, this would last.
    assert_eq!(client.end().await, [""; 0]);
}

#[tokio::test]
async fn a_stream_that_is_refused_is_answered_as_the_gateway_says() {
    let refusal = r#"{"jsonrpc":"2.0","id":"l","error":{"code":-32602,"message":"no"}}"#;
    let script: Script = Arc::new(move |_| Some(response(400, &[JSON], refusal)));
    let fake = Fake::start([("POST /mcp", script)]);
    let shim = shim(&fake);
    let mut client = Open::says(&shim, LISTEN).await;
    assert_eq!(client.next().await["error"]["code"], -32602);
    assert_eq!(client.end().await, [""; 0]);
    fake.state.remove_run().unwrap();
    drop(fake);
    let mut client = Open::says(&shim, LISTEN).await;
    let told = client.next().await;
    assert_eq!(told["error"]["data"]["execution"], "not_started", "{told}");
}
