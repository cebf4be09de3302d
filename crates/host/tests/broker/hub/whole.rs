//! Servers that a peer offers whole: what they ask and say reaches callers here, and ends with the
//! connection.

use std::sync::{Arc, Mutex};

use bowline_core::call::{Body, Call, Subject};
use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::error::{CallError, Class};
use bowline_core::mailbox::Mailbox;
use bowline_core::policy::Pattern;
use bowline_host::broker::{Admitted, Manifest, Offers, Remote, Rights};
use bowline_host::spec::Side;
use bowline_sim::{ask, body, call, reaches};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::rig::{Make, Peer, Rig, soon};

/// Takes every offer; servers are taken in by the tests.
#[derive(Debug)]
struct All;

impl Offers for All {
    fn offered(
        &self,
        _peer: &Admitted,
        _remote: Arc<dyn Remote>,
        _manifest: Arc<Manifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        Vec::new()
    }

    fn gone(&self, _peer: &Admitted, _remote: Arc<dyn Remote>) {}
}

/// A caller that is asked.
#[derive(Debug)]
struct Person {
    asked: mpsc::Sender<Question>,
    heard: Mutex<Vec<Bytes>>,
    withdrawn: watch::Sender<usize>,
}

impl Person {
    fn new() -> (Arc<Self>, mpsc::Receiver<Question>) {
        let (asked, questions) = mpsc::channel(8);
        let person = Self {
            asked,
            heard: Mutex::default(),
            withdrawn: watch::Sender::new(0),
        };
        (Arc::new(person), questions)
    }
}

impl CallerEnd for Person {
    fn session(&self) -> SessionKey {
        SessionKey(7)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with(Ability::Roots)
    }

    fn push(&self, notification: Bytes) {
        self.heard.lock().unwrap().push(notification);
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        self.asked.try_send(question).ok().map(|()| QuestionId(3))
    }

    fn withdraw(&self, question: QuestionId) {
        assert_eq!(question, QuestionId(3));
        self.withdrawn.send_modify(|count| *count += 1);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(bowline_core::caller::Deaf::new(SessionKey(7)))
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

fn whole() -> Value {
    let initialize = json!({"protocolVersion": "2025-11-25", "instructions": "Be kind.",
        "capabilities": {"tools": {}, "prompts": {"listChanged": true}, "resources": {}},
        "serverInfo": {"name": "inner", "version": "9"}});
    json!({"revision": "2025-11-25", "initialize": initialize,
        "lists": {"prompts": "1", "resources": "1"}})
}

/// A hub that took in the server `far` of a peer, and the peer.
async fn joined(mcp: Option<&Value>) -> (Rig, Peer) {
    let make = Make {
        offers: Arc::new(All),
        ..Make::default()
    };
    let rig = make.start().await;
    let offers = vec![Pattern::parse("far").unwrap()];
    rig.doors.grant(
        "w",
        Rights {
            offers,
            ..Rights::default()
        },
    );
    let mut peer = rig.subscribe("w").await;
    let remote = rig.hub.remote(&Mailbox::parse("w").unwrap()).unwrap();
    peer.send(offer(mcp)).await;
    rig.seen("w", |peer| !peer.offers.is_empty()).await;
    let adopted = rig.host.adopt(&remote, Side::Worker, &["far".into()]);
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
            answer(&peer, &asked, &json!({"output": list})).await;
        }
    }
    assert!(reaches(&rig.host, "far", "ready").await);
    (rig, peer)
}

async fn answer(peer: &Peer, request: &Value, body: &Value) {
    peer.send(json!({"kind": "response", "id": request["id"], "body": body}))
        .await;
}

type Calling = JoinSet<Result<bowline_core::call::Reply, CallError>>;

fn calling(rig: &Rig, tool: &str, person: &Arc<Person>) -> Calling {
    let asked = Call {
        caller: Some(Arc::clone(person) as Arc<dyn CallerEnd>),
        ..call(tool, "{}")
    };
    let (mut set, host) = (JoinSet::new(), rig.host.clone());
    set.spawn(async move { host.call(asked).await });
    set
}

async fn ended(calling: &mut Calling) -> Result<bowline_core::call::Reply, CallError> {
    soon(calling.join_next()).await.unwrap().unwrap()
}

fn question(id: &Value, number: u64) -> Value {
    let request: Value = serde_json::from_str(QUESTION).unwrap();
    json!({"kind": "question", "id": id, "number": number, "request": request})
}

#[tokio::test]
async fn a_server_of_a_peer_asks_the_caller_of_a_live_request_and_of_a_stored_one() {
    let (rig, mut peer) = joined(Some(&whole())).await;
    for (tool, is_stored) in [("far__see", false), ("far__do", true)] {
        let (person, mut questions) = Person::new();
        let mut calling = calling(&rig, tool, &person);
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
        peer.send(question(&id, 1)).await;
        let put = soon(questions.recv()).await.unwrap();
        assert_eq!((put.id(), put.ability), (&b"\"s-1\""[..], Ability::Roots));
        assert_eq!(person.heard.lock().unwrap().len(), 1, "words come before");
        let said = r#"{"jsonrpc":"2.0","id":"s-1","result":{"roots":[]}}"#;
        put.answer(said.into());
        let answered = peer.next_of("answer").await;
        assert_eq!((&answered["id"], &answered["number"]), (&id, &json!(1)));
        assert_eq!(answered["answer"]["result"], json!({"roots": []}));
        // What the caller cannot be asked is refused at once, and so is what nobody waits for.
        let mut other = question(&id, 2);
        other["request"]["method"] = json!("sampling/createMessage");
        for refused in [other, question(&json!("nothing"), 3)] {
            peer.send(refused).await;
            let answered = peer.next_of("answer").await;
            assert!(answered["answer"].is_null(), "{answered}");
        }
        let output = json!({"output": {"content": []}});
        match is_stored {
            false => answer(&peer, &json!({"id": id}), &output).await,
            true => {
                let reply = json!({"id": format!("re-{id}").replace('"', ""),
                    "kind": "mcp_reply", "body": output, "correlation_id": id});
                peer.send(json!({"kind": "deliver", "to": "hub", "message": reply}))
                    .await;
            }
        }
        let reply = ended(&mut calling).await.unwrap();
        assert_eq!(body_of(&reply), json!({"content": []}));
    }
}

fn body_of(reply: &bowline_core::call::Reply) -> Value {
    serde_json::from_str(&body(reply)).unwrap()
}

#[tokio::test]
async fn a_question_ends_with_the_connection_it_came_by_and_its_call_does_not_hang() {
    let (rig, mut peer) = joined(Some(&whole())).await;
    let (person, mut questions) = Person::new();
    let mut live = calling(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    peer.send(question(&asked["id"], 1)).await;
    let _open = soon(questions.recv()).await.unwrap();
    drop(peer);
    let mut withdrawn = person.withdrawn.subscribe();
    soon(withdrawn.wait_for(|count| *count == 1)).await.unwrap();
    let failed = ended(&mut live).await.unwrap_err();
    let class = failed.class();
    let is_loss = matches!(class, Class::ConnectionLost | Class::Unavailable);
    assert!(is_loss || class == Class::ConnectFailed, "{failed}");
}

#[tokio::test]
async fn a_question_is_taken_back_where_its_server_does_and_where_its_call_is_over() {
    let (rig, mut peer) = joined(Some(&whole())).await;
    let (person, mut questions) = Person::new();
    let mut live = calling(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    let mut withdrawn = person.withdrawn.subscribe();
    peer.send(question(&asked["id"], 1)).await;
    let _first = soon(questions.recv()).await.unwrap();
    peer.send(json!({"kind": "withdraw", "id": asked["id"], "number": 1}))
        .await;
    soon(withdrawn.wait_for(|count| *count == 1)).await.unwrap();
    peer.send(question(&asked["id"], 2)).await;
    let _second = soon(questions.recv()).await.unwrap();
    answer(&peer, &asked, &json!({"output": {"content": []}})).await;
    ended(&mut live).await.unwrap();
    soon(withdrawn.wait_for(|count| *count == 2)).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_offers_tools_alone_is_asked_for_nothing_else_and_told_nothing_else() {
    let (rig, mut peer) = joined(None).await;
    let link = rig.host.server("far").unwrap().introduction().unwrap();
    let said: Value = serde_json::from_slice(&link).unwrap();
    assert_eq!(
        said["capabilities"],
        json!({"tools": {"listChanged": true}})
    );
    let prompt = Call {
        scope: bowline_core::call::Scope::Server("far".into()),
        ..ask(Subject::Prompt("p".into()), "name")
    };
    let refused = rig.host.call(prompt).await;
    let is_refused = match &refused {
        Ok(reply) => reply.body == Body::Error,
        Err(error) => error.class() == Class::NotFound,
    };
    assert!(is_refused, "{refused:?}");
    let (person, mut questions) = Person::new();
    let mut live = calling(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    let body = asked["body"].as_object().unwrap();
    let keys: Vec<_> = body.keys().map(String::as_str).collect();
    assert_eq!(keys, ["op", "params", "server", "tool"], "as it always was");
    rig.host.session_ended(SessionKey(7));
    answer(&peer, &asked, &json!({"output": {"content": []}})).await;
    ended(&mut live).await.unwrap();
    assert!(questions.try_recv().is_err());
}

#[tokio::test]
async fn a_whole_server_says_of_itself_what_it_said_there_and_its_sessions_end_there_too() {
    let (rig, mut peer) = joined(Some(&whole())).await;
    let link = rig.host.server("far").unwrap().introduction().unwrap();
    let said: Value = serde_json::from_slice(&link).unwrap();
    assert_eq!(said, whole()["initialize"]);
    let (person, _questions) = Person::new();
    let mut live = calling(&rig, "far__see", &person);
    let asked = peer.next_of("request").await;
    answer(&peer, &asked, &json!({"output": {"content": []}})).await;
    ended(&mut live).await.unwrap();
    rig.host.session_ended(SessionKey(8));
    rig.host.session_ended(SessionKey(7));
    let told = peer.next_of("session").await;
    let session = &asked["body"]["mcp"]["session"];
    assert_eq!(
        told,
        json!({"kind": "session", "server": "far", "session": session, "event": "ended"})
    );
    // A list that changed is asked for again, and no other.
    let mut changed = whole();
    changed["lists"]["prompts"] = json!("2");
    peer.send(offer(Some(&changed))).await;
    let asked = peer.next_of("request").await;
    assert_eq!(asked["body"]["method"], "prompts/list");
}
