//! Notifications and server requests reach the current round, and no request waits forever.

use std::sync::mpsc;

use bowline_core::call::{EndpointScope, Principal, Role};
use bowline_core::error::CallError;
use bowline_core::time::MonotonicTime;

use super::*;
use crate::client_session::ClientSessions;
use crate::modern_mcp::sessionless_clients::{ClientDeclaration, SessionlessClients};

fn test_options() -> RoundOptions {
    RoundOptions {
        capabilities: ClientCapabilities::default()
            .with_capability(ClientCapability::Roots)
            .with_capability(ClientCapability::ElicitationForm),
        level: Some(LogLevel::Warning),
        progress_token: Some(Bytes::from_static(b"\"t\"")),
    }
}

fn new_handle() -> (
    Arc<ModernCallHandle>,
    Arc<CallRound>,
    oneshot::Receiver<CancelReason>,
) {
    let ann = Principal::new("ann", Role::Owner);
    let (clients, sessions) = (SessionlessClients::default(), ClientSessions::new(&[1; 32]));
    let what = ClientDeclaration::default();
    let (client, _) =
        clients.enter_client(&sessions, &ann, &EndpointScope::All, what, MonotonicTime(0));
    ModernCallHandle::new(client, test_options())
}

fn server_request(
    id: &str,
    ability: ClientCapability,
) -> (ServerRequest, mpsc::Receiver<Option<Bytes>>) {
    let (told, heard) = mpsc::channel();
    let text = format!(r#"{{"id":{id},"method":"roots/list"}}"#);
    let question = ServerRequest::new(text.into(), 6..6 + id.len(), ability, move |answer| {
        told.send(answer).unwrap();
    });
    (question, heard)
}

fn open_keys(handle: &ModernCallHandle) -> Vec<String> {
    let mut keys = Vec::new();
    handle.for_each_open(|key, _| keys.push(key.to_owned()));
    keys
}

fn pushed_messages(round: &CallRound) -> Vec<String> {
    let reader = round.buffer.attach_reader();
    let mut cx = Context::from_waker(Waker::noop());
    let mut said = Vec::new();
    while let Poll::Ready(crate::event_stream::BufferEvent::Message(_, text)) =
        round.buffer.poll_next(reader, &mut cx)
    {
        said.push(String::from_utf8(text.to_vec()).unwrap());
    }
    said
}

#[test]
fn server_request_is_answered_once_by_key() {
    let (end, ..) = new_handle();
    let (by_word, word) = server_request("\"who\"", ClientCapability::Roots);
    let (by_number, number) = server_request("7", ClientCapability::Roots);
    let (same_word, same) = server_request("\"who\"", ClientCapability::Roots);
    for asked in [by_word, by_number, same_word] {
        assert!(end.request(asked).is_some());
    }
    assert_eq!(open_keys(&end), ["who", "ask-2", "ask-3"]);
    end.answer_request("nobody", b"{}");
    end.answer_request("ask-2", br#"{"a":1.0}"#);
    let answer = number.try_recv().unwrap().unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","id":7,"result":{"a":1.0}}"#);
    end.answer_request("ask-2", b"{}");
    assert!(number.try_recv().is_err(), "answered twice");
    end.answer_request("who", b"{}");
    assert!(word.try_recv().unwrap().is_some() && end.has_open_requests());
    // Open requests are refused when the call ends.
    end.finish(Err(CallError::ShuttingDown));
    assert_eq!(same.try_recv(), Ok(None));
    let (late, refused) = server_request("8", ClientCapability::Roots);
    assert_eq!(end.request(late), None);
    assert_eq!(refused.try_recv(), Ok(None));
}

#[test]
fn unaskable_requests_are_refused() {
    let (end, _, mut cancelled) = new_handle();
    let (undeclared, refused) = server_request("1", ClientCapability::Sampling);
    assert_eq!(end.request(undeclared), None);
    assert_eq!(refused.try_recv(), Ok(None));
    let mut open = Vec::new();
    for nth in 0..SERVER_REQUESTS_MAX {
        let (asked, heard) = server_request(&nth.to_string(), ClientCapability::Roots);
        assert!(end.request(asked).is_some());
        open.push(heard);
    }
    let (one_more, refused) = server_request("99", ClientCapability::Roots);
    assert_eq!(end.request(one_more), None);
    assert_eq!(refused.try_recv(), Ok(None));
    end.cancel_request(ServerRequestId(1));
    assert_eq!(open[0].try_recv(), Ok(None));
    assert!(open[1].try_recv().is_err());
    end.cancel();
    assert_eq!(cancelled.try_recv(), Ok(CancelReason::Caller));
    assert!(open[1..].iter().all(|heard| heard.try_recv() == Ok(None)));
}

#[test]
fn round_delivers_per_request_options() {
    let log = |level: &str| {
        let params = format!(r#"{{"level":"{level}","data":1}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{params}}}"#)
    };
    let progress = |token: &str| {
        let params = format!(r#"{{"progressToken":{token},"progress":1}}"#);
        format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#)
    };
    let done = r#"{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{}}"#;
    let (end, first, _cancelled) = new_handle();
    for text in [
        log("info"),
        log("error"),
        progress("\"t\""),
        done.to_owned(),
    ] {
        end.notify(text.into());
    }
    assert_eq!(pushed_messages(&first), [log("error"), progress("\"t\"")]);
    // The next request has its own token and level, or none.
    let second = end.begin_round(RoundOptions {
        progress_token: Some(Bytes::from_static(b"2")),
        level: None,
        ..test_options()
    });
    end.notify(progress("\"t\"").into());
    end.notify(log("emergency").into());
    assert_eq!(pushed_messages(&second), [progress("2")]);
    let third = end.begin_round(RoundOptions {
        progress_token: None,
        ..test_options()
    });
    end.notify(progress("\"t\"").into());
    assert!(pushed_messages(&third).is_empty() && pushed_messages(&first).is_empty());
}

#[test]
fn leaving_before_response_cancels_call() {
    let (_end, round, mut cancelled) = new_handle();
    let reader = round.buffer.attach_reader();
    round.buffer.finish("answer".into());
    round.reader_left(reader, StreamDelivery::Started);
    assert!(cancelled.try_recv().is_err(), "it was answered");
    let (_end, round, mut cancelled) = new_handle();
    let reader = round.buffer.attach_reader();
    round.reader_left(reader, StreamDelivery::Nothing);
    assert_eq!(cancelled.try_recv(), Ok(CancelReason::Caller));
}
