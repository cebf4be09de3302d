//! How a worker ends, and what it opens.

use std::collections::HashSet;

use serde_json::json;

use super::hub;
use crate::harness::worker::Worker;
use crate::harness::{eventually, fixture};

/// The addresses at which a process listens.
fn listens(pid: u32) -> Vec<String> {
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
fn a_worker_dials_out_only() {
    let hub = hub();
    let own = fixture("build-a", &[]);
    let worker = Worker::join(&hub, &hub.token_for("w1", "all"), &own, &["--offer", "*"]);
    let port = format!("0100007F:{:04X}", worker.gateway.address.port());
    assert_eq!(listens(worker.gateway.pid()), [port]);
}

#[test]
fn a_worker_that_is_told_to_stop_leaves_in_order() {
    let hub = hub();
    let mut worker = Worker::join(&hub, &hub.token_for("w1", "all"), "", &[]);
    let here = || hub.api("/api/v1/broker").to_string().contains("w1");
    eventually("the hub has a peer", here);
    assert!(worker.gateway.stop());
    let peers = || hub.api("/api/v1/broker")["peers"].clone();
    eventually("it is gone", || peers() == json!([]));
    assert!(!worker.gateway.state().join("run.json").exists());
}
