//! Sessions and their streams, without sockets.

mod session_shares;

use std::collections::HashSet;
use std::future::poll_fn;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bowline_core::call::Role;
use bowline_core::client_handle::{ClientCapability, ClientHandle as _};
use bowline_core::time::to_millis;
use bowline_host::ports::NotificationSink as _;
use bowline_testkit::ManualClock;
use bowline_wire::RpcMessage;

use super::call_streams::{ENDED_STREAMS_MAX, STREAM_TTL};
use super::session_table::IDLE_MAX;
use super::*;
use crate::call::CallStream as _;
use crate::event_stream::WAITING_EVENTS_MAX;

/// A clock that has run for this time.
fn clock_at(ms: u64) -> ManualClock {
    let clock = ManualClock::from_unix_ms(1_000_000);
    clock.set_now(Duration::from_millis(ms));
    clock
}

fn owner_principal() -> Arc<Principal> {
    Arc::new(Principal::new("owner", Role::Owner))
}

fn test_terms(revision: Revision) -> SessionTerms {
    SessionTerms {
        principal: owner_principal(),
        scope: EndpointScope::All,
        revision,
        capabilities: ClientCapabilities::default().with_capability(ClientCapability::Roots),
    }
}

fn open_session(sessions: &ClientSessions) -> (Arc<str>, Arc<ClientSession>) {
    sessions
        .open_session(test_terms(Revision::LATEST_LEGACY), &clock_at(0))
        .unwrap()
}

fn changed_lists(change: u8) -> ListFingerprints {
    ListFingerprints::from_fn(|kind| match kind {
        ListKind::Tools => [change; 32],
        _ => [0; 32],
    })
}

/// Reads the present events of a stream; `None` at its end.
fn read_events(body: &mut EventBody) -> Option<String> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut all = String::new();
    loop {
        match body.poll_bytes(&mut cx) {
            Poll::Ready(Some(bytes)) => all.push_str(std::str::from_utf8(&bytes).unwrap()),
            Poll::Ready(None) if all.is_empty() => return None,
            Poll::Ready(None) | Poll::Pending => return Some(all),
        }
    }
}

/// Returns the last event id in the text of a stream.
fn last_event_id(text: &str) -> EventId<'_> {
    let mut ids = text.lines().rev();
    let id = ids.find_map(|line| line.strip_prefix("id: "));
    EventId::parse(id.unwrap()).unwrap()
}

#[tokio::test]
async fn slow_stream_is_dropped_at_bound() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, slow) = open_session(&sessions);
    let (_, quick) = open_session(&sessions);
    let mut unread = slow.open_listen_stream();
    let mut quickly = quick.open_listen_stream();
    for change in 1..=u8::MAX {
        for session in [&slow, &quick] {
            session.announce_changes(&changed_lists(change));
        }
        assert!(read_events(&mut quickly).is_some());
    }
    // All announcements are buffered so far; room for exactly one more.
    assert_eq!(sessions.count_streams(), (2, 2));
    for change in 0..2 {
        for session in [&slow, &quick] {
            session.announce_changes(&changed_lists(change));
        }
        assert!(read_events(&mut quickly).is_some());
    }
    assert_eq!(sessions.count_streams(), (2, 1), "the slow one was let go");
    let opening = poll_fn(|cx| unread.poll_bytes(cx)).await;
    assert!(opening.is_some());
    assert_eq!(read_events(&mut unread), None, "its connection ends");
    // Buffered events are kept for a returning client.
    let mut back = slow.open_listen_stream();
    let told = read_events(&mut back).unwrap();
    assert_eq!(told.matches("list_changed").count(), WAITING_EVENTS_MAX);
}

#[test]
fn ended_session_cancels_calls_with_reason() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (id, session) = open_session(&sessions);
    let mut ended = session.in_flight.register(&"1".into()).unwrap();
    let mut taken_back = session.in_flight.register(&"2".into()).unwrap();
    session.in_flight.cancel(b"2");
    sessions.end_session(&id);
    assert_eq!(ended.signal.try_recv(), Ok(CancelReason::SessionEnd));
    assert_eq!(taken_back.signal.try_recv(), Ok(CancelReason::Caller));
}

#[tokio::test]
async fn newer_listen_stream_ends_older() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    let mut older = session.open_listen_stream();
    read_events(&mut older);
    let mut newer = session.open_listen_stream();
    session.announce_changes(&changed_lists(1));
    assert_eq!(read_events(&mut older), None);
    assert!(read_events(&mut newer).unwrap().contains("list_changed"));
    drop(older);
    assert_eq!(
        sessions.count_streams(),
        (1, 1),
        "the newer one is still there"
    );
}

#[tokio::test]
async fn each_list_change_notified_separately() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    let mut stream = session.open_listen_stream();
    read_events(&mut stream);
    for (kind, told) in [
        (ListKind::Tools, ListChange::Tools),
        (ListKind::Prompts, ListChange::Prompts),
        (ListKind::Resources, ListChange::Resources),
        (ListKind::Templates, ListChange::Resources),
    ] {
        session.note_all_lists(ListFingerprints::default());
        let lists = ListFingerprints::from_fn(|other| [u8::from(kind == other); 32]);
        session.announce_changes(&lists);
        let text = read_events(&mut stream).unwrap();
        assert_eq!(text.matches("list_changed").count(), 1, "{text}");
        assert!(text.contains(told.method()), "{text}");
        session.announce_changes(&lists);
        assert_eq!(read_events(&mut stream).unwrap(), "", "told twice");
        session.note_all_lists(ListFingerprints::default());
        session.note_list(kind, [1; 32]);
        session.announce_changes(&lists);
        assert_eq!(read_events(&mut stream).unwrap(), "", "shown already");
    }
}

#[tokio::test]
async fn returning_listener_receives_missed_events() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    assert!(
        !sessions.deliver(session.key, "{}".into()),
        "nobody listens"
    );
    let mut stream = session.open_listen_stream();
    let opening = read_events(&mut stream).unwrap();
    assert!(opening.contains("retry: ") && opening.contains("data: \n\n"));
    assert!(sessions.deliver(session.key, "{\"a\":1}".into()));
    let before = last_event_id(&opening);
    let heard = read_events(&mut stream).unwrap();
    drop(stream);
    assert!(sessions.deliver(session.key, "{\"a\":2}".into()));
    let (mut back, replay) = session
        .resume_stream(last_event_id(&heard), MonotonicTime(0))
        .unwrap();
    assert_eq!(replay, ReplayCoverage::Whole);
    let text = read_events(&mut back).unwrap();
    assert!(
        text.contains("{\"a\":2}") && !text.contains("{\"a\":1}"),
        "{text}"
    );
    drop(back);
    let (mut again, _) = session.resume_stream(before, MonotonicTime(0)).unwrap();
    let text = read_events(&mut again).unwrap();
    assert!(
        text.contains("{\"a\":1}") && text.contains("{\"a\":2}"),
        "{text}"
    );
    // An event id of a different session is rejected.
    let (_, other) = open_session(&sessions);
    assert!(other.resume_stream(before, MonotonicTime(0)).is_none());
    // Events of an absent client are dropped.
    drop(again);
    sessions.sweep(MonotonicTime(0));
    sessions.sweep(MonotonicTime(0));
    assert_eq!(session.shared.replay_budget.bytes(), 0);
    let (mut late, replay) = session.resume_stream(before, MonotonicTime(0)).unwrap();
    assert_eq!(replay, ReplayCoverage::Partial);
    assert!(read_events(&mut late).unwrap().contains("not kept"));
}

#[test]
fn call_without_stream_has_lasting_id() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"1"), Vec::new());
    assert!(end.durable_id().is_some());
    assert_eq!(
        session.handle_without_stream().durable_id(),
        end.durable_id()
    );
    let (_, other) = open_session(&sessions);
    assert_ne!(other.handle_without_stream().durable_id(), end.durable_id());
}

#[tokio::test]
async fn call_stream_is_kept_for_its_session() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    let (_, other) = open_session(&sessions);
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"1"), Vec::new());
    end.notify("{\"p\":1}".into());
    let mut stream = Arc::clone(&end).open_stream();
    let text = read_events(&mut stream).unwrap();
    assert!(text.contains("{\"p\":1}"), "{text}");
    let place = last_event_id(&text);
    let cancelled = session.in_flight.register(&Bytes::from_static(b"1"));
    drop(stream);
    assert!(!session.in_flight.is_empty(), "the call goes on");
    drop(cancelled);
    end.finish("{\"answer\":1}".into(), MonotonicTime(0));
    assert!(other.resume_stream(place, MonotonicTime(0)).is_none());
    let late = MonotonicTime(to_millis(STREAM_TTL) + 1);
    let is_lost = |now| {
        let (mut events, _) = session.resume_stream(place, now).unwrap();
        let text = read_events(&mut events).unwrap();
        assert_eq!(read_events(&mut events), None);
        text.contains("outcome_unknown")
    };
    assert!(is_lost(late));
    let (mut back, _) = session.resume_stream(place, MonotonicTime(0)).unwrap();
    let text = read_events(&mut back).unwrap();
    assert!(text.contains("{\"answer\":1}") && !text.contains("{\"p\":1}"));
    assert_eq!(read_events(&mut back), None);
    for id in 0..ENDED_STREAMS_MAX {
        let end = SessionCallHandle::new(&session, id.to_string().into(), Vec::new());
        let _stream = Arc::clone(&end).open_stream();
        end.finish("{}".into(), MonotonicTime(0));
    }
    assert!(is_lost(MonotonicTime(0)), "others came after");
    sessions.sweep(late);
    drop((back, end));
    assert_eq!(session.shared.replay_budget.bytes(), 0);
    assert!(session.streams.is_empty());
}

#[tokio::test]
async fn leaving_before_first_event_cancels_call() {
    let sessions = ClientSessions::new(&[1; 32]);
    let id = Bytes::from_static(b"1");
    for (revision, reads, goes_on) in [
        (Revision::V2025_11_25, false, false),
        (Revision::V2025_11_25, true, true),
        (Revision::V2025_03_26, true, true),
        (Revision::V2024_11_05, true, false),
    ] {
        let (_, session) = sessions
            .open_session(test_terms(revision), &clock_at(0))
            .unwrap();
        let cancelled = session.in_flight.register(&id).unwrap();
        let end = SessionCallHandle::new(&session, id.clone(), Vec::new());
        end.notify("{}".into());
        let mut stream = Arc::clone(&end).open_stream();
        if reads {
            read_events(&mut stream).unwrap();
        }
        drop(stream);
        assert_eq!(!session.in_flight.is_empty(), goes_on, "{revision} {reads}");
        drop(cancelled);
    }
}

/// Sends a server request on a call handle; returns its id and the response receiver.
fn send_request(
    handle: &Arc<SessionCallHandle>,
) -> (Option<ServerRequestId>, mpsc::Receiver<Option<Bytes>>) {
    let (told, heard) = mpsc::channel();
    let request = Bytes::from_static(br#"{"id":"s","method":"roots/list"}"#);
    let question = ServerRequest::new(request, 6..9, ClientCapability::Roots, move |answer| {
        // The receiver may be gone.
        let _ = told.send(answer);
    });
    (handle.request(question), heard)
}

#[tokio::test]
async fn server_request_answered_by_own_session() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    let (_, other) = open_session(&sessions);
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"1"), Vec::new());
    let (id, heard) = send_request(&end);
    let id = id.unwrap().0;
    let mut stream = Arc::clone(&end).open_stream();
    let text = read_events(&mut stream).unwrap();
    assert!(text.contains(&format!("{{\"id\":{id},")), "{text}");
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#);
    let answer = RpcMessage::parse_from_client(answer.into()).unwrap();
    other.server_requests.answer_request(&answer);
    assert!(heard.try_recv().is_err());
    session.server_requests.answer_request(&answer);
    let want = r#"{"jsonrpc":"2.0","id":"s","result":{"roots":[]}}"#;
    assert_eq!(heard.try_recv().unwrap().unwrap(), want);
    // A request cancelled by the server is cancelled at the client.
    let (id, heard) = send_request(&end);
    end.cancel_request(id.unwrap());
    assert_eq!(heard.try_recv(), Ok(None));
    let text = read_events(&mut stream).unwrap();
    let params = format!("{{\"requestId\":{}}}", id.unwrap().0);
    assert!(text.contains("notifications/cancelled") && text.contains(&params));
}

#[tokio::test]
async fn server_requests_end_with_call_and_session() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (id, session) = open_session(&sessions);
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"1"), Vec::new());
    let (_, with_call) = send_request(&end);
    end.finish("{}".into(), MonotonicTime(0));
    assert_eq!(with_call.try_recv(), Ok(None));
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"2"), Vec::new());
    let (_, dropped) = send_request(&end);
    drop(end);
    assert_eq!(dropped.try_recv(), Ok(None));
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"3"), Vec::new());
    let (_, with_session) = send_request(&end);
    let mut stream = Arc::clone(&end).open_stream();
    read_events(&mut stream);
    let mut cancelled = session
        .in_flight
        .register(&Bytes::from_static(b"3"))
        .unwrap();
    sessions.end_session(&id).unwrap();
    assert_eq!(with_session.try_recv(), Ok(None));
    assert_eq!(cancelled.signal.try_recv(), Ok(CancelReason::SessionEnd));
    assert_eq!(read_events(&mut stream), None);
    let (refused, heard) = send_request(&end);
    assert_eq!((refused, heard.try_recv()), (None, Ok(None)));
    // No request without the capability, and none without a listener.
    let (_, session) = open_session(&sessions);
    session.set_capabilities(
        ClientCapabilities::default().with_capability(ClientCapability::Sampling),
    );
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"1"), Vec::new());
    assert_eq!(send_request(&end).0, None);
    let (told, heard) = mpsc::channel();
    let question = ServerRequest::new(
        Bytes::new(),
        0..0,
        ClientCapability::Sampling,
        move |answer| {
            told.send(answer).unwrap();
        },
    );
    assert_eq!(end.session_handle().request(question), None);
    assert_eq!(heard.try_recv(), Ok(None));
}

#[tokio::test]
async fn log_messages_below_level_are_dropped() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (_, session) = open_session(&sessions);
    let mut stream = session.open_listen_stream();
    let end = SessionCallHandle::new(&session, Bytes::from_static(b"1"), Vec::new());
    let say = |level: &str| -> Bytes {
        format!(r#"{{"method":"notifications/message","params":{{"level":"{level}"}}}}"#).into()
    };
    session.set_log_level(LogLevel::Warning);
    for level in ["info", "warning", "error", "odd"] {
        end.notify(say(level));
        assert!(sessions.deliver(session.key, say(level)));
    }
    end.notify(r#"{"method":"notifications/progress"}"#.into());
    let mut called = Arc::clone(&end).open_stream();
    for text in [
        read_events(&mut stream).unwrap(),
        read_events(&mut called).unwrap(),
    ] {
        assert!(!text.contains("info"), "{text}");
        for level in ["warning", "error", "odd"] {
            assert!(text.contains(level), "{text}");
        }
    }
    session.set_log_level(LogLevel::Debug);
    sessions.deliver(session.key, say("info"));
    assert!(read_events(&mut stream).unwrap().contains("info"));
}

#[tokio::test]
async fn abandoned_session_is_swept() {
    let sessions = ClientSessions::new(&[1; 32]);
    let (id, session) = open_session(&sessions);
    let body = session.open_listen_stream();
    let late = to_millis(IDLE_MAX) + 1;
    sessions.sweep(MonotonicTime(late));
    assert_eq!(sessions.count_streams(), (1, 1), "a listener is not idle");
    drop(body);
    assert_eq!(sessions.count_streams(), (1, 0));
    sessions.sweep(MonotonicTime(late));
    assert_eq!(sessions.count_streams(), (0, 0));
    let back = sessions.find_session(
        &id,
        &owner_principal(),
        &EndpointScope::All,
        &clock_at(late),
    );
    assert!(back.is_some(), "its id still works");
}

#[test]
fn session_id_expires_and_is_bound() {
    let sessions = ClientSessions::new(&[1; 32]);
    let ids: HashSet<_> = (0..64).map(|_| open_session(&sessions).0).collect();
    assert_eq!(ids.len(), 64);
    let (id, _) = open_session(&sessions);
    let other = Arc::new(Principal::new("other", Role::AnonymousLocal));
    let server = EndpointScope::Server("files".into());
    let found = |principal: &Arc<Principal>, scope: &EndpointScope, ms| {
        sessions
            .find_session(&id, principal, scope, &clock_at(ms))
            .is_some()
    };
    assert!(found(&owner_principal(), &EndpointScope::All, 0));
    assert!(!found(&other, &EndpointScope::All, 0));
    assert!(!found(&owner_principal(), &server, 0));
    // The same again with the session restored from its id.
    sessions.sweep(MonotonicTime(to_millis(IDLE_MAX) + 1));
    assert!(!found(&other, &EndpointScope::All, 0));
    assert!(!found(&owner_principal(), &server, 0));
    sessions.sweep(MonotonicTime(to_millis(IDLE_MAX) * 3));
    assert!(!found(
        &owner_principal(),
        &EndpointScope::All,
        to_millis(AGE_MAX) + 2_000
    ));
    assert!(found(&owner_principal(), &EndpointScope::All, 0));
    sessions.end_session(&id).unwrap();
    assert!(!found(&owner_principal(), &EndpointScope::All, 0));
}
