//! A desktop keychain, in a separate session bus.

use std::process::{Command, Stdio};

use bowline_testkit::gateway::bowline_binary;
use bowline_testkit::wait_until;

use super::GuardedServer;

/// Starts a keychain, stores a secret, serves, and replaces the secret.
const SCRIPT: &str = r#"
set -e
printf pw | gnome-keyring-daemon --unlock --components=secrets >/dev/null 2>&1
bowline="$1 --state state --config bowline.toml"
printf 'first-key\n' | $bowline secret set web
secret-tool lookup service bowline name web; echo
cat state/secrets.json
$1 --state state --config bowline.toml up --json --listen 127.0.0.1:0 &
up=$!
while ! test -e second; do sleep 0.05; done
printf second-key | $bowline secret set web
while ! test -e end; do sleep 0.05; done
kill $up
wait $up
$bowline secret rm web
if secret-tool lookup service bowline name web; then echo "still there"; fi
cat state/secrets.json
"#;

#[test]
fn keychain_secret_is_used_rotated_and_removed() {
    let needed = ["dbus-run-session", "gnome-keyring-daemon", "secret-tool"];
    let is_there = |program: &&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output();
        found.unwrap().status.success()
    };
    if !needed.iter().all(is_there) {
        eprintln!("not tested: it needs {}", needed.join(", "));
        return;
    }
    let server = GuardedServer::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let config = "[secret_store]\nkind = \"keychain\"\n".to_owned()
        + &server.config_entry("web", "${secret:web}");
    std::fs::write(place("bowline.toml"), config).unwrap();
    let script = Command::new("dbus-run-session")
        .args(["--", "bash", "-c", SCRIPT, "bash"])
        .arg(bowline_binary())
        .current_dir(directory.path())
        .env("HOME", directory.path())
        .env("XDG_RUNTIME_DIR", directory.path())
        .env("XDG_DATA_HOME", directory.path())
        .env_remove("BOWLINE_CONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let listed_as = |who: &str| {
        server
            .authorization_headers("tools/list")
            .contains(&format!("Bearer {who}"))
    };
    wait_until("the first was used", || listed_as("first-key"));
    std::fs::write(place("second"), "").unwrap();
    wait_until("the second was used", || listed_as("second-key"));
    std::fs::write(place("end"), "").unwrap();
    let out = script.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let told = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(
        lines[..2],
        ["set web in the keychain", "first-key"],
        "{told}"
    );
    // The file is encrypted and reveals neither names nor values.
    let is_sealed = |line: &str| line.starts_with(r#"{"v":2,"sealed":"#) && !line.contains("web");
    assert!(is_sealed(lines[2]), "{told}");
    assert!(!told.contains("still there"), "{told}");
    assert!(lines.last().is_some_and(|line| is_sealed(line)), "{told}");
    let asked = server.authorization_headers("initialize");
    assert_eq!(asked, ["Bearer first-key"], "the link stayed");
}
