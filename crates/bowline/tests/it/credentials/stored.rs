//! The secret store and its commands, and children whose secrets change.

use std::fs;

use serde_json::{Value, json};

use super::{Guarded, comes, say, set};
use crate::harness::{Gateway, bowline, eventually};

/// A child that has a secret in its environment.
fn child(name: &str, more: &str) -> String {
    format!(
        "[servers.{name}]\ncommand = {}\nargs = [\"fixture\"]\n{more}\n",
        json!(bowline())
    )
}

/// What a child has of a variable.
fn environment(gateway: &Gateway, server: &str) -> String {
    let status = gateway.status(server);
    let environ = fs::read(format!("/proc/{}/environ", status["pid"])).unwrap_or_default();
    String::from_utf8_lossy(&environ).replace('\0', "\n")
}

#[test]
fn a_child_whose_secret_changes_is_started_anew_after_its_calls_ended() {
    let config = child("one", "env = { KEY = \"${secret:key}\" }") + &child("two", "");
    let gateway = Gateway::up(&config);
    gateway.wait_for("two", "ready");
    set(&gateway, "key", "first-value\n");
    comes(&gateway, "one", "ready");
    let first = gateway.status("one")["pid"].clone();
    let other = gateway.status("two")["pid"].clone();
    eventually("it has the secret", || {
        environment(&gateway, "one").contains("KEY=first-value")
    });
    // A call is under way while the secret changes.
    let mut session = gateway.session("/mcp");
    session.send_call(7, "one__slow", &json!({"ms": 2500, "message": "late"}));
    eventually("it is in flight", || {
        gateway.status("one")["in_flight"] == 1
    });
    set(&gateway, "key", "second-value");
    eventually("another child is there", || {
        environment(&gateway, "one").contains("KEY=second-value")
    });
    let answer = session.http.read().json();
    assert!(answer["result"].is_object(), "{answer}");
    assert_ne!(gateway.status("one")["pid"], first);
    assert_eq!(gateway.status("two")["pid"], other, "the other one stays");
    let again = session.call("one__echo", &json!({"message": "hi"}));
    assert!(again["result"].is_object(), "{again}");
}

/// A secret as it is listed.
fn one(name: &str, from: &str, is_set: bool, used_by: &[&str]) -> Value {
    json!({"name": name, "from": from, "set": is_set, "used_by": used_by})
}

#[test]
fn secrets_are_listed_with_their_origins_and_users_and_never_their_values() {
    let server = Guarded::start(&[("stored-value", &["look"])]);
    let config = server.entry("web", "${secret:web}")
        + &child(
            "kid",
            "env = { A = \"${secret:from-env}\", B = \"${secret:web}\" }",
        )
        + "[secrets.from-env]\nenv = \"SOME_KEY\"\n[secrets.idle]\ncommand = [\"cat\"]\n";
    let gateway = Gateway::up_as(&config, |up| {
        up.env("SOME_KEY", "env-value-1");
    });
    let list = || {
        let out = say(&gateway, &["secret", "ls", "--json"], "");
        let listed: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(!listed.to_string().contains("value-1"), "{listed}");
        listed["secrets"].clone()
    };
    assert_eq!(
        list(),
        json!([
            one("from-env", "env SOME_KEY", true, &["kid"]),
            one("idle", "command cat", true, &[]),
            one("web", "store", false, &["kid", "web"]),
        ])
    );
    set(&gateway, "web", "stored-value-1");
    set(&gateway, "spare", "spare-value-1");
    assert_eq!(list()[3], one("web", "store", true, &["kid", "web"]));
    let shown = say(&gateway, &["secret", "ls"], "");
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("command cat") && !shown.contains("value-1"),
        "{shown}"
    );
    let gone = say(&gateway, &["secret", "rm", "spare"], "");
    assert!(gone.status.success(), "{gone:?}");
    assert_eq!(list().as_array().unwrap().len(), 3);
    for (args, code) in [
        (&["secret", "rm", "spare"][..], 2),
        (&["secret", "set", "from-env"], 2),
        (&["secret", "set", "../../x"], 2),
        (&["secret", "set", "empty"], 2),
        (&["secret", "set"], 2),
        (&["secret", "set", "a", "value-on-the-command-line"], 2),
    ] {
        let out = say(&gateway, args, "");
        assert_eq!(out.status.code(), Some(code), "{args:?}: {out:?}");
    }
}

#[test]
fn a_secret_can_be_set_before_there_is_a_config_or_a_gateway() {
    let directory = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        std::process::Command::new("sh")
            .args(["-c", "printf 'a value\\n' | \"$@\"", "sh"])
            .arg(bowline())
            .args(args)
            .current_dir(directory.path())
            .env("HOME", directory.path())
            .env_remove("BOWLINE_CONFIG")
            .env_remove("XDG_CONFIG_HOME")
            .env("BOWLINE_STATE", directory.path().join("state"))
            .output()
            .unwrap()
    };
    let out = run(&["secret", "set", "early", "--json"]);
    assert!(out.status.success(), "{out:?}");
    let told: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["name"], "early");
    let kept = fs::read_to_string(directory.path().join("state/secrets.json")).unwrap();
    assert!(kept.starts_with("{\"v\":2,\"sealed\":\""), "{kept}");
    assert!(
        !kept.contains("early") && !kept.contains("a value"),
        "{kept}"
    );
    let listed = run(&["secret", "ls"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("early") && !listed.contains("a value"),
        "{listed}"
    );
}

#[test]
fn a_command_is_run_again_when_its_output_is_old() {
    let server = Guarded::start(&[("key-number-1", &["look"]), ("key-number-2", &["look"])]);
    let directory = tempfile::tempdir().unwrap();
    let count = directory.path().join("count");
    let script = format!(
        "echo >> {0}; n=$(wc -l < {0}); [ $n -gt 2 ] && n=2; echo key-number-$n",
        count.display()
    );
    let config = format!(
        "{}[secrets.web]\ncommand = [\"sh\", \"-c\", {}]\nevery = \"1s\"\n",
        server.entry("web", "${secret:web}"),
        json!(script),
    );
    let gateway = Gateway::up(&config);
    gateway.wait_for("web", "ready");
    eventually("the list was asked for with the second one", || {
        server
            .proofs("tools/list")
            .contains(&"Bearer key-number-2".to_owned())
    });
    assert_eq!(gateway.status("web")["generation"], 1);
}
