//! One request that takes long to judge or to read stops nobody else.

use std::io::Write as _;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, Session, fixture};

/// Requests of others that must be answered while one evaluation is under way.
const OTHERS_MIN: usize = 10;

fn config(condition: &str) -> String {
    format!(
        "[roles.r]\nallow = [\"one.*\"]\nwhen = [{{ on = \"one.echo\", if = {} }}]\n{}",
        json!(condition),
        fixture("one", &[])
    )
}

fn up(condition: &str) -> (Gateway, Session) {
    let gateway = Gateway::up(&config(condition));
    gateway.wait_for("one", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    let session = gateway.session_as(&token, "/mcp");
    (gateway, session)
}

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
    writeln!(std::io::stderr(), "{figure}").unwrap();
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
