//! Peer identity comes from credentials, never from frames.

use std::time::Duration;

use bowline_core::policy::FeaturePattern;
use bowline_host::broker::{HubLimits, PeerRights};
use bowline_journal::{MessageFilter, Timestamps};
use bowline_link::websocket::{WebSocketLimits, WebSocketRole, open_websocket};
use bowline_testkit::{poll_until, run_until_idle};
use bytes::Bytes;
use serde_json::{Value, json};

use super::hub_rig::{HubRig, HubRigOptions, RawPeer, call, message_json, request};

/// Waits for a refusal, and returns the code and the id.
async fn next_refusal(peer: &mut RawPeer) -> (Value, Value) {
    let error = peer.next_of("error").await;
    (error["code"].clone(), error["id"].clone())
}

#[tokio::test]
async fn missing_credential_is_refused() {
    let rig = HubRig::new().await;
    let mut stranger = rig.dial();
    stranger
        .send(json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": "guess"}))
        .await;
    let error = stranger.next().await;
    assert_eq!(
        (&error["kind"], &error["code"]),
        (&json!("error"), &json!("auth"))
    );
    assert_eq!(stranger.wait_closed().await, 4003);
    assert_eq!(rig.authenticator.refused.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn first_frame_must_be_hello() {
    let rig = HubRig::new().await;
    let mut rude = rig.dial();
    rude.send(json!({"kind": "subscribe"})).await;
    assert_eq!(rude.next().await["reason"], "expected hello");
    assert_eq!(rude.wait_closed().await, 4003);
    let mut ann = rig.join("ann").await;
    ann.send(json!({"kind": "hello", "agent": {"session_id": "bob"}, "token": "token-bob"}))
        .await;
    ann.send(json!({"kind": "no_such_kind", "x": 1})).await;
    ann.settle().await;
    assert_eq!(rig.hub.peers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_connection_times_out() {
    let rig = HubRig::new().await;
    let began = rig.host.clock().now();
    let mut silent = rig.dial();
    assert_eq!(silent.next().await["code"], "auth");
    assert_eq!(silent.wait_closed().await, 4003);
    let took = began.duration_until(rig.host.clock().now());
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(9)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test]
async fn claimed_mailbox_or_role_is_refused() {
    let rig = HubRig::new().await;
    for agent in [
        json!({"session_id": "victim"}),
        json!({"session_id": "hub"}),
        json!({"session_id": "ann", "role": "owner"}),
        json!({"session_id": "annex#x"}),
    ] {
        let mut forger = rig.dial();
        forger
            .send(json!({"kind": "hello", "agent": agent, "token": "token-ann"}))
            .await;
        let error = forger.next().await;
        assert_eq!(
            error,
            json!({"kind": "error", "reason": "this is not allowed", "code": "not_allowed"})
        );
        assert_eq!(forger.wait_closed().await, 4003);
    }
    assert!(rig.hub.peers().is_empty());
}

#[tokio::test]
async fn forged_sender_is_refused() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    for (nth, from) in [
        json!({"session_id": "victim"}),
        json!({"session_id": "ann", "role": "owner"}),
        json!({"session_id": "ann#other"}),
        json!({"session_id": "ann", "principal": "victim"}),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("m{nth}");
        let mut forged = request(&id, json!({"op": "manifest"}));
        forged["from"] = from;
        for to in ["hub", "bob"] {
            ann.deliver(to, forged.clone()).await;
            let error = ann.next_of("error").await;
            let want = json!({
                "kind": "error", "reason": "this is not allowed", "id": id, "code": "not_allowed",
            });
            assert_eq!(error, want);
        }
    }
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
    assert_eq!(
        rig.authenticator.refused.lock().unwrap().len(),
        8,
        "each is noted"
    );
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("good", json!(1))).await;
    let message = bob.next_of("message").await;
    let stamp = json!({"session_id": "ann", "role": "user"});
    assert_eq!(message["message"]["from"], stamp);
}

#[tokio::test]
async fn forged_live_caller_is_refused() {
    let rig = HubRig::new().await;
    let mut ann = rig.join("ann").await;
    let body = json!({"op": "manifest"});
    let caller = json!({"session_id": "ann", "role": "owner"});
    ann.send(json!({"kind": "request", "id": "q", "body": body, "caller": caller}))
        .await;
    let response = ann.next_of("response").await;
    assert_eq!(response["body"]["failure"]["code"], "not_allowed");
    assert_eq!(response["body"]["failure"]["class"], "denied");
}

#[tokio::test]
async fn invalid_names_never_reach_the_journal() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["*"]);
    let mut ann = rig.join("ann").await;
    for bad in ["../../etc/x", "/abs", "a/b", "..", "", "a\u{0}b", "a b"] {
        ann.deliver("bob", request(bad, json!(1))).await;
        assert_eq!(
            next_refusal(&mut ann).await,
            (json!("bad_name"), Value::Null)
        );
        ann.deliver(bad, request("m1", json!(1))).await;
        assert_eq!(
            next_refusal(&mut ann).await,
            (json!("bad_name"), json!("m1"))
        );
        let mut reply = message_json("m2", "mcp_reply", json!({}));
        reply["correlation_id"] = json!(bad);
        ann.deliver("bob", reply).await;
        assert_eq!(
            next_refusal(&mut ann).await,
            (json!("bad_name"), json!("m2"))
        );
    }
    let filter = MessageFilter {
        limit: 10,
        ..MessageFilter::default()
    };
    let stored = rig
        .journal
        .list_messages(filter, Timestamps::default())
        .await
        .unwrap();
    assert!(stored.is_empty(), "{stored:?}");
}

#[tokio::test]
async fn peers_need_rights_to_reach_others() {
    let rig = HubRig::new().await;
    let _bob = rig.subscribe("bob").await;
    let _cid = rig.subscribe("cid#x").await;
    let mut ann = rig.subscribe("ann").await;
    ann.deliver("bob", request("m1", json!(1))).await;
    assert_eq!(
        next_refusal(&mut ann).await,
        (json!("not_allowed"), json!("m1"))
    );
    ann.send(json!({"kind": "cancel", "to": "bob", "correlation_id": "m1"}))
        .await;
    assert_eq!(
        next_refusal(&mut ann).await,
        (json!("not_allowed"), json!("m1"))
    );
    ann.send(json!({"kind": "list_connected"})).await;
    assert_eq!(ann.next_of("connected").await["ids"], json!(["ann"]));
    ann.send(json!({"kind": "request", "id": "q", "to": "bob", "body": {"op": "manifest"}}))
        .await;
    let response = ann.next_of("response").await;
    assert_eq!(response["body"]["failure"]["code"], "not_allowed");

    rig.authenticator.grant(
        "eve",
        PeerRights {
            to: vec!["cid".into()],
            kinds: vec!["chat".into()],
            ..PeerRights::default()
        },
    );
    let mut eve = rig.join("eve").await;
    eve.delivered("cid#x", message_json("m1", "chat", json!(1)))
        .await;
    eve.deliver("cid#x", request("m2", json!(1))).await;
    assert_eq!(
        next_refusal(&mut eve).await,
        (json!("not_allowed"), json!("m2"))
    );
    eve.send(json!({"kind": "list_connected", "role": "user"}))
        .await;
    assert_eq!(eve.next_of("connected").await["ids"], json!(["cid#x"]));
    eve.send(json!({"kind": "list_connected", "role": "owner"}))
        .await;
    assert_eq!(eve.next_of("connected").await["ids"], json!([]));
}

#[tokio::test]
async fn newer_subscriber_fences_the_older() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    let mut old = rig.subscribe("bob").await;
    old.next_of("message").await;
    let mut new = rig.join("bob").await;
    new.send(json!({"kind": "subscribe"})).await;
    // The newer subscriber gets the unacked messages of the older.
    assert_eq!(new.next_of("message").await["message"]["id"], "m1");
    let told = old.next_of("error").await;
    assert_eq!(told["code"], "fenced");
    assert_eq!(old.wait_closed().await, 4001);
    drop(old);
    poll_until("the older connection is gone", || {
        rig.hub.peers().len() <= 2
    })
    .await;
    // The end of the older connection takes nothing from the newer.
    ann.delivered("bob", request("m2", json!(2))).await;
    assert_eq!(new.next_of("message").await["message"]["id"], "m2");
}

#[tokio::test]
async fn delivering_connection_fences_no_subscriber() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    rig.authenticator.grant_reach("bob", &["ann"]);
    let mut bob = rig.subscribe("bob").await;
    let mut also_bob = rig.join("bob").await;
    also_bob.delivered("ann", request("x", json!(1))).await;
    also_bob.hang_up();
    let mut ann = rig.join("ann").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m1");
}

#[tokio::test]
async fn foreign_ack_removes_nothing() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    bob.next_of("message").await;
    ann.send(json!({"kind": "ack_with_receipt", "id": "m1", "request_id": "r"}))
        .await;
    let result = ann.next_of("ack_result").await;
    assert_eq!(result["accepted"], false);
    assert_eq!(rig.hub.mailboxes().await.unwrap()[0].waiting, 1);
}

#[tokio::test]
async fn ended_credential_closes_the_connection() {
    let rig = HubRig::new().await;
    let mut ann = rig.subscribe("ann").await;
    rig.authenticator.end_credentials();
    let told = ann.next_of("error").await;
    assert_eq!(
        (&told["code"], &told["reason"]),
        (&json!("expired"), &json!("the token is over"))
    );
    assert_eq!(ann.wait_closed().await, 4002);
    rig.wait_left("ann").await;
}

#[tokio::test]
async fn store_identity_is_permanent() {
    async fn identity(rig: &HubRig) -> Value {
        let mut ann = rig.dial();
        ann.send(json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": "token-ann"}))
            .await;
        ann.next_of("broker_identity").await["id"].clone()
    }
    let rig = HubRig::new().await;
    let first = identity(&rig).await;
    assert_eq!(first, identity(&rig).await);
    let make = HubRigOptions {
        journal: std::sync::Arc::clone(&rig.journal),
        clock: std::sync::Arc::clone(rig.host.clock()),
        ..HubRigOptions::default()
    };
    assert_eq!(first, identity(&make.start().await).await);
    assert_ne!(first, identity(&HubRig::new().await).await);
}

#[tokio::test]
async fn connected_peers_are_limited() {
    let limits = HubLimits {
        peers_max: 2,
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    let ann = rig.join("ann").await;
    let _bob = rig.join("bob").await;
    let mut cid = rig.dial();
    cid.send(json!({"kind": "hello", "agent": {"session_id": "cid"}, "token": "token-cid"}))
        .await;
    assert_eq!(cid.next().await["code"], "throttled");
    assert_eq!(cid.wait_closed().await, 4003);
    ann.hang_up();
    rig.wait_left("ann").await;
    rig.join("cid").await;
}

#[tokio::test]
async fn pending_handshakes_are_limited() {
    let rig = HubRig::new().await;
    let _silent: Vec<_> = (0..256).map(|_| rig.dial()).collect();
    // All handshakes are pending at the hub.
    run_until_idle().await;
    let mut late = rig.dial();
    assert_eq!(late.next().await["code"], "throttled");
    assert_eq!(late.wait_closed().await, 4003);
}

#[tokio::test]
async fn idle_connection_uses_little_memory() {
    /// Memory limit of the hub per peer beside the socket, in bytes.
    const ATTEND_BYTES_MAX: usize = 6 * 1024;
    let rig = HubRig::new().await;
    let (near, _far) = tokio::io::duplex(64);
    let limits = WebSocketLimits::default();
    let io = open_websocket(
        near,
        WebSocketRole::Server,
        Bytes::new(),
        limits,
        rig.host.tasks(),
    );
    let bytes = size_of_val(&rig.hub.serve_peer(io, &*rig.authenticator));
    assert!(bytes <= ATTEND_BYTES_MAX, "{bytes}");
}

#[tokio::test]
async fn only_malformed_frames_close_the_connection() {
    let rig = HubRig::new().await;
    let mut ann = rig.join("ann").await;
    ann.send(json!({"kind": "deliver", "to": "hub"})).await;
    assert_eq!(next_refusal(&mut ann).await.0, "bad_frame");
    let reply = call("echo", &json!({}));
    ann.delivered("hub", request("m1", reply)).await;
    ann.out.send("not json".into()).await.unwrap();
    assert_eq!(next_refusal(&mut ann).await.0, "bad_frame");
    assert_eq!(ann.wait_closed().await, 4004);
}

#[tokio::test]
async fn foreign_message_kind_becomes_dead_letter() {
    let rig = HubRig::new().await;
    rig.authenticator.grant(
        "ann",
        PeerRights {
            kinds: vec!["chat".into()],
            offers: vec![FeaturePattern::parse("x").unwrap()],
            ..PeerRights::default()
        },
    );
    let mut ann = rig.join("ann").await;
    ann.delivered("hub", message_json("m1", "chat", json!("hi")))
        .await;
    ann.deliver("hub", message_json("m2", "gossip", json!("hi")))
        .await;
    assert_eq!(
        next_refusal(&mut ann).await,
        (json!("not_allowed"), json!("m2"))
    );
    let dead = rig.wait_dead_letters(1).await.remove(0);
    assert_eq!((&*dead.id, &*dead.kind), ("m1", "chat"));
}
