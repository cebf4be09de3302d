//! A message between receipt and ack.

use std::time::Duration;

use bowline_host::broker::HubLimits;
use bowline_journal::engine::LANE_MESSAGES_MAX;
use bowline_journal::{LaneName, MessageDraft, MessageFilter, Timestamps};
use bowline_link::websocket::WebSocketLimits;
use bytes::Bytes;
use serde_json::json;

use super::hub_rig::{HubRig, HubRigOptions, call, message_json, request};

/// Runs one process lifetime: unfinished work is dropped at the end, as by a kill.
fn life<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(work)
}

#[test]
fn receipted_message_survives_a_kill() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("journal");
    life(async {
        let rig = HubRigOptions::at(&path).start().await;
        rig.authenticator.grant_reach("ann", &["bob"]);
        let mut ann = rig.join("ann").await;
        ann.delivered("bob", message_json("m1", "mcp_request", json!({"n": 1.5})))
            .await;
    });
    life(async {
        let rig = HubRigOptions::at(&path).start().await;
        let mut bob = rig.subscribe("bob").await;
        let message = bob.next_of("message").await["message"].clone();
        assert_eq!(message["id"], "m1");
        assert_eq!(message["body"], json!({"n": 1.5}));
        assert_eq!(
            message["from"],
            json!({"session_id": "ann", "role": "user"})
        );
        bob.send(json!({"kind": "ack_with_receipt", "id": "m1", "request_id": "r"}))
            .await;
        let result = bob.next_of("ack_result").await;
        assert_eq!(
            (&result["accepted"], &result["request_id"]),
            (&json!(true), &json!("r"))
        );
    });
    life(async {
        let rig = HubRigOptions::at(&path).start().await;
        assert!(rig.hub.mailboxes().await.unwrap().is_empty(), "it is done");
    });
}

#[tokio::test]
async fn messages_are_pushed_in_order() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    for nth in 0..100 {
        ann.deliver("bob", request(&format!("m{nth}"), json!(nth)))
            .await;
    }
    for _ in 0..100 {
        ann.next_of("delivered").await;
    }
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m100", json!(100))).await;
    for nth in 0..=100 {
        let message = bob.next_of("message").await;
        assert_eq!(message["message"]["body"], nth);
    }
}

#[tokio::test]
async fn unacked_message_is_redelivered_after_disconnect() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    ann.delivered("bob", request("m2", json!(2))).await;
    let mut bob = rig.subscribe("bob").await;
    bob.next_of("message").await;
    bob.next_of("message").await;
    bob.send(json!({"kind": "ack", "id": "m1"})).await;
    bob.settle().await;
    bob.hang_up();
    rig.wait_left("bob").await;
    let mut bob = rig.subscribe("bob").await;
    let message = bob.next_of("message").await;
    assert_eq!(message["message"]["id"], "m2");
}

#[tokio::test]
async fn duplicate_message_is_stored_once() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    for _ in 0..3 {
        ann.delivered("bob", request("m1", json!({"a": 1}))).await;
    }
    ann.deliver("bob", request("m1", json!({"a": 2}))).await;
    let refused = ann.next_of("error").await;
    assert_eq!(
        (&refused["code"], &refused["id"]),
        (&json!("conflict"), &json!("m1"))
    );
    let mailboxes = rig.hub.mailboxes().await.unwrap();
    assert_eq!((mailboxes.len(), mailboxes[0].waiting), (1, 1));
}

#[tokio::test]
async fn two_senders_may_share_a_message_id() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    rig.authenticator.grant_reach("eve", &["bob"]);
    let mut bob = rig.subscribe("bob").await;
    for name in ["ann", "eve"] {
        let mut one = rig.join(name).await;
        one.delivered("bob", request("m1", json!(name))).await;
    }
    for name in ["ann", "eve"] {
        let message = bob.next_of("message").await;
        assert_eq!(message["message"]["body"], name);
        bob.send(json!({"kind": "ack", "id": "m1"})).await;
    }
    bob.settle().await;
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
}

/// Fills a mailbox to the limit.
async fn fill(rig: &HubRig, mailbox: &str) {
    for nth in 0..LANE_MESSAGES_MAX {
        let draft = MessageDraft {
            lane: LaneName::new(&format!("mbx/{mailbox}")).unwrap(),
            dedupe: format!("x/{nth}").into(),
            digest: [0; 32],
            body: Bytes::from_static(b"x"),
            ttl: None,
            lease: None,
        };
        rig.journal
            .publish(draft, Timestamps::default())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn full_mailbox_refuses_only_its_senders() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob", "cid"]);
    fill(&rig, "bob").await;
    let mut ann = rig.join("ann").await;
    ann.deliver("bob", request("m1", json!(1))).await;
    let refused = ann.next_of("error").await;
    assert_eq!(
        (&refused["code"], &refused["id"]),
        (&json!("mailbox_full"), &json!("m1"))
    );
    ann.delivered("cid", request("m2", json!(2))).await;
}

#[tokio::test]
async fn reply_to_full_mailbox_is_dead_letter() {
    let rig = HubRig::new().await;
    fill(&rig, "ann").await;
    let mut ann = rig.join("ann").await;
    ann.delivered("hub", request("m1", call("count", &json!({}))))
        .await;
    let mut bob = rig.subscribe("bob").await;
    let reply = bob.ask("m1", call("echo", &json!({"a": 1}))).await;
    assert_eq!(reply["result"]["success"], true);
    let dead = rig.wait_dead_letters(1).await.remove(0);
    assert_eq!((&*dead.id, &*dead.from), ("m1", "ann"));
    assert!(dead.reason.contains("full"), "{}", dead.reason);
}

#[tokio::test]
async fn never_acked_message_becomes_dead_letter() {
    let limits = HubLimits {
        deliveries_max: 3,
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    ann.delivered("bob", request("bad", json!(1))).await;
    for _ in 0..3 {
        let mut bob = rig.subscribe("bob").await;
        assert_eq!(bob.next_of("message").await["message"]["id"], "bad");
        bob.hang_up();
        rig.wait_left("bob").await;
    }
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("good", json!(2))).await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "good");
    bob.send(json!({"kind": "list_dead"})).await;
    let dead = bob.next_of("dead").await;
    assert_eq!(dead["letters"][0]["message"]["id"], "bad");
    let reason = dead["letters"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("3 times"), "{reason}");

    let number = rig.hub.dead_letters(0, 10).await.unwrap()[0].number;
    rig.hub.requeue(number).await.unwrap();
    assert_eq!(bob.next_of("message").await["message"]["id"], "bad");
    bob.send(json!({"kind": "nak", "id": "bad", "dead": true, "reason": "no good"}))
        .await;
    bob.settle().await;
    let dead = rig.wait_dead_letters(1).await.remove(0);
    assert_eq!(&*dead.reason, "no good");
    rig.hub.discard(dead.number).await.unwrap();
    assert!(rig.hub.dead_letters(0, 10).await.unwrap().is_empty());
    assert!(rig.hub.discard(dead.number).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn naked_message_returns_after_delay() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    bob.next_of("message").await;
    let began = rig.host.clock().now();
    bob.send(json!({"kind": "nak", "id": "m1", "delay_ms": 3_000}))
        .await;
    bob.next_of("message").await;
    let took = began.duration_until(rig.host.clock().now());
    assert!(took >= Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn expired_lease_is_redelivered() {
    let limits = HubLimits {
        ack_wait: Duration::from_secs(5),
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    bob.next_of("message").await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m1");
    bob.send(json!({"kind": "ack", "id": "m1"})).await;
    bob.settle().await;
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn fast_sender_is_throttled_without_loss() {
    let limits = HubLimits {
        deliver_per_second: 10,
        deliver_burst: 10,
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let began = rig.host.clock().now();
    for nth in 0..40 {
        ann.deliver("bob", request(&format!("m{nth}"), json!(nth)))
            .await;
    }
    for nth in 0..40 {
        let receipt = ann.next_of("delivered").await;
        assert_eq!(receipt["id"], format!("m{nth}"));
    }
    let took = began.duration_until(rig.host.clock().now());
    assert!(
        (Duration::from_secs(2)..Duration::from_secs(5)).contains(&took),
        "{took:?}"
    );
    assert_eq!(rig.hub.mailboxes().await.unwrap()[0].waiting, 40);
}

#[tokio::test(start_paused = true)]
async fn throttled_sender_still_receives() {
    let limits = HubLimits {
        deliver_per_second: 1,
        deliver_burst: 1,
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    rig.authenticator.grant_reach("eve", &["ann"]);
    let mut ann = rig.subscribe("ann").await;
    let mut eve = rig.join("eve").await;
    let began = rig.host.clock().now();
    for nth in 0..10 {
        ann.deliver("bob", request(&format!("m{nth}"), json!(nth)))
            .await;
    }
    eve.delivered("ann", request("x", json!(1))).await;
    ann.next_of("message").await;
    let took = began.duration_until(rig.host.clock().now());
    assert!(took < Duration::from_secs(5), "{took:?}");
    for _ in 1..10 {
        ann.next_of("delivered").await;
    }
}

#[tokio::test]
async fn unacked_messages_are_limited() {
    let limits = HubLimits {
        unacked_max: 3,
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let mut bob = rig.subscribe("bob").await;
    for nth in 0..5 {
        ann.delivered("bob", request(&format!("m{nth}"), json!(nth)))
            .await;
    }
    for nth in 0..3 {
        let message = bob.next_of("message").await;
        assert_eq!(message["message"]["id"], format!("m{nth}"));
    }
    rig.wait_seen("bob", |peer| peer.unacked == 3).await;
    bob.send(json!({"kind": "list_connected"})).await;
    assert_eq!(bob.next().await["kind"], "connected", "no more is pushed");
    bob.send(json!({"kind": "ack", "id": "m0"})).await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m3");
}

#[tokio::test]
async fn stalled_subscriber_blocks_no_other_peer() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["slow", "bob"]);
    let (near, far) = tokio::io::duplex(1 << 10);
    let limits = WebSocketLimits {
        queue_max: 2,
        ..WebSocketLimits::default()
    };
    let mut slow = rig.connect_over(near, far, limits);
    slow.hello("slow").await;
    slow.send(json!({"kind": "subscribe"})).await;
    rig.wait_seen("slow", |peer| peer.subscribed).await;
    let mut bob = rig.subscribe("bob").await;
    let mut ann = rig.join("ann").await;
    let large = "x".repeat(4_096);
    for nth in 0..50 {
        ann.delivered("slow", request(&format!("s{nth}"), json!(large)))
            .await;
    }
    ann.delivered("bob", request("m1", json!(1))).await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m1");
    for nth in 0..50 {
        let message = slow.next_of("message").await;
        assert_eq!(message["message"]["id"], format!("s{nth}"));
    }
}

#[tokio::test(start_paused = true)]
async fn expired_request_is_answered_not_pushed() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.subscribe("ann").await;
    let mut late = request("m1", json!({"op": "manifest"}));
    late["ttl_ms"] = json!(1_000);
    ann.delivered("bob", late).await;
    let mut good = request("m2", json!(2));
    good["ttl_ms"] = json!(600_000);
    ann.delivered("bob", good).await;
    let reply = ann.reply_to("m1").await;
    assert_eq!(reply["failure"]["code"], "expired");
    assert_eq!(reply["failure"]["execution"], "not_started");
    let mut bob = rig.subscribe("bob").await;
    let message = bob.next_of("message").await["message"].clone();
    assert_eq!(message["id"], "m2");
    let left = message["ttl_ms"].as_u64().unwrap();
    assert!((500_000..600_000).contains(&left), "what is left: {left}");
}

#[tokio::test]
async fn empty_mailbox_is_not_listed() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    bob.next_of("message").await;
    assert_eq!(rig.hub.mailboxes().await.unwrap().len(), 1);
    bob.send(json!({"kind": "ack", "id": "m1"})).await;
    bob.settle().await;
    let filter = MessageFilter {
        lanes: "mbx/".into(),
        limit: 10,
        ..MessageFilter::default()
    };
    let left = rig
        .journal
        .list_messages(filter, Timestamps::default())
        .await
        .unwrap();
    assert!(left.is_empty() && rig.hub.mailboxes().await.unwrap().is_empty());
}
