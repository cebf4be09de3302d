//! Answers that stay good, over sockets: whose they are, and how often the server ran.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::harness::{Gateway, Session, eventually, fixture};

const TOOL: &str = "one__hinted";
/// Calls of two principals together.
const CALLS: usize = 10_000;
/// Sessions that ask the same at once.
const HERD: usize = 100;

fn up(more: &str) -> Gateway {
    let roles = "[roles.any]\nallow = [\"*.*\"]\n";
    let gateway = Gateway::up(&format!("{}{more}{roles}", fixture("one", &[])));
    gateway.wait_for("one", "ready");
    gateway
}

fn session_of(gateway: &Gateway, principal: &str) -> Session {
    let (_, token) = gateway.token_of(&json!({"principal": principal, "role": "any"}));
    gateway.session_as(&token, "/mcp")
}

/// Calls the tool and returns which of its runs with this key answered.
fn run_of(session: &mut Session, arguments: &Value) -> u64 {
    let answer = session.call(TOOL, arguments);
    let count = &answer["result"]["structuredContent"]["count"];
    count.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

fn good(key: &str, ttl_ms: u64, scope: &str) -> Value {
    json!({"key": key, "ttlMs": ttl_ms, "cacheScope": scope})
}

fn runs(session: &mut Session, key: &str) -> u64 {
    let answer = session.call("one__executions", &json!({"key": key}));
    let count = answer["result"]["structuredContent"]["count"].as_u64();
    count.unwrap()
}

#[test]
fn sec_34_private_answers_of_two_principals_never_cross_over_sockets() {
    let gateway = up("");
    // For each principal, which runs it saw of which key.
    let seen: Vec<BTreeSet<(usize, u64)>> = thread::scope(|scope| {
        let threads: Vec<_> = ["ann", "bob"]
            .map(|who| {
                let mut session = session_of(&gateway, who);
                scope.spawn(move || {
                    let calls = (0..CALLS / 2).map(|nth| (nth * 7) % 20);
                    calls
                        .map(|key| {
                            let asks = good(&format!("private {key}"), 300, "private");
                            (key, run_of(&mut session, &asks))
                        })
                        .collect()
                })
            })
            .into_iter()
            .collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let crossed: Vec<_> = seen[0].intersection(&seen[1]).collect();
    assert!(crossed.is_empty(), "{crossed:?}");
    let ran = seen[0].len() + seen[1].len();
    let status = gateway.status("one");
    let hits = status["cache_hits"].as_u64().unwrap();
    assert_eq!(hits as usize + ran, CALLS, "{status}");
    assert!(hits > 1_000, "{status}");
}

#[test]
fn public_answers_are_shared_and_counted() {
    let gateway = up("");
    let (mut ann, mut bob) = (session_of(&gateway, "ann"), session_of(&gateway, "bob"));
    let asks = good("p", 600_000, "public");
    for _ in 0..2 {
        assert_eq!(run_of(&mut ann, &asks), 1);
        assert_eq!(run_of(&mut bob, &asks), 1);
    }
    assert_eq!(runs(&mut ann, "p"), 1);
    let answer = bob.call(TOOL, &asks);
    let left = answer["result"]["ttlMs"].as_u64().unwrap();
    assert!(left <= 600_000, "{answer}");
    let status = gateway.status("one");
    for (key, want) in [
        ("cache_entries", 1),
        ("cache_hits", 4),
        ("cache_misses", 1),
        ("cache_evictions", 0),
    ] {
        assert_eq!(status[key], want, "{key}: {status}");
    }
    let said = gateway.cli(&["call", "one.hinted", "--json", "--args", &asks.to_string()]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said["origin"], "cached", "{said}");
    let shown = gateway.cli(&["status", "one"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("5 hits · 1 missed"), "{shown}");
}

#[test]
fn a_herd_of_equal_calls_runs_once() {
    let gateway = up("");
    let mut owner = gateway.session("/mcp");
    // It is known to give hints from here on.
    run_of(&mut owner, &good("first", 60_000, "public"));
    let mut herd: Vec<_> = (0..HERD).map(|_| gateway.session("/mcp")).collect();
    let mut asks = good("herd", 60_000, "public");
    asks["ms"] = json!(2_000);
    for session in &mut herd {
        session.send_call(9, TOOL, &asks);
    }
    for session in &mut herd {
        let answer = session.http.read().json();
        assert_eq!(answer["id"], 9);
        assert_eq!(
            answer["result"]["structuredContent"]["count"], 1,
            "{answer}"
        );
    }
    assert_eq!(runs(&mut owner, "herd"), 1);
}

#[test]
fn when_the_one_that_asks_is_cancelled_another_asks() {
    let gateway = up("");
    let mut owner = gateway.session("/mcp");
    run_of(&mut owner, &good("first", 60_000, "public"));
    let (mut leader, mut follower) = (gateway.session("/mcp"), gateway.session("/mcp"));
    let mut asks = good("slow", 60_000, "public");
    asks["ms"] = json!(3_000);
    leader.send_call(9, TOOL, &asks);
    eventually("the leader's call runs", || runs(&mut owner, "slow") == 1);
    follower.send_call(9, TOOL, &asks);
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 9}});
    assert_eq!(leader.twin().post(&cancelled).status, 202);
    let answer = follower.http.read().json();
    assert_eq!(
        answer["result"]["structuredContent"]["count"], 2,
        "{answer}"
    );
    assert_eq!(runs(&mut owner, "slow"), 2);
}

#[test]
fn a_hit_needs_neither_the_server_nor_its_breaker() {
    let gateway = up("breaker = { failures = 1, rest = \"1h\" }\n");
    let mut session = gateway.session("/mcp");
    let asks = good("kept", 600_000, "public");
    assert_eq!(run_of(&mut session, &asks), 1);
    session.call("one__crash", &json!({"when": "before"}));
    assert_eq!(gateway.status("one")["circuit"], "open");
    let refused = session.call(TOOL, &good("other", 1, "public"));
    assert!(refused["error"].is_object(), "{refused}");
    assert_eq!(run_of(&mut session, &asks), 1);
    let calls = gateway.status("one")["calls"].clone();
    run_of(&mut session, &asks);
    assert_eq!(
        gateway.status("one")["calls"],
        calls,
        "no load of the server"
    );
}

#[test]
fn a_tool_that_the_config_says_writes_makes_answers_stale() {
    let rules = "[servers.one.tools.effect]\neffect = \"write\"\ninvalidates = [\"hinted\"]\n\
                 [servers.one.tools.fail]\neffect = \"write\"\ninvalidates = [\"other_*\"]\n";
    let gateway = up(rules);
    let mut session = gateway.session("/mcp");
    let asks = good("k", 600_000, "public");
    assert_eq!(run_of(&mut session, &asks), 1);
    session.call("one__fail", &json!({"message": "names another"}));
    assert_eq!(run_of(&mut session, &asks), 1);
    session.call("one__effect", &json!({"key": "else"}));
    assert_eq!(run_of(&mut session, &asks), 2);
    gateway.order("one", "restart");
    gateway.wait_for("one", "ready");
    assert_eq!(gateway.status("one")["cache_entries"], 0);
}
