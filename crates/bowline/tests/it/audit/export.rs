//! Audit rows received by syslog and by an OTLP collector.

use std::io::Read as _;
use std::net::{TcpListener, UdpSocket};

use bowline_testkit::WAIT_MAX;
use bowline_testkit::gateway::StubServer;

use super::*;

/// The row in a syslog message.
fn parse_syslog_row(message: &str) -> Value {
    let at = message.find('{').unwrap_or_else(|| panic!("{message}"));
    serde_json::from_str(&message[at..]).unwrap()
}

#[test]
fn sec_98_rows_reach_syslog_when_written() {
    let syslog = UdpSocket::bind("127.0.0.1:0").unwrap();
    syslog.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let to = syslog.local_addr().unwrap();
    let gateway = start_audited(&format!("[audit]\nexport = \"syslog:{to}\"\n"));
    let (_, mut ann) = open_session_as(&gateway, "ann", "r");
    call_tool(&mut ann, "one__echo");
    call_tool(&mut ann, "one__add");
    let mut buffer = vec![0; 65_536];
    let mut seen = Vec::new();
    while !["echo", "add"]
        .iter()
        .all(|name| seen.iter().any(|row: &Value| row["name"] == *name))
    {
        let size = syslog.recv(&mut buffer).unwrap();
        let message = String::from_utf8(buffer[..size].to_vec()).unwrap();
        let row = parse_syslog_row(&message);
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
    wait_until("they are counted", || {
        gateway.get_api("/api/v1/status")["audit"]["export"]["sent"].as_u64() >= Some(2)
    });
}

#[test]
fn sec_98_outage_rows_are_sent_afterwards() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = reserved.local_addr().unwrap();
    drop(reserved);
    let mut gateway = start_audited(&format!("[audit]\nexport = \"syslog+tcp:{to}\"\n"));
    let mut session = gateway.open_session("/mcp");
    for _ in 0..20 {
        call_tool(&mut session, "one__echo");
    }
    assert!(gateway.stop());
    let syslog = TcpListener::bind(to).unwrap();
    gateway.restart();
    let (mut stream, _) = syslog.accept().unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let (mut text, mut buffer) = (String::new(), vec![0; 65_536]);
    while text.matches("\"name\":\"echo\"").count() < 20 {
        let size = stream.read(&mut buffer).unwrap();
        assert!(size > 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..size]).unwrap());
    }
    let (length, rest) = text.split_once(' ').unwrap();
    let first = &rest[..length.parse().unwrap()];
    assert_eq!(parse_syslog_row(first)["seq"], 1, "{first}");
}

#[test]
fn sec_98_rows_reach_otlp_collector() {
    let collector = StubServer::start_collector();
    let config = format!(
        "[telemetry]\notlp = {}\n[audit]\nexport = \"otlp\"\n",
        json!(collector.url)
    );
    let gateway = start_audited(&config);
    call_tool(&mut gateway.open_session("/mcp"), "one__echo");
    collector.wait_for_requests("the row arrives", |requests| {
        requests.iter().any(|asked| {
            let body = asked.json();
            let logs = &body["resourceLogs"][0]["scopeLogs"][0]["logRecords"];
            let logs = logs.as_array().cloned().unwrap_or_default();
            asked.path == "/v1/logs"
                && logs.iter().any(|log| {
                    let text = log["body"]["stringValue"].as_str().unwrap();
                    parse_syslog_row(text)["name"] == "echo"
                })
        })
    });
}
