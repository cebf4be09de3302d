//! One case: a peer asks for something in some way, honest or not, and what ran, what was listed
//! and who was told what is compared with what may be.

use std::collections::BTreeSet;

use bowline_wire::broker::Answer;
use serde_json::{Value, json};

use super::rules::{self, PEERS, SERVERS, TOOLS};
use super::world::World;

/// A way to get at a tool, a list or a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// A live call.
    Live,
    /// A live call by the server's own name of the tool.
    LiveOwn,
    /// A stored call.
    Stored,
    /// A live list.
    List,
    /// A stored list.
    StoredList,
    /// A live request, or a message, to another peer.
    ToPeer,
    /// A second delivery of the same message.
    Replayed,
    /// A message that was seen of another peer, sent as one's own.
    Stolen,
    /// A stored call that says another sender, role or principal.
    ForgedFrom,
    /// A live call on behalf of another.
    ForgedCaller,
    /// A hello with another's mailbox or role, or without a credential.
    ForgedHello,
    /// A second delivery under the same id with another body.
    Altered,
    /// An answer to what somebody else was asked.
    ForgedAnswer,
    /// A reply from somebody who may not send there.
    ForgedReply,
}

impl Way {
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

    /// Whether it is never to succeed.
    pub(crate) fn is_forged(self) -> bool {
        self >= Self::ForgedFrom
    }

    /// Whether nobody honest does it.
    pub(crate) fn is_attack(self) -> bool {
        self >= Self::Replayed
    }
}

/// What one case is about.
#[derive(Debug)]
struct Case {
    way: Way,
    /// Who asks.
    peer: usize,
    /// Somebody else.
    other: usize,
    server: &'static str,
    tool: &'static str,
    /// Names the case, its messages and what its tool says.
    tag: String,
    /// Whether the rules allow it to `peer`.
    may: bool,
    place: String,
}

pub(super) async fn case(world: &mut World, nth: usize) {
    let way = *world.rng.choice(&Way::ALL).unwrap();
    let peer = world.rng.usize(..PEERS.len());
    let other = (peer + world.rng.usize(1..PEERS.len())) % PEERS.len();
    let server = *world.rng.choice(&SERVERS).unwrap();
    let tool = world.rng.choice(&TOOLS).unwrap().0;
    let principal = &world.known(peer).principal;
    let may = rules::allows(&world.policy, principal, (server, tool));
    let place = format!(
        "seed {} case {nth}: {way:?} {principal:?} {server}.{tool}",
        world.seed
    );
    let case = Case {
        way,
        peer,
        other,
        server,
        tool,
        tag: format!("m-{nth}"),
        may,
        place,
    };
    let allowed = match way {
        Way::Live | Way::LiveOwn => live(world, &case).await,
        Way::Stored => stored(world, &case).await,
        Way::List | Way::StoredList => list(world, &case).await,
        Way::ToPeer => to_peer(world, &case).await,
        Way::Replayed => replayed(world, &case).await,
        Way::Stolen => stolen(world, &case).await,
        Way::ForgedFrom => forged_from(world, &case).await,
        Way::ForgedCaller => forged_caller(world, &case).await,
        Way::ForgedHello => forged_hello(world, &case).await,
        Way::Altered => altered(world, &case).await,
        Way::ForgedAnswer => forged_answer(world, &case).await,
        Way::ForgedReply => forged_reply(world, &case).await,
    };
    world.tally.count(way, allowed);
    // Nobody was told anything, and nothing ran, beyond what the case looked at.
    let ran = world.take_ran();
    world.hold(ran.is_empty(), &case, || format!("ran beside: {ran:?}"));
    for (at, whom) in PEERS.iter().enumerate() {
        let rest = world.peers[at].rest().await;
        world.hold(rest.is_empty(), &case, || format!("{whom} heard {rest:?}"));
    }
}

impl World {
    fn hold(&mut self, holds: bool, case: &Case, what: impl FnOnce() -> String) {
        let place = &case.place;
        self.tally.hold(holds, || format!("{place}: {}", what()));
    }

    /// Sends a frame and returns what the same peer hears next.
    async fn ask(&mut self, peer: usize, frame: &Value) -> Value {
        self.peers[peer].say(frame).await;
        self.peers[peer].hear().await.unwrap_or_default()
    }

    /// Delivers a request; returns the frame that says what became of it, and the body of the
    /// reply where it was stored.
    async fn deliver(&mut self, peer: usize, message: &Value) -> (Value, Value) {
        let deliver = json!({"kind": "deliver", "to": "hub", "message": message});
        let first = self.ask(peer, &deliver).await;
        if first["kind"] == "error" {
            return (first, Value::Null);
        }
        // A reply that was waiting may come before its receipt.
        let second = self.peers[peer].hear().await.unwrap_or_default();
        let (receipt, reply) = match first["kind"] == "delivered" {
            true => (first, second),
            false => (second, first),
        };
        let letter = &reply["message"];
        let ack = json!({"kind": "ack", "id": letter["id"]});
        self.peers[peer].say(&ack).await;
        let mut body = letter["body"].clone();
        if letter["correlation_id"] != message["id"] || letter["from"]["session_id"] != "hub" {
            body = json!({"crossed": reply});
        }
        (receipt, body)
    }

    /// Checks what ran and what was said against what may be.
    fn judge(&mut self, case: &Case, may: bool, answer: &Value) {
        let ran = self.take_ran();
        let wanted = (case.server, case.tool.to_owned(), case.tag.clone());
        let wanted = if may { vec![wanted] } else { Vec::new() };
        self.hold(ran == wanted, case, || format!("ran {ran:?}"));
        let said = answer.to_string();
        let told = said.contains(&format!("ran {}", case.tag));
        self.hold(told == may, case, || format!("answered {said}"));
        let crossed = said.contains("crossed");
        self.hold(!crossed, case, || format!("crossed {said}"));
    }
}

impl Case {
    fn visible(&self) -> String {
        format!("{}__{}", self.server, self.tool)
    }

    fn body(&self) -> Value {
        let arguments = json!({"tag": self.tag});
        json!({"op": "call", "tool": self.visible(), "arguments": arguments.to_string()})
    }

    /// A message that says what it is and nothing else.
    fn message(&self, body: &Value) -> Value {
        json!({"id": self.tag, "kind": "mcp_request", "body": body, "created_at": "now"})
    }

    fn request(&self) -> Value {
        json!({"kind": "request", "id": self.tag, "body": self.body()})
    }
}

async fn live(world: &mut World, case: &Case) -> bool {
    let mut request = case.request();
    if case.way == Way::LiveOwn {
        request["body"] = json!({"op": "call", "server": case.server, "tool": case.tool,
            "arguments": {"tag": case.tag}});
    }
    let answer = world.ask(case.peer, &request).await;
    world.judge(case, case.may, &answer);
    case.may
}

async fn stored(world: &mut World, case: &Case) -> bool {
    let mut message = case.message(&case.body());
    if world.rng.bool() {
        // What is true may be said.
        message["from"] = json!({"session_id": PEERS[case.peer]});
    }
    let (_, answer) = world.deliver(case.peer, &message).await;
    world.judge(case, case.may, &answer);
    case.may
}

async fn list(world: &mut World, case: &Case) -> bool {
    let body = json!({"op": "manifest"});
    let answer = if case.way == Way::List {
        let request = json!({"kind": "request", "id": case.tag, "body": body});
        world.ask(case.peer, &request).await["body"].clone()
    } else {
        let message = case.message(&body);
        world.deliver(case.peer, &message).await.1
    };
    let items = match Answer::read(&answer.to_string().into()) {
        Ok(Answer::Manifest { items, .. }) => items,
        other => {
            world.hold(false, case, || format!("no list: {other:?}"));
            return false;
        }
    };
    let listed: BTreeSet<String> = items.iter().map(|item| item.name.to_string()).collect();
    let principal = &world.known(case.peer).principal;
    let all = SERVERS
        .iter()
        .flat_map(|server| TOOLS.map(|tool| (*server, tool.0)));
    let may = all.filter(|thing| rules::allows(&world.policy, principal, *thing));
    let may: BTreeSet<String> = may
        .map(|(server, tool)| format!("{server}__{tool}"))
        .collect();
    world.hold(listed == may, case, || {
        format!("listed {listed:?}, not {may:?}")
    });
    !may.is_empty()
}

/// What goes from peer to peer goes by their rights, and the sender is stamped.
async fn to_peer(world: &mut World, case: &Case) -> bool {
    let (from, to) = (PEERS[case.peer], PEERS[case.other]);
    let may = rules::reaches(world.known(case.peer), to);
    if world.rng.bool() {
        let mut request = case.request();
        request["to"] = json!(to);
        world.peers[case.peer].say(&request).await;
        if !may {
            let answer = world.peers[case.peer].hear().await.unwrap_or_default();
            world.judge(case, false, &answer);
            return false;
        }
        let asked = world.peers[case.other].hear().await.unwrap_or_default();
        let stamped = asked["caller"]["session_id"] == from
            && asked["caller"]["role"].as_str() == world.known(case.peer).role.as_deref();
        world.hold(stamped, case, || format!("stamped {asked}"));
        let answer = json!({"kind": "response", "id": asked["id"], "body": {"mine": case.tag}});
        world.peers[case.other].say(&answer).await;
        let answer = world.peers[case.peer].hear().await.unwrap_or_default();
        let own = answer["id"] == case.tag && answer["body"]["mine"] == case.tag;
        world.hold(own, case, || format!("answered {answer}"));
        return true;
    }
    let message = case.message(&case.body());
    let deliver = json!({"kind": "deliver", "to": to, "message": message});
    let told = world.ask(case.peer, &deliver).await;
    world.hold((told["kind"] == "delivered") == may, case, || {
        format!("told {told}")
    });
    if may {
        let got = world.peers[case.other].hear().await.unwrap_or_default();
        let stamped = got["message"]["from"]["session_id"] == from;
        world.hold(stamped, case, || format!("stamped {got}"));
        let ack = json!({"kind": "ack", "id": got["message"]["id"]});
        world.peers[case.other].say(&ack).await;
    }
    may
}

/// The same message again: it is answered again, and does not run again.
async fn replayed(world: &mut World, case: &Case) -> bool {
    let message = case.message(&case.body());
    let (_, answer) = world.deliver(case.peer, &message).await;
    world.judge(case, case.may, &answer);
    let deliver = json!({"kind": "deliver", "to": "hub", "message": message});
    world.peers[case.peer].say(&deliver).await;
    let mut heard = Vec::new();
    while let Some(frame) = world.peers[case.peer].hear().await {
        if frame["kind"] == "message" {
            let ack = json!({"kind": "ack", "id": frame["message"]["id"]});
            world.peers[case.peer].say(&ack).await;
        }
        heard.push(frame);
    }
    let ran = world.take_ran();
    let repeatable = TOOLS.contains(&(case.tool, true));
    let again = usize::from(case.may && repeatable);
    world.hold(ran.len() <= again, case, || format!("ran again: {ran:?}"));
    let told = json!(heard)
        .to_string()
        .contains(&format!("ran {}", case.tag));
    world.hold(case.may || !told, case, || format!("answered {heard:?}"));
    case.may
}

/// The message of one peer, sent by another as its own: it counts for that one alone.
async fn stolen(world: &mut World, case: &Case) -> bool {
    let message = case.message(&case.body());
    let (_, answer) = world.deliver(case.peer, &message).await;
    world.judge(case, case.may, &answer);
    let thief = &world.known(case.other).principal;
    let may = rules::allows(&world.policy, thief, (case.server, case.tool));
    let (_, answer) = world.deliver(case.other, &message).await;
    world.judge(case, may, &answer);
    may
}

/// A claim that differs from the credential; one of several.
fn claim(world: &mut World, case: &Case) -> Value {
    let (own, other) = (PEERS[case.peer], PEERS[case.other]);
    match world.rng.u8(..5) {
        0 => json!({"session_id": other}),
        1 => json!({"session_id": own, "role": "somebody-else"}),
        2 => json!({"session_id": own, "principal": other}),
        3 => json!({"session_id": "hub", "role": "owner"}),
        _ => json!({"session_id": format!("{own}#part")}),
    }
}

async fn forged_from(world: &mut World, case: &Case) -> bool {
    let mut message = case.message(&case.body());
    message["from"] = claim(world, case);
    let (told, answer) = world.deliver(case.peer, &message).await;
    world.hold(told["code"] == "not_allowed", case, || {
        format!("told {told}")
    });
    world.judge(case, false, &answer);
    false
}

async fn forged_caller(world: &mut World, case: &Case) -> bool {
    let mut request = case.request();
    request["caller"] = claim(world, case);
    let answer = world.ask(case.peer, &request).await;
    world.judge(case, false, &answer);
    false
}

async fn forged_hello(world: &mut World, case: &Case) -> bool {
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
    world.hold(first["kind"] == "error", case, || {
        format!("let in: {first}")
    });
    peer.say(&json!({"kind": "subscribe"})).await;
    peer.say(&case.request()).await;
    let answer = peer.hear().await.unwrap_or_default();
    world.judge(case, false, &answer);
    false
}

/// The same id with another body: what was stored first counts, and the other never runs.
async fn altered(world: &mut World, case: &Case) -> bool {
    let message = case.message(&case.body());
    let (_, answer) = world.deliver(case.peer, &message).await;
    world.judge(case, case.may, &answer);
    let mut body = case.body();
    body["arguments"] = json!({"tag": "altered"}).to_string().into();
    let other = json!({"id": case.tag, "kind": "mcp_request", "body": body, "created_at": "now"});
    let deliver = json!({"kind": "deliver", "to": "hub", "message": other});
    let told = world.ask(case.peer, &deliver).await;
    world.hold(told["code"] == "conflict", case, || format!("told {told}"));
    let ran = world.take_ran();
    world.hold(ran.is_empty(), case, || format!("ran {ran:?}"));
    false
}

/// A third peer answers what another was asked, by the id that it guessed.
async fn forged_answer(world: &mut World, case: &Case) -> bool {
    let to = PEERS[case.other];
    if !rules::reaches(world.known(case.peer), to) {
        // Then there is nothing to answer; an answer to nothing goes nowhere.
        let answer = json!({"kind": "response", "id": "q1", "body": {"mine": "forged"}});
        world.peers[case.peer].say(&answer).await;
        return false;
    }
    let mut request = case.request();
    request["to"] = json!(to);
    world.peers[case.peer].say(&request).await;
    let asked = world.peers[case.other].hear().await.unwrap_or_default();
    let forged = json!({"kind": "response", "id": asked["id"], "body": {"mine": "forged"}});
    for third in (0..PEERS.len()).filter(|third| *third != case.other) {
        world.peers[third].say(&forged).await;
        let rest = world.peers[third].rest().await;
        world.hold(rest.is_empty(), case, || format!("taken: {rest:?}"));
    }
    let answer = json!({"kind": "response", "id": asked["id"], "body": {"mine": case.tag}});
    world.peers[case.other].say(&answer).await;
    let answer = world.peers[case.peer].hear().await.unwrap_or_default();
    let own = answer["body"]["mine"] == case.tag;
    world.hold(own, case, || format!("answered {answer}"));
    false
}

/// A reply to what another asked: refused without the right to send there, stamped with it.
async fn forged_reply(world: &mut World, case: &Case) -> bool {
    let to = PEERS[case.other];
    let body = json!({"result": {"success": true, "result": "forged"}});
    let mut message = json!({"id": case.tag, "kind": "mcp_reply", "body": body,
        "correlation_id": "m-1", "created_at": "now"});
    let reaches = rules::reaches(world.known(case.peer), to);
    if !reaches || world.rng.bool() {
        message["from"] = json!({"session_id": "hub"});
        let deliver = json!({"kind": "deliver", "to": to, "message": message});
        let told = world.ask(case.peer, &deliver).await;
        world.hold(told["code"] == "not_allowed", case, || {
            format!("told {told}")
        });
        return false;
    }
    let deliver = json!({"kind": "deliver", "to": to, "message": message});
    let told = world.ask(case.peer, &deliver).await;
    world.hold(told["kind"] == "delivered", case, || format!("told {told}"));
    let got = world.peers[case.other].hear().await.unwrap_or_default();
    let stamped = got["message"]["from"]["session_id"] == PEERS[case.peer];
    world.hold(stamped, case, || format!("stamped {got}"));
    let ack = json!({"kind": "ack", "id": got["message"]["id"]});
    world.peers[case.other].say(&ack).await;
    false
}
