//! A changed config file comes into force while calls go on.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{Gateway, eventually, fixture, lives, signal};
use crate::streams::next_event;

fn file(gateway: &Gateway) -> PathBuf {
    gateway.dir.path().join("bowline.toml")
}

/// Writes the file as an editor that does it in place.
fn write(gateway: &Gateway, config: &str) {
    std::fs::write(file(gateway), config).unwrap();
}

fn find(gateway: &Gateway, server: &str) -> Option<Value> {
    let servers = gateway.api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap();
    let mut servers = servers.iter();
    servers.find(|status| status["name"] == server).cloned()
}

fn pid(gateway: &Gateway, server: &str) -> Option<u32> {
    let status = find(gateway, server)?;
    let pid = status["pid"].as_u64()?;
    Some(u32::try_from(pid).unwrap())
}

fn ready(gateway: &Gateway, server: &str) -> u32 {
    eventually(&format!("{server} serves"), || {
        find(gateway, server).is_some_and(|status| status["state"] == "ready")
    });
    pid(gateway, server).unwrap()
}

/// Waits until a server has another process than this one.
fn anew(gateway: &Gateway, server: &str, before: u32) -> u32 {
    eventually(&format!("{server} is another process"), || {
        pid(gateway, server).is_some_and(|pid| pid != before)
    });
    ready(gateway, server)
}

/// A fixture with one more line in its entry.
fn entry(server: &str, line: &str) -> String {
    format!("{}{line}\n", fixture(server, &[]))
}

/// A gateway whose stderr goes to a file.
fn told(config: &str) -> (Gateway, PathBuf, tempfile::TempDir) {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("stderr");
    let stderr = std::fs::File::create(&path).unwrap();
    let gateway = Gateway::up_as(config, |command| {
        command.stderr(stderr);
    });
    (gateway, path, dir)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_written_file_comes_into_force_and_only_changed_servers_start_anew() {
    let servers = ["kept", "other", "gone"].map(|name| fixture(name, &[]));
    let (gateway, stderr, _dir) = told(&servers.concat());
    let [kept, other, gone] = ["kept", "other", "gone"].map(|name| ready(&gateway, name));
    let mut session = gateway.session("/mcp");
    session.text("kept__echo", &json!({"message": "hi"}));

    let other_now = entry("other", "timeout = \"9s\"\nlazy = false");
    write(
        &gateway,
        &[fixture("kept", &[]), other_now, fixture("new", &[])].concat(),
    );

    ready(&gateway, "new");
    anew(&gateway, "other", other);
    assert_eq!(pid(&gateway, "kept"), Some(kept));
    assert_eq!(find(&gateway, "kept").unwrap()["calls"], 1);
    assert_eq!(find(&gateway, "gone"), None);
    eventually("old processes are gone", || !lives(gone) && !lives(other));
    assert!(lives(kept));
    let shown = text(&stderr);
    assert!(
        shown.contains("  + new\n  ~ other  timeout\n  - gone\n"),
        "{shown}"
    );
    assert_eq!(session.text("new__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn a_call_in_flight_on_a_changed_server_gets_its_answer() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let before = ready(&gateway, "one");
    let mut waiting = gateway.session("/mcp");
    waiting.send_call(9, "one__slow", &json!({"ms": 3_000, "message": "late"}));
    eventually("the call is under way", || {
        find(&gateway, "one").is_some_and(|status| status["in_flight"] == 1)
    });

    write(&gateway, &entry("one", "timeout = \"9s\""));

    anew(&gateway, "one", before);
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("one__echo", &json!({"message": "new"})), "new");
    let answer = waiting.http.read().json();
    assert_eq!(answer["result"]["content"][0]["text"], "late", "{answer}");
    eventually("the old process is gone", || !lives(before));
}

#[test]
fn an_invalid_file_changes_nothing_and_is_told_with_its_place() {
    let good = fixture("one", &[]);
    let (gateway, stderr, _dir) = told(&good);
    let before = ready(&gateway, "one");
    let mut events = gateway.session("/mcp").listen();

    let bad = format!("{good}lasy = true\nenv = {{ \"A=B\" = \"canary-value\" }}\n[servers.two]\n");
    write(&gateway, &bad);

    eventually("the refusal is told", || {
        gateway.api("/api/v1/status")["config_error"].is_string()
    });
    let error = gateway.api("/api/v1/status")["config_error"].to_string();
    assert!(
        error.contains("unknown key `lasy` in [servers.one]"),
        "{error}"
    );
    assert!(error.contains("bowline.toml:4:1"), "{error}");
    assert!(!error.contains("canary-value"), "{error}");
    assert_eq!(find(&gateway, "two"), None);
    eventually("people are told", || {
        text(&stderr).contains("everything stays as it is")
    });
    let shown = text(&stderr);
    assert!(shown.contains("did you mean `lazy`?"), "{shown}");
    assert!(shown.contains("4 | lasy = true"), "{shown}");

    let refused = gateway.cli(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("4 | lasy = true") && said.contains("[servers.two]"),
        "{said}"
    );
    let refused = gateway.cli(&["reload", "--json"]);
    assert_eq!(refused.status.code(), Some(2));
    let said: Value = serde_json::from_slice(&refused.stderr).unwrap();
    assert_eq!(said["error"]["code"], "config");
    assert_eq!(said["error"]["problems"][0]["line"], 4);
    assert_eq!(pid(&gateway, "one"), Some(before));

    write(&gateway, &good);
    eventually("all is well again", || {
        gateway.api("/api/v1/status")["config_error"].is_null()
    });
    assert_eq!(pid(&gateway, "one"), Some(before));
    drop(gateway);
    assert!(
        !is_told_of_tools(&mut events),
        "nothing changed for anybody"
    );
}

/// Whether anything on the rest of a stream says that tools changed.
fn is_told_of_tools(stream: &mut crate::harness::Http) -> bool {
    count_told(stream, usize::MAX) > 0
}

/// Counts such messages, up to so many or to the end of the stream.
fn count_told(stream: &mut crate::harness::Http, max: usize) -> usize {
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
fn a_session_is_told_once_of_all_that_one_reload_changed() {
    // It takes its time, so that what the others change comes long before.
    let many = |count: &str| {
        let toolset = format!("many={count}");
        fixture(
            "other",
            &["--toolset", &toolset, "--fault", "slow-start=500"],
        )
    };
    let first = [fixture("kept", &[]), many("2"), fixture("gone", &[])].concat();
    let mut gateway = Gateway::up(&first);
    for server in ["kept", "other", "gone"] {
        ready(&gateway, server);
    }
    let mut session = gateway.session("/mcp");
    session.request("tools/list", &json!({}));
    let mut stream = session.listen();
    let mut beside = gateway.session("/servers/kept/mcp");
    beside.request("tools/list", &json!({}));
    let mut quiet = beside.listen();

    let tools = |gateway: &Gateway| find(gateway, "other").unwrap()["tools"].as_u64().unwrap();
    let before = tools(&gateway);

    // A server leaves, one offers other tools, one comes: three changes of the catalog.
    write(
        &gateway,
        &[fixture("kept", &[]), many("3"), fixture("new", &[])].concat(),
    );
    assert_eq!(count_told(&mut stream, 1), 1);
    let listed = session.request("tools/list", &json!({})).to_string();
    for (tool, is_there) in [("new__echo", true), ("gone__echo", false)] {
        assert_eq!(listed.contains(tool), is_there, "{tool}");
    }
    assert_eq!(tools(&gateway), before + 1);

    // A second reload: whatever the first still had to say comes before its message.
    write(
        &gateway,
        &[fixture("kept", &[]), many("4"), fixture("new", &[])].concat(),
    );
    assert_eq!(count_told(&mut stream, 1), 1);
    eventually("the second is in force", || tools(&gateway) == before + 2);
    assert!(gateway.stop());
    assert_eq!(count_told(&mut stream, usize::MAX), 0);
    assert!(
        !is_told_of_tools(&mut quiet),
        "its own server did not change"
    );
}

/// A server one of whose variables stands in a file that nobody watches.
fn keyed(dir: &Path) -> String {
    let key = dir.join("key");
    entry(
        "one",
        &format!("env = {{ KEY = \"${{file:{}}}\" }}", key.display()),
    )
}

#[test]
fn a_hangup_applies_the_file_though_it_was_not_written() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("key"), "first-value").unwrap();
    let gateway = Gateway::up(&keyed(dir.path()));
    let before = ready(&gateway, "one");
    std::fs::write(dir.path().join("key"), "second-value").unwrap();
    signal(gateway.pid(), "HUP");
    anew(&gateway, "one", before);
}

#[test]
fn reload_says_what_changed_for_people_and_for_programs() {
    let dir = tempfile::TempDir::new().unwrap();
    std::fs::write(dir.path().join("key"), "first-value").unwrap();
    let config = format!("{}{}", fixture("kept", &[]), keyed(dir.path()));
    let gateway = Gateway::up(&config);
    let before = ready(&gateway, "one");
    let kept = ready(&gateway, "kept");

    std::fs::write(dir.path().join("key"), "second-value").unwrap();
    let told = gateway.cli(&["reload", "--json"]);
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
    anew(&gateway, "one", before);
    assert_eq!(pid(&gateway, "kept"), Some(kept));

    let told = gateway.cli(&["reload"]);
    assert_eq!(
        String::from_utf8(told.stdout).unwrap(),
        "  nothing changed\n"
    );

    let again = gateway.cli(&["reload", "kept"]);
    assert!(again.status.success(), "{again:?}");
    anew(&gateway, "kept", kept);
    let unknown = gateway.cli(&["reload", "kebt"]);
    assert_eq!(unknown.status.code(), Some(2));
}

#[test]
fn what_needs_a_new_start_is_named_and_what_cannot_run_is_left_out() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let before = ready(&gateway, "one");
    let broken = entry("two", "env = { KEY = \"${BOWLINE_NO_SUCH_VARIABLE}\" }");
    let config = format!(
        "[gateway]\nlisten = \"127.0.0.1:1\"\n[telemetry]\nservice_name = \"x\"\n\
         [audit]\nexport = \"syslog:/dev/log\"\n{}{broken}",
        fixture("one", &[])
    );
    write(&gateway, &config);
    let told = gateway.cli(&["reload"]);
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
    assert_eq!(gateway.api("/api/v1/status")["broken"][0]["name"], "two");
    assert_eq!(pid(&gateway, "one"), Some(before));
}

#[test]
fn a_file_that_is_replaced_or_swapped_behind_a_link_is_noticed() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let dir = gateway.dir.path();
    ready(&gateway, "one");

    // As editors do: a new file takes the place of the old one.
    let config = [fixture("one", &[]), fixture("two", &[])].concat();
    std::fs::write(dir.join("new"), &config).unwrap();
    std::fs::rename(dir.join("new"), file(&gateway)).unwrap();
    ready(&gateway, "two");

    // As mounted volumes do: a link to a directory is swapped for another.
    for (version, name) in [("v1", "three"), ("v2", "four")] {
        std::fs::create_dir(dir.join(version)).unwrap();
        let config = [config.clone(), fixture(name, &[])].concat();
        std::fs::write(dir.join(version).join("bowline.toml"), config).unwrap();
        std::os::unix::fs::symlink(version, dir.join("next")).unwrap();
        std::fs::rename(dir.join("next"), dir.join("data")).unwrap();
        if version == "v1" {
            std::os::unix::fs::symlink("data/bowline.toml", dir.join("link")).unwrap();
            std::fs::rename(dir.join("link"), file(&gateway)).unwrap();
        }
        ready(&gateway, name);
    }
    // The file behind the links is written where it stands.
    let last = [config, fixture("five", &[])].concat();
    std::fs::write(dir.join("v2/bowline.toml"), last).unwrap();
    ready(&gateway, "five");
}

#[test]
fn a_gateway_without_a_file_has_nothing_to_reload() {
    let gateway = Gateway::up_with("", &["--demo"]);
    let refused = gateway.cli(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("without a config file"), "{said}");
}
