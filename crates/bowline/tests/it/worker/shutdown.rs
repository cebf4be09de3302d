//! The end of a worker, and open ports.

use std::collections::HashSet;

use bowline_testkit::gateway::{Worker, fixture_config};
use bowline_testkit::wait_until;
use serde_json::json;

use super::start_hub;

/// The listen addresses of a process.
fn listening_addresses(pid: u32) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let sockets: HashSet<String> = links
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(link.to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap();
        for line in table.lines().skip(1) {
            let parts: Vec<_> = line.split_whitespace().collect();
            if parts[3] == "0A" && sockets.contains(parts[9]) {
                found.push(parts[1].to_owned());
            }
        }
    }
    found
}

#[test]
fn worker_only_dials_out() {
    let hub = start_hub();
    let own = fixture_config("build-a", &[]);
    let worker = Worker::join(
        &hub,
        &hub.create_role_token("w1", "all"),
        &own,
        &["--offer", "*"],
    );
    let port = format!("0100007F:{:04X}", worker.gateway.address.port());
    assert_eq!(listening_addresses(worker.gateway.pid()), [port]);
}

#[test]
fn stopped_worker_leaves_in_order() {
    let hub = start_hub();
    let mut worker = Worker::join(&hub, &hub.create_role_token("w1", "all"), "", &[]);
    let here = || hub.get_api("/api/v1/broker").to_string().contains("w1");
    wait_until("the hub has a peer", here);
    assert!(worker.gateway.stop());
    let peers = || hub.get_api("/api/v1/broker")["peers"].clone();
    wait_until("it is gone", || peers() == json!([]));
    assert!(!worker.gateway.state_dir().join("run.json").exists());
}
