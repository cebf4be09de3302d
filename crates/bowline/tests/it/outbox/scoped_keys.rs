//! Idempotency keys of two principals at a server that deduplicates by key.

use bowline_testkit::gateway::{Session, fixture_config};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::outbox_setup::OutboxSetup;

/// Writes a number under a key, and returns the server's text.
fn write_number(session: &mut Session, server: &str, number: u64) -> Value {
    let params = json!({
        "name": format!("{server}__write_once"),
        "arguments": {"number": number},
        "_meta": {"dev.bowline/idempotencyKey": "order-1"},
    });
    let answer = session.request("tools/call", &params);
    answer["result"]["structuredContent"].clone()
}

#[test]
fn sec_69_idempotency_keys_never_cross_principals() {
    for channel in ["argument:idempotencyKey", "header:Idempotency-Key", "meta"] {
        let own = TempDir::new().unwrap();
        let ledger = own.path().join("plain").display().to_string();
        // An unqueued tool, at a server with keys.
        let plain = fixture_config("plain", &["--toolset", "writes", "--ledger", &ledger]);
        let mut world = OutboxSetup::with_config(channel, "1h", &plain);
        world.gateway.wait_for_state("plain", "ready");
        for server in ["web", "pipe", "plain"] {
            let mut ann = world.open_agent_session("ann");
            let mut bob = world.open_agent_session("bob");
            let (of_ann, of_bob) = (
                write_number(&mut ann, server, 1),
                write_number(&mut bob, server, 2),
            );
            assert_eq!(
                (&of_ann["number"], &of_ann["repeated"]),
                (&json!(1), &json!(false)),
                "{channel} {server}: {of_ann}"
            );
            // Bob gets neither Ann's response nor a suppressed write.
            assert_eq!(
                (&of_bob["number"], &of_bob["repeated"]),
                (&json!(2), &json!(false)),
                "{channel} {server}: {of_bob}"
            );
        }
        // A principal keeps the key over sessions and gateway restarts.
        let again = write_number(&mut world.open_agent_session("ann"), "plain", 1);
        assert_eq!(again["repeated"], true, "{channel}: {again}");
        assert!(world.gateway.stop());
        world.gateway.restart();
        world.gateway.wait_for_state("plain", "ready");
        let again = write_number(&mut world.open_agent_session("ann"), "plain", 1);
        assert_eq!(again["repeated"], true, "{channel}: {again}");
    }
}
