//! Live requests between peers and from the hub, offers, and shutdown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::ExecutionStatus;
use bowline_core::policy::FeaturePattern;
use bowline_host::broker::frames::{BrokerRequest, BrokerResponse, MessageSender};
use bowline_host::broker::mailbox::MailboxName;
use bowline_host::broker::{
    AdmittedPeer, BrokerCall, BrokerCallError, HubLimits, OfferHandler, PeerManifest, PeerRights,
    RemotePeer,
};
use bowline_host::tools::Toolbox;
use bowline_host::{Server, SpawnOptions, ToolOutput};
use bowline_testkit::poll_for;
use serde_json::{Value, json};

use super::hub_rig::{HubRig, HubRigOptions, RawPeer, call, message_json, request};

fn live(id: &str, body: &Value) -> Value {
    json!({"kind": "request", "id": id, "body": body})
}

#[tokio::test]
async fn live_request_is_never_stored() {
    let rig = HubRig::new().await;
    let mut ann = rig.join("ann").await;
    ann.send(live("q1", &call("echo", &json!({"a": 1})))).await;
    let response = ann.next().await;
    assert_eq!(
        (&response["kind"], &response["id"]),
        (&json!("response"), &json!("q1"))
    );
    let text = &response["body"]["output"]["content"][0]["text"];
    assert_eq!(text, r#"{"a":1}"#);
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
}

#[tokio::test]
async fn live_requests_are_concurrent_and_limited() {
    let limits = HubLimits {
        requests_max: 2,
        ..HubLimits::default()
    };
    let make = HubRigOptions {
        limits,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    let mut ann = rig.join("ann").await;
    ann.send(live("q1", &call("wait", &json!({})))).await;
    ann.send(live("q2", &call("wait", &json!({})))).await;
    rig.wait_begun(2).await;
    ann.send(live("q3", &call("echo", &json!({})))).await;
    let response = ann.next_of("response").await;
    assert_eq!(response["id"], "q3");
    assert_eq!(response["body"]["failure"]["code"], "throttled");
    assert_eq!(response["body"]["failure"]["execution"], "not_started");
    ann.send(live("q2", &call("echo", &json!({})))).await;
    assert_eq!(ann.next_of("error").await["code"], "conflict");
    rig.gate.add_permits(2);
    ann.next_of("response").await;
    ann.next_of("response").await;
    ann.send(live("q3", &call("echo", &json!({})))).await;
    let response = ann.next_of("response").await;
    assert!(response["body"]["output"].is_object(), "{response}");
}

#[tokio::test]
async fn cancelled_live_request_gets_no_response() {
    let rig = HubRig::new().await;
    let mut ann = rig.join("ann").await;
    ann.send(live("q1", &call("wait", &json!({})))).await;
    rig.wait_begun(1).await;
    ann.send(json!({"kind": "cancel", "correlation_id": "q1"}))
        .await;
    ann.settle().await;
    rig.gate.add_permits(1);
    ann.send(live("q1", &call("echo", &json!({})))).await;
    let response = ann.next_of("response").await;
    assert!(response["body"]["output"].is_object(), "{response}");
    assert_eq!(rig.gate.available_permits(), 1, "nobody took it");
}

#[tokio::test]
async fn forwarded_live_request_is_stamped_and_renamed() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut bob = rig.subscribe("bob").await;
    let mut eve = rig.subscribe("eve").await;
    let mut ann = rig.join("ann").await;
    let mut asked = live("mine", &json!({"op": "manifest"}));
    asked["to"] = json!("bob");
    ann.send(asked).await;
    let request = bob.next_of("request").await;
    let id = request["id"].clone();
    assert_ne!(id, "mine");
    let stamp = json!({"session_id": "ann", "role": "user"});
    assert_eq!(request["caller"], stamp);
    assert_eq!(request["body"], json!({"op": "manifest"}));
    // A guessed request id is worthless on another connection.
    for forger in [&mut eve, &mut ann] {
        forger
            .send(json!({"kind": "response", "id": id, "body": {"error": "forged"}}))
            .await;
        forger.settle().await;
    }
    let word = json!({"jsonrpc": "2.0", "method": "notifications/progress"});
    bob.send(json!({"kind": "event", "id": id, "notification": word}))
        .await;
    let event = ann.next_of("event").await;
    assert_eq!(
        (&event["id"], &event["notification"]),
        (&json!("mine"), &word)
    );
    bob.send(json!({"kind": "response", "id": id, "body": {"error": "mine"}}))
        .await;
    let response = ann.next_of("response").await;
    assert_eq!(
        (&response["id"], &response["body"]["error"]),
        (&json!("mine"), &json!("mine"))
    );
}

#[tokio::test]
async fn forwarded_live_request_can_fail() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let mut asked = live("q", &json!({"op": "manifest"}));
    asked["to"] = json!("bob");
    ann.send(asked.clone()).await;
    let response = ann.next_of("response").await;
    assert_eq!(response["body"]["failure"]["code"], "not_connected");
    assert_eq!(response["body"]["failure"]["execution"], "not_started");
    let mut bob = rig.subscribe("bob").await;
    ann.send(asked.clone()).await;
    let id = bob.next_of("request").await["id"].clone();
    ann.send(json!({"kind": "cancel", "correlation_id": "q"}))
        .await;
    assert_eq!(bob.next_of("cancel").await["correlation_id"], id);
    ann.settle().await;
    ann.send(asked).await;
    bob.next_of("request").await;
    bob.hang_up();
    let response = ann.next_of("response").await;
    assert_eq!(response["body"]["failure"]["code"], "connection_lost");
    assert_eq!(response["body"]["failure"]["execution"], "unknown");
}

#[tokio::test]
async fn cancel_reaches_only_connected_subscriber() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.join("ann").await;
    let cancel = json!({"kind": "cancel", "to": "bob", "correlation_id": "m1"});
    ann.send(cancel.clone()).await;
    ann.settle().await;
    let mut bob = rig.subscribe("bob").await;
    bob.settle().await;
    ann.send(cancel).await;
    let heard = bob.next().await;
    assert_eq!(
        heard,
        json!({"kind": "cancel", "to": "ann", "correlation_id": "m1"})
    );
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
}

fn broker_call(rig: &HubRig, stored: bool, wait: Duration) -> BrokerCall {
    BrokerCall {
        request: BrokerRequest::Manifest,
        stored,
        deadline: rig.host.clock().now().plus(wait),
        sender: Some(MessageSender {
            session_id: "ann".into(),
            role: Some("user".into()),
            principal: Some("ann".into()),
        }),
        client: None,
    }
}

fn remote(rig: &HubRig, name: &str) -> Arc<dyn RemotePeer> {
    let mailbox = MailboxName::parse(name).unwrap();
    rig.hub.remote_peer(&mailbox).unwrap()
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn hub_calls_peer_on_behalf_of_caller() {
    let rig = HubRig::new().await;
    let bob = remote(&rig, "bob");
    assert!(!bob.is_connected());
    let error = bob.call(broker_call(&rig, false, LONG)).await.unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::NotStarted);
    let mut peer = rig.subscribe("bob").await;
    assert!(bob.is_connected());
    let answer = async {
        let request = peer.next_of("request").await;
        let caller = json!({"session_id": "hub", "role": "user", "principal": "ann"});
        assert_eq!(request["caller"], caller);
        let body = json!({"manifest": [], "revision": 7});
        peer.send(json!({"kind": "response", "id": request["id"], "body": body}))
            .await;
    };
    let (asked, ()) = tokio::join!(bob.call(broker_call(&rig, false, LONG)), answer);
    let want = BrokerResponse::Manifest {
        items: Vec::new(),
        revision: 7,
    };
    assert_eq!(asked, Ok(want));
    // Dropping the call cancels the request at the peer.
    let mut asking = bob.call(broker_call(&rig, false, LONG));
    let id = tokio::select! {
        _ = &mut asking => panic!("nobody answered"),
        request = peer.next_of("request") => request["id"].clone(),
    };
    drop(asking);
    assert_eq!(peer.next_of("cancel").await["correlation_id"], id);
}

/// Replies to the next message.
async fn reply(peer: &mut RawPeer, body: &Value) -> Value {
    let message = peer.next_of("message").await["message"].clone();
    let id = message["id"].as_str().unwrap();
    let mut reply = message_json(&format!("re-{id}"), "mcp_reply", body.clone());
    reply["correlation_id"] = json!(id);
    peer.delivered("hub", reply).await;
    peer.send(json!({"kind": "ack", "id": id})).await;
    message
}

#[tokio::test]
async fn only_the_called_peer_can_reply() {
    let rig = HubRig::new().await;
    let bob = remote(&rig, "bob");
    let mut asking = bob.call(broker_call(&rig, true, LONG));
    let mut eve = rig.subscribe("eve").await;
    let work = async {
        poll_for("the request is in a mailbox", async || {
            let mailboxes = rig.hub.mailboxes().await.unwrap();
            (!mailboxes.is_empty()).then_some(())
        })
        .await;
        let mut peer = rig.subscribe("bob").await;
        let message = peer.next_of("message").await["message"].clone();
        let id = message["id"].as_str().unwrap().to_owned();
        let from = json!({"session_id": "hub", "role": "user", "principal": "ann"});
        assert_eq!(message["from"], from);
        // A sender that guessed the id.
        let mut forged = message_json("f", "mcp_reply", json!({"manifest": [], "revision": 1}));
        forged["correlation_id"] = json!(id);
        eve.delivered("hub", forged).await;
        eve.settle().await;
        peer.send(json!({"kind": "nak", "id": id})).await;
        reply(&mut peer, &json!({"manifest": [], "revision": 2})).await;
        peer
    };
    let (asked, mut peer) = tokio::join!(&mut asking, work);
    let want = BrokerResponse::Manifest {
        items: Vec::new(),
        revision: 2,
    };
    assert_eq!(asked, Ok(want));
    peer.settle().await;
    drop(asking);
    let mut asking = bob.call(broker_call(&rig, true, LONG));
    let id = tokio::select! {
        _ = &mut asking => panic!("nobody answered"),
        message = peer.next_of("message") => message["message"]["id"].clone(),
    };
    drop(asking);
    assert_eq!(peer.next_of("cancel").await["correlation_id"], id);
}

#[tokio::test(start_paused = true)]
async fn undelivered_stored_call_did_not_run() {
    let rig = HubRig::new().await;
    let bob = remote(&rig, "bob");
    let wait = Duration::from_secs(2);
    let error = bob.call(broker_call(&rig, true, wait)).await.unwrap_err();
    assert_eq!(error, BrokerCallError::Timeout(ExecutionStatus::NotStarted));
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
    let mut peer = rig.subscribe("bob").await;
    let taken = async {
        peer.next_of("message").await;
    };
    let (asked, ()) = tokio::join!(bob.call(broker_call(&rig, true, wait)), taken);
    assert_eq!(
        asked,
        Err(BrokerCallError::Timeout(ExecutionStatus::Unknown))
    );
}

/// Records offers, and rejects servers of one name.
#[derive(Debug, Default)]
struct RecordingOffers {
    offers: Mutex<Vec<(String, Arc<PeerManifest>)>>,
    gone: Mutex<Vec<String>>,
}

impl OfferHandler for RecordingOffers {
    fn accept_offer(
        &self,
        peer: &AdmittedPeer,
        remote: Arc<dyn RemotePeer>,
        manifest: Arc<PeerManifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        assert_eq!(*remote.manifest(), *manifest);
        let mut offers = self.offers.lock().unwrap();
        offers.push((peer.mailbox.to_string(), manifest));
        vec![("build-taken".into(), "there is one of that name".into())]
    }

    fn on_peer_gone(&self, peer: &AdmittedPeer, _remote: Arc<dyn RemotePeer>) {
        self.gone.lock().unwrap().push(peer.mailbox.to_string());
    }
}

#[tokio::test]
async fn offer_is_limited_to_allowed_names() {
    let shelf = Arc::new(RecordingOffers::default());
    let make = HubRigOptions {
        offers: Arc::clone(&shelf) as Arc<dyn OfferHandler>,
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    rig.authenticator.grant(
        "bob",
        PeerRights {
            offers: vec![FeaturePattern::parse("build-*").unwrap()],
            ..PeerRights::default()
        },
    );
    let mut bob = rig.subscribe("bob").await;
    let tool = json!({"name": "make", "inputSchema": {"n": 1.50}});
    let servers = json!([
        {"name": "build-one", "tools": [
            tool,
            {"name": "look", "inputSchema": {}, "annotations": {"readOnlyHint": true}},
        ]},
        {"name": "other", "tools": [tool]},
        {"name": "build-taken", "tools": [tool]},
    ]);
    bob.send(json!({"kind": "offer", "revision": 3, "servers": servers}))
        .await;
    for name in ["other", "build-taken"] {
        let error = bob.next_of("error").await;
        assert_eq!(error["code"], "not_allowed");
        let reason = error["reason"].as_str().unwrap();
        assert!(reason.contains(&format!("`{name}`")), "{reason}");
    }
    {
        let offers = shelf.offers.lock().unwrap();
        let (who, manifest) = &offers[0];
        assert_eq!((&**who, manifest.revision), ("bob", 3));
        let items: Vec<_> = manifest
            .items
            .iter()
            .map(|item| {
                (
                    item.server.as_deref().unwrap(),
                    &*item.name,
                    item.is_repeatable,
                )
            })
            .collect();
        let want = [
            ("build-one", "make", false),
            ("build-one", "look", true),
            ("build-taken", "make", false),
        ];
        assert_eq!(items, want);
        assert_eq!(manifest.items[0].definition, tool.to_string().as_bytes());
    }
    let peers = rig.hub.peers();
    let shown: Vec<_> = peers[0].offers.iter().map(|name| &**name).collect();
    assert_eq!(shown, ["build-one"]);
    bob.hang_up();
    rig.wait_left("bob").await;
    assert_eq!(*shelf.gone.lock().unwrap(), ["bob"]);
}

#[tokio::test]
async fn catalog_change_is_announced_to_peers() {
    let rig = HubRig::new().await;
    let mut ann = rig.subscribe("ann").await;
    let more = Toolbox::default().with("now", "The time.", &json!({}), |_, _| async {
        Ok(ToolOutput::from_text("noon"))
    });
    rig.host
        .spawn(Server::in_process("clock", more), SpawnOptions::default())
        .await
        .unwrap();
    let changed = ann.next_of("changed").await;
    let reply = ann.ask("m1", json!({"op": "manifest"})).await;
    assert_eq!(reply["revision"], changed["revision"]);
    assert_eq!(reply["manifest"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn closing_hub_returns_leased_messages() {
    let rig = HubRig::new().await;
    rig.authenticator.grant_reach("ann", &["bob"]);
    let mut ann = rig.subscribe("ann").await;
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    bob.next_of("message").await;
    rig.hub.close().await;
    for peer in [&mut ann, &mut bob] {
        assert_eq!(peer.next_of("error").await["code"], "shutting_down");
        assert_eq!(peer.wait_closed().await, 1001);
    }
    let make = HubRigOptions {
        journal: Arc::clone(&rig.journal),
        clock: Arc::clone(rig.host.clock()),
        ..HubRigOptions::default()
    };
    let next = make.start().await;
    let mut bob = next.subscribe("bob").await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m1");
}
