//! Five official servers behind one gateway at once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::Peers;
use super::world::{NAMES, World};
use crate::harness::{Gateway, eventually, server, signal};

#[test]
fn five_official_servers_serve_side_by_side() {
    let Some(peers) = Peers::of("five_official_servers_serve_side_by_side", &[]) else {
        return;
    };
    let world = World::new(peers);
    let gateway = world.gateway();
    let mut session = gateway.session("/mcp");
    let listed = session.request("tools/list", &json!({}));
    let listed = listed["result"]["tools"].as_array().unwrap().clone();
    for (name, tools) in NAMES.iter().zip([17, 14, 9, 2, 12]) {
        let prefix = format!("{name}__");
        let own = listed.iter().map(|tool| tool["name"].as_str().unwrap());
        let own = own.filter(|tool| tool.starts_with(&prefix)).count();
        assert_eq!(own, tools, "tools of {name}");
        assert_eq!(gateway.wait_for(name, "ready")["tools"], tools);
    }
    assert_eq!(listed.len(), 17 + 14 + 9 + 2 + 12);
    std::thread::scope(|scope| {
        for name in NAMES {
            scope.spawn(|| (0..5).for_each(|_| work(&world, &gateway, name)));
        }
    });

    // One of them dies; the others do not notice, and it comes back.
    let memory = gateway.wait_for("memory", "ready");
    signal(memory["pid"].as_u64().unwrap().try_into().unwrap(), "KILL");
    for name in ["everything", "filesystem", "time", "git"] {
        work(&world, &gateway, name);
        assert_eq!(
            gateway.wait_for(name, "ready")["restart_count"],
            0,
            "{name}"
        );
    }
    eventually("memory runs again", || {
        let status = gateway.wait_for("memory", "ready");
        status["generation"].as_u64() > memory["generation"].as_u64()
    });
    work(&world, &gateway, "memory");
}

#[test]
fn python_server_is_started_once_at_each_start() {
    let Some(peers) = Peers::of("python_server_is_started_once_at_each_start", &["/python2"])
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let noted = dir.path().join("starts");
    let script = super::root().join("crates/bowline/tests/peers/matrix/server_python_2.py");
    let script = script.to_str().unwrap();
    let shell = format!("echo start >>'{}'; exec \"$@\"", noted.display());
    for python in ["/python1", "/python2"] {
        let program = match python {
            "/python1" => vec![peers.path("/servers/time").to_str().unwrap()],
            _ => vec![peers.path(python).to_str().unwrap(), script],
        };
        std::fs::write(&noted, "").unwrap();
        let direct = direct_start(&program);
        let args = [&["-c", &shell, "sh"][..], &program[..]].concat();
        let more = "sandbox = \"off\"\nstart_timeout = \"5m\"\n";
        let config = server("py", Path::new("sh"), &args) + more;
        let starts = || std::fs::read_to_string(&noted).unwrap().lines().count();
        let begun = Instant::now();
        let mut gateway = Gateway::up(&config);
        let status = gateway.wait_for("py", "ready");
        let first = begun.elapsed();
        assert_eq!(status["era"], "legacy", "{status}");
        assert_eq!(starts(), 1, "{python}: one process for one start");
        assert!(gateway.stop());
        let begun = Instant::now();
        gateway.restart();
        gateway.wait_for("py", "ready");
        let again = begun.elapsed();
        assert_eq!(starts(), 2, "{python}: one process for each start");
        eprintln!("{python}: direct {direct:?}, through a new gateway {first:?}, again {again:?}");
    }
}

/// How long a server takes from its start to its response to `initialize`.
fn direct_start(program: &[&str]) -> Duration {
    let begun = Instant::now();
    let mut server = Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "direct", "version": "1"},
    }});
    let mut stdin = server.stdin.take().unwrap();
    writeln!(stdin, "{hello}").unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("protocolVersion"), "{line}");
    let took = begun.elapsed();
    server.kill().unwrap();
    server.wait().unwrap();
    took
}

/// Makes the calls of one server in a session of its own; each ends in a result of its own.
fn work(world: &World, gateway: &Gateway, name: &str) {
    let mut session = gateway.session("/mcp");
    for (tool, arguments) in world.calls(name, "side") {
        let answer = session.call(&format!("{name}__{tool}"), &arguments);
        let content = answer["result"]["content"].as_array();
        assert!(content.is_some(), "{tool} of {name}: {answer}");
        let fails = arguments.to_string().contains("missing.txt");
        let failed = answer["result"]["isError"] == true;
        assert_eq!(failed, fails, "{tool} of {name}: {answer}");
    }
}
