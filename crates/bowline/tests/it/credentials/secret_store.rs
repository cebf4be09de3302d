//! The secret store and its commands, and children with changing secrets.

use std::fs;

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_binary};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::{GuardedServer, run_command, set_secret, wait_for_listed_server};

/// A child with a secret in the environment.
fn child_config(name: &str, more: &str) -> String {
    format!(
        "[servers.{name}]\ncommand = {}\n{more}\n",
        json!(fixture_binary())
    )
}

/// The value of a variable of a child.
fn child_variable(gateway: &Gateway, server: &str) -> String {
    let status = gateway.server_status(server);
    let environ = fs::read(format!("/proc/{}/environ", status["pid"])).unwrap_or_default();
    String::from_utf8_lossy(&environ).replace('\0', "\n")
}

#[test]
fn changed_secret_restarts_child_after_calls() {
    let config =
        child_config("one", "env = { KEY = \"${secret:key}\" }") + &child_config("two", "");
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("two", "ready");
    set_secret(&gateway, "key", "first-value\n");
    wait_for_listed_server(&gateway, "one", "ready");
    let first = gateway.server_status("one")["pid"].clone();
    let other = gateway.server_status("two")["pid"].clone();
    wait_until("it has the secret", || {
        child_variable(&gateway, "one").contains("KEY=first-value")
    });
    // A call is in flight while the secret changes.
    let mut session = gateway.open_session("/mcp");
    session.send_call(7, "one__slow", &json!({"ms": 2500, "message": "late"}));
    wait_until("it is in flight", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    set_secret(&gateway, "key", "second-value");
    wait_until("another child is there", || {
        child_variable(&gateway, "one").contains("KEY=second-value")
    });
    let answer = session.http.read_response().json();
    assert!(answer["result"].is_object(), "{answer}");
    assert_ne!(gateway.server_status("one")["pid"], first);
    assert_eq!(
        gateway.server_status("two")["pid"],
        other,
        "the other one stays"
    );
    let again = session.call("one__echo", &json!({"message": "hi"}));
    assert!(again["result"].is_object(), "{again}");
}

/// The list entry of a secret.
fn secret_entry(name: &str, from: &str, is_set: bool, used_by: &[&str]) -> Value {
    json!({"name": name, "from": from, "set": is_set, "used_by": used_by})
}

/// Secrets are listed with origins and users, never with values.
#[test]
fn secret_list_shows_origin_never_value() {
    let server = GuardedServer::start(&[("stored-value", &["look"])]);
    let config = server.config_entry("web", "${secret:web}")
        + &child_config(
            "kid",
            "env = { A = \"${secret:from-env}\", B = \"${secret:web}\" }",
        )
        + "[secrets.from-env]\nenv = \"SOME_KEY\"\n[secrets.idle]\ncommand = [\"cat\"]\n";
    let gateway = Gateway::start_with_command(&config, |up| {
        up.env("SOME_KEY", "env-value-1");
    });
    let list = || {
        let out = run_command(&gateway, &["secret", "ls", "--json"], "");
        let listed: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(!listed.to_string().contains("value-1"), "{listed}");
        listed["secrets"].clone()
    };
    assert_eq!(
        list(),
        json!([
            secret_entry("from-env", "env SOME_KEY", true, &["kid"]),
            secret_entry("idle", "command cat", true, &[]),
            secret_entry("web", "store", false, &["kid", "web"]),
        ])
    );
    set_secret(&gateway, "web", "stored-value-1");
    set_secret(&gateway, "spare", "spare-value-1");
    assert_eq!(
        list()[3],
        secret_entry("web", "store", true, &["kid", "web"])
    );
    let shown = run_command(&gateway, &["secret", "ls"], "");
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("command cat") && !shown.contains("value-1"),
        "{shown}"
    );
    let gone = run_command(&gateway, &["secret", "rm", "spare"], "");
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
        let out = run_command(&gateway, args, "");
        assert_eq!(out.status.code(), Some(code), "{args:?}: {out:?}");
    }
}

#[test]
fn secret_is_set_without_config_or_gateway() {
    let directory = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        std::process::Command::new("sh")
            .args(["-c", "printf 'a value\\n' | \"$@\"", "sh"])
            .arg(bowline_binary())
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
fn secret_command_runs_again_when_stale() {
    let server = GuardedServer::start(&[("key-number-1", &["look"]), ("key-number-2", &["look"])]);
    let directory = tempfile::tempdir().unwrap();
    let count = directory.path().join("count");
    let script = format!(
        "echo >> {0}; n=$(wc -l < {0}); [ $n -gt 2 ] && n=2; echo key-number-$n",
        count.display()
    );
    let config = format!(
        "{}[secrets.web]\ncommand = [\"sh\", \"-c\", {}]\nevery = \"1s\"\n",
        server.config_entry("web", "${secret:web}"),
        json!(script),
    );
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("web", "ready");
    wait_until("the list was asked for with the second one", || {
        server
            .authorization_headers("tools/list")
            .contains(&"Bearer key-number-2".to_owned())
    });
    assert_eq!(gateway.server_status("web")["generation"], 1);
}
