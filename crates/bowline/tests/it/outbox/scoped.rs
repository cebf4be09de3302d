//! Idempotency keys of two principals at a server that knows repeated calls by their keys.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::world::World;
use crate::harness::{Session, fixture};

/// Writes a number under a key, and returns what the server said.
fn write(session: &mut Session, server: &str, number: u64) -> Value {
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
        // A tool that is not queued, whose server looks at keys all the same.
        let plain = fixture("plain", &["--toolset", "writes", "--ledger", &ledger]);
        let mut world = World::with(channel, "1h", &plain);
        world.gateway.wait_for("plain", "ready");
        for server in ["web", "pipe", "plain"] {
            let mut ann = world.agent("ann");
            let mut bob = world.agent("bob");
            let (of_ann, of_bob) = (write(&mut ann, server, 1), write(&mut bob, server, 2));
            assert_eq!(
                (&of_ann["number"], &of_ann["repeated"]),
                (&json!(1), &json!(false)),
                "{channel} {server}: {of_ann}"
            );
            // Neither an answer of ann's, nor a write that is suppressed.
            assert_eq!(
                (&of_bob["number"], &of_bob["repeated"]),
                (&json!(2), &json!(false)),
                "{channel} {server}: {of_bob}"
            );
        }
        // The same principal is known again, over sessions and restarts of the gateway.
        let again = write(&mut world.agent("ann"), "plain", 1);
        assert_eq!(again["repeated"], true, "{channel}: {again}");
        assert!(world.gateway.stop());
        world.gateway.restart();
        world.gateway.wait_for("plain", "ready");
        let again = write(&mut world.agent("ann"), "plain", 1);
        assert_eq!(again["repeated"], true, "{channel}: {again}");
    }
}
