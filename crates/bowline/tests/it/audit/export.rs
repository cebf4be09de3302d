//! Rows as a syslog and a collector receive them.

use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};

use super::*;
use crate::harness::PATIENCE;
use crate::harness::listener::Listener;

/// The row in a message of syslog.
fn row_of(message: &str) -> Value {
    let at = message.find('{').unwrap_or_else(|| panic!("{message}"));
    serde_json::from_str(&message[at..]).unwrap()
}

#[test]
fn sec_98_rows_reach_syslog_as_they_are_written() {
    let syslog = UdpSocket::bind("127.0.0.1:0").unwrap();
    syslog.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = syslog.local_addr().unwrap();
    let gateway = up(&format!("[audit]\nexport = \"syslog:{to}\"\n"));
    let (_, mut ann) = session_of(&gateway, "ann", "r");
    call(&mut ann, "one__echo");
    call(&mut ann, "one__add");
    let mut buffer = vec![0; 65_536];
    let mut seen = Vec::new();
    while !["echo", "add"]
        .iter()
        .all(|name| seen.iter().any(|row: &Value| row["name"] == *name))
    {
        let size = syslog.recv(&mut buffer).unwrap();
        let message = String::from_utf8(buffer[..size].to_vec()).unwrap();
        let row = row_of(&message);
        let priority = if row["ring"] == "denials" {
            "<108>1 20"
        } else {
            "<110>1 20"
        };
        assert!(message.starts_with(priority), "{message}");
        assert!(message.contains(" bowline "), "{message}");
        assert!(row["hash"].as_str().is_some_and(|hash| hash.len() == 64));
        seen.push(row);
    }
    eventually("they are counted", || {
        gateway.api("/api/v1/status")["audit"]["export"]["sent"].as_u64() >= Some(2)
    });
}

#[test]
fn sec_98_rows_of_an_outage_are_sent_after_it() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = reserved.local_addr().unwrap();
    drop(reserved);
    let mut gateway = up(&format!("[audit]\nexport = \"syslog+tcp:{to}\"\n"));
    let mut session = gateway.session("/mcp");
    for _ in 0..20 {
        call(&mut session, "one__echo");
    }
    assert!(gateway.stop());
    let syslog = TcpListener::bind(to).unwrap();
    gateway.restart();
    let (mut stream, _) = syslog.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut text, mut buffer) = (String::new(), vec![0; 65_536]);
    while text.matches("\"name\":\"echo\"").count() < 20 {
        let size = stream.read(&mut buffer).unwrap();
        assert!(size > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..size]).unwrap());
    }
    let (length, rest) = text.split_once(' ').unwrap();
    let first = &rest[..length.parse().unwrap()];
    assert_eq!(row_of(first)["seq"], 1, "{first}");
}

#[test]
fn sec_98_rows_reach_a_collector_of_otlp() {
    let collector = Listener::collector();
    let config = format!(
        "[telemetry]\notlp = {}\n[audit]\nexport = \"otlp\"\n",
        json!(collector.url)
    );
    let gateway = up(&config);
    call(&mut gateway.session("/mcp"), "one__echo");
    eventually("the row arrives", || {
        collector.asked().iter().any(|asked| {
            let body = asked.json();
            let logs = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"];
            let logs = logs.as_array().cloned().unwrap_or_default();
            asked.path == "/v1/logs"
                && logs.iter().any(|log| {
                    let text = log["body"]["stringValue"].as_str().unwrap();
                    row_of(text)["name"] == "echo"
                })
        })
    });
}
