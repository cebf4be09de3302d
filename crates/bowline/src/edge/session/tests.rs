//! Sessions and their streams, without a socket.

use std::collections::HashSet;

use bowline_core::call::Role;

use super::*;
use crate::edge::stream::{self, EVENTS_MAX, EventBody};

const CHANGED: &[u8] = b"{}";

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

fn open(sessions: &Sessions) -> (Arc<str>, Arc<Session>) {
    let revision = Revision::LATEST_LEGACY;
    let id = sessions.open(&owner(), &Scope::All, revision, [0; 32], &at(0));
    let id = id.unwrap();
    let session = sessions.find(&id, &owner(), &Scope::All, &at(0)).unwrap();
    (id, session)
}

#[test]
fn a_slow_stream_is_dropped_at_its_bound() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, slow) = open(&sessions);
    let (_, quick) = open(&sessions);
    let (sender, mut unread) = stream::channel();
    slow.listen(sender);
    let (sender, mut read) = stream::channel();
    quick.listen(sender);
    for change in 1..=u8::MAX {
        for session in [&slow, &quick] {
            session.announce([change; 32], CHANGED);
        }
        assert!(read.try_recv().is_ok());
    }
    // Every announcement has been taken so far; the queue has room for one more, not for two.
    assert_eq!(sessions.count(), (2, 2));
    for change in 0..2 {
        for session in [&slow, &quick] {
            session.announce([change; 32], CHANGED);
        }
        assert!(read.try_recv().is_ok());
    }
    assert_eq!(sessions.count(), (2, 1), "the slow one was let go");
    let mut held = 0;
    while unread.try_recv().is_ok() {
        held += 1;
    }
    assert_eq!(held, EVENTS_MAX);
    assert!(unread.is_closed(), "its connection ends");
    assert!(!read.is_closed());
}

#[tokio::test]
async fn streams_beyond_the_cap_are_refused() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let mut bodies: Vec<_> = (0..STREAMS_MAX)
        .map(|_| EventBody::open(Box::new(sessions.seat().unwrap())))
        .collect();
    assert!(sessions.seat().is_none());
    // A stream that ends makes room, and only the connection's end counts.
    let (sender, body) = bodies.pop().unwrap();
    session.listen(sender);
    assert!(sessions.seat().is_none());
    drop(body);
    assert!(sessions.seat().is_some());
}

#[test]
fn a_newer_stream_of_a_session_ends_the_older() {
    let sessions = Sessions::new(&[1; 32]);
    let (_, session) = open(&sessions);
    let (sender, mut older) = stream::channel();
    session.listen(sender);
    let (sender, mut newer) = stream::channel();
    session.listen(sender);
    session.announce([1; 32], CHANGED);
    assert_eq!(
        older.try_recv(),
        Err(tokio::sync::mpsc::error::TryRecvError::Disconnected)
    );
    assert!(newer.try_recv().is_ok());
}

#[test]
fn a_session_whose_caller_left_is_neither_counted_nor_kept() {
    let sessions = Sessions::new(&[1; 32]);
    let (id, session) = open(&sessions);
    let (sender, body) = stream::channel();
    session.listen(sender);
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
    sessions.end(&id);
    assert!(!found(&owner(), &Scope::All, 0));
}
