//! Servers on an executor are kept like children of a gateway: within their limits, and never left
//! behind.

use serde_json::{Value, json};

use super::ROLE;
use crate::harness::executor::Executor;
use crate::harness::{Gateway, eventually};
use crate::props::{fresh_mark, mark_line, marked, opening, script};

/// A gateway whose server `wild` is to run on an executor that it dials.
fn dialled(mark: &str, deed: &str, more: &str) -> (Gateway, Executor) {
    let tools = r#"{"tools":[{"name":"go","inputSchema":{"type":"object"}}]}"#;
    let text = format!("{}read -r l; {deed}; read -r l\n", opening(tools));
    let config = script("wild", &text, &[]) + &mark_line(mark) + more;
    let executor = Executor::listen(None, &config, &["--insecure-no-auth"]);
    let address = executor.address();
    let gateway = Gateway::up(&format!(
        "[servers.wild]\nvia = \"executor:office\"\nera = \"legacy\"\nrestart = {{ budget = 0 }}\n\
         [executors.office]\nurl = \"ws://{address}\"\n{ROLE}"
    ));
    gateway.wait_for("wild", "ready");
    (gateway, executor)
}

#[test]
fn a_server_on_an_executor_is_ended_where_it_takes_more_than_its_own_config_allows() {
    for (name, deed, limit, reason) in [
        (
            "far-hog",
            "head -c 300000000 /dev/zero | tail",
            "memory = \"100MiB\"",
            "it used more than 100 MiB of memory",
        ),
        (
            "far-forks",
            "i=0; while [ $i -lt 300 ]; do setsid sleep 1000 & i=$((i+1)); done",
            "processes = 50",
            "it had more than 50 processes",
        ),
    ] {
        let mark = fresh_mark(name);
        let (gateway, _executor) = dialled(&mark, deed, &format!("limits = {{ {limit} }}\n"));
        let answer = gateway.session("/mcp").call("wild__go", &json!({}));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
        let wild = gateway.wait_for("wild", "ejected");
        let message = wild["last_error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
        // They are processes of another machine, for all that the gateway knows.
        assert_eq!(wild["limits"]["memory_bytes_max"], Value::Null);
        eventually("nothing is left behind", || marked(&mark).is_empty());
    }
}

#[test]
fn a_killed_executor_leaves_no_process_of_its_servers_behind() {
    let mark = fresh_mark("far-orphans");
    let (_gateway, mut executor) = dialled(&mark, "true", "");
    assert!(!marked(&mark).is_empty());
    executor.kill();
    eventually("nothing is left behind", || marked(&mark).is_empty());
}

#[test]
fn a_killed_gateway_leaves_no_process_behind_once_it_is_back() {
    let mark = fresh_mark("far-former");
    let (mut gateway, _executor) = dialled(&mark, "true", "");
    let former = gateway.status("wild")["pid"].as_u64().unwrap();
    gateway.restart_after_kill();
    let wild = gateway.wait_for("wild", "ready");
    assert_ne!(wild["pid"].as_u64().unwrap(), former);
    let former = u32::try_from(former).unwrap();
    eventually("the former one is gone", || {
        !marked(&mark).contains(&former)
    });
}
