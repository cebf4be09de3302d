//! The response cache over sockets: who shares an entry, and how often the server ran.

use std::collections::BTreeSet;
use std::thread;

use bowline_testkit::gateway::{Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

const TOOL: &str = "one__hinted";
/// Calls of two principals together.
const CALLS: usize = 10_000;
/// Sessions that send the same call at once.
const CONCURRENT_SESSIONS: usize = 100;

fn start_cached(more: &str) -> Gateway {
    let roles = "[roles.any]\nallow = [\"*.*\"]\n";
    let gateway = Gateway::start(&format!("{}{more}{roles}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    gateway
}

fn open_session_as(gateway: &Gateway, principal: &str) -> Session {
    let (_, token) = gateway.create_token(&json!({"principal": principal, "role": "any"}));
    gateway.open_session_as(&token, "/mcp")
}

/// Calls the tool and returns the number of the run that produced the response.
fn call_and_get_run(session: &mut Session, arguments: &Value) -> u64 {
    let answer = session.call(TOOL, arguments);
    let count = &answer["result"]["structuredContent"]["count"];
    count.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

fn cacheable_arguments(key: &str, ttl_ms: u64, scope: &str) -> Value {
    json!({"key": key, "ttlMs": ttl_ms, "cacheScope": scope})
}

fn count_runs(session: &mut Session, key: &str) -> u64 {
    let answer = session.call("one__executions", &json!({"key": key}));
    let count = answer["result"]["structuredContent"]["count"].as_u64();
    count.unwrap()
}

#[test]
fn sec_34_private_responses_never_cross_principals() {
    let gateway = start_cached("");
    // Runs that each principal saw, by key.
    let seen: Vec<BTreeSet<(usize, u64)>> = thread::scope(|scope| {
        let threads: Vec<_> = ["ann", "bob"]
            .map(|who| {
                let mut session = open_session_as(&gateway, who);
                scope.spawn(move || {
                    let calls = (0..CALLS / 2).map(|nth| (nth * 7) % 20);
                    calls
                        .map(|key| {
                            let asks =
                                cacheable_arguments(&format!("private {key}"), 300, "private");
                            (key, call_and_get_run(&mut session, &asks))
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
    let status = gateway.server_status("one");
    let hits = status["cache_hits"].as_u64().unwrap();
    assert_eq!(hits as usize + ran, CALLS, "{status}");
    assert!(hits > 1_000, "{status}");
}

#[test]
fn public_responses_are_shared_and_counted() {
    let gateway = start_cached("");
    let (mut ann, mut bob) = (
        open_session_as(&gateway, "ann"),
        open_session_as(&gateway, "bob"),
    );
    let asks = cacheable_arguments("p", 600_000, "public");
    for _ in 0..2 {
        assert_eq!(call_and_get_run(&mut ann, &asks), 1);
        assert_eq!(call_and_get_run(&mut bob, &asks), 1);
    }
    assert_eq!(count_runs(&mut ann, "p"), 1);
    let answer = bob.call(TOOL, &asks);
    let left = answer["result"]["ttlMs"].as_u64().unwrap();
    assert!(left <= 600_000, "{answer}");
    let status = gateway.server_status("one");
    for (key, want) in [
        ("cache_entries", 1),
        ("cache_hits", 4),
        ("cache_misses", 1),
        ("cache_evictions", 0),
    ] {
        assert_eq!(status[key], want, "{key}: {status}");
    }
    let said = gateway.run_cli(&["call", "one.hinted", "--json", "--args", &asks.to_string()]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(said["origin"], "cached", "{said}");
    let shown = gateway.run_cli(&["status", "one"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("5 hits · 1 missed"), "{shown}");
}

#[test]
fn equal_concurrent_calls_run_once() {
    let gateway = start_cached("");
    let mut owner = gateway.open_session("/mcp");
    // From here on the server is known to send cache hints.
    call_and_get_run(&mut owner, &cacheable_arguments("first", 60_000, "public"));
    let mut herd: Vec<_> = (0..CONCURRENT_SESSIONS)
        .map(|_| gateway.open_session("/mcp"))
        .collect();
    let mut asks = cacheable_arguments("herd", 60_000, "public");
    asks["ms"] = json!(2_000);
    for session in &mut herd {
        session.send_call(9, TOOL, &asks);
    }
    for session in &mut herd {
        let answer = session.http.read_response().json();
        assert_eq!(answer["id"], 9);
        assert_eq!(
            answer["result"]["structuredContent"]["count"], 1,
            "{answer}"
        );
    }
    assert_eq!(count_runs(&mut owner, "herd"), 1);
}

/// If the fetching caller of a shared response is cancelled, another waiting caller takes over.
#[test]
fn cancelled_cache_leader_is_replaced() {
    let gateway = start_cached("");
    let mut owner = gateway.open_session("/mcp");
    call_and_get_run(&mut owner, &cacheable_arguments("first", 60_000, "public"));
    let (mut leader, mut follower) = (gateway.open_session("/mcp"), gateway.open_session("/mcp"));
    let mut asks = cacheable_arguments("slow", 60_000, "public");
    asks["ms"] = json!(3_000);
    leader.send_call(9, TOOL, &asks);
    wait_until("the leader's call runs", || {
        count_runs(&mut owner, "slow") == 1
    });
    follower.send_call(9, TOOL, &asks);
    let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": {"requestId": 9}});
    assert_eq!(
        leader.clone_on_new_connection().post(&cancelled).status,
        202
    );
    let answer = follower.http.read_response().json();
    assert_eq!(
        answer["result"]["structuredContent"]["count"], 2,
        "{answer}"
    );
    assert_eq!(count_runs(&mut owner, "slow"), 2);
}

#[test]
fn cache_hit_needs_no_server_or_breaker() {
    let gateway = start_cached("breaker = { failures = 1, rest = \"1h\" }\n");
    let mut session = gateway.open_session("/mcp");
    let asks = cacheable_arguments("kept", 600_000, "public");
    assert_eq!(call_and_get_run(&mut session, &asks), 1);
    session.call("one__crash", &json!({"when": "before"}));
    assert_eq!(gateway.server_status("one")["circuit"], "open");
    let refused = session.call(TOOL, &cacheable_arguments("other", 1, "public"));
    assert!(refused["error"].is_object(), "{refused}");
    assert_eq!(call_and_get_run(&mut session, &asks), 1);
    let calls = gateway.server_status("one")["calls"].clone();
    call_and_get_run(&mut session, &asks);
    assert_eq!(
        gateway.server_status("one")["calls"],
        calls,
        "no load of the server"
    );
}

/// A call of a tool that the config marks as writing makes cached responses stale.
#[test]
fn configured_write_tool_invalidates_responses() {
    let rules = "[servers.one.tools.effect]\neffect = \"write\"\ninvalidates = [\"hinted\"]\n\
                 [servers.one.tools.fail]\neffect = \"write\"\ninvalidates = [\"other_*\"]\n";
    let gateway = start_cached(rules);
    let mut session = gateway.open_session("/mcp");
    let asks = cacheable_arguments("k", 600_000, "public");
    assert_eq!(call_and_get_run(&mut session, &asks), 1);
    session.call("one__fail", &json!({"message": "names another"}));
    assert_eq!(call_and_get_run(&mut session, &asks), 1);
    session.call("one__effect", &json!({"key": "else"}));
    assert_eq!(call_and_get_run(&mut session, &asks), 2);
    gateway.control_server("one", "restart");
    gateway.wait_for_state("one", "ready");
    assert_eq!(gateway.server_status("one")["cache_entries"], 0);
}
