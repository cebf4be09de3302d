//! Reads frames.

use bytes::Bytes;

use super::context::ability;
use super::{Frame, FrameError, From, Hello, Letter, Refusal, Request, SessionEvent, Welcome};
use crate::members::Members;
use crate::object;

/// How many those are.
const MEMBERS: usize = 34;

/// Every member of a frame that anybody reads.
const NAMES: [&str; MEMBERS] = [
    "kind",
    "id",
    "body",
    "message",
    "to",
    "ttl_ms",
    "caller",
    "notification",
    "correlation_id",
    "request_id",
    "reason",
    "code",
    "accepted",
    "delay_ms",
    "dead",
    "agent",
    "token",
    "instance",
    "mailbox",
    "role",
    "heartbeat_ms",
    "requests_max",
    "ids",
    "limit",
    "letters",
    "revision",
    "servers",
    "number",
    "request",
    "answer",
    "server",
    "session",
    "event",
    "ability",
];

/// Dead letters that are listed where nobody says how many.
const DEAD_LISTED: usize = 100;

pub(super) fn frame(bytes: &Bytes) -> Result<Frame, FrameError> {
    let members = Members::of_text(bytes, &NAMES)?;
    let kind = members.span("kind").map(|at| at.of(bytes));
    let kind = kind.and_then(object::string).ok_or(FrameError::NoKind)?;
    let frame = match &*kind {
        "request" => Frame::Request(request(bytes, &members)?),
        "response" => Frame::Response {
            id: members.text("id")?,
            body: members.value("body")?,
        },
        "event" => Frame::Event {
            id: members.text("id")?,
            notification: members.value("notification")?,
        },
        "deliver" => Frame::Deliver {
            to: members.text("to")?,
            letter: letter(bytes, &members)?,
        },
        "message" => Frame::Message(letter(bytes, &members)?),
        "delivered" => Frame::Delivered {
            id: members.text("id")?,
        },
        "ack" => Frame::Ack {
            id: members.text("id")?,
        },
        "ack_with_receipt" => Frame::AckWithReceipt {
            id: members.text("id")?,
            request_id: members.text("request_id")?,
        },
        "ack_result" => Frame::AckResult {
            id: members.text("id")?,
            request_id: members.text("request_id")?,
            accepted: members.flag_if("accepted")?.unwrap_or(false),
            reason: members.text_if("reason")?,
        },
        "nak" => nak(&members)?,
        "cancel" => Frame::Cancel {
            to: members.text_if("to")?,
            correlation_id: members.text("correlation_id")?,
        },
        "hello" => Frame::Hello(hello(bytes, &members)?),
        "welcome" => Frame::Welcome(welcome(&members)?),
        "broker_identity" => Frame::BrokerIdentity {
            id: members.text("id")?,
        },
        "error" => Frame::Error(Refusal {
            reason: members.text_if("reason")?.unwrap_or_default(),
            id: members.text_if("id")?,
            code: members.text_if("code")?,
        }),
        "subscribe" => Frame::Subscribe,
        other => return list(other, &members),
    };
    Ok(frame)
}

/// Reads what lists something, or says that a list is another now.
fn list(kind: &str, members: &Members<'_, MEMBERS>) -> Result<Frame, FrameError> {
    let array = |name| members.begun(name, b'[')?.ok_or(FrameError::Member(name));
    let revision = || {
        let revision = members.number_if("revision")?;
        revision.ok_or(FrameError::Member("revision"))
    };
    let frame = match kind {
        "list_connected" => Frame::ListConnected {
            role: members.text_if("role")?,
        },
        "connected" => {
            let all = array("ids")?;
            let ids = object::items(&all).map(|at| object::string(at.of(&all)));
            let ids: Option<Vec<_>> = ids.map(|id| id.map(Into::into)).collect();
            Frame::Connected {
                ids: ids.ok_or(FrameError::Member("ids"))?,
            }
        }
        "list_dead" => Frame::ListDead {
            limit: size(members, "limit")?.unwrap_or(DEAD_LISTED),
        },
        "dead" => Frame::Dead {
            letters: array("letters")?,
        },
        "offer" => Frame::Offer {
            revision: revision()?,
            servers: array("servers")?,
        },
        "changed" => Frame::Changed {
            revision: revision()?,
        },
        other => return said(other, members),
    };
    Ok(frame)
}

/// Reads what is said while a request is answered, and between requests.
fn said(kind: &str, members: &Members<'_, MEMBERS>) -> Result<Frame, FrameError> {
    let number = || {
        let number = members.number_if("number")?;
        number.ok_or(FrameError::Member("number"))
    };
    let frame = match kind {
        "question" => Frame::Question {
            id: members.text("id")?,
            number: number()?,
            request: members.value("request")?,
        },
        "answer" => Frame::Answer {
            id: members.text("id")?,
            number: number()?,
            answer: members.begun("answer", b'{')?,
        },
        "withdraw" => Frame::Withdraw {
            id: members.text("id")?,
            number: number()?,
        },
        "lacks" => Frame::Lacks {
            id: members.text("id")?,
            ability: ability(&members.text("ability")?).ok_or(FrameError::Member("ability"))?,
        },
        "told" => Frame::Told {
            server: members.text("server")?,
            session: members.text_if("session")?,
            notification: members.value("notification")?,
        },
        "session" => {
            let event = SessionEvent::parse(&members.text("event")?);
            Frame::Session {
                server: members.text("server")?,
                session: members.text("session")?,
                event: event.ok_or(FrameError::Member("event"))?,
            }
        }
        other => Frame::Other {
            kind: other.into(),
            // What is not known may be of any form.
            request_id: members.text_if("request_id").ok().flatten(),
        },
    };
    Ok(frame)
}

fn size(members: &Members<'_, MEMBERS>, name: &'static str) -> Result<Option<usize>, FrameError> {
    let number = members.number_if(name)?;
    Ok(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
}

fn request(bytes: &Bytes, members: &Members<'_, MEMBERS>) -> Result<Request, FrameError> {
    let caller = members.span("caller");
    let caller = caller.map(|at| From::inside(bytes, at, "caller"));
    Ok(Request {
        id: members.text("id")?,
        to: members.text_if("to")?,
        body: members.value("body")?,
        ttl_ms: members.number_if("ttl_ms")?,
        caller: caller.transpose()?,
    })
}

fn letter(bytes: &Bytes, members: &Members<'_, MEMBERS>) -> Result<Letter, FrameError> {
    let at = members.span("message");
    Letter::inside(bytes, at.ok_or(FrameError::Member("message"))?)
}

fn nak(members: &Members<'_, MEMBERS>) -> Result<Frame, FrameError> {
    let dead = match members.flag_if("dead")? {
        Some(true) => Some(members.text_if("reason")?.unwrap_or_default()),
        Some(false) | None => None,
    };
    Ok(Frame::Nak {
        id: members.text("id")?,
        delay_ms: members.number_if("delay_ms")?.unwrap_or_default(),
        dead,
    })
}

fn hello(bytes: &Bytes, members: &Members<'_, MEMBERS>) -> Result<Hello, FrameError> {
    let mut hello = Hello {
        token: members.text_if("token")?,
        instance: members.text_if("instance")?,
        ..Hello::default()
    };
    if let Some(at) = members.span("agent") {
        let agent = Members::inside(bytes, at, &["session_id", "role"], "agent")?;
        hello.session_id = agent.text_if("session_id")?.unwrap_or_default();
        hello.role = agent.text_if("role")?;
    }
    Ok(hello)
}

fn welcome(members: &Members<'_, MEMBERS>) -> Result<Welcome, FrameError> {
    Ok(Welcome {
        mailbox: members.text_if("mailbox")?.unwrap_or_default(),
        role: members.text_if("role")?,
        heartbeat_ms: members.number_if("heartbeat_ms")?.unwrap_or_default(),
        requests_max: size(members, "requests_max")?.unwrap_or_default(),
    })
}
