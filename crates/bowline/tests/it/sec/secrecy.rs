//! Secrets of the gateway are protected from servers, and the gateway from foreign files.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config};
use bowline_testkit::{send_signal, wait_until};
use serde_json::json;

use crate::sec::{assert_unharmed, bearer_header, request_head};

/// An unprivileged user.
const UNPRIVILEGED_UID: u32 = 65_534;

/// Tries to read the grandparent (the gateway) and the parent (the reaper).
const READ_GATEWAY: &str = r#"
gateway=$(cut -d' ' -f4 /proc/$PPID/stat)
for what in environ mem maps; do
    if ( exec 3< /proc/$gateway/$what && head -c 1 <&3 ) >/dev/null 2>&1
    then echo "read $what of $gateway"; else echo "denied $what of $gateway"; fi >&2
done
if head -c 1 /proc/$PPID/environ >/dev/null 2>&1; then echo "read parent" >&2; fi
exec "$@" fixture
"#;

#[test]
fn sec_42_server_cannot_read_gateway_memory() {
    let args = json!(["-c", READ_GATEWAY, "sh", bowline_binary()]);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("bowline.toml");
    // A sandbox would block every attempt.
    let text = format!("[servers.pry]\nsandbox = \"off\"\ncommand = \"sh\"\nargs = {args}\n");
    fs::write(&config, text).unwrap();
    let mut up = Command::new(bowline_binary());
    // Root may read everything, so the gateway runs as another user here.
    if rustix::process::geteuid().is_root() {
        for path in [directory.path(), &config] {
            chown(path, Some(UNPRIVILEGED_UID), Some(UNPRIVILEGED_UID)).unwrap();
        }
        let own = bowline_binary();
        let reachable = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&own)
            .arg("version")
            .output()
            .unwrap();
        assert!(reachable.status.success(), "{reachable:?}");
        up = Command::new("setpriv");
        up.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        up.arg(own);
    }
    let mut up = up
        .args(["up", "--json", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .arg("--state")
        .arg(directory.path().join("state"))
        .env("GATEWAY_SECRET", "hunter22hunter22")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = up.id();
    let mut logs = String::new();
    wait_until("the server said what it could read", || {
        let out = Command::new(bowline_binary())
            .args(["logs", "pry", "--url"])
            .arg(gateway_url(directory.path()).unwrap_or_default())
            .arg("--token-file")
            .arg(copy_token(directory.path()))
            .output()
            .unwrap();
        logs = String::from_utf8_lossy(&out.stdout).into_owned();
        logs.contains("read parent")
    });
    send_signal(pid, "TERM");
    assert!(up.wait().unwrap().success());
    for what in ["environ", "mem", "maps"] {
        let denied = format!("denied {what} of {pid}");
        assert!(logs.contains(&denied), "{logs}");
    }
}

fn gateway_url(directory: &Path) -> Option<String> {
    let run = fs::read(directory.join("state/run.json")).ok()?;
    let run: serde_json::Value = serde_json::from_slice(&run).ok()?;
    run["url"].as_str().map(str::to_owned)
}

/// A copy of the token owned by the test: the original belongs to another user.
fn copy_token(directory: &Path) -> PathBuf {
    let copy = directory.join("token-copy");
    let token = fs::read(directory.join("state/token")).unwrap_or_default();
    let _ = fs::remove_file(&copy);
    fs::write(&copy, token).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    copy
}

/// Every file and directory below, with inode and modification time. Files in the state directory
/// count by name only, because of the gateway's own writes.
fn snapshot_tree(directory: &Path) -> Vec<(PathBuf, u64, i64)> {
    let state = directory.join("state");
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(here) = left.pop() {
        for entry in fs::read_dir(here).unwrap() {
            let path = entry.unwrap().path();
            if path.starts_with(&state) {
                left.extend(path.is_dir().then(|| path.clone()));
                found.push((path, 0, 0));
                continue;
            }
            let data = fs::symlink_metadata(&path).unwrap();
            if data.is_dir() {
                left.push(path.clone());
            }
            found.push((path, data.ino(), data.mtime_nsec()));
        }
    }
    found.sort();
    found
}

#[test]
fn sec_43_path_like_names_reach_no_file() {
    let gateway = Gateway::start(&fixture_config("a", &[]));
    gateway.wait_for_state("a", "ready");
    let outside = gateway.dir.path().join("victim.json");
    fs::write(&outside, "{}").unwrap();
    let bearer = bearer_header(&gateway);
    let headers = [("Authorization", bearer.as_str())];
    // The last file of a start; until then the tree still grows.
    let menu = gateway.dir.path().join("state/manifests/a.json");
    wait_until("the menu of the server is kept", || menu.exists());
    let before = snapshot_tree(gateway.dir.path());
    for name in [
        "..%2F..%2Fvictim",
        "%2e%2e%2fvictim",
        "..%5C..%5Cvictim",
        "../victim",
        "..",
        "a%2F..%2F..%2Fvictim",
        "%00",
        "a%00.json",
        "%2Fetc%2Fpasswd",
    ] {
        for (method, path) in [
            ("POST", format!("/api/v1/servers/{name}/restart")),
            ("POST", format!("/api/v1/servers/{name}/stop")),
            ("POST", format!("/api/v1/reload/{name}")),
            ("DELETE", format!("/api/v1/tokens/{name}")),
            ("GET", format!("/api/v1/outbox/{name}")),
            ("DELETE", format!("/api/v1/outbox/{name}")),
            ("GET", format!("/api/v1/pins/{name}")),
            ("GET", format!("/api/v1/audit/{name}")),
            ("POST", format!("/servers/{name}/mcp")),
            ("POST", format!("/mcp/{name}")),
        ] {
            let answer = request_head(gateway.address, method, &path, &headers);
            let refused = (400..500).contains(&answer.status);
            assert!(
                refused,
                "{method} {path}: {} {}",
                answer.status,
                answer.text()
            );
            assert!(!answer.text().contains("root:"), "{path}");
        }
    }
    assert_eq!(snapshot_tree(gateway.dir.path()), before);
    assert_unharmed(&gateway);
    for text in [
        "[servers.\"../../x\"]\ncommand = \"a\"\n",
        "[profiles.\"../x\"]\nallow = [\"*.*\"]\n",
        "[secrets.\"../x\"]\nenv = \"A\"\n",
        "[servers.a]\ncommand = \"a\"\nargs = [\"${secret:../x}\"]\n",
    ] {
        let path = gateway.dir.path().join("other.toml");
        fs::write(&path, text).unwrap();
        let out = gateway.run_cli(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(2), "{text}: {out:?}");
    }
    for name in ["../../x", "..", "/etc/x", "a/b"] {
        for verb in ["set", "rm"] {
            let out = gateway.run_cli(&["secret", verb, name]);
            assert_eq!(out.status.code(), Some(2), "{out:?}");
        }
    }
}

/// Starts a gateway, with an expected refusal.
fn start_refused(directory: &Path) -> Output {
    let mut up = Command::new(bowline_binary())
        .args(["up", "--json", "--listen", "127.0.0.1:0", "--config"])
        .arg(directory.join("bowline.toml"))
        .arg("--state")
        .arg(directory.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A gateway that starts anyway prints the ready message, and is killed.
    let stdout = up.stdout.take().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    if line.contains("\"ready\"") {
        up.kill().unwrap();
        up.wait().unwrap();
        panic!("it serves: {line}");
    }
    up.wait_with_output().unwrap()
}

/// A used state directory, with every persistent file.
fn create_used_state() -> (tempfile::TempDir, PathBuf) {
    let config =
        fixture_config("a", &[]) + "env = { K = \"${secret:key}\" }\n[roles.r]\nallow = []\n";
    let mut gateway = Gateway::start(&config);
    gateway.create_token(&json!({"principal": "ci", "role": "r"}));
    crate::credentials::set_secret(&gateway, "key", "some-value");
    assert!(gateway.stop());
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    fs::rename(gateway.state_dir(), &state).unwrap();
    fs::write(directory.path().join("bowline.toml"), config).unwrap();
    (directory, state)
}

#[test]
fn sec_44_links_and_loose_modes_are_refused() {
    let (directory, state) = create_used_state();
    for name in [
        "token",
        "tokens.json",
        "session.key",
        "lock",
        "secrets.json",
        "state.db",
    ] {
        let path = state.join(name);
        let own = directory.path().join("own");
        assert!(path.exists(), "{name}");
        // The same content behind a link is refused, and never written to.
        fs::rename(&path, &own).unwrap();
        let content = fs::read(&own).unwrap();
        symlink(&own, &path).unwrap();
        if name == "secrets.json" {
            let out = Command::new(bowline_binary())
                .args(["secret", "ls", "--state"])
                .arg(&state)
                .arg("--config")
                .arg(directory.path().join("bowline.toml"))
                .output()
                .unwrap();
            assert!(!out.status.success(), "{out:?}");
            let told = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(told.contains("symbolic link"), "{told}");
        } else {
            let out = start_refused(directory.path());
            assert!(!out.status.success(), "{name}: {out:?}");
            let told = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(told.contains(name), "{name}: {told}");
        }
        assert_eq!(fs::read(&own).unwrap(), content, "{name}");
        fs::remove_file(&path).unwrap();
        fs::rename(&own, &path).unwrap();
        if name == "secrets.json" {
            continue;
        }
        // A file with loose permissions is refused, with the fixing command.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let out = start_refused(directory.path());
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(told.contains("chmod 600"), "{name}: {told}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    // The state directory.
    fs::set_permissions(&state, fs::Permissions::from_mode(0o777)).unwrap();
    let told = String::from_utf8(start_refused(directory.path()).stderr).unwrap();
    assert!(told.contains("chmod 700"), "{told}");
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(&state, &elsewhere).unwrap();
    symlink(&elsewhere, &state).unwrap();
    let told = String::from_utf8(start_refused(directory.path()).stderr).unwrap();
    assert!(told.contains("symbolic link"), "{told}");
}

#[test]
fn sec_44_linked_store_stops_only_dependent_servers() {
    let (directory, state) = create_used_state();
    let own = directory.path().join("own");
    fs::rename(state.join("secrets.json"), &own).unwrap();
    symlink(&own, state.join("secrets.json")).unwrap();
    let out = Command::new(bowline_binary())
        .args(["check", "--state"])
        .arg(&state)
        .arg("--config")
        .arg(directory.path().join("bowline.toml"))
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let told = String::from_utf8(out.stderr).unwrap();
    assert!(
        told.contains("symbolic link") && !told.contains("some-value"),
        "{told}"
    );
}
