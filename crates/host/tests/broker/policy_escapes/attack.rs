//! One case: a peer makes an honest or forged request; runs, listings and responses are compared
//! with the allowed outcome.

use std::collections::BTreeSet;

use bowline_host::broker::frames::BrokerResponse;
use serde_json::{Value, json};

use super::broker_world::BrokerWorld;
use super::random_rules::{self, PEERS, SERVERS, TOOLS};

/// A path to a tool, a list or a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AttackPath {
    /// A live call.
    Live,
    /// A live call with the server's own tool name.
    LiveOwn,
    /// A stored call.
    Stored,
    /// A live list.
    List,
    /// A stored list.
    StoredList,
    /// A live request or a message to another peer.
    ToPeer,
    /// A repeated delivery of the same message.
    Replayed,
    /// A message of another peer, sent under the own identity.
    Stolen,
    /// A stored call with a forged sender, role or principal.
    ForgedFrom,
    /// A live call with a forged caller.
    ForgedCaller,
    /// A hello with a foreign mailbox or role, or without a credential.
    ForgedHello,
    /// A repeated delivery under the same id with another body.
    Altered,
    /// A response to a request sent to another peer.
    ForgedAnswer,
    /// A reply from a peer without the right to send.
    ForgedReply,
}

impl AttackPath {
    pub(crate) const ALL: [Self; 14] = [
        Self::Live,
        Self::LiveOwn,
        Self::Stored,
        Self::List,
        Self::StoredList,
        Self::ToPeer,
        Self::Replayed,
        Self::Stolen,
        Self::ForgedFrom,
        Self::ForgedCaller,
        Self::ForgedHello,
        Self::Altered,
        Self::ForgedAnswer,
        Self::ForgedReply,
    ];

    /// Whether the path must never succeed.
    pub(crate) fn is_forged(self) -> bool {
        self >= Self::ForgedFrom
    }

    /// Whether no honest peer uses the path.
    pub(crate) fn is_attack(self) -> bool {
        self >= Self::Replayed
    }
}

/// Parameters of one case.
#[derive(Debug)]
struct AttackCase {
    path: AttackPath,
    /// The acting peer.
    peer: usize,
    /// Another peer.
    other: usize,
    server: &'static str,
    tool: &'static str,
    /// Tag in the messages and in the tool output of the case.
    tag: String,
    /// Whether the policy allows the tool to `peer`.
    may: bool,
    place: String,
}

pub(super) async fn run_case(world: &mut BrokerWorld, nth: usize) {
    let way = *world.rng.choice(&AttackPath::ALL).unwrap();
    let peer = world.rng.usize(..PEERS.len());
    let other = (peer + world.rng.usize(1..PEERS.len())) % PEERS.len();
    let server = *world.rng.choice(&SERVERS).unwrap();
    let tool = world.rng.choice(&TOOLS).unwrap().0;
    let principal = &world.admitted_peer(peer).principal;
    let may = random_rules::allows(&world.policy, principal, server, tool);
    let place = format!(
        "seed {} case {nth}: {way:?} {principal:?} {server}.{tool}",
        world.seed
    );
    let case = AttackCase {
        path: way,
        peer,
        other,
        server,
        tool,
        tag: format!("m-{nth}"),
        may,
        place,
    };
    let allowed = match way {
        AttackPath::Live | AttackPath::LiveOwn => live(world, &case).await,
        AttackPath::Stored => stored(world, &case).await,
        AttackPath::List | AttackPath::StoredList => list(world, &case).await,
        AttackPath::ToPeer => to_peer(world, &case).await,
        AttackPath::Replayed => replayed(world, &case).await,
        AttackPath::Stolen => stolen(world, &case).await,
        AttackPath::ForgedFrom => forged_from(world, &case).await,
        AttackPath::ForgedCaller => forged_caller(world, &case).await,
        AttackPath::ForgedHello => forged_hello(world, &case).await,
        AttackPath::Altered => altered(world, &case).await,
        AttackPath::ForgedAnswer => forged_answer(world, &case).await,
        AttackPath::ForgedReply => forged_reply(world, &case).await,
    };
    world.tally.count(way, allowed);
    // Nothing ran and no frame arrived beyond the checked ones.
    let ran = world.take_ran();
    world.check(ran.is_empty(), &case, || format!("ran beside: {ran:?}"));
    for (at, whom) in PEERS.iter().enumerate() {
        let rest = world.peers[at].drain_frames().await;
        world.check(rest.is_empty(), &case, || format!("{whom} heard {rest:?}"));
    }
}

impl BrokerWorld {
    fn check(&mut self, holds: bool, case: &AttackCase, what: impl FnOnce() -> String) {
        let place = &case.place;
        self.tally.check(holds, || format!("{place}: {}", what()));
    }

    /// Sends a frame and returns the next frame of the same peer.
    async fn send_and_receive(&mut self, peer: usize, frame: &Value) -> Value {
        self.peers[peer].send_frame(frame).await;
        self.peers[peer].next_frame().await.unwrap_or_default()
    }

    /// Delivers a request; returns the receipt or refusal, and the reply body of a stored request.
    async fn deliver_request(&mut self, peer: usize, message: &Value) -> (Value, Value) {
        let deliver = json!({"kind": "deliver", "to": "hub", "message": message});
        let first = self.send_and_receive(peer, &deliver).await;
        if first["kind"] == "error" {
            return (first, Value::Null);
        }
        // A pending reply may arrive before the receipt.
        let second = self.peers[peer].next_frame().await.unwrap_or_default();
        let (receipt, reply) = match first["kind"] == "delivered" {
            true => (first, second),
            false => (second, first),
        };
        let letter = &reply["message"];
        let ack = json!({"kind": "ack", "id": letter["id"]});
        self.peers[peer].send_frame(&ack).await;
        let mut body = letter["body"].clone();
        if letter["correlation_id"] != message["id"] || letter["from"]["session_id"] != "hub" {
            body = json!({"crossed": reply});
        }
        (receipt, body)
    }

    /// Compares runs and the response with the allowed outcome.
    fn check_outcome(&mut self, case: &AttackCase, may: bool, answer: &Value) {
        let ran = self.take_ran();
        let wanted = (case.server, case.tool.to_owned(), case.tag.clone());
        let wanted = if may { vec![wanted] } else { Vec::new() };
        self.check(ran == wanted, case, || format!("ran {ran:?}"));
        let said = answer.to_string();
        let told = said.contains(&format!("ran {}", case.tag));
        self.check(told == may, case, || format!("answered {said}"));
        let crossed = said.contains("crossed");
        self.check(!crossed, case, || format!("crossed {said}"));
    }
}

impl AttackCase {
    fn visible(&self) -> String {
        format!("{}__{}", self.server, self.tool)
    }

    fn body(&self) -> Value {
        let arguments = json!({"tag": self.tag});
        json!({"op": "call", "tool": self.visible(), "arguments": arguments.to_string()})
    }

    /// A message without optional members.
    fn message(&self, body: &Value) -> Value {
        json!({"id": self.tag, "kind": "mcp_request", "body": body, "created_at": "now"})
    }

    fn request(&self) -> Value {
        json!({"kind": "request", "id": self.tag, "body": self.body()})
    }
}

async fn live(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let mut request = case.request();
    if case.path == AttackPath::LiveOwn {
        request["body"] = json!({"op": "call", "server": case.server, "tool": case.tool,
            "arguments": {"tag": case.tag}});
    }
    let answer = world.send_and_receive(case.peer, &request).await;
    world.check_outcome(case, case.may, &answer);
    case.may
}

async fn stored(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let mut message = case.message(&case.body());
    if world.rng.bool() {
        // True claims are allowed.
        message["from"] = json!({"session_id": PEERS[case.peer]});
    }
    let (_, answer) = world.deliver_request(case.peer, &message).await;
    world.check_outcome(case, case.may, &answer);
    case.may
}

async fn list(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let body = json!({"op": "manifest"});
    let answer = if case.path == AttackPath::List {
        let request = json!({"kind": "request", "id": case.tag, "body": body});
        world.send_and_receive(case.peer, &request).await["body"].clone()
    } else {
        let message = case.message(&body);
        world.deliver_request(case.peer, &message).await.1
    };
    let items = match BrokerResponse::parse(&answer.to_string().into()) {
        Ok(BrokerResponse::Manifest { items, .. }) => items,
        other => {
            world.check(false, case, || format!("no list: {other:?}"));
            return false;
        }
    };
    let listed: BTreeSet<String> = items.iter().map(|item| item.name.to_string()).collect();
    let principal = &world.admitted_peer(case.peer).principal;
    let all = SERVERS
        .iter()
        .flat_map(|server| TOOLS.map(|tool| (*server, tool.0)));
    let may =
        all.filter(|(server, tool)| random_rules::allows(&world.policy, principal, server, tool));
    let may: BTreeSet<String> = may
        .map(|(server, tool)| format!("{server}__{tool}"))
        .collect();
    world.check(listed == may, case, || {
        format!("listed {listed:?}, not {may:?}")
    });
    !may.is_empty()
}

/// Peer-to-peer requests follow the rights of the sender, with a stamped sender.
async fn to_peer(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let (from, to) = (PEERS[case.peer], PEERS[case.other]);
    let may = random_rules::reaches(world.admitted_peer(case.peer), to);
    if world.rng.bool() {
        let mut request = case.request();
        request["to"] = json!(to);
        world.peers[case.peer].send_frame(&request).await;
        if !may {
            let answer = world.peers[case.peer]
                .next_frame()
                .await
                .unwrap_or_default();
            world.check_outcome(case, false, &answer);
            return false;
        }
        let asked = world.peers[case.other]
            .next_frame()
            .await
            .unwrap_or_default();
        let stamped = asked["caller"]["session_id"] == from
            && asked["caller"]["role"].as_str() == world.admitted_peer(case.peer).role.as_deref();
        world.check(stamped, case, || format!("stamped {asked}"));
        let answer = json!({"kind": "response", "id": asked["id"], "body": {"mine": case.tag}});
        world.peers[case.other].send_frame(&answer).await;
        let answer = world.peers[case.peer]
            .next_frame()
            .await
            .unwrap_or_default();
        let own = answer["id"] == case.tag && answer["body"]["mine"] == case.tag;
        world.check(own, case, || format!("answered {answer}"));
        return true;
    }
    let message = case.message(&case.body());
    let deliver = json!({"kind": "deliver", "to": to, "message": message});
    let told = world.send_and_receive(case.peer, &deliver).await;
    world.check((told["kind"] == "delivered") == may, case, || {
        format!("told {told}")
    });
    if may {
        let got = world.peers[case.other]
            .next_frame()
            .await
            .unwrap_or_default();
        let stamped = got["message"]["from"]["session_id"] == from;
        world.check(stamped, case, || format!("stamped {got}"));
        let ack = json!({"kind": "ack", "id": got["message"]["id"]});
        world.peers[case.other].send_frame(&ack).await;
    }
    may
}

/// The same message again: replied again, not rerun.
async fn replayed(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let message = case.message(&case.body());
    let (_, answer) = world.deliver_request(case.peer, &message).await;
    world.check_outcome(case, case.may, &answer);
    let deliver = json!({"kind": "deliver", "to": "hub", "message": message});
    world.peers[case.peer].send_frame(&deliver).await;
    let mut heard = Vec::new();
    while let Some(frame) = world.peers[case.peer].next_frame().await {
        if frame["kind"] == "message" {
            let ack = json!({"kind": "ack", "id": frame["message"]["id"]});
            world.peers[case.peer].send_frame(&ack).await;
        }
        heard.push(frame);
    }
    let ran = world.take_ran();
    let repeatable = TOOLS.contains(&(case.tool, true));
    let again = usize::from(case.may && repeatable);
    world.check(ran.len() <= again, case, || format!("ran again: {ran:?}"));
    let told = json!(heard)
        .to_string()
        .contains(&format!("ran {}", case.tag));
    world.check(case.may || !told, case, || format!("answered {heard:?}"));
    case.may
}

/// A peer's message sent by another peer: counts only for the actual sender.
async fn stolen(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let message = case.message(&case.body());
    let (_, answer) = world.deliver_request(case.peer, &message).await;
    world.check_outcome(case, case.may, &answer);
    let thief = &world.admitted_peer(case.other).principal;
    let may = random_rules::allows(&world.policy, thief, case.server, case.tool);
    let (_, answer) = world.deliver_request(case.other, &message).await;
    world.check_outcome(case, may, &answer);
    may
}

/// A claim that differs from the credential; one of several.
fn claim(world: &mut BrokerWorld, case: &AttackCase) -> Value {
    let (own, other) = (PEERS[case.peer], PEERS[case.other]);
    match world.rng.u8(..5) {
        0 => json!({"session_id": other}),
        1 => json!({"session_id": own, "role": "somebody-else"}),
        2 => json!({"session_id": own, "principal": other}),
        3 => json!({"session_id": "hub", "role": "owner"}),
        _ => json!({"session_id": format!("{own}#part")}),
    }
}

async fn forged_from(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let mut message = case.message(&case.body());
    message["from"] = claim(world, case);
    let (told, answer) = world.deliver_request(case.peer, &message).await;
    world.check(told["code"] == "not_allowed", case, || {
        format!("told {told}")
    });
    world.check_outcome(case, false, &answer);
    false
}

async fn forged_caller(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let mut request = case.request();
    request["caller"] = claim(world, case);
    let answer = world.send_and_receive(case.peer, &request).await;
    world.check_outcome(case, false, &answer);
    false
}

async fn forged_hello(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let (own, other) = (PEERS[case.peer], PEERS[case.other]);
    let token = format!("token-{own}");
    let hello = match world.rng.u8(..4) {
        0 => json!({"agent": {"session_id": other}, "token": token}),
        1 => json!({"agent": {"session_id": own, "role": "somebody-else"}, "token": token}),
        2 => json!({"agent": {"session_id": own}, "token": "guessed"}),
        _ => json!({"agent": {"session_id": "hub"}}),
    };
    let mut hello = hello;
    hello["kind"] = json!("hello");
    let (mut peer, first) = world.connect(&hello).await;
    let first = first.unwrap_or_default();
    world.check(first["kind"] == "error", case, || {
        format!("let in: {first}")
    });
    peer.send_frame(&json!({"kind": "subscribe"})).await;
    peer.send_frame(&case.request()).await;
    let answer = peer.next_frame().await.unwrap_or_default();
    world.check_outcome(case, false, &answer);
    false
}

/// The same id with another body: the stored message counts, and the other never runs.
async fn altered(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let message = case.message(&case.body());
    let (_, answer) = world.deliver_request(case.peer, &message).await;
    world.check_outcome(case, case.may, &answer);
    let mut body = case.body();
    body["arguments"] = json!({"tag": "altered"}).to_string().into();
    let other = json!({"id": case.tag, "kind": "mcp_request", "body": body, "created_at": "now"});
    let deliver = json!({"kind": "deliver", "to": "hub", "message": other});
    let told = world.send_and_receive(case.peer, &deliver).await;
    world.check(told["code"] == "conflict", case, || format!("told {told}"));
    let ran = world.take_ran();
    world.check(ran.is_empty(), case, || format!("ran {ran:?}"));
    false
}

/// A third peer responds to a request of another peer, with a guessed id.
async fn forged_answer(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let to = PEERS[case.other];
    if !random_rules::reaches(world.admitted_peer(case.peer), to) {
        // Without a pending request, the response is ignored.
        let answer = json!({"kind": "response", "id": "q1", "body": {"mine": "forged"}});
        world.peers[case.peer].send_frame(&answer).await;
        return false;
    }
    let mut request = case.request();
    request["to"] = json!(to);
    world.peers[case.peer].send_frame(&request).await;
    let asked = world.peers[case.other]
        .next_frame()
        .await
        .unwrap_or_default();
    let forged = json!({"kind": "response", "id": asked["id"], "body": {"mine": "forged"}});
    for third in (0..PEERS.len()).filter(|third| *third != case.other) {
        world.peers[third].send_frame(&forged).await;
        let rest = world.peers[third].drain_frames().await;
        world.check(rest.is_empty(), case, || format!("taken: {rest:?}"));
    }
    let answer = json!({"kind": "response", "id": asked["id"], "body": {"mine": case.tag}});
    world.peers[case.other].send_frame(&answer).await;
    let answer = world.peers[case.peer]
        .next_frame()
        .await
        .unwrap_or_default();
    let own = answer["body"]["mine"] == case.tag;
    world.check(own, case, || format!("answered {answer}"));
    false
}

/// A reply to a foreign request: refused without the right to send, otherwise stamped.
async fn forged_reply(world: &mut BrokerWorld, case: &AttackCase) -> bool {
    let to = PEERS[case.other];
    let body = json!({"result": {"success": true, "result": "forged"}});
    let mut message = json!({"id": case.tag, "kind": "mcp_reply", "body": body,
        "correlation_id": "m-1", "created_at": "now"});
    let reaches = random_rules::reaches(world.admitted_peer(case.peer), to);
    if !reaches || world.rng.bool() {
        message["from"] = json!({"session_id": "hub"});
        let deliver = json!({"kind": "deliver", "to": to, "message": message});
        let told = world.send_and_receive(case.peer, &deliver).await;
        world.check(told["code"] == "not_allowed", case, || {
            format!("told {told}")
        });
        return false;
    }
    let deliver = json!({"kind": "deliver", "to": to, "message": message});
    let told = world.send_and_receive(case.peer, &deliver).await;
    world.check(told["kind"] == "delivered", case, || format!("told {told}"));
    let got = world.peers[case.other]
        .next_frame()
        .await
        .unwrap_or_default();
    let stamped = got["message"]["from"]["session_id"] == PEERS[case.peer];
    world.check(stamped, case, || format!("stamped {got}"));
    let ack = json!({"kind": "ack", "id": got["message"]["id"]});
    world.peers[case.other].send_frame(&ack).await;
    false
}
