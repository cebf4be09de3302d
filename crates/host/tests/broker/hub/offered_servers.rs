//! Complete servers of a peer: server requests and notifications reach clients of the hub, and end
//! with the connection.

use std::sync::{Arc, Mutex};

use bowline_core::call::{BodyKind, CallRequest, CallSubject};
use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::error::{CallError, FailureClass};
use bowline_core::policy::FeaturePattern;
use bowline_host::broker::mailbox::MailboxName;
use bowline_host::broker::{AdmittedPeer, OfferHandler, PeerManifest, PeerRights, RemotePeer};
use bowline_host::spec::PeerRole;
use bowline_testkit::{reply_body, subject_call, tool_call, wait_bounded, wait_for_state};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::hub_rig::{HubRig, HubRigOptions, RawPeer};

/// Accepts every offer; the tests adopt the servers.
#[derive(Debug)]
struct AcceptAllOffers;

impl OfferHandler for AcceptAllOffers {
    fn accept_offer(
        &self,
        _peer: &AdmittedPeer,
        _remote: Arc<dyn RemotePeer>,
        _manifest: Arc<PeerManifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        Vec::new()
    }

    fn on_peer_gone(&self, _peer: &AdmittedPeer, _remote: Arc<dyn RemotePeer>) {}
}

/// A client that records server requests.
#[derive(Debug)]
struct AnsweringClient {
    server_requests: mpsc::Sender<ServerRequest>,
    notifications: Mutex<Vec<Bytes>>,
    cancelled: watch::Sender<usize>,
}

impl AnsweringClient {
    fn new() -> (Arc<Self>, mpsc::Receiver<ServerRequest>) {
        let (asked, questions) = mpsc::channel(8);
        let person = Self {
            server_requests: asked,
            notifications: Mutex::default(),
            cancelled: watch::Sender::new(0),
        };
        (Arc::new(person), questions)
    }
}

impl ClientHandle for AnsweringClient {
    fn session(&self) -> SessionKey {
        SessionKey(7)
    }

    fn capabilities(&self) -> ClientCapabilities {
        ClientCapabilities::default().with_capability(ClientCapability::Roots)
    }

    fn notify(&self, notification: Bytes) {
        self.notifications.lock().unwrap().push(notification);
    }

    fn request(&self, question: ServerRequest) -> Option<ServerRequestId> {
        self.server_requests
            .try_send(question)
            .ok()
            .map(|()| ServerRequestId(3))
    }

    fn cancel_request(&self, question: ServerRequestId) {
        assert_eq!(question, ServerRequestId(3));
        self.cancelled.send_modify(|count| *count += 1);
    }

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(bowline_core::client_handle::NullClient::new(SessionKey(7)))
    }
}

const QUESTION: &str = r#"{"jsonrpc":"2.0","id":"s-1","method":"roots/list"}"#;

fn offer(mcp: Option<&Value>) -> Value {
    let read = json!({"name": "see", "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": true}});
    let write = json!({"name": "do", "inputSchema": {"type": "object"}});
    let mut server = json!({"name": "far", "tools": [read, write]});
    if let Some(mcp) = mcp {
        server["mcp"] = mcp.clone();
    }
    json!({"kind": "offer", "revision": 1, "servers": [server]})
}

fn server_description() -> Value {
    let initialize = json!({"protocolVersion": "2025-11-25", "instructions": "Be kind.",
        "capabilities": {"tools": {}, "prompts": {"listChanged": true}, "resources": {}},
        "serverInfo": {"name": "inner", "version": "9"}});
    json!({"revision": "2025-11-25", "initialize": initialize,
        "lists": {"prompts": "1", "resources": "1"}})
}

/// A hub that adopted the server `far` of a peer, and the peer.
async fn joined_rig(mcp: Option<&Value>) -> (HubRig, RawPeer) {
    let make = HubRigOptions {
        offers: Arc::new(AcceptAllOffers),
        ..HubRigOptions::default()
    };
    let rig = make.start().await;
    let offers = vec![FeaturePattern::parse("far").unwrap()];
    rig.authenticator.grant(
        "w",
        PeerRights {
            offers,
            ..PeerRights::default()
        },
    );
    let mut peer = rig.subscribe("w").await;
    let remote = rig
        .hub
        .remote_peer(&MailboxName::parse("w").unwrap())
        .unwrap();
    peer.send(offer(mcp)).await;
    rig.wait_seen("w", |peer| !peer.offers.is_empty()).await;
    let adopted = rig
        .host
        .adopt_servers(&remote, PeerRole::Worker, &["far".into()]);
    assert_eq!(adopted.refused, []);
    if mcp.is_some() {
        for _ in 0..4 {
            let asked = peer.next_of("request").await;
            assert_eq!(asked["body"]["op"], "mcp");
            assert_eq!(asked["caller"], json!({"session_id": "hub"}));
            let list = match asked["body"]["method"].as_str().unwrap() {
                "tools/list" => json!({"tools": offer(None)["servers"][0]["tools"]}),
                _ => json!({}),
            };
            respond(&peer, &asked, &json!({"output": list})).await;
        }
    }
    assert!(wait_for_state(&rig.host, "far", "ready").await);
    (rig, peer)
}

async fn respond(peer: &RawPeer, request: &Value, body: &Value) {
    peer.send(json!({"kind": "response", "id": request["id"], "body": body}))
        .await;
}

type CallTasks = JoinSet<Result<bowline_core::call::CallReply, CallError>>;

fn start_call(rig: &HubRig, tool: &str, person: &Arc<AnsweringClient>) -> CallTasks {
    let mut asked = tool_call(tool, "{}");
    asked.message.client = Some(Arc::clone(person) as Arc<dyn ClientHandle>);

    let (mut set, host) = (JoinSet::new(), rig.host.clone());
    set.spawn(async move { host.call(asked).await });
    set
}

async fn wait_call(calling: &mut CallTasks) -> Result<bowline_core::call::CallReply, CallError> {
    wait_bounded(calling.join_next()).await.unwrap().unwrap()
}

fn server_request(id: &Value, number: u64) -> Value {
    let request: Value = serde_json::from_str(QUESTION).unwrap();
    json!({"kind": "question", "id": id, "number": number, "request": request})
}

#[tokio::test]
async fn server_requests_reach_live_and_stored_callers() {
    let (rig, mut peer) = joined_rig(Some(&server_description())).await;
    for (tool, is_stored) in [("far__see", false), ("far__do", true)] {
        let (person, mut questions) = AnsweringClient::new();
        let mut calling = start_call(&rig, tool, &person);
        let (id, body) = match is_stored {
            false => {
                let asked = peer.next_of("request").await;
                (asked["id"].clone(), asked["body"].clone())
            }
            true => {
                let asked = peer.next_of("message").await["message"].clone();
                (asked["id"].clone(), asked["body"].clone())
            }
        };
        assert_eq!(body["mcp"]["can"], json!(["roots"]), "{body}");
        assert!(body["mcp"]["session"].is_string(), "{body}");
        peer.send(json!({"kind": "event", "id": id, "notification":
            {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}}))
            .await;
        peer.send(server_request(&id, 1)).await;
        let put = wait_bounded(questions.recv()).await.unwrap();
        assert_eq!(
            (put.id(), put.capability),
            (&b"\"s-1\""[..], ClientCapability::Roots)
        );
        assert_eq!(
            person.notifications.lock().unwrap().len(),
            1,
            "words come before"
        );
        let said = r#"{"jsonrpc":"2.0","id":"s-1","result":{"roots":[]}}"#;
        put.respond(said.into());
        let answered = peer.next_of("answer").await;
        assert_eq!((&answered["id"], &answered["number"]), (&id, &json!(1)));
        assert_eq!(answered["answer"]["result"], json!({"roots": []}));
        // A server request without the capability or without a call is refused at once.
        let mut other = server_request(&id, 2);
        other["request"]["method"] = json!("sampling/createMessage");
        for refused in [other, server_request(&json!("nothing"), 3)] {
            peer.send(refused).await;
            let answered = peer.next_of("answer").await;
            assert!(answered["answer"].is_null(), "{answered}");
        }
        let output = json!({"output": {"content": []}});
        match is_stored {
            false => respond(&peer, &json!({"id": id}), &output).await,
            true => {
                let reply = json!({"id": format!("re-{id}").replace('"', ""),
                    "kind": "mcp_reply", "body": output, "correlation_id": id});
                peer.send(json!({"kind": "deliver", "to": "hub", "message": reply}))
                    .await;
            }
        }
        let reply = wait_call(&mut calling).await.unwrap();
        assert_eq!(body_of(&reply), json!({"content": []}));
    }
}

fn body_of(reply: &bowline_core::call::CallReply) -> Value {
    serde_json::from_str(&reply_body(reply)).unwrap()
}

#[tokio::test]
async fn server_request_ends_with_its_connection() {
    let (rig, mut peer) = joined_rig(Some(&server_description())).await;
    let (person, mut questions) = AnsweringClient::new();
    let mut live = start_call(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    peer.send(server_request(&asked["id"], 1)).await;
    let _open = wait_bounded(questions.recv()).await.unwrap();
    drop(peer);
    let mut withdrawn = person.cancelled.subscribe();
    wait_bounded(withdrawn.wait_for(|count| *count == 1))
        .await
        .unwrap();
    let failed = wait_call(&mut live).await.unwrap_err();
    let class = failed.failure_class();
    let is_loss = matches!(
        class,
        FailureClass::ConnectionLost | FailureClass::Unavailable
    );
    assert!(is_loss || class == FailureClass::ConnectFailed, "{failed}");
}

#[tokio::test]
async fn server_request_ends_with_its_call() {
    let (rig, mut peer) = joined_rig(Some(&server_description())).await;
    let (person, mut questions) = AnsweringClient::new();
    let mut live = start_call(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    let mut withdrawn = person.cancelled.subscribe();
    peer.send(server_request(&asked["id"], 1)).await;
    let _first = wait_bounded(questions.recv()).await.unwrap();
    peer.send(json!({"kind": "withdraw", "id": asked["id"], "number": 1}))
        .await;
    wait_bounded(withdrawn.wait_for(|count| *count == 1))
        .await
        .unwrap();
    peer.send(server_request(&asked["id"], 2)).await;
    let _second = wait_bounded(questions.recv()).await.unwrap();
    respond(&peer, &asked, &json!({"output": {"content": []}})).await;
    wait_call(&mut live).await.unwrap();
    wait_bounded(withdrawn.wait_for(|count| *count == 2))
        .await
        .unwrap();
}

#[tokio::test]
async fn tools_only_peer_gets_only_calls() {
    let (rig, mut peer) = joined_rig(None).await;
    let link = rig.host.server("far").unwrap().initialize_result().unwrap();
    let said: Value = serde_json::from_slice(&link).unwrap();
    assert_eq!(
        said["capabilities"],
        json!({"tools": {"listChanged": true}})
    );
    let prompt = CallRequest {
        scope: bowline_core::call::EndpointScope::Server("far".into()),
        ..subject_call(CallSubject::Prompt("p".into()), "name")
    };
    let refused = rig.host.call(prompt).await;
    let is_refused = match &refused {
        Ok(reply) => reply.response.body == BodyKind::Error,
        Err(error) => error.failure_class() == FailureClass::NotFound,
    };
    assert!(is_refused, "{refused:?}");
    let (person, mut questions) = AnsweringClient::new();
    let mut live = start_call(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    let body = asked["body"].as_object().unwrap();
    let keys: Vec<_> = body.keys().map(String::as_str).collect();
    assert_eq!(keys, ["op", "params", "server", "tool"], "as it always was");
    rig.host.end_session(SessionKey(7));
    respond(&peer, &asked, &json!({"output": {"content": []}})).await;
    wait_call(&mut live).await.unwrap();
    assert!(questions.try_recv().is_err());
}

#[tokio::test]
async fn offered_server_keeps_info_and_ends_sessions() {
    let (rig, mut peer) = joined_rig(Some(&server_description())).await;
    let link = rig.host.server("far").unwrap().initialize_result().unwrap();
    let said: Value = serde_json::from_slice(&link).unwrap();
    assert_eq!(said, server_description()["initialize"]);
    let (person, _questions) = AnsweringClient::new();
    let mut live = start_call(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    respond(&peer, &asked, &json!({"output": {"content": []}})).await;
    wait_call(&mut live).await.unwrap();
    rig.host.end_session(SessionKey(8));
    rig.host.end_session(SessionKey(7));
    let told = peer.next_of("session").await;
    let session = &asked["body"]["mcp"]["session"];
    assert_eq!(
        told,
        json!({"kind": "session", "server": "far", "session": session, "event": "ended"})
    );
    // Only the changed list is fetched again.
    let mut changed = server_description();
    changed["lists"]["prompts"] = json!("2");
    peer.send(offer(Some(&changed))).await;
    let asked = peer.next_of("request").await;
    assert_eq!(asked["body"]["method"], "prompts/list");
}
