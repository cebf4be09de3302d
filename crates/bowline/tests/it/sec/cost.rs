//! A request that is expensive to evaluate or parse blocks no other request.

use std::io::Write as _;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, HttpConnection, Response, Session, fixture_config};
use serde_json::{Value, json};

use crate::conditions::{condition_config, start_with_condition};

/// Minimum of `/livez` responses during an evaluation.
const OTHERS_MIN: usize = 200;

/// Runs `long` on a separate thread, with `/livez` requests meanwhile. Returns the result, the
/// number of `/livez` responses, and the slowest response time.
fn probe_livez_during<T: Send>(
    gateway: &Gateway,
    long: impl FnOnce() -> T + Send,
) -> (T, usize, Duration) {
    let mut others = HttpConnection::connect(gateway.address);
    std::thread::scope(|scope| {
        let (done, end) = mpsc::channel();
        scope.spawn(move || done.send(long()).unwrap());
        let (mut answered, mut slowest) = (0, Duration::ZERO);
        loop {
            let asked = Instant::now();
            assert_eq!(others.get("/livez", &[]).status, 200);
            let took = asked.elapsed();
            if let Ok(answer) = end.try_recv() {
                return (answer, answered, slowest);
            }
            answered += 1;
            slowest = slowest.max(took);
        }
    })
}

/// Prints a figure without an assertion.
fn print_figure(figure: &str) {
    let _ = writeln!(std::io::stderr(), "{figure}");
}

/// The largest list of texts that an attacker can put into arguments.
fn text_items(count: usize) -> Value {
    let items: Vec<_> = (0..count)
        .map(|number| format!("x{}", number % 10))
        .collect();
    json!({"message": "hi", "items": items})
}

#[test]
fn sec_91_patterns_in_loops_are_compiled_once() {
    let (gateway, mut session) =
        start_with_condition(r"args.items.all(x, x.matches('^\\w{1,100}$'))");
    let started = Instant::now();
    let (answer, answered, slowest) =
        probe_livez_during(&gateway, || session.call("one__echo", &text_items(3_000)));
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    let took = started.elapsed();
    print_figure(&format!(
        "3,000 matches took {took:?}; {answered} others, the slowest {slowest:?}"
    ));
    let refused = session.call("one__echo", &json!({"message": "hi", "items": ["-"]}));
    assert_eq!(
        refused["error"]["data"]["code"], "policy_denied",
        "{refused}"
    );
}

#[test]
fn sec_91_long_evaluations_leave_the_serving_thread() {
    let (gateway, mut session) =
        start_with_condition("args.items.all(x, args.items.all(y, !x.contains(y + '!')))");
    let (answer, answered, slowest) =
        probe_livez_during(&gateway, || session.call("one__echo", &text_items(999)));
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    print_figure(&format!(
        "998,001 turns; {answered} others meanwhile, the slowest {slowest:?}"
    ));
    assert!(answered >= OTHERS_MIN, "{answered} others were answered");
    // Beyond the limit of every condition the call is refused before any evaluation.
    let refused = session.call("one__echo", &text_items(3_000));
    assert_eq!(
        refused["error"]["data"]["code"], "policy_denied",
        "{refused}"
    );
    assert_eq!(refused["error"]["data"]["execution"], "not_started");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("units of work"), "{message}");
}

#[test]
fn sec_92_patterns_from_arguments_are_refused() {
    let gateway = Gateway::start(&condition_config("args.message.matches('^h')"));
    let file = gateway.dir.path().join("other.toml");
    for (condition, why) in [
        ("args.message.matches(args.pattern)", "must be written out"),
        ("args.items.all(x, x.matches(x))", "must be written out"),
        ("args.message.matches('(')", "is no pattern: unclosed group"),
        (
            "args.message.matches('(x{1000}){1000}')",
            "more than 10 MiB",
        ),
    ] {
        std::fs::write(&file, condition_config(condition)).unwrap();
        let checked = gateway.run_cli(&["check", "--config", file.to_str().unwrap()]);
        assert_eq!(checked.status.code(), Some(2), "{condition}");
        let shown = String::from_utf8(checked.stderr).unwrap();
        assert!(shown.contains("`if` is no condition"), "{shown}");
        assert!(shown.contains(why), "{shown}");
    }
}

/// A `ping` of nearly 8 MiB of keys, all distinct within their object.
fn large_ping() -> Vec<u8> {
    let keys: Vec<_> = (0..20_000)
        .map(|number| format!("\"{number:05}\":0"))
        .collect();
    let object = format!("{{{}}}", keys.join(","));
    let objects = vec![object; 37].join(",");
    let ping =
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ping","params":{{"all":[{objects}]}}}}"#);
    assert!((7 << 20..8 << 20).contains(&ping.len()), "{}", ping.len());
    ping.into_bytes()
}

#[test]
fn sec_94_large_bodies_leave_the_serving_thread() {
    let roles = "[roles.r]\nallow = []\nrate = { calls = 1, per = \"1h\" }\n";
    let gateway = Gateway::start(&format!("{roles}{}", fixture_config("one", &[])));
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let mut session = gateway.open_session_as(&token, "/mcp");
    let body = large_ping();
    let (last, most) = body.split_last().unwrap();
    let mut head = format!("POST /mcp HTTP/1.1\r\nHost: {}\r\n", gateway.address);
    for (name, value) in session.request_headers() {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("Content-Type: application/json\r\n");
    head.push_str("Accept: application/json, text/event-stream\r\n");
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    session.http.send_raw(head.as_bytes());
    session.http.send_raw(most);
    // All but the last byte is read before the scan can start.
    let mut others = HttpConnection::connect(gateway.address);
    for _ in 0..100 {
        assert_eq!(others.get("/livez", &[]).status, 200);
    }
    let (answer, answered, slowest) = probe_livez_during(&gateway, || {
        session.http.send_raw(&[*last]);
        session.http.read_response()
    });
    assert_eq!(answer.json()["result"], json!({}), "{}", answer.text());
    print_figure(&format!(
        "740,000 keys; {answered} others meanwhile, the slowest {slowest:?}"
    ));
    assert!(answered >= OTHERS_MIN, "{answered} others were answered");
    // A message with thousands of unknown members is invalid.
    let keys: Vec<_> = (0..100_001)
        .map(|number| format!("\"{number}\":0"))
        .collect();
    let ping = format!(
        r#"{{"jsonrpc":"2.0","id":8,"method":"ping","params":{{{}}}}}"#,
        keys.join(",")
    );
    let refused = session.post_raw(ping.as_bytes()).json();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("more than 1024 members"), "{refused}");
}

/// Posts a body on a new connection and returns the response.
fn post_once(session: &Session, body: &[u8]) -> Response {
    session.clone_on_new_connection().post_raw(body)
}

fn assert_too_fast(response: &Response) {
    assert_eq!(response.status, 429, "{}", response.text());
    let error = &response.json()["error"];
    assert_eq!(error["data"]["code"], "rate_exceeded", "{error}");
    assert_eq!(error["data"]["execution"], "not_started");
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 1, "{wait}");
}

#[test]
fn sec_93_every_request_counts_for_its_principal() {
    let limits = "[limits]\nprincipal_requests_per_s = 1\nprincipal_requests_burst = 40\n";
    let roles = "[roles.r]\nallow = [\"one.echo\"]\n";
    let gateway = Gateway::start(&format!("{limits}{roles}{}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    let token = |name: &str| {
        gateway
            .create_token(&json!({"principal": name, "role": "r"}))
            .1
    };
    let ann = gateway.open_session_as(&token("ann"), "/mcp");
    let mut bob = gateway.open_session_as(&token("bob"), "/mcp");
    // No executed call is among the messages.
    let kinds: [&[u8]; 6] = [
        br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"one__add"}}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#,
        br#"{"jsonrpc":"2.0","method":"notifications/x"}"#,
        b"{",
    ];
    let mut sent = 0;
    for body in kinds.iter().cycle().take(36) {
        assert_ne!(post_once(&ann, body).status, 429);
        sent += 1;
    }
    // The next requests come all at once: few fit into the refill of one second.
    let refused = std::thread::scope(|scope| {
        let all: Vec<_> = kinds
            .iter()
            .cycle()
            .take(60)
            .map(|body| scope.spawn(|| post_once(&ann, body)))
            .collect();
        // Others are served meanwhile.
        for _ in 0..20 {
            assert_eq!(bob.call_text("one__echo", &json!({"message": "hi"})), "hi");
        }
        let all = all.into_iter().map(|one| one.join().unwrap());
        all.filter(|response| response.status == 429)
            .inspect(assert_too_fast)
            .count()
    });
    print_figure(&format!(
        "{sent} requests passed; of 60 more {refused} were refused"
    ));
    assert!(refused > 0);
    // The owner is exempt.
    let mut owner = gateway.open_session("/mcp");
    for _ in 0..100 {
        assert_eq!(owner.request("ping", &json!({}))["result"], json!({}));
    }
}

#[test]
fn sec_93_every_byte_counts_for_its_principal() {
    let limits = "[limits]\nprincipal_bytes_per_s = \"1KiB\"\nprincipal_bytes_burst = \"64KiB\"\n";
    let roles = "[roles.r]\nallow = []\n";
    let gateway = Gateway::start(&format!("{limits}{roles}{}", fixture_config("one", &[])));
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    let ann = gateway.open_session_as(&token, "/mcp");
    let ping = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":"{}"}}}}"#,
        "x".repeat(60_000)
    );
    let statuses = [(); 3].map(|()| post_once(&ann, ping.as_bytes()));
    assert_eq!(statuses[0].status, 200);
    assert_eq!(
        statuses[1].status, 200,
        "one body of any size fits where there is room"
    );
    assert_too_fast(&statuses[2]);
}
