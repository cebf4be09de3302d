//! Writes broker frames.

use super::caller_context::capability_word;
use super::{
    BrokerFrame, BrokerHello, BrokerRefusal, BrokerWelcome, FRAME_BYTES_MAX, LiveRequest,
    MessageSender,
};
use bowline_wire::object_writer::ObjectWriter;
use bowline_wire::splice::write_string;

/// Approximate overhead of a payload, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 160;

pub(super) fn write_frame(frame: &BrokerFrame, out: &mut Vec<u8>) {
    match frame {
        BrokerFrame::Hello(payload) => write_hello(payload, out),
        BrokerFrame::Welcome(payload) => write_welcome(payload, out),
        BrokerFrame::BrokerIdentity { id } => ObjectWriter::begin_frame("broker_identity", out)
            .text("id", id)
            .end(),
        BrokerFrame::Error(refusal) => write_error(refusal, out),
        BrokerFrame::Deliver { to, message } => {
            out.reserve(FRAME_OVERHEAD_BYTES + message.text_capacity());
            let object = ObjectWriter::begin_frame("deliver", out).text("to", to);
            object.value_with("message", |out| message.write(out)).end();
        }
        BrokerFrame::Delivered { id } => ObjectWriter::begin_frame("delivered", out)
            .text("id", id)
            .end(),
        BrokerFrame::Subscribe => ObjectWriter::begin_frame("subscribe", out).end(),
        BrokerFrame::Message(message) => {
            out.reserve(FRAME_OVERHEAD_BYTES + message.text_capacity());
            ObjectWriter::begin_frame("message", out)
                .value_with("message", |out| message.write(out))
                .end();
        }
        BrokerFrame::Ack { .. }
        | BrokerFrame::AckWithReceipt { .. }
        | BrokerFrame::AckResult { .. }
        | BrokerFrame::Nak { .. } => write_ack(frame, out),
        BrokerFrame::Cancel { to, correlation_id } => ObjectWriter::begin_frame("cancel", out)
            .text_if("to", to.as_deref())
            .text("correlation_id", correlation_id)
            .end(),
        BrokerFrame::ListConnected { .. }
        | BrokerFrame::Connected { .. }
        | BrokerFrame::ListDead { .. }
        | BrokerFrame::Dead { .. }
        | BrokerFrame::Offer { .. }
        | BrokerFrame::Changed { .. } => write_list(frame, out),
        BrokerFrame::Request(request) => write_request(request, out),
        BrokerFrame::Response { id, body } => {
            out.reserve(FRAME_OVERHEAD_BYTES + body.len());
            write_response(id, out, |out| out.extend_from_slice(body));
        }
        BrokerFrame::Event { id, notification } => {
            out.reserve(FRAME_OVERHEAD_BYTES + notification.len());
            let object = ObjectWriter::begin_frame("event", out).text("id", id);
            object.raw("notification", notification).end();
        }
        BrokerFrame::ServerRequest { .. }
        | BrokerFrame::ServerRequestReply { .. }
        | BrokerFrame::CancelServerRequest { .. }
        | BrokerFrame::MissingCapability { .. }
        | BrokerFrame::SessionNotification { .. }
        | BrokerFrame::Session { .. } => write_call_event(frame, out),
        BrokerFrame::Unknown { kind, request_id } => {
            write_unknown(kind, request_id.as_deref(), out)
        }
    }
}

/// Writes frames that acknowledge or return a message; other frames write nothing.
fn write_ack(frame: &BrokerFrame, out: &mut Vec<u8>) {
    match frame {
        BrokerFrame::Ack { id } => ObjectWriter::begin_frame("ack", out).text("id", id).end(),
        BrokerFrame::AckWithReceipt { id, request_id } => {
            ObjectWriter::begin_frame("ack_with_receipt", out)
                .text("id", id)
                .text("request_id", request_id)
                .end()
        }
        BrokerFrame::AckResult {
            id,
            request_id,
            accepted,
            reason,
        } => ObjectWriter::begin_frame("ack_result", out)
            .text("id", id)
            .text("request_id", request_id)
            .flag("accepted", *accepted)
            .text_if("reason", reason.as_deref())
            .end(),
        BrokerFrame::Nak {
            id,
            delay_ms,
            dead_letter_reason,
        } => {
            let object = ObjectWriter::begin_frame("nak", out).text("id", id);
            let object = object.number("delay_ms", *delay_ms);
            match dead_letter_reason {
                Some(reason) => object.flag("dead", true).text("reason", reason).end(),
                None => object.end(),
            }
        }
        _ => debug_assert!(false, "not an acknowledgement: {frame:?}"),
    }
}

fn write_unknown(kind: &str, request_id: Option<&str>, out: &mut Vec<u8>) {
    let object = ObjectWriter::begin_frame(kind, out);
    object.text_if("request_id", request_id).end();
}

/// Writes frames sent during a request, and between requests.
fn write_call_event(frame: &BrokerFrame, out: &mut Vec<u8>) {
    match frame {
        BrokerFrame::ServerRequest {
            id,
            number,
            request,
        } => {
            out.reserve(FRAME_OVERHEAD_BYTES + request.len());
            let object = ObjectWriter::begin_frame("question", out).text("id", id);
            object
                .number("number", *number)
                .raw("request", request)
                .end();
        }
        BrokerFrame::ServerRequestReply { id, number, answer } => {
            let object = ObjectWriter::begin_frame("answer", out).text("id", id);
            let object = object.number("number", *number);
            match answer {
                Some(answer) => object.raw("answer", answer).end(),
                None => object.end(),
            }
        }
        BrokerFrame::CancelServerRequest { id, number } => {
            let object = ObjectWriter::begin_frame("withdraw", out).text("id", id);
            object.number("number", *number).end();
        }
        BrokerFrame::MissingCapability { id, capability } => {
            ObjectWriter::begin_frame("lacks", out)
                .text("id", id)
                .text("ability", capability_word(*capability))
                .end()
        }
        BrokerFrame::SessionNotification {
            server,
            session,
            notification,
        } => ObjectWriter::begin_frame("told", out)
            .text("server", server)
            .text_if("session", session.as_deref())
            .raw("notification", notification)
            .end(),
        BrokerFrame::Session {
            server,
            session,
            event,
        } => ObjectWriter::begin_frame("session", out)
            .text("server", server)
            .text("session", session)
            .text("event", event.as_str())
            .end(),
        _ => {}
    }
}

/// Writes the response to a live request.
pub(super) fn write_response(id: &str, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let object = ObjectWriter::begin_frame("response", out).text("id", id);
    object.value_with("body", body).end();
}

/// Writes frames with lists, or changes of lists.
fn write_list(frame: &BrokerFrame, out: &mut Vec<u8>) {
    match frame {
        BrokerFrame::ListConnected { role } => ObjectWriter::begin_frame("list_connected", out)
            .text_if("role", role.as_deref())
            .end(),
        BrokerFrame::Connected { ids } => ObjectWriter::begin_frame("connected", out)
            .value_with("ids", |out| {
                write_array(out, ids, |id, out| write_string(out, id))
            })
            .end(),
        BrokerFrame::ListDead { limit } => {
            let limit = u64::try_from(*limit).unwrap_or(u64::MAX);
            ObjectWriter::begin_frame("list_dead", out)
                .number("limit", limit)
                .end();
        }
        BrokerFrame::Dead { dead_letters } => ObjectWriter::begin_frame("dead", out)
            .raw("letters", dead_letters)
            .end(),
        BrokerFrame::Offer { revision, servers } => ObjectWriter::begin_frame("offer", out)
            .number("revision", *revision)
            .raw("servers", servers)
            .end(),
        BrokerFrame::Changed { revision } => ObjectWriter::begin_frame("changed", out)
            .number("revision", *revision)
            .end(),
        _ => {}
    }
}

fn write_hello(hello: &BrokerHello, out: &mut Vec<u8>) {
    let agent = |out: &mut Vec<u8>| {
        ObjectWriter::begin(out)
            .text("session_id", &hello.claimed_mailbox)
            .text_if("role", hello.claimed_role.as_deref())
            .end();
    };
    ObjectWriter::begin_frame("hello", out)
        .value_with("agent", agent)
        .text_if("token", hello.token.as_deref())
        .text_if("instance", hello.instance.as_deref())
        .end();
}

fn write_welcome(welcome: &BrokerWelcome, out: &mut Vec<u8>) {
    ObjectWriter::begin_frame("welcome", out)
        .text("mailbox", &welcome.mailbox)
        .text_if("role", welcome.role.as_deref())
        .number("heartbeat_ms", welcome.heartbeat_ms)
        .size("requests_max", welcome.requests_max)
        .size("frame_bytes_max", FRAME_BYTES_MAX)
        .end();
}

fn write_error(refusal: &BrokerRefusal, out: &mut Vec<u8>) {
    ObjectWriter::begin_frame("error", out)
        .text("reason", &refusal.reason)
        .text_if("id", refusal.id.as_deref())
        .text_if("code", refusal.code.as_deref())
        .end();
}

fn write_request(request: &LiveRequest, out: &mut Vec<u8>) {
    out.reserve(FRAME_OVERHEAD_BYTES + request.body.len());
    let object = ObjectWriter::begin_frame("request", out)
        .text("id", &request.id)
        .text_if("to", request.to.as_deref())
        .number_if("ttl_ms", request.ttl_ms);
    let object = match &request.caller {
        None => object,
        Some(caller) => object.value_with("caller", |out| write_sender(caller, out)),
    };
    object.raw("body", &request.body).end();
}

/// Writes a JSON array.
pub(super) fn write_array<T>(out: &mut Vec<u8>, items: &[T], write: impl Fn(&T, &mut Vec<u8>)) {
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

/// Writes a sender.
pub(super) fn write_sender(sender: &MessageSender, out: &mut Vec<u8>) {
    ObjectWriter::begin(out)
        .text("session_id", &sender.session_id)
        .text_if("role", sender.role.as_deref())
        .text_if("principal", sender.principal.as_deref())
        .end();
}
