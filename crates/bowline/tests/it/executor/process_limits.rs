//! Servers on an executor are treated like children of a gateway: within limits, and never left
//! behind.

use bowline_testkit::gateway::{Executor, Gateway};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::ROLE;
use crate::test_servers::{
    fresh_mark, mark_config_line, marked_processes, shell_handshake, shell_server,
};

/// A gateway whose server `wild` runs on a dialled executor.
fn start_dialled(mark: &str, deed: &str, more: &str) -> (Gateway, Executor) {
    let tools = r#"{"tools":[{"name":"go","inputSchema":{"type":"object"}}]}"#;
    let text = format!("{}read -r l; {deed}; read -r l\n", shell_handshake(tools));
    let config = shell_server("wild", &text, &[]) + &mark_config_line(mark) + more;
    let executor = Executor::listen(None, &config, &["--insecure-no-auth"]);
    let address = executor.address();
    let gateway = Gateway::start(&format!(
        "[servers.wild]\nvia = \"executor:office\"\nera = \"legacy\"\nrestart = {{ budget = 0 }}\n\
         [executors.office]\nurl = \"ws://{address}\"\n{ROLE}"
    ));
    gateway.wait_for_state("wild", "ready");
    (gateway, executor)
}

/// A server on an executor is ended when it exceeds the limits of the executor's own config.
#[test]
fn executor_ends_server_over_its_limits() {
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
        let (gateway, _executor) = start_dialled(&mark, deed, &format!("limits = {{ {limit} }}\n"));
        let answer = gateway.open_session("/mcp").call("wild__go", &json!({}));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
        let wild = gateway.wait_for_state("wild", "ejected");
        let message = wild["last_error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
        // The gateway treats executor processes as processes of another machine.
        assert_eq!(wild["limits"]["memory_bytes_max"], Value::Null);
        wait_until("nothing is left behind", || {
            marked_processes(&mark).is_empty()
        });
    }
}

#[test]
fn killed_executor_leaves_no_server_process() {
    let mark = fresh_mark("far-orphans");
    let (_gateway, mut executor) = start_dialled(&mark, "true", "");
    assert!(!marked_processes(&mark).is_empty());
    executor.kill();
    wait_until("nothing is left behind", || {
        marked_processes(&mark).is_empty()
    });
}

/// A killed gateway leaves no server process on its executor once the gateway is back.
#[test]
fn restarted_gateway_leaves_no_executor_process() {
    let mark = fresh_mark("far-former");
    let (mut gateway, _executor) = start_dialled(&mark, "true", "");
    let former = gateway.server_status("wild")["pid"].as_u64().unwrap();
    gateway.restart_after_kill();
    let wild = gateway.wait_for_state("wild", "ready");
    assert_ne!(wild["pid"].as_u64().unwrap(), former);
    let former = u32::try_from(former).unwrap();
    wait_until("the former one is gone", || {
        !marked_processes(&mark).contains(&former)
    });
}
