//! Who is who: decided by credentials, whatever frames say.

use std::time::Duration;

use bowline_core::policy::Pattern;
use bowline_host::broker::{HubLimits, Rights};
use bowline_journal::{At, Filter};
use bowline_link::websocket::{Side, SocketLimits, join};
use bytes::Bytes;
use serde_json::{Value, json};

use super::rig::{Make, Peer, Rig, call, letter, request, soon};

/// Waits for a refusal, and returns its code and id.
async fn refused(peer: &mut Peer) -> (Value, Value) {
    let error = peer.next_of("error").await;
    (error["code"].clone(), error["id"].clone())
}

#[tokio::test]
async fn whoever_has_no_credential_is_told_so_and_closed() {
    let rig = Rig::new().await;
    let mut stranger = rig.dial();
    stranger
        .send(json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": "guess"}))
        .await;
    let error = stranger.next().await;
    assert_eq!(
        (&error["kind"], &error["code"]),
        (&json!("error"), &json!("auth"))
    );
    assert_eq!(stranger.closed().await, 4003);
    assert_eq!(rig.doors.refused.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_first_frame_is_a_hello_and_a_second_one_is_ignored() {
    let rig = Rig::new().await;
    let mut rude = rig.dial();
    rude.send(json!({"kind": "subscribe"})).await;
    assert_eq!(rude.next().await["reason"], "expected hello");
    assert_eq!(rude.closed().await, 4003);
    let mut ann = rig.join("ann").await;
    ann.send(json!({"kind": "hello", "agent": {"session_id": "bob"}, "token": "token-bob"}))
        .await;
    ann.send(json!({"kind": "no_such_kind", "x": 1})).await;
    ann.settle().await;
    assert_eq!(rig.hub.peers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_is_closed_after_a_while() {
    let rig = Rig::new().await;
    let began = rig.host.clock().now();
    let mut silent = rig.dial();
    assert_eq!(silent.next().await["code"], "auth");
    assert_eq!(silent.closed().await, 4003);
    let took = began.until(rig.host.clock().now());
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(9)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_claimed_mailbox_or_role_is_refused_without_an_echo() {
    let rig = Rig::new().await;
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
        assert_eq!(forger.closed().await, 4003);
    }
    assert!(rig.hub.peers().is_empty());
}

#[tokio::test]
async fn a_forged_sender_is_refused_without_an_echo_and_an_absent_one_is_stamped() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
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
    assert_eq!(rig.doors.refused.lock().unwrap().len(), 8, "each is noted");
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("good", json!(1))).await;
    let message = bob.next_of("message").await;
    let stamp = json!({"session_id": "ann", "role": "user"});
    assert_eq!(message["message"]["from"], stamp);
}

#[tokio::test]
async fn a_forged_caller_of_a_live_request_is_refused() {
    let rig = Rig::new().await;
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
async fn names_that_could_lead_elsewhere_never_reach_the_journal() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["*"]);
    let mut ann = rig.join("ann").await;
    for bad in ["../../etc/x", "/abs", "a/b", "..", "", "a\u{0}b", "a b"] {
        ann.deliver("bob", request(bad, json!(1))).await;
        assert_eq!(refused(&mut ann).await, (json!("bad_name"), Value::Null));
        ann.deliver(bad, request("m1", json!(1))).await;
        assert_eq!(refused(&mut ann).await, (json!("bad_name"), json!("m1")));
        let mut reply = letter("m2", "mcp_reply", json!({}));
        reply["correlation_id"] = json!(bad);
        ann.deliver("bob", reply).await;
        assert_eq!(refused(&mut ann).await, (json!("bad_name"), json!("m2")));
    }
    let filter = Filter {
        limit: 10,
        ..Filter::default()
    };
    let stored = rig.journal.inspect(filter, At::default()).await.unwrap();
    assert!(stored.is_empty(), "{stored:?}");
}

#[tokio::test]
async fn nobody_reaches_others_or_sees_them_unless_it_may() {
    let rig = Rig::new().await;
    let _bob = rig.subscribe("bob").await;
    let _cid = rig.subscribe("cid#x").await;
    let mut ann = rig.subscribe("ann").await;
    ann.deliver("bob", request("m1", json!(1))).await;
    assert_eq!(refused(&mut ann).await, (json!("not_allowed"), json!("m1")));
    ann.send(json!({"kind": "cancel", "to": "bob", "correlation_id": "m1"}))
        .await;
    assert_eq!(refused(&mut ann).await, (json!("not_allowed"), json!("m1")));
    ann.send(json!({"kind": "list_connected"})).await;
    assert_eq!(ann.next_of("connected").await["ids"], json!(["ann"]));
    ann.send(json!({"kind": "request", "id": "q", "to": "bob", "body": {"op": "manifest"}}))
        .await;
    let response = ann.next_of("response").await;
    assert_eq!(response["body"]["failure"]["code"], "not_allowed");

    rig.doors.grant(
        "eve",
        Rights {
            to: vec!["cid".into()],
            kinds: vec!["chat".into()],
            ..Rights::default()
        },
    );
    let mut eve = rig.join("eve").await;
    eve.delivered("cid#x", letter("m1", "chat", json!(1))).await;
    eve.deliver("cid#x", request("m2", json!(1))).await;
    assert_eq!(refused(&mut eve).await, (json!("not_allowed"), json!("m2")));
    eve.send(json!({"kind": "list_connected", "role": "user"}))
        .await;
    assert_eq!(eve.next_of("connected").await["ids"], json!(["cid#x"]));
    eve.send(json!({"kind": "list_connected", "role": "owner"}))
        .await;
    assert_eq!(eve.next_of("connected").await["ids"], json!([]));
}

#[tokio::test]
async fn the_newer_of_two_subscribers_is_fenced_in_and_the_older_told_why() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    let mut old = rig.subscribe("bob").await;
    old.next_of("message").await;
    let mut new = rig.join("bob").await;
    new.send(json!({"kind": "subscribe"})).await;
    // What the older had and did not acknowledge is the newer's.
    assert_eq!(new.next_of("message").await["message"]["id"], "m1");
    let told = old.next_of("error").await;
    assert_eq!(told["code"], "fenced");
    assert_eq!(old.closed().await, 4001);
    drop(old);
    soon(async {
        while rig.hub.peers().len() > 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The older's end takes nothing from the newer.
    ann.delivered("bob", request("m2", json!(2))).await;
    assert_eq!(new.next_of("message").await["message"]["id"], "m2");
}

#[tokio::test]
async fn a_connection_that_only_delivers_disturbs_no_subscriber() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
    rig.doors.may_reach("bob", &["ann"]);
    let mut bob = rig.subscribe("bob").await;
    let mut also_bob = rig.join("bob").await;
    also_bob.delivered("ann", request("x", json!(1))).await;
    also_bob.hang_up();
    let mut ann = rig.join("ann").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m1");
}

#[tokio::test]
async fn an_acknowledgement_of_what_one_was_not_given_removes_nothing() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
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
async fn a_credential_that_ends_cuts_its_connection_and_says_why() {
    let rig = Rig::new().await;
    let mut ann = rig.subscribe("ann").await;
    rig.doors.end_credentials();
    let told = ann.next_of("error").await;
    assert_eq!(
        (&told["code"], &told["reason"]),
        (&json!("expired"), &json!("the token is over"))
    );
    assert_eq!(ann.closed().await, 4002);
    rig.left("ann").await;
}

#[tokio::test]
async fn a_store_has_one_identity_for_good() {
    async fn identity(rig: &Rig) -> Value {
        let mut ann = rig.dial();
        ann.send(json!({"kind": "hello", "agent": {"session_id": "ann"}, "token": "token-ann"}))
            .await;
        ann.next_of("broker_identity").await["id"].clone()
    }
    let rig = Rig::new().await;
    let first = identity(&rig).await;
    assert_eq!(first, identity(&rig).await);
    let make = Make {
        journal: std::sync::Arc::clone(&rig.journal),
        clock: std::sync::Arc::clone(rig.host.clock()),
        ..Make::default()
    };
    assert_eq!(first, identity(&make.start().await).await);
    assert_ne!(first, identity(&Rig::new().await).await);
}

#[tokio::test]
async fn only_so_many_peers_are_let_in() {
    let limits = HubLimits {
        peers_max: 2,
        ..HubLimits::default()
    };
    let make = Make {
        limits,
        ..Make::default()
    };
    let rig = make.start().await;
    let ann = rig.join("ann").await;
    let _bob = rig.join("bob").await;
    let mut cid = rig.dial();
    cid.send(json!({"kind": "hello", "agent": {"session_id": "cid"}, "token": "token-cid"}))
        .await;
    assert_eq!(cid.next().await["code"], "throttled");
    assert_eq!(cid.closed().await, 4003);
    ann.hang_up();
    rig.left("ann").await;
    rig.join("cid").await;
}

#[tokio::test]
async fn only_so_many_may_have_said_nothing_yet() {
    let rig = Rig::new().await;
    let _silent: Vec<_> = (0..256).map(|_| rig.dial()).collect();
    tokio::task::yield_now().await;
    let mut late = rig.dial();
    assert_eq!(late.next().await["code"], "throttled");
    assert_eq!(late.closed().await, 4003);
}

#[tokio::test]
async fn an_idle_connection_costs_little() {
    /// What the hub may need for one peer beside its socket, in bytes.
    const ATTEND_BYTES_MAX: usize = 6 * 1024;
    let rig = Rig::new().await;
    let (near, _far) = tokio::io::duplex(64);
    let limits = SocketLimits::default();
    let io = join(near, Side::Server, Bytes::new(), limits, rig.host.tasks());
    let bytes = size_of_val(&rig.hub.attend(io, &*rig.doors));
    assert!(bytes <= ATTEND_BYTES_MAX, "{bytes}");
}

#[tokio::test]
async fn a_frame_that_is_none_ends_the_connection_and_one_that_lacks_a_member_does_not() {
    let rig = Rig::new().await;
    let mut ann = rig.join("ann").await;
    ann.send(json!({"kind": "deliver", "to": "hub"})).await;
    assert_eq!(refused(&mut ann).await.0, "bad_frame");
    let reply = call("echo", &json!({}));
    ann.delivered("hub", request("m1", reply)).await;
    ann.out.send("not json".into()).await.unwrap();
    assert_eq!(refused(&mut ann).await.0, "bad_frame");
    assert_eq!(ann.closed().await, 4004);
}

#[tokio::test]
async fn a_message_of_a_foreign_kind_is_kept_as_a_dead_letter() {
    let rig = Rig::new().await;
    rig.doors.grant(
        "ann",
        Rights {
            kinds: vec!["chat".into()],
            offers: vec![Pattern::parse("x").unwrap()],
            ..Rights::default()
        },
    );
    let mut ann = rig.join("ann").await;
    ann.delivered("hub", letter("m1", "chat", json!("hi")))
        .await;
    ann.deliver("hub", letter("m2", "gossip", json!("hi")))
        .await;
    assert_eq!(refused(&mut ann).await, (json!("not_allowed"), json!("m2")));
    let dead = soon(async {
        loop {
            match rig.hub.dead(0, 10).await.unwrap().pop() {
                Some(dead) => return dead,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    assert_eq!((&*dead.id, &*dead.kind), ("m1", "chat"));
}
