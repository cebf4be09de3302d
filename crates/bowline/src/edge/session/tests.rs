//! Sessions and their streams, without a socket.

mod shares;

use bowline_core::call::Role;
use std::collections::HashSet;

use std::future::poll_fn;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use bowline_core::caller::{Ability, CallerEnd as _};
use bowline_core::time::millis;
use bowline_host::ports::{Audience as _, Clock};
use bowline_wire::Message;

use super::streams::{ENDED_STREAMS_MAX, KEPT};
use super::*;
use crate::edge::stream::EVENTS_MAX;

/// A clock that stands.
#[derive(Debug)]
struct At(u64);

impl Clock for At {
    fn now(&self) -> Now {
        Now(self.0)
    }

    fn instant(&self, _: Now) -> tokio::time::Instant {
        unreachable!("no session sets a timer")
    }

    fn unix_ms(&self) -> u64 {
        1_000_000 + self.0
    }
}

const fn at(ms: u64) -> At {
    At(ms)
}

fn owner() -> Arc<Principal> {
    Arc::new(Principal::new("owner", Role::Owner))
}

fn terms(revision: Revision) -> Terms {
    Terms {
        principal: owner(),
        scope: Scope::All,
        revision,
        abilities: Abilities::default().with(Ability::Roots),
    }
}

fn open(sessions: &Sessions) -> (Arc<str>, Arc<Session>) {
    sessions
        .open(terms(Revision::LATEST_LEGACY), &at(0))
        .unwrap()
}

fn changed(change: u8) -> Lists {
    Lists::from(|kind| match kind {
        ListKind::Tools => [change; 32],
        _ => [0; 32],
    })
}

/// Reads what a stream holds at this moment; `None` at its end.
fn read(body: &mut EventBody) -> Option<String> {
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

/// Returns the last id in the text of a stream.
fn last_place(text: &str) -> Place<'_> {
    let mut ids = text.lines().rev();
    let id = ids.find_map(|line| line.strip_prefix("id: "));
    Place::parse(id.unwrap()).unwrap()
}

#[tokio::test]
async fn a_slow_stream_is_dropped_at_its_bound() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, slow) = open(&sessions);
    let (_, quick) = open(&sessions);
    let mut unread = slow.listen();
    let mut quickly = quick.listen();
    for change in 1..=u8::MAX {
        for session in [&slow, &quick] {
            session.announce(&changed(change));
        }
        assert!(read(&mut quickly).is_some());
    }
    // Every announcement has been taken so far; the queue has room for one more, not for two.
    assert_eq!(sessions.count(), (2, 2));
    for change in 0..2 {
        for session in [&slow, &quick] {
            session.announce(&changed(change));
        }
        assert!(read(&mut quickly).is_some());
    }
    assert_eq!(sessions.count(), (2, 1), "the slow one was let go");
    let opening = poll_fn(|cx| unread.poll_bytes(cx)).await;
    assert!(opening.is_some());
    assert_eq!(read(&mut unread), None, "its connection ends");
    // What waited is not lost to a caller that comes back.
    let mut back = slow.listen();
    let told = read(&mut back).unwrap();
    assert_eq!(told.matches("list_changed").count(), EVENTS_MAX);
}

#[test]
fn an_ended_session_is_why_its_calls_end() {
    let sessions = Sessions::new(&[1; 32]);
    let (id, session) = open(&sessions);
    let mut ended = session.in_flight.enter(&"1".into()).unwrap();
    let mut taken_back = session.in_flight.enter(&"2".into()).unwrap();
    session.in_flight.cancel(b"2");
    sessions.end(&id);
    assert_eq!(ended.signal.try_recv(), Ok(Withdrawal::SessionEnd));
    assert_eq!(taken_back.signal.try_recv(), Ok(Withdrawal::Caller));
}

#[tokio::test]
async fn a_newer_stream_of_a_session_ends_the_older() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let mut older = session.listen();
    read(&mut older);
    let mut newer = session.listen();
    session.announce(&changed(1));
    assert_eq!(read(&mut older), None);
    assert!(read(&mut newer).unwrap().contains("list_changed"));
    drop(older);
    assert_eq!(sessions.count(), (1, 1), "the newer one is still there");
}

#[tokio::test]
async fn a_session_is_told_of_each_list_by_itself() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let mut stream = session.listen();
    read(&mut stream);
    for (kind, told) in [
        (ListKind::Tools, News::Tools),
        (ListKind::Prompts, News::Prompts),
        (ListKind::Resources, News::Resources),
        (ListKind::Templates, News::Resources),
    ] {
        session.knows_all(Lists::default());
        let lists = Lists::from(|other| [u8::from(kind == other); 32]);
        session.announce(&lists);
        let text = read(&mut stream).unwrap();
        assert_eq!(text.matches("list_changed").count(), 1, "{text}");
        assert!(text.contains(told.method()), "{text}");
        session.announce(&lists);
        assert_eq!(read(&mut stream).unwrap(), "", "told twice");
        session.knows_all(Lists::default());
        session.knows(kind, [1; 32]);
        session.announce(&lists);
        assert_eq!(read(&mut stream).unwrap(), "", "shown already");
    }
}

#[tokio::test]
async fn a_listener_that_comes_back_hears_what_it_missed() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    assert!(!sessions.tell(session.key, "{}".into()), "nobody listens");
    let mut stream = session.listen();
    let opening = read(&mut stream).unwrap();
    assert!(opening.contains("retry: ") && opening.contains("data: \n\n"));
    assert!(sessions.tell(session.key, "{\"a\":1}".into()));
    let before = last_place(&opening);
    let heard = read(&mut stream).unwrap();
    drop(stream);
    assert!(sessions.tell(session.key, "{\"a\":2}".into()));
    let (mut back, replay) = session.resume(last_place(&heard), Now(0)).unwrap();
    assert_eq!(replay, Replay::Whole);
    let text = read(&mut back).unwrap();
    assert!(
        text.contains("{\"a\":2}") && !text.contains("{\"a\":1}"),
        "{text}"
    );
    drop(back);
    let (mut again, _) = session.resume(before, Now(0)).unwrap();
    let text = read(&mut again).unwrap();
    assert!(
        text.contains("{\"a\":1}") && text.contains("{\"a\":2}"),
        "{text}"
    );
    // A place in the stream of another session is no place here.
    let (_, other) = open(&sessions);
    assert!(other.resume(before, Now(0)).is_none());
    // What nobody came back for is let go.
    drop(again);
    sessions.sweep(Now(0));
    sessions.sweep(Now(0));
    assert_eq!(session.shared.kept.bytes(), 0);
    let (mut late, replay) = session.resume(before, Now(0)).unwrap();
    assert_eq!(replay, Replay::Partial);
    assert!(read(&mut late).unwrap().contains("not kept"));
}

#[test]
fn call_without_stream_has_lasting_id_of_session() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let end = CallEnd::new(&session, Bytes::from_static(b"1"), Vec::new());
    assert!(end.lasting_id().is_some());
    assert_eq!(session.without_stream().lasting_id(), end.lasting_id());
    let (_, other) = open(&sessions);
    assert_ne!(other.without_stream().lasting_id(), end.lasting_id());
}

#[tokio::test]
async fn the_stream_of_a_call_is_kept_a_while_for_its_caller_only() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let (_, other) = open(&sessions);
    let end = CallEnd::new(&session, Bytes::from_static(b"1"), Vec::new());
    end.push("{\"p\":1}".into());
    let mut stream = end.open();
    let text = read(&mut stream).unwrap();
    assert!(text.contains("{\"p\":1}"), "{text}");
    let place = last_place(&text);
    let cancelled = session.in_flight.enter(&Bytes::from_static(b"1"));
    drop(stream);
    assert!(!session.in_flight.is_empty(), "the call goes on");
    drop(cancelled);
    end.finish("{\"answer\":1}".into(), Now(0));
    assert!(other.resume(place, Now(0)).is_none());
    let late = Now(millis(KEPT) + 1);
    let is_lost = |now| {
        let (mut events, _) = session.resume(place, now).unwrap();
        let text = read(&mut events).unwrap();
        assert_eq!(read(&mut events), None);
        text.contains("outcome_unknown")
    };
    assert!(is_lost(late));
    let (mut back, _) = session.resume(place, Now(0)).unwrap();
    let text = read(&mut back).unwrap();
    assert!(text.contains("{\"answer\":1}") && !text.contains("{\"p\":1}"));
    assert_eq!(read(&mut back), None);
    for id in 0..ENDED_STREAMS_MAX {
        let end = CallEnd::new(&session, id.to_string().into(), Vec::new());
        let _stream = end.open();
        end.finish("{}".into(), Now(0));
    }
    assert!(is_lost(Now(0)), "others came after");
    sessions.sweep(late);
    drop((back, end));
    assert_eq!(session.shared.kept.bytes(), 0);
    assert!(session.streams.is_empty());
}

#[tokio::test]
async fn a_caller_that_leaves_before_it_was_told_anything_takes_its_call_back() {
    let sessions = Sessions::new(&[1; 32]);
    let id = Bytes::from_static(b"1");
    for (revision, reads, goes_on) in [
        (Revision::V2025_11_25, false, false),
        (Revision::V2025_11_25, true, true),
        (Revision::V2025_03_26, true, true),
        (Revision::V2024_11_05, true, false),
    ] {
        let (_, session) = sessions.open(terms(revision), &at(0)).unwrap();
        let cancelled = session.in_flight.enter(&id).unwrap();
        let end = CallEnd::new(&session, id.clone(), Vec::new());
        end.push("{}".into());
        let mut stream = end.open();
        if reads {
            read(&mut stream).unwrap();
        }
        drop(stream);
        assert_eq!(!session.in_flight.is_empty(), goes_on, "{revision} {reads}");
        drop(cancelled);
    }
}

/// Puts a question to a call's end and returns the text of the stream, and who hears the answer.
fn ask(end: &Arc<CallEnd>) -> (Option<QuestionId>, mpsc::Receiver<Option<Bytes>>) {
    let (told, heard) = mpsc::channel();
    let request = Bytes::from_static(br#"{"id":"s","method":"roots/list"}"#);
    let question = Question::new(request, 6..9, Ability::Roots, move |answer| {
        // Nobody may listen any more.
        let _ = told.send(answer);
    });
    (end.ask(question), heard)
}

#[tokio::test]
async fn a_question_is_answered_by_its_own_session_only() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let (_, other) = open(&sessions);
    let end = CallEnd::new(&session, Bytes::from_static(b"1"), Vec::new());
    let (id, heard) = ask(&end);
    let id = id.unwrap().0;
    let mut stream = end.open();
    let text = read(&mut stream).unwrap();
    assert!(text.contains(&format!("{{\"id\":{id},")), "{text}");
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#);
    let answer = Message::parse(answer.into()).unwrap();
    other.questions.answer(&answer);
    assert!(heard.try_recv().is_err());
    session.questions.answer(&answer);
    let want = r#"{"jsonrpc":"2.0","id":"s","result":{"roots":[]}}"#;
    assert_eq!(heard.try_recv().unwrap().unwrap(), want);
    // A question that its server takes back is taken back from the caller as well.
    let (id, heard) = ask(&end);
    end.withdraw(id.unwrap());
    assert_eq!(heard.try_recv(), Ok(None));
    let text = read(&mut stream).unwrap();
    let params = format!("{{\"requestId\":{}}}", id.unwrap().0);
    assert!(text.contains("notifications/cancelled") && text.contains(&params));
}

#[tokio::test]
async fn questions_end_with_their_call_and_their_session() {
    let sessions = Sessions::new(&[1; 32]);
    let (id, session) = open(&sessions);
    let end = CallEnd::new(&session, Bytes::from_static(b"1"), Vec::new());
    let (_, with_call) = ask(&end);
    end.finish("{}".into(), Now(0));
    assert_eq!(with_call.try_recv(), Ok(None));
    let end = CallEnd::new(&session, Bytes::from_static(b"2"), Vec::new());
    let (_, dropped) = ask(&end);
    drop(end);
    assert_eq!(dropped.try_recv(), Ok(None));
    let end = CallEnd::new(&session, Bytes::from_static(b"3"), Vec::new());
    let (_, with_session) = ask(&end);
    let mut stream = end.open();
    read(&mut stream);
    let mut cancelled = session.in_flight.enter(&Bytes::from_static(b"3")).unwrap();
    sessions.end(&id).unwrap();
    assert_eq!(with_session.try_recv(), Ok(None));
    assert_eq!(cancelled.signal.try_recv(), Ok(Withdrawal::SessionEnd));
    assert_eq!(read(&mut stream), None);
    let (refused, heard) = ask(&end);
    assert_eq!((refused, heard.try_recv()), (None, Ok(None)));
    // Nobody is asked for what the client cannot do, nor where nobody listens.
    let (_, session) = open(&sessions);
    session.declare(Abilities::default().with(Ability::Sampling));
    let end = CallEnd::new(&session, Bytes::from_static(b"1"), Vec::new());
    assert_eq!(ask(&end).0, None);
    let (told, heard) = mpsc::channel();
    let question = Question::new(Bytes::new(), 0..0, Ability::Sampling, move |answer| {
        told.send(answer).unwrap();
    });
    assert_eq!(end.home().ask(question), None);
    assert_eq!(heard.try_recv(), Ok(None));
}

#[tokio::test]
async fn log_messages_below_the_level_of_a_session_are_dropped() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let mut stream = session.listen();
    let end = CallEnd::new(&session, Bytes::from_static(b"1"), Vec::new());
    let say = |level: &str| -> Bytes {
        format!(r#"{{"method":"notifications/message","params":{{"level":"{level}"}}}}"#).into()
    };
    session.set_level(Level::Warning);
    for level in ["info", "warning", "error", "odd"] {
        end.push(say(level));
        assert!(sessions.tell(session.key, say(level)));
    }
    end.push(r#"{"method":"notifications/progress"}"#.into());
    let mut called = end.open();
    for text in [read(&mut stream).unwrap(), read(&mut called).unwrap()] {
        assert!(!text.contains("info"), "{text}");
        for level in ["warning", "error", "odd"] {
            assert!(text.contains(level), "{text}");
        }
    }
    session.set_level(Level::Debug);
    sessions.tell(session.key, say("info"));
    assert!(read(&mut stream).unwrap().contains("info"));
}

#[tokio::test]
async fn a_session_whose_caller_left_is_neither_counted_nor_kept() {
    let sessions = Sessions::new(&[1; 32]);
    let (id, session) = open(&sessions);
    let body = session.listen();
    let late = millis(IDLE) + 1;
    sessions.sweep(Now(late));
    assert_eq!(sessions.count(), (1, 1), "a listener is not idle");
    drop(body);
    assert_eq!(sessions.count(), (1, 0));
    sessions.sweep(Now(late));
    assert_eq!(sessions.count(), (0, 0));
    let back = sessions.find(&id, &owner(), &Scope::All, &at(late));
    assert!(back.is_some(), "its id still works");
}

#[test]
fn an_id_dies_with_its_session_its_age_and_for_everybody_else() {
    let sessions = Sessions::new(&[1; 32]);
    let ids: HashSet<_> = (0..64).map(|_| open(&sessions).0).collect();
    assert_eq!(ids.len(), 64);
    let (id, _) = open(&sessions);
    let other = Arc::new(Principal::new("other", Role::AnonymousLocal));
    let server = Scope::Server("files".into());
    let found = |principal: &Arc<Principal>, scope: &Scope, ms| {
        sessions.find(&id, principal, scope, &at(ms)).is_some()
    };
    assert!(found(&owner(), &Scope::All, 0));
    assert!(!found(&other, &Scope::All, 0));
    assert!(!found(&owner(), &server, 0));
    // The same again once memory has let it go and only the id speaks.
    sessions.sweep(Now(millis(IDLE) + 1));
    assert!(!found(&other, &Scope::All, 0));
    assert!(!found(&owner(), &server, 0));
    sessions.sweep(Now(millis(IDLE) * 3));
    assert!(!found(&owner(), &Scope::All, millis(AGE_MAX) + 2_000));
    assert!(found(&owner(), &Scope::All, 0));
    sessions.end(&id).unwrap();
    assert!(!found(&owner(), &Scope::All, 0));
}
