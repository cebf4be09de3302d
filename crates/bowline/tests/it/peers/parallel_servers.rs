//! Five official servers behind a gateway at once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, server_config};
use bowline_testkit::{send_signal, wait_until, workspace_root};
use serde_json::json;

use super::PeerManifest;
use super::official_servers::{NAMES, OfficialServers};

#[test]
fn five_official_servers_serve_concurrently() {
    let Some(peers) = PeerManifest::load("five_official_servers_serve_concurrently", &[]) else {
        return;
    };
    let world = OfficialServers::new(peers);
    let gateway = world.start_gateway();
    let mut session = gateway.open_session("/mcp");
    let listed = session.request("tools/list", &json!({}));
    let listed = listed["result"]["tools"].as_array().unwrap().clone();
    for (name, tools) in NAMES.iter().zip([17, 14, 9, 2, 12]) {
        let prefix = format!("{name}__");
        let own = listed.iter().map(|tool| tool["name"].as_str().unwrap());
        let own = own.filter(|tool| tool.starts_with(&prefix)).count();
        assert_eq!(own, tools, "tools of {name}");
        assert_eq!(gateway.wait_for_state(name, "ready")["tools"], tools);
    }
    assert_eq!(listed.len(), 17 + 14 + 9 + 2 + 12);
    std::thread::scope(|scope| {
        for name in NAMES {
            scope.spawn(|| (0..5).for_each(|_| assert_calls_work(&world, &gateway, name)));
        }
    });

    // One server dies and comes back; the rest is unaffected.
    let memory = gateway.wait_for_state("memory", "ready");
    send_signal(memory["pid"].as_u64().unwrap().try_into().unwrap(), "KILL");
    for name in ["everything", "filesystem", "time", "git"] {
        assert_calls_work(&world, &gateway, name);
        assert_eq!(
            gateway.wait_for_state(name, "ready")["restart_count"],
            0,
            "{name}"
        );
    }
    wait_until("memory runs again", || {
        let status = gateway.wait_for_state("memory", "ready");
        status["generation"].as_u64() > memory["generation"].as_u64()
    });
    assert_calls_work(&world, &gateway, "memory");
}

#[test]
fn python_server_starts_once_per_start() {
    let Some(peers) = PeerManifest::load("python_server_starts_once_per_start", &["/python2"])
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let noted = dir.path().join("starts");
    let script = workspace_root().join("crates/bowline/tests/peers/matrix/server_python_2.py");
    let script = script.to_str().unwrap();
    let shell = format!("echo start >>'{}'; exec \"$@\"", noted.display());
    for python in ["/python1", "/python2"] {
        let program = match python {
            "/python1" => vec![peers.peer_path("/servers/time").to_str().unwrap()],
            _ => vec![peers.peer_path(python).to_str().unwrap(), script],
        };
        std::fs::write(&noted, "").unwrap();
        let direct = measure_direct_start(&program);
        let args = [&["-c", &shell, "sh"][..], &program[..]].concat();
        let more = "sandbox = \"off\"\nstart_timeout = \"5m\"\n";
        let config = server_config("py", Path::new("sh"), &args) + more;
        let starts = || std::fs::read_to_string(&noted).unwrap().lines().count();
        let begun = Instant::now();
        let mut gateway = Gateway::start(&config);
        let status = gateway.wait_for_state("py", "ready");
        let first = begun.elapsed();
        assert_eq!(status["era"], "legacy", "{status}");
        assert_eq!(starts(), 1, "{python}: one process for one start");
        assert!(gateway.stop());
        let begun = Instant::now();
        gateway.restart();
        gateway.wait_for_state("py", "ready");
        let again = begun.elapsed();
        assert_eq!(starts(), 2, "{python}: one process for each start");
        eprintln!("{python}: direct {direct:?}, through a new gateway {first:?}, again {again:?}");
    }
}

/// Time from the start of a server to its response to `initialize`.
fn measure_direct_start(program: &[&str]) -> Duration {
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

/// Makes the calls of a server in a new session; each returns a result.
fn assert_calls_work(world: &OfficialServers, gateway: &Gateway, name: &str) {
    let mut session = gateway.open_session("/mcp");
    for (tool, arguments) in world.stable_calls(name, "side") {
        let answer = session.call(&format!("{name}__{tool}"), &arguments);
        let content = answer["result"]["content"].as_array();
        assert!(content.is_some(), "{tool} of {name}: {answer}");
        let fails = arguments.to_string().contains("missing.txt");
        let failed = answer["result"]["isError"] == true;
        assert_eq!(failed, fails, "{tool} of {name}: {answer}");
    }
}
