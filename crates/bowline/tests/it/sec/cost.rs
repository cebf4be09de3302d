//! One request that takes long to judge or to read stops nobody else.

use std::io::Write as _;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::condition::{config, up};
use crate::harness::{Gateway, Http, Response, Session, fixture};

/// Requests of others that must be answered while one evaluation is under way.
const OTHERS_MIN: usize = 200;

/// Runs `long` on a thread of its own, and asks for `/livez` until it is done. Returns its answer,
/// how many of the others were answered before it, and how long the slowest of them took.
fn beside<T: Send>(gateway: &Gateway, long: impl FnOnce() -> T + Send) -> (T, usize, Duration) {
    let mut others = Http::connect(gateway.address);
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

/// Shows a figure that no assertion is made about.
fn show(figure: &str) {
    let _ = writeln!(std::io::stderr(), "{figure}");
}

/// As many texts as an attacker can put into arguments.
fn items(count: usize) -> Value {
    let items: Vec<_> = (0..count)
        .map(|number| format!("x{}", number % 10))
        .collect();
    json!({"message": "hi", "items": items})
}

#[test]
fn sec_91_patterns_in_loops_are_compiled_once() {
    let (gateway, mut session) = up(r"args.items.all(x, x.matches('^\\w{1,100}$'))");
    let started = Instant::now();
    let (answer, answered, slowest) = beside(&gateway, || session.call("one__echo", &items(3_000)));
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    let took = started.elapsed();
    show(&format!(
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
    let (gateway, mut session) = up("args.items.all(x, args.items.all(y, !x.contains(y + '!')))");
    let (answer, answered, slowest) = beside(&gateway, || session.call("one__echo", &items(999)));
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    show(&format!(
        "998,001 turns; {answered} others meanwhile, the slowest {slowest:?}"
    ));
    assert!(answered >= OTHERS_MIN, "{answered} others were answered");
    // Beyond the bound of every condition the call is refused before anything is evaluated.
    let refused = session.call("one__echo", &items(3_000));
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
    let gateway = Gateway::up(&config("args.message.matches('^h')"));
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
        std::fs::write(&file, config(condition)).unwrap();
        let checked = gateway.cli(&["check", "--config", file.to_str().unwrap()]);
        assert_eq!(checked.status.code(), Some(2), "{condition}");
        let shown = String::from_utf8(checked.stderr).unwrap();
        assert!(shown.contains("`if` is no condition"), "{shown}");
        assert!(shown.contains(why), "{shown}");
    }
}

/// A `ping` of nearly 8 MiB that is nothing but keys, none of them twice in an object.
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
    let gateway = Gateway::up(&format!("{roles}{}", fixture("one", &[])));
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let mut session = gateway.session_as(&token, "/mcp");
    let body = large_ping();
    let (last, most) = body.split_last().unwrap();
    let mut head = format!("POST /mcp HTTP/1.1\r\nHost: {}\r\n", gateway.address);
    for (name, value) in session.headers() {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("Content-Type: application/json\r\n");
    head.push_str("Accept: application/json, text/event-stream\r\n");
    head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
    session.http.raw(head.as_bytes());
    session.http.raw(most);
    // All but the last byte is read before the scan can begin.
    let mut others = Http::connect(gateway.address);
    for _ in 0..100 {
        assert_eq!(others.get("/livez", &[]).status, 200);
    }
    let (answer, answered, slowest) = beside(&gateway, || {
        session.http.raw(&[*last]);
        session.http.read()
    });
    assert_eq!(answer.json()["result"], json!({}), "{}", answer.text());
    show(&format!(
        "740,000 keys; {answered} others meanwhile, the slowest {slowest:?}"
    ));
    assert!(answered >= OTHERS_MIN, "{answered} others were answered");
    // A message with thousands of members that the protocol does not know is none.
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

/// Posts a body and returns what came back, on a connection of its own.
fn post_once(session: &Session, body: &[u8]) -> Response {
    session.twin().post_raw(body)
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
    let gateway = Gateway::up(&format!("{limits}{roles}{}", fixture("one", &[])));
    gateway.wait_for("one", "ready");
    let token = |name: &str| gateway.token_of(&json!({"principal": name, "role": "r"})).1;
    let ann = gateway.session_as(&token("ann"), "/mcp");
    let mut bob = gateway.session_as(&token("bob"), "/mcp");
    // None of these is a call that runs.
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
    // The next ones come all at once: few of them fit into what a second makes good.
    let refused = std::thread::scope(|scope| {
        let all: Vec<_> = kinds
            .iter()
            .cycle()
            .take(60)
            .map(|body| scope.spawn(|| post_once(&ann, body)))
            .collect();
        // Others are served meanwhile.
        for _ in 0..20 {
            assert_eq!(bob.text("one__echo", &json!({"message": "hi"})), "hi");
        }
        let all = all.into_iter().map(|one| one.join().unwrap());
        all.filter(|response| response.status == 429)
            .inspect(assert_too_fast)
            .count()
    });
    show(&format!(
        "{sent} requests passed; of 60 more {refused} were refused"
    ));
    assert!(refused > 0);
    // The owner is not held to it.
    let mut owner = gateway.session("/mcp");
    for _ in 0..100 {
        assert_eq!(owner.request("ping", &json!({}))["result"], json!({}));
    }
}

#[test]
fn sec_93_every_byte_counts_for_its_principal() {
    let limits = "[limits]\nprincipal_bytes_per_s = \"1KiB\"\nprincipal_bytes_burst = \"64KiB\"\n";
    let roles = "[roles.r]\nallow = []\n";
    let gateway = Gateway::up(&format!("{limits}{roles}{}", fixture("one", &[])));
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let ann = gateway.session_as(&token, "/mcp");
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
