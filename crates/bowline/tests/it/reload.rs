//! A changed config file is applied while calls go on.

use std::path::{Path, PathBuf};

use bowline_testkit::gateway::{Gateway, HttpConnection, fixture_config};
use bowline_testkit::{is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::{Value, json};

use crate::streams::next_event;

fn config_path(gateway: &Gateway) -> PathBuf {
    gateway.dir.path().join("bowline.toml")
}

/// Writes the file in place, as some editors do.
fn write_config(gateway: &Gateway, config: &str) {
    std::fs::write(config_path(gateway), config).unwrap();
}

fn find_server(gateway: &Gateway, server: &str) -> Option<Value> {
    let servers = gateway.get_api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap();
    let mut servers = servers.iter();
    servers.find(|status| status["name"] == server).cloned()
}

fn server_pid(gateway: &Gateway, server: &str) -> Option<u32> {
    let status = find_server(gateway, server)?;
    let pid = status["pid"].as_u64()?;
    Some(u32::try_from(pid).unwrap())
}

fn wait_for_pid(gateway: &Gateway, server: &str) -> u32 {
    wait_until(&format!("{server} serves"), || {
        find_server(gateway, server).is_some_and(|status| status["state"] == "ready")
    });
    server_pid(gateway, server).unwrap()
}

/// Waits until a server has a process other than `before`.
fn wait_for_new_pid(gateway: &Gateway, server: &str, before: u32) -> u32 {
    wait_until(&format!("{server} is another process"), || {
        server_pid(gateway, server).is_some_and(|pid| pid != before)
    });
    wait_for_pid(gateway, server)
}

/// A fixture with an extra line in the entry.
fn fixture_entry(server: &str, line: &str) -> String {
    format!("{}{line}\n", fixture_config(server, &[]))
}

/// A gateway with stderr in a file.
fn start_with_log(config: &str) -> (Gateway, PathBuf, tempfile::TempDir) {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("stderr");
    let stderr = std::fs::File::create(&path).unwrap();
    let gateway = Gateway::start_with_command(config, |command| {
        command.stderr(stderr);
    });
    (gateway, path, dir)
}

fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn reload_restarts_only_changed_servers() {
    let servers = ["kept", "other", "gone"].map(|name| fixture_config(name, &[]));
    let (gateway, stderr, _dir) = start_with_log(&servers.concat());
    let [kept, other, gone] = ["kept", "other", "gone"].map(|name| wait_for_pid(&gateway, name));
    let mut session = gateway.open_session("/mcp");
    session.call_text("kept__echo", &json!({"message": "hi"}));

    let other_now = fixture_entry("other", "timeout = \"9s\"\nlazy = false");
    write_config(
        &gateway,
        &[
            fixture_config("kept", &[]),
            other_now,
            fixture_config("new", &[]),
        ]
        .concat(),
    );

    wait_for_pid(&gateway, "new");
    wait_for_new_pid(&gateway, "other", other);
    assert_eq!(server_pid(&gateway, "kept"), Some(kept));
    assert_eq!(find_server(&gateway, "kept").unwrap()["calls"], 1);
    assert_eq!(find_server(&gateway, "gone"), None);
    wait_process_exit("the end of the removed server", gone);
    wait_process_exit("the end of the changed server", other);
    assert!(is_alive(kept));
    let shown = read_text(&stderr);
    assert!(
        shown.contains("  + new\n  ~ other  timeout\n  - gone\n"),
        "{shown}"
    );
    assert_eq!(
        session.call_text("new__echo", &json!({"message": "hi"})),
        "hi"
    );
}

#[test]
fn reload_completes_calls_in_flight() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let before = wait_for_pid(&gateway, "one");
    let mut waiting = gateway.open_session("/mcp");
    waiting.send_call(9, "one__slow", &json!({"ms": 3_000, "message": "late"}));
    wait_until("the call is under way", || {
        find_server(&gateway, "one").is_some_and(|status| status["in_flight"] == 1)
    });

    write_config(&gateway, &fixture_entry("one", "timeout = \"9s\""));

    wait_for_new_pid(&gateway, "one", before);
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "new"})),
        "new"
    );
    let answer = waiting.http.read_response().json();
    assert_eq!(answer["result"]["content"][0]["text"], "late", "{answer}");
    wait_process_exit("the end of the old process", before);
}

#[test]
fn invalid_config_changes_nothing_and_names_line() {
    let good = fixture_config("one", &[]);
    let (gateway, stderr, _dir) = start_with_log(&good);
    let before = wait_for_pid(&gateway, "one");
    let mut events = gateway.open_session("/mcp").open_stream();

    let bad = format!("{good}lasy = true\nenv = {{ \"A=B\" = \"canary-value\" }}\n[servers.two]\n");
    write_config(&gateway, &bad);

    wait_until("the refusal is told", || {
        gateway.get_api("/api/v1/status")["config_error"].is_string()
    });
    let error = gateway.get_api("/api/v1/status")["config_error"].to_string();
    assert!(
        error.contains("unknown key `lasy` in [servers.one]"),
        "{error}"
    );
    assert!(error.contains("bowline.toml:4:1"), "{error}");
    assert!(!error.contains("canary-value"), "{error}");
    assert_eq!(find_server(&gateway, "two"), None);
    wait_until("people are told", || {
        read_text(&stderr).contains("everything stays as it is")
    });
    let shown = read_text(&stderr);
    assert!(shown.contains("did you mean `lazy`?"), "{shown}");
    assert!(shown.contains("4 | lasy = true"), "{shown}");

    let refused = gateway.run_cli(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("4 | lasy = true") && said.contains("[servers.two]"),
        "{said}"
    );
    let refused = gateway.run_cli(&["reload", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    let said: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(said["error"]["code"], "config");
    assert_eq!(said["error"]["problems"][0]["line"], 4);
    assert_eq!(server_pid(&gateway, "one"), Some(before));

    write_config(&gateway, &good);
    wait_until("all is well again", || {
        gateway.get_api("/api/v1/status")["config_error"].is_null()
    });
    assert_eq!(server_pid(&gateway, "one"), Some(before));
    drop(gateway);
    assert!(
        !has_tools_changed(&mut events),
        "nothing changed for anybody"
    );
}

/// Whether the rest of a stream contains a tools-changed notification.
fn has_tools_changed(stream: &mut HttpConnection) -> bool {
    count_tools_changed(stream, usize::MAX) > 0
}

/// Counts tools-changed notifications, up to `max` or the end of the stream.
fn count_tools_changed(stream: &mut HttpConnection, max: usize) -> usize {
    let mut count = 0;
    while count < max {
        let Some(event) = next_event(stream) else {
            break;
        };
        let data = event.data.unwrap_or_default();
        count += usize::from(data.contains("notifications/tools/list_changed"));
    }
    count
}

#[test]
fn reload_notifies_session_once() {
    // This server is slow, so changes of faster servers come long before.
    let many = |count: &str| {
        let toolset = format!("many={count}");
        fixture_config(
            "other",
            &["--toolset", &toolset, "--fault", "slow-start=500"],
        )
    };
    let first = [
        fixture_config("kept", &[]),
        many("2"),
        fixture_config("gone", &[]),
    ]
    .concat();
    let mut gateway = Gateway::start(&first);
    for server in ["kept", "other", "gone"] {
        wait_for_pid(&gateway, server);
    }
    let mut session = gateway.open_session("/mcp");
    session.request("tools/list", &json!({}));
    let mut stream = session.open_stream();
    let mut beside = gateway.open_session("/servers/kept/mcp");
    beside.request("tools/list", &json!({}));
    let mut quiet = beside.open_stream();

    let tools = |gateway: &Gateway| {
        find_server(gateway, "other").unwrap()["tools"]
            .as_u64()
            .unwrap()
    };
    let before = tools(&gateway);

    // A server leaves, a server changes tools, a server is added: three catalog changes.
    write_config(
        &gateway,
        &[
            fixture_config("kept", &[]),
            many("3"),
            fixture_config("new", &[]),
        ]
        .concat(),
    );
    assert_eq!(count_tools_changed(&mut stream, 1), 1);
    let listed = session.request("tools/list", &json!({})).to_string();
    for (tool, is_there) in [("new__echo", true), ("gone__echo", false)] {
        assert_eq!(listed.contains(tool), is_there, "{tool}");
    }
    assert_eq!(tools(&gateway), before + 1);

    // A second reload: late notifications of the first reload come before the second message.
    write_config(
        &gateway,
        &[
            fixture_config("kept", &[]),
            many("4"),
            fixture_config("new", &[]),
        ]
        .concat(),
    );
    assert_eq!(count_tools_changed(&mut stream, 1), 1);
    wait_until("the second is in force", || tools(&gateway) == before + 2);
    assert!(gateway.stop());
    assert_eq!(count_tools_changed(&mut stream, usize::MAX), 0);
    assert!(
        !has_tools_changed(&mut quiet),
        "its own server did not change"
    );
}

/// A server with a variable from a file that is not watched.
fn keyed_server(dir: &Path) -> String {
    let key = dir.join("key");
    fixture_entry(
        "one",
        &format!("env = {{ KEY = \"${{file:{}}}\" }}", key.display()),
    )
}

#[test]
fn sighup_reloads_unchanged_file() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("key"), "first-value").unwrap();
    let gateway = Gateway::start(&keyed_server(dir.path()));
    let before = wait_for_pid(&gateway, "one");
    std::fs::write(dir.path().join("key"), "second-value").unwrap();
    send_signal(gateway.pid(), "HUP");
    wait_for_new_pid(&gateway, "one", before);
}

#[test]
fn reload_reports_changes_as_text_and_json() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("key"), "first-value").unwrap();
    let config = format!(
        "{}{}",
        fixture_config("kept", &[]),
        keyed_server(dir.path())
    );
    let gateway = Gateway::start(&config);
    let before = wait_for_pid(&gateway, "one");
    let kept = wait_for_pid(&gateway, "kept");

    std::fs::write(dir.path().join("key"), "second-value").unwrap();
    let told = gateway.run_cli(&["reload", "--json"]);
    assert!(told.status.success(), "{told:?}");
    let mut told: Value = serde_json::from_slice(&told.stdout).unwrap();
    told["took_ms"] = json!(0);
    assert_eq!(
        told,
        json!({
            "v": 1, "added": [], "changed": [{"server": "one", "keys": ["env"]}],
            "removed": [], "policy_changed": false, "executors_changed": false, "kept": 1,
            "broken": [], "warnings": [],
            "needs_restart": [], "took_ms": 0, "lines": ["  ~ one  env"],
        })
    );
    wait_for_new_pid(&gateway, "one", before);
    assert_eq!(server_pid(&gateway, "kept"), Some(kept));

    let told = gateway.run_cli(&["reload"]);
    assert_eq!(
        String::from_utf8(told.stdout).unwrap(),
        "  nothing changed\n"
    );

    let again = gateway.run_cli(&["reload", "kept"]);
    assert!(again.status.success(), "{again:?}");
    wait_for_new_pid(&gateway, "kept", kept);
    let unknown = gateway.run_cli(&["reload", "kebt"]);
    assert_eq!(unknown.status.code(), Some(2));
}

/// Reload names settings that need a restart, and leaves out servers that cannot run.
#[test]
fn reload_names_restart_keys_and_skips_unrunnable() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let before = wait_for_pid(&gateway, "one");
    let broken = fixture_entry("two", "env = { KEY = \"${BOWLINE_NO_SUCH_VARIABLE}\" }");
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:1\"\n[telemetry]\nservice_name = \"x\"\n\
         [audit]\nexport = \"syslog:/dev/log\"\n{}{broken}",
        fixture_config("one", &[])
    );
    write_config(&gateway, &config);
    let told = gateway.run_cli(&["reload"]);
    let (out, err) = (
        String::from_utf8(told.stdout).unwrap(),
        String::from_utf8(told.stderr).unwrap(),
    );
    assert!(told.status.success(), "{err}");
    for key in ["gateway.listen", "telemetry", "audit.export"] {
        let line = format!("  ! {key} changed: it counts from the next `bowline up`");
        assert!(out.contains(&line), "{out}");
    }
    let left_out = "server `two` is left out: variable `BOWLINE_NO_SUCH_VARIABLE` is not set";
    assert!(err.contains(left_out), "{err}");
    assert_eq!(
        gateway.get_api("/api/v1/status")["broken"][0]["name"],
        "two"
    );
    assert_eq!(server_pid(&gateway, "one"), Some(before));
}

#[test]
fn replaced_or_relinked_config_is_noticed() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let dir = gateway.dir.path();
    wait_for_pid(&gateway, "one");

    // Like an editor: a new file replaces the old one.
    let config = [fixture_config("one", &[]), fixture_config("two", &[])].concat();
    std::fs::write(dir.join("new"), &config).unwrap();
    std::fs::rename(dir.join("new"), config_path(&gateway)).unwrap();
    wait_for_pid(&gateway, "two");

    // Like a mounted volume: a link to a directory is swapped.
    for (version, name) in [("v1", "three"), ("v2", "four")] {
        std::fs::create_dir(dir.join(version)).unwrap();
        let config = [config.clone(), fixture_config(name, &[])].concat();
        std::fs::write(dir.join(version).join("bowline.toml"), config).unwrap();
        std::os::unix::fs::symlink(version, dir.join("next")).unwrap();
        std::fs::rename(dir.join("next"), dir.join("data")).unwrap();
        if version == "v1" {
            std::os::unix::fs::symlink("data/bowline.toml", dir.join("link")).unwrap();
            std::fs::rename(dir.join("link"), config_path(&gateway)).unwrap();
        }
        wait_for_pid(&gateway, name);
    }
    // The file behind the links is written in place.
    let last = [config, fixture_config("five", &[])].concat();
    std::fs::write(dir.join("v2/bowline.toml"), last).unwrap();
    wait_for_pid(&gateway, "five");
}

#[test]
fn reload_without_file_does_nothing() {
    let gateway = Gateway::start_with_args("", &["--demo"]);
    let refused = gateway.run_cli(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("without a config file"), "{said}");
}
