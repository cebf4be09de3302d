//! Servers for tests, and leftover processes.

use std::path::Path;

use bowline_testkit::gateway::{Session, server_config};
use bowline_testkit::is_alive;
use serde_json::{Value, json};

/// Returns the configuration of a shell server. The server counts input lines, so the era is
/// configured instead of probed.
pub(crate) fn shell_server(name: &str, script: &str, args: &[&str]) -> String {
    let all = [&["-c", script, "script"], args].concat();
    server_config(name, Path::new("/bin/sh"), &all) + "era = \"legacy\"\n"
}

/// The first lines of a shell server: handshake, then a list with this result.
pub(crate) fn shell_handshake(list: &str) -> String {
    let hello = json!({"jsonrpc": "2.0", "id": 1, "result": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
        "serverInfo": {"name": "script", "version": "1"},
    }});
    format!(
        "read -r l; echo '{hello}'; read -r l; read -r l; \
         echo '{{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{list}}}'\n"
    )
}

/// Live processes with this variable in their environment, descendants included.
pub(crate) fn marked_processes(mark: &str) -> Vec<u32> {
    let wanted = format!("BOWLINE_MARK={mark}");
    let processes = std::fs::read_dir("/proc").unwrap();
    processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ
                .split(|byte| *byte == 0)
                .any(|variable| variable == wanted.as_bytes())
                && is_alive(*pid)
        })
        .collect()
}

/// A config line to mark a server and all descendants.
pub(crate) fn mark_config_line(mark: &str) -> String {
    format!("env = {{ BOWLINE_MARK = \"{mark}\" }}\n")
}

/// A mark unique to this test.
pub(crate) fn fresh_mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Reads a number from the environment, for longer manual runs.
pub(crate) fn env_number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Pids reported by a server with the fault `forks`.
pub(crate) fn fork_descendants(session: &mut Session, tool: &str) -> Vec<u32> {
    let answer = session.call(tool, &json!({}));
    let pids = answer["result"]["structuredContent"]["pids"]
        .as_array()
        .unwrap_or_else(|| panic!("no pids: {answer}"));
    pids.iter()
        .map(|pid| u32::try_from(pid.as_u64().unwrap()).unwrap())
        .collect()
}

/// A string field of the error data.
pub(crate) fn error_field<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer["error"]["data"][key].as_str().unwrap_or_default()
}
