//! Roles over real sockets: what is seen and what may be called, and a policy that changes while
//! sessions are open.

use serde_json::{Value, json};

use crate::harness::{Gateway, Session, eventually, fixture};

/// A gateway that anybody on this machine may use, as the role that the file gives them.
fn open(policy: &str) -> Gateway {
    let config = format!("{policy}\n{}", fixture("one", &[]));
    Gateway::up_with(&config, &["--insecure-no-auth"])
}

fn write(gateway: &Gateway, policy: &str) {
    let config = format!("{policy}\n{}", fixture("one", &[]));
    std::fs::write(gateway.dir.path().join("bowline.toml"), config).unwrap();
}

fn anybody(gateway: &Gateway) -> Session {
    gateway.wait_for("one", "ready");
    Session::open(gateway.address, "/mcp", None)
}

/// The names of what a session sees.
fn seen(session: &mut Session) -> Vec<String> {
    let answer = session.request("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

fn echo(session: &mut Session) -> Value {
    session.call("one__echo", &json!({"message": "hi"}))
}

const ECHO_ONLY: &str = "[roles.r]\nallow = [\"one.echo\"]\n\
    [principals.anonymous-local]\nrole = \"r\"";

const NOTHING: &str = "[roles.r]\nallow = []\n[principals.anonymous-local]\nrole = \"r\"";

#[test]
fn a_changed_policy_counts_for_sessions_that_are_open() {
    let gateway = open(ECHO_ONLY);
    let mut session = anybody(&gateway);
    assert_eq!(seen(&mut session), ["one__echo"]);
    assert_eq!(echo(&mut session)["result"]["content"][0]["text"], "hi");

    write(&gateway, NOTHING);
    eventually("the session sees nothing", || seen(&mut session).is_empty());
    let refused = echo(&mut session);
    assert_eq!(
        refused["error"]["data"]["code"], "policy_denied",
        "{refused}"
    );

    write(&gateway, ECHO_ONLY);
    eventually("the session sees again", || {
        seen(&mut session) == ["one__echo"]
    });
    assert_eq!(echo(&mut session)["result"]["content"][0]["text"], "hi");
}

#[test]
fn a_reload_says_that_the_policy_changed_and_which_names_are_strange() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("stderr");
    let stderr = std::fs::File::create(&path).unwrap();
    let gateway = Gateway::up_as(&fixture("one", &[]), |command| {
        command.stderr(stderr);
    });
    gateway.wait_for("one", "ready");
    // Names that no server has stay in force: what they name may come later.
    write(&gateway, "[roles.r]\nallow = [\"one.ehco\", \"two.x\"]");
    let told = || std::fs::read_to_string(&path).unwrap();
    eventually("the change is told", || told().contains("  ~ policy\n"));
    let report = gateway.cli(&["reload", "--json"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["policy_changed"], false, "{report}");
    let warnings = [
        "`two.x` in `roles.r.allow` names server `two`, which is not configured",
        "`one.ehco` in `roles.r.allow` names what `one` does not have; did you mean `echo`?",
    ];
    assert_eq!(report["warnings"], json!(warnings));
    for warning in warnings {
        assert!(told().contains(warning), "{}", told());
    }
}
