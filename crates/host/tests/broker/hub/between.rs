//! Live requests, between peers and of the hub itself; what peers offer; and the end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_core::mailbox::Mailbox;
use bowline_core::policy::Pattern;
use bowline_host::broker::{
    Admitted, Errand, ErrandError, HubLimits, Manifest, Offers, Remote, Rights,
};
use bowline_host::tools::Toolbox;
use bowline_host::{Server, SpawnOptions, ToolOutput};
use bowline_wire::broker::{Answer, Ask, From};
use serde_json::{Value, json};

use super::rig::{Make, Peer, Rig, call, letter, request, soon};

fn live(id: &str, body: &Value) -> Value {
    json!({"kind": "request", "id": id, "body": body})
}

#[tokio::test]
async fn a_live_request_is_answered_over_its_connection_and_never_stored() {
    let rig = Rig::new().await;
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
async fn live_requests_run_side_by_side_and_one_too_many_is_told_so() {
    let limits = HubLimits {
        requests_max: 2,
        ..HubLimits::default()
    };
    let make = Make {
        limits,
        ..Make::default()
    };
    let rig = make.start().await;
    let mut ann = rig.join("ann").await;
    ann.send(live("q1", &call("wait", &json!({})))).await;
    ann.send(live("q2", &call("wait", &json!({})))).await;
    rig.begun(2).await;
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
async fn a_cancelled_live_request_gives_no_answer_and_ends() {
    let rig = Rig::new().await;
    let mut ann = rig.join("ann").await;
    ann.send(live("q1", &call("wait", &json!({})))).await;
    rig.begun(1).await;
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
async fn a_live_request_between_peers_is_stamped_renamed_and_answered_by_whom_it_was_asked() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
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
    // Others may guess the name; it is worth nothing on their connections.
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
async fn a_live_request_between_peers_is_taken_back_lost_and_refused() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
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
async fn a_cancel_goes_out_of_band_to_a_live_subscriber_only() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
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

fn errand(rig: &Rig, stored: bool, wait: Duration) -> Errand {
    Errand {
        ask: Ask::Manifest,
        stored,
        deadline: rig.host.clock().now().plus(wait),
        caller: Some(From {
            session_id: "ann".into(),
            role: Some("user".into()),
            principal: Some("ann".into()),
        }),
        sink: None,
    }
}

fn remote(rig: &Rig, name: &str) -> Arc<dyn Remote> {
    let mailbox = Mailbox::parse(name).unwrap();
    rig.hub.remote(&mailbox).unwrap()
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn the_hub_asks_a_peer_live_on_behalf_of_a_caller() {
    let rig = Rig::new().await;
    let bob = remote(&rig, "bob");
    assert!(!bob.is_connected());
    let error = bob.ask(errand(&rig, false, LONG)).await.unwrap_err();
    assert_eq!(error.execution(), Execution::NotStarted);
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
    let (asked, ()) = tokio::join!(bob.ask(errand(&rig, false, LONG)), answer);
    let want = Answer::Manifest {
        items: Vec::new(),
        revision: 7,
    };
    assert_eq!(asked, Ok(want));
    // Giving up tells the peer.
    let mut asking = bob.ask(errand(&rig, false, LONG));
    let id = tokio::select! {
        _ = &mut asking => panic!("nobody answered"),
        request = peer.next_of("request") => request["id"].clone(),
    };
    drop(asking);
    assert_eq!(peer.next_of("cancel").await["correlation_id"], id);
}

/// Answers the next message with a reply.
async fn reply(peer: &mut Peer, body: &Value) -> Value {
    let message = peer.next_of("message").await["message"].clone();
    let id = message["id"].as_str().unwrap();
    let mut reply = letter(&format!("re-{id}"), "mcp_reply", body.clone());
    reply["correlation_id"] = json!(id);
    peer.delivered("hub", reply).await;
    peer.send(json!({"kind": "ack", "id": id})).await;
    message
}

#[tokio::test]
async fn a_stored_errand_waits_for_its_peer_and_only_that_peer_answers_it() {
    let rig = Rig::new().await;
    let bob = remote(&rig, "bob");
    let mut asking = bob.ask(errand(&rig, true, LONG));
    let mut eve = rig.subscribe("eve").await;
    let work = async {
        soon(async {
            while rig.hub.mailboxes().await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut peer = rig.subscribe("bob").await;
        let message = peer.next_of("message").await["message"].clone();
        let id = message["id"].as_str().unwrap().to_owned();
        let from = json!({"session_id": "hub", "role": "user", "principal": "ann"});
        assert_eq!(message["from"], from);
        // Somebody who guessed the id.
        let mut forged = letter("f", "mcp_reply", json!({"manifest": [], "revision": 1}));
        forged["correlation_id"] = json!(id);
        eve.delivered("hub", forged).await;
        eve.settle().await;
        peer.send(json!({"kind": "nak", "id": id})).await;
        reply(&mut peer, &json!({"manifest": [], "revision": 2})).await;
        peer
    };
    let (asked, mut peer) = tokio::join!(&mut asking, work);
    let want = Answer::Manifest {
        items: Vec::new(),
        revision: 2,
    };
    assert_eq!(asked, Ok(want));
    peer.settle().await;
    drop(asking);
    let mut asking = bob.ask(errand(&rig, true, LONG));
    let id = tokio::select! {
        _ = &mut asking => panic!("nobody answered"),
        message = peer.next_of("message") => message["message"]["id"].clone(),
    };
    drop(asking);
    assert_eq!(peer.next_of("cancel").await["correlation_id"], id);
}

#[tokio::test(start_paused = true)]
async fn a_stored_errand_that_nobody_took_is_known_not_to_have_run() {
    let rig = Rig::new().await;
    let bob = remote(&rig, "bob");
    let wait = Duration::from_secs(2);
    let error = bob.ask(errand(&rig, true, wait)).await.unwrap_err();
    assert_eq!(error, ErrandError::Timeout(Execution::NotStarted));
    assert!(rig.hub.mailboxes().await.unwrap().is_empty());
    let mut peer = rig.subscribe("bob").await;
    let taken = async {
        peer.next_of("message").await;
    };
    let (asked, ()) = tokio::join!(bob.ask(errand(&rig, true, wait)), taken);
    assert_eq!(asked, Err(ErrandError::Timeout(Execution::Unknown)));
}

/// Notes what was offered, and refuses servers of one name.
#[derive(Debug, Default)]
struct Shelf {
    offers: Mutex<Vec<(String, Arc<Manifest>)>>,
    gone: Mutex<Vec<String>>,
}

impl Offers for Shelf {
    fn offered(
        &self,
        peer: &Admitted,
        remote: Arc<dyn Remote>,
        manifest: Arc<Manifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        assert_eq!(*remote.manifest(), *manifest);
        let mut offers = self.offers.lock().unwrap();
        offers.push((peer.mailbox.to_string(), manifest));
        vec![("build-taken".into(), "there is one of that name".into())]
    }

    fn gone(&self, peer: &Admitted, _remote: Arc<dyn Remote>) {
        self.gone.lock().unwrap().push(peer.mailbox.to_string());
    }
}

#[tokio::test]
async fn an_offer_is_taken_as_far_as_its_names_are_allowed_and_refusals_are_told() {
    let shelf = Arc::new(Shelf::default());
    let make = Make {
        offers: Arc::clone(&shelf) as Arc<dyn Offers>,
        ..Make::default()
    };
    let rig = make.start().await;
    rig.doors.grant(
        "bob",
        Rights {
            offers: vec![Pattern::parse("build-*").unwrap()],
            ..Rights::default()
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
                    item.repeatable,
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
    rig.left("bob").await;
    assert_eq!(*shelf.gone.lock().unwrap(), ["bob"]);
}

#[tokio::test]
async fn peers_are_told_when_their_view_of_the_catalog_changed() {
    let rig = Rig::new().await;
    let mut ann = rig.subscribe("ann").await;
    let more = Toolbox::default().with(("now", "The time."), &json!({}), |_, _| async {
        Ok(ToolOutput::of_text("noon"))
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
async fn a_hub_that_goes_down_tells_its_peers_and_gives_back_what_it_handed_out() {
    let rig = Rig::new().await;
    rig.doors.may_reach("ann", &["bob"]);
    let mut ann = rig.subscribe("ann").await;
    let mut bob = rig.subscribe("bob").await;
    ann.delivered("bob", request("m1", json!(1))).await;
    bob.next_of("message").await;
    rig.hub.close().await;
    for peer in [&mut ann, &mut bob] {
        assert_eq!(peer.next_of("error").await["code"], "shutting_down");
        assert_eq!(peer.closed().await, 1001);
    }
    let make = Make {
        journal: Arc::clone(&rig.journal),
        clock: Arc::clone(rig.host.clock()),
        ..Make::default()
    };
    let next = make.start().await;
    let mut bob = next.subscribe("bob").await;
    assert_eq!(bob.next_of("message").await["message"]["id"], "m1");
}
