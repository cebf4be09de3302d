//! Servers to test with, and the processes they leave behind.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Session, lives, server};

/// Returns the configuration of a server written in shell. Such a server counts what it hears, so
/// it is not asked first how it speaks.
pub(crate) fn script(name: &str, script: &str, args: &[&str]) -> String {
    let all = [&["-c", script, "script"], args].concat();
    server(name, Path::new("/bin/sh"), &all) + "era = \"legacy\"\n"
}

/// The first lines of a server in shell: handshake, then a list with this result.
pub(crate) fn opening(list: &str) -> String {
    let hello = json!({"jsonrpc": "2.0", "id": 1, "result": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
        "serverInfo": {"name": "script", "version": "1"},
    }});
    format!(
        "read -r l; echo '{hello}'; read -r l; read -r l; \
         echo '{{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{list}}}'\n"
    )
}

/// Living processes that were started with this variable in their environment, or below.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
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
                && lives(*pid)
        })
        .collect()
}

/// A line of configuration that marks a server and all that descends from it.
pub(crate) fn mark_line(mark: &str) -> String {
    format!("env = {{ BOWLINE_MARK = \"{mark}\" }}\n")
}

/// A mark that no other test uses.
pub(crate) fn fresh_mark(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Reads a number from the environment, for longer runs by hand.
pub(crate) fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Pids that a server of the fault `forks` says it started.
pub(crate) fn descendants(session: &mut Session, tool: &str) -> Vec<u32> {
    let answer = session.call(tool, &json!({}));
    let pids = answer["result"]["structuredContent"]["pids"]
        .as_array()
        .unwrap_or_else(|| panic!("no pids: {answer}"));
    pids.iter()
        .map(|pid| u32::try_from(pid.as_u64().unwrap()).unwrap())
        .collect()
}

/// A word of the machine-readable part of an error.
pub(crate) fn word<'a>(answer: &'a Value, key: &str) -> &'a str {
    answer["error"]["data"][key].as_str().unwrap_or_default()
}
