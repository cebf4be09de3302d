//! Writes frames.

use super::context::word;
use super::{FRAME_BYTES_MAX, Frame, From, Hello, Refusal, Request, Welcome};
use crate::splice::write_string;
use crate::writer::Object;

/// What stands around the payload of a frame, about, in bytes.
const AROUND_BYTES: usize = 160;

pub(super) fn frame(frame: &Frame, out: &mut Vec<u8>) {
    match frame {
        Frame::Hello(said) => hello(said, out),
        Frame::Welcome(said) => welcome(said, out),
        Frame::BrokerIdentity { id } => Object::open("broker_identity", out).text("id", id).end(),
        Frame::Error(refusal) => error(refusal, out),
        Frame::Deliver { to, letter } => {
            out.reserve(AROUND_BYTES + letter.raw.len());
            let object = Object::open("deliver", out).text("to", to);
            object.raw("message", &letter.raw).end();
        }
        Frame::Delivered { id } => Object::open("delivered", out).text("id", id).end(),
        Frame::Subscribe => Object::open("subscribe", out).end(),
        Frame::Message(letter) => {
            out.reserve(AROUND_BYTES + letter.raw.len());
            Object::open("message", out)
                .raw("message", &letter.raw)
                .end();
        }
        Frame::Ack { id } => Object::open("ack", out).text("id", id).end(),
        Frame::AckWithReceipt { id, request_id } => Object::open("ack_with_receipt", out)
            .text("id", id)
            .text("request_id", request_id)
            .end(),
        Frame::AckResult {
            id,
            request_id,
            accepted,
            reason,
        } => Object::open("ack_result", out)
            .text("id", id)
            .text("request_id", request_id)
            .flag("accepted", *accepted)
            .text_if("reason", reason.as_deref())
            .end(),
        Frame::Nak { id, delay_ms, dead } => {
            let object = Object::open("nak", out).text("id", id);
            let object = object.number("delay_ms", *delay_ms);
            match dead {
                Some(reason) => object.flag("dead", true).text("reason", reason).end(),
                None => object.end(),
            }
        }
        Frame::Cancel { to, correlation_id } => Object::open("cancel", out)
            .text_if("to", to.as_deref())
            .text("correlation_id", correlation_id)
            .end(),
        Frame::ListConnected { .. }
        | Frame::Connected { .. }
        | Frame::ListDead { .. }
        | Frame::Dead { .. }
        | Frame::Offer { .. }
        | Frame::Changed { .. } => list(frame, out),
        Frame::Request(asked) => request(asked, out),
        Frame::Response { id, body } => {
            out.reserve(AROUND_BYTES + body.len());
            response(id, out, |out| out.extend_from_slice(body));
        }
        Frame::Event { id, notification } => {
            out.reserve(AROUND_BYTES + notification.len());
            let object = Object::open("event", out).text("id", id);
            object.raw("notification", notification).end();
        }
        Frame::Question { .. }
        | Frame::Answer { .. }
        | Frame::Withdraw { .. }
        | Frame::Lacks { .. }
        | Frame::Told { .. }
        | Frame::Session { .. } => said(frame, out),
        Frame::Other { kind, request_id } => other(kind, request_id.as_deref(), out),
    }
}

fn other(kind: &str, request_id: Option<&str>, out: &mut Vec<u8>) {
    let object = Object::open(kind, out);
    object.text_if("request_id", request_id).end();
}

/// Writes what is said while a request is answered, and between requests.
fn said(frame: &Frame, out: &mut Vec<u8>) {
    match frame {
        Frame::Question {
            id,
            number,
            request,
        } => {
            out.reserve(AROUND_BYTES + request.len());
            let object = Object::open("question", out).text("id", id);
            object
                .number("number", *number)
                .raw("request", request)
                .end();
        }
        Frame::Answer { id, number, answer } => {
            let object = Object::open("answer", out).text("id", id);
            let object = object.number("number", *number);
            match answer {
                Some(answer) => object.raw("answer", answer).end(),
                None => object.end(),
            }
        }
        Frame::Withdraw { id, number } => {
            let object = Object::open("withdraw", out).text("id", id);
            object.number("number", *number).end();
        }
        Frame::Lacks { id, ability } => Object::open("lacks", out)
            .text("id", id)
            .text("ability", word(*ability))
            .end(),
        Frame::Told {
            server,
            session,
            notification,
        } => Object::open("told", out)
            .text("server", server)
            .text_if("session", session.as_deref())
            .raw("notification", notification)
            .end(),
        Frame::Session {
            server,
            session,
            event,
        } => Object::open("session", out)
            .text("server", server)
            .text("session", session)
            .text("event", event.as_str())
            .end(),
        _ => {}
    }
}

/// Writes what answers a live request.
pub(super) fn response(id: &str, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let object = Object::open("response", out).text("id", id);
    object.nested("body", body).end();
}

/// Writes what lists something, or says that a list is another now.
fn list(frame: &Frame, out: &mut Vec<u8>) {
    match frame {
        Frame::ListConnected { role } => Object::open("list_connected", out)
            .text_if("role", role.as_deref())
            .end(),
        Frame::Connected { ids } => Object::open("connected", out)
            .nested("ids", |out| {
                array(out, ids, |id, out| write_string(out, id))
            })
            .end(),
        Frame::ListDead { limit } => {
            let limit = u64::try_from(*limit).unwrap_or(u64::MAX);
            Object::open("list_dead", out).number("limit", limit).end();
        }
        Frame::Dead { letters } => Object::open("dead", out).raw("letters", letters).end(),
        Frame::Offer { revision, servers } => Object::open("offer", out)
            .number("revision", *revision)
            .raw("servers", servers)
            .end(),
        Frame::Changed { revision } => Object::open("changed", out)
            .number("revision", *revision)
            .end(),
        _ => {}
    }
}

fn hello(said: &Hello, out: &mut Vec<u8>) {
    let agent = |out: &mut Vec<u8>| {
        Object::bare(out)
            .text("session_id", &said.session_id)
            .text_if("role", said.role.as_deref())
            .end();
    };
    Object::open("hello", out)
        .nested("agent", agent)
        .text_if("token", said.token.as_deref())
        .text_if("instance", said.instance.as_deref())
        .end();
}

fn welcome(said: &Welcome, out: &mut Vec<u8>) {
    Object::open("welcome", out)
        .text("mailbox", &said.mailbox)
        .text_if("role", said.role.as_deref())
        .number("heartbeat_ms", said.heartbeat_ms)
        .size("requests_max", said.requests_max)
        .size("frame_bytes_max", FRAME_BYTES_MAX)
        .end();
}

fn error(refusal: &Refusal, out: &mut Vec<u8>) {
    Object::open("error", out)
        .text("reason", &refusal.reason)
        .text_if("id", refusal.id.as_deref())
        .text_if("code", refusal.code.as_deref())
        .end();
}

fn request(asked: &Request, out: &mut Vec<u8>) {
    out.reserve(AROUND_BYTES + asked.body.len());
    let object = Object::open("request", out)
        .text("id", &asked.id)
        .text_if("to", asked.to.as_deref())
        .number_if("ttl_ms", asked.ttl_ms);
    let object = match &asked.caller {
        None => object,
        Some(caller) => object.nested("caller", |out| sender(caller, out)),
    };
    object.raw("body", &asked.body).end();
}

/// Writes a list.
pub(super) fn array<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&T, &mut Vec<u8>)) {
    let mut before = b'[';
    for item in items {
        out.push(before);
        write(item, out);
        before = b',';
    }
    if before == b'[' {
        out.push(b'[');
    }
    out.push(b']');
}

/// Writes who sent something.
pub(super) fn sender(from: &From, out: &mut Vec<u8>) {
    Object::bare(out)
        .text("session_id", &from.session_id)
        .text_if("role", from.role.as_deref())
        .text_if("principal", from.principal.as_deref())
        .end();
}
