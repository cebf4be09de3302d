//! Shares of principals in sessions and streams.

use bowline_core::call::Role;
use bowline_core::shares::{ShareError, ShareLimit, ShareLimits, SharedResource};
use bowline_host::accounts::PrincipalAccounts;

use super::*;

/// Sessions and streams with limits per principal.
fn limited_sessions(total: u64, per_principal: u64) -> ClientSessions {
    let limit = ShareLimit::new(total, per_principal);
    let limits = ShareLimits::default()
        .with_limit(SharedResource::Streams, limit)
        .with_limit(SharedResource::Sessions, limit);
    ClientSessions::new(&[1; 32]).with_accounts(PrincipalAccounts::new(limits))
}

fn terms_for(name: &str) -> SessionTerms {
    SessionTerms {
        principal: Arc::new(Principal::new(name, Role::None)),
        ..test_terms(Revision::LATEST_LEGACY)
    }
}

#[tokio::test]
async fn streams_beyond_share_are_refused() {
    let sessions = limited_sessions(64, 8);
    let ann = terms_for("ann").principal;
    let (_, session) = sessions
        .open_session(terms_for("ann"), &clock_at(0))
        .unwrap();
    let mut bodies: Vec<_> = (0..8)
        .map(|_| {
            let mut body = session.open_listen_stream();
            body.attach_guard(Box::new(sessions.acquire_stream(&ann).unwrap()));
            body
        })
        .collect();
    assert!(sessions.acquire_stream(&ann).is_err());
    assert!(sessions.acquire_stream(&owner_principal()).is_ok());
    // A stream counts until its connection ends.
    let body = bodies.pop().unwrap();
    let _newer = session.open_listen_stream();
    assert!(sessions.acquire_stream(&ann).is_err());
    drop(body);
    assert!(sessions.acquire_stream(&ann).is_ok());
}

#[tokio::test]
async fn oldest_idle_session_is_evicted() {
    let sessions = limited_sessions(64, 3);
    let find = |id: &Arc<str>, name: &str, ms| {
        let principal = terms_for(name).principal;
        sessions.find_session(id, &principal, &EndpointScope::All, &clock_at(ms))
    };
    let (bobs, _) = sessions
        .open_session(terms_for("bob"), &clock_at(0))
        .unwrap();
    let own: Vec<_> = (1..=3)
        .map(|ms| {
            sessions
                .open_session(terms_for("ann"), &clock_at(ms))
                .unwrap()
        })
        .collect();
    // The first is used again, the second has a call in flight: the third was idle longest.
    assert!(find(&own[0].0, "ann", 9).is_some());
    let call = own[1].1.in_flight.register(&"1".into()).unwrap();
    let live = |id: &Arc<str>| sessions.lock_table().live.contains_key(id);
    let (fourth, session) = sessions
        .open_session(terms_for("ann"), &clock_at(10))
        .unwrap();
    assert_eq!(
        [&own[0].0, &own[1].0, &own[2].0, &fourth, &bobs].map(live),
        [true, true, false, true, true]
    );
    assert_eq!(sessions.take_evicted(), [own[2].1.key]);
    // All are busy: a further session is refused, and none is evicted.
    let _stream = own[0].1.open_listen_stream();
    let _other = session.in_flight.register(&"1".into()).unwrap();
    let refused = sessions
        .open_session(terms_for("ann"), &clock_at(11))
        .unwrap_err();
    let share = ShareError::Principal {
        resource: SharedResource::Sessions,
        limit: 3,
    };
    assert_eq!(refused, OpenSessionError::Share(share));
    assert!(
        sessions
            .open_session(terms_for("bob"), &clock_at(11))
            .is_ok()
    );
    drop(call);
    assert!(
        sessions
            .open_session(terms_for("ann"), &clock_at(12))
            .is_ok()
    );
    assert!(!live(&own[1].0));
}

#[tokio::test]
async fn full_table_keeps_sessions_of_others() {
    let sessions = limited_sessions(16, 8);
    let names = ["ann", "bob"];
    for name in names {
        for _ in 0..8 {
            let _full = sessions.open_session(terms_for(name), &clock_at(0));
        }
    }
    let (all, _) = sessions.count_streams();
    assert_eq!(all, 15, "one is the owner's alone");
    let refused = sessions
        .open_session(terms_for("cat"), &clock_at(1))
        .unwrap_err();
    assert!(matches!(
        refused,
        OpenSessionError::Share(ShareError::Total { limit: 15, .. })
    ));
    open_session(&sessions);
    assert!(
        sessions.take_evicted().len() <= 1,
        "only bob's own went for bob's"
    );
}
