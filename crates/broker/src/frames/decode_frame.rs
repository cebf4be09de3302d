//! Parses broker frames.

use bytes::Bytes;

use super::caller_context::parse_capability;
use super::{
    BrokerFrame, BrokerHello, BrokerRefusal, BrokerWelcome, FrameError, LiveRequest,
    MailboxMessage, MessageSender, SessionEvent,
};
use bowline_wire::object;
use bowline_wire::object_members::ObjectMembers;

/// The number of `NAMES`.
const MEMBER_COUNT: usize = 34;

/// Every known member of a frame.
const NAMES: [&str; MEMBER_COUNT] = [
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

/// Default number of listed dead letters.
const DEAD_LIMIT_DEFAULT: usize = 100;

pub(super) fn parse_frame(bytes: &Bytes) -> Result<BrokerFrame, FrameError> {
    let members = ObjectMembers::parse(bytes, &NAMES)?;
    let kind = members.span("kind").map(|at| at.slice(bytes));
    let kind = kind
        .and_then(object::parse_string)
        .ok_or(FrameError::NoKind)?;
    let frame = match &*kind {
        "request" => BrokerFrame::Request(parse_request(bytes, &members)?),
        "response" => BrokerFrame::Response {
            id: members.required_text("id")?,
            body: members.required_value("body")?,
        },
        "event" => BrokerFrame::Event {
            id: members.required_text("id")?,
            notification: members.required_value("notification")?,
        },
        "deliver" => BrokerFrame::Deliver {
            to: members.required_text("to")?,
            message: parse_message(bytes, &members)?,
        },
        "message" => BrokerFrame::Message(parse_message(bytes, &members)?),
        "delivered" => BrokerFrame::Delivered {
            id: members.required_text("id")?,
        },
        "ack" => BrokerFrame::Ack {
            id: members.required_text("id")?,
        },
        "ack_with_receipt" => BrokerFrame::AckWithReceipt {
            id: members.required_text("id")?,
            request_id: members.required_text("request_id")?,
        },
        "ack_result" => BrokerFrame::AckResult {
            id: members.required_text("id")?,
            request_id: members.required_text("request_id")?,
            accepted: members.optional_flag("accepted")?.unwrap_or(false),
            reason: members.optional_text("reason")?,
        },
        "nak" => parse_nak(&members)?,
        "cancel" => BrokerFrame::Cancel {
            to: members.optional_text("to")?,
            correlation_id: members.required_text("correlation_id")?,
        },
        "hello" => BrokerFrame::Hello(parse_hello(bytes, &members)?),
        "welcome" => BrokerFrame::Welcome(parse_welcome(&members)?),
        "broker_identity" => BrokerFrame::BrokerIdentity {
            id: members.required_text("id")?,
        },
        "error" => BrokerFrame::Error(BrokerRefusal {
            reason: members.optional_text("reason")?.unwrap_or_default(),
            id: members.optional_text("id")?,
            code: members.optional_text("code")?,
        }),
        "subscribe" => BrokerFrame::Subscribe,
        other => return parse_list(other, &members),
    };
    Ok(frame)
}

/// Parses frames with lists, or changes of lists.
fn parse_list(
    kind: &str,
    members: &ObjectMembers<'_, MEMBER_COUNT>,
) -> Result<BrokerFrame, FrameError> {
    let array = |name| {
        members
            .optional_raw(name, b'[')?
            .ok_or(FrameError::Member(name))
    };
    let revision = || {
        let revision = members.optional_number("revision")?;
        revision.ok_or(FrameError::Member("revision"))
    };
    let frame = match kind {
        "list_connected" => BrokerFrame::ListConnected {
            role: members.optional_text("role")?,
        },
        "connected" => {
            let all = array("ids")?;
            let ids = object::items(&all).map(|at| object::parse_string(at.slice(&all)));
            let ids: Option<Vec<_>> = ids.map(|id| id.map(Into::into)).collect();
            BrokerFrame::Connected {
                ids: ids.ok_or(FrameError::Member("ids"))?,
            }
        }
        "list_dead" => BrokerFrame::ListDead {
            limit: parse_size(members, "limit")?.unwrap_or(DEAD_LIMIT_DEFAULT),
        },
        "dead" => BrokerFrame::Dead {
            dead_letters: array("letters")?,
        },
        "offer" => BrokerFrame::Offer {
            revision: revision()?,
            servers: array("servers")?,
        },
        "changed" => BrokerFrame::Changed {
            revision: revision()?,
        },
        other => return parse_call_event(other, members),
    };
    Ok(frame)
}

/// Parses frames sent during a request, and between requests.
fn parse_call_event(
    kind: &str,
    members: &ObjectMembers<'_, MEMBER_COUNT>,
) -> Result<BrokerFrame, FrameError> {
    let number = || {
        let number = members.optional_number("number")?;
        number.ok_or(FrameError::Member("number"))
    };
    let frame = match kind {
        "question" => BrokerFrame::ServerRequest {
            id: members.required_text("id")?,
            number: number()?,
            request: members.required_value("request")?,
        },
        "answer" => BrokerFrame::ServerRequestReply {
            id: members.required_text("id")?,
            number: number()?,
            answer: members.optional_raw("answer", b'{')?,
        },
        "withdraw" => BrokerFrame::CancelServerRequest {
            id: members.required_text("id")?,
            number: number()?,
        },
        "lacks" => BrokerFrame::MissingCapability {
            id: members.required_text("id")?,
            capability: parse_capability(&members.required_text("ability")?)
                .ok_or(FrameError::Member("ability"))?,
        },
        "told" => BrokerFrame::SessionNotification {
            server: members.required_text("server")?,
            session: members.optional_text("session")?,
            notification: members.required_value("notification")?,
        },
        "session" => {
            let event = SessionEvent::parse(&members.required_text("event")?);
            BrokerFrame::Session {
                server: members.required_text("server")?,
                session: members.required_text("session")?,
                event: event.ok_or(FrameError::Member("event"))?,
            }
        }
        other => BrokerFrame::Unknown {
            kind: other.into(),
            // An unknown frame may have any form.
            request_id: members.optional_text("request_id").ok().flatten(),
        },
    };
    Ok(frame)
}

fn parse_size(
    members: &ObjectMembers<'_, MEMBER_COUNT>,
    name: &'static str,
) -> Result<Option<usize>, FrameError> {
    let number = members.optional_number(name)?;
    Ok(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
}

fn parse_request(
    bytes: &Bytes,
    members: &ObjectMembers<'_, MEMBER_COUNT>,
) -> Result<LiveRequest, FrameError> {
    let caller = members.span("caller");
    let caller = caller.map(|at| MessageSender::parse_at(bytes, at, "caller"));
    Ok(LiveRequest {
        id: members.required_text("id")?,
        to: members.optional_text("to")?,
        body: members.required_value("body")?,
        ttl_ms: members.optional_number("ttl_ms")?,
        caller: caller.transpose()?,
    })
}

fn parse_message(
    bytes: &Bytes,
    members: &ObjectMembers<'_, MEMBER_COUNT>,
) -> Result<MailboxMessage, FrameError> {
    let at = members.span("message");
    MailboxMessage::parse_at(bytes, at.ok_or(FrameError::Member("message"))?)
}

fn parse_nak(members: &ObjectMembers<'_, MEMBER_COUNT>) -> Result<BrokerFrame, FrameError> {
    let dead_letter_reason = match members.optional_flag("dead")? {
        Some(true) => Some(members.optional_text("reason")?.unwrap_or_default()),
        Some(false) | None => None,
    };
    Ok(BrokerFrame::Nak {
        id: members.required_text("id")?,
        delay_ms: members.optional_number("delay_ms")?.unwrap_or_default(),
        dead_letter_reason,
    })
}

fn parse_hello(
    bytes: &Bytes,
    members: &ObjectMembers<'_, MEMBER_COUNT>,
) -> Result<BrokerHello, FrameError> {
    let mut hello = BrokerHello {
        token: members.optional_text("token")?,
        instance: members.optional_text("instance")?,
        ..BrokerHello::default()
    };
    if let Some(at) = members.span("agent") {
        let agent = ObjectMembers::parse_at(bytes, at, &["session_id", "role"], "agent")?;
        hello.claimed_mailbox = agent.optional_text("session_id")?.unwrap_or_default();
        hello.claimed_role = agent.optional_text("role")?;
    }
    Ok(hello)
}

fn parse_welcome(members: &ObjectMembers<'_, MEMBER_COUNT>) -> Result<BrokerWelcome, FrameError> {
    Ok(BrokerWelcome {
        mailbox: members.optional_text("mailbox")?.unwrap_or_default(),
        role: members.optional_text("role")?,
        heartbeat_ms: members.optional_number("heartbeat_ms")?.unwrap_or_default(),
        requests_max: parse_size(members, "requests_max")?.unwrap_or_default(),
    })
}
