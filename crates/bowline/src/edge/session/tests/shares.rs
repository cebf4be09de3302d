//! The shares of principals in sessions and streams.

use bowline_core::call::Role;
use bowline_core::shares::{Resource, ShareError, ShareLimit, ShareLimits};
use bowline_host::accounts::PrincipalAccounts;

use super::*;

/// Sessions and streams of which one principal may have so many.
fn sharing(total: u64, per_principal: u64) -> Sessions {
    let limit = ShareLimit::new(total, per_principal);
    let limits = ShareLimits::default()
        .with(Resource::Streams, limit)
        .with(Resource::Sessions, limit);
    Sessions::new(&[1; 32]).with_accounts(PrincipalAccounts::new(limits))
}

fn terms_of(name: &str) -> Terms {
    Terms {
        principal: Arc::new(Principal::new(name, Role::None)),
        ..terms(Revision::LATEST_LEGACY)
    }
}

#[tokio::test]
async fn streams_beyond_the_share_are_refused() {
    let sessions = sharing(64, 8);
    let ann = terms_of("ann").principal;
    let (_, session) = sessions.open(terms_of("ann"), &at(0)).unwrap();
    let mut bodies: Vec<_> = (0..8)
        .map(|_| {
            let mut body = session.listen();
            body.keep(Box::new(sessions.seat(&ann).unwrap()));
            body
        })
        .collect();
    assert!(sessions.seat(&ann).is_err());
    assert!(sessions.seat(&owner()).is_ok());
    // A stream that ends makes room, and only the connection's end counts.
    let body = bodies.pop().unwrap();
    let _newer = session.listen();
    assert!(sessions.seat(&ann).is_err());
    drop(body);
    assert!(sessions.seat(&ann).is_ok());
}

#[tokio::test]
async fn oldest_idle_session_of_the_same_principal_goes() {
    let sessions = sharing(64, 3);
    let find = |id: &Arc<str>, name: &str, ms| {
        let principal = terms_of(name).principal;
        sessions.find(id, &principal, &Scope::All, &at(ms))
    };
    let (bobs, _) = sessions.open(terms_of("bob"), &at(0)).unwrap();
    let own: Vec<_> = (1..=3)
        .map(|ms| sessions.open(terms_of("ann"), &at(ms)).unwrap())
        .collect();
    // The first is used again, the second has a call in flight: the third was idle longest.
    assert!(find(&own[0].0, "ann", 9).is_some());
    let call = own[1].1.in_flight.enter(&"1".into()).unwrap();
    let live = |id: &Arc<str>| sessions.table().live.contains_key(id);
    let (fourth, session) = sessions.open(terms_of("ann"), &at(10)).unwrap();
    assert_eq!(
        [&own[0].0, &own[1].0, &own[2].0, &fourth, &bobs].map(live),
        [true, true, false, true, true]
    );
    assert_eq!(sessions.gone(), [own[2].1.key]);
    // All are busy now: one more is refused, and nothing is ended for it.
    let _stream = own[0].1.listen();
    let _other = session.in_flight.enter(&"1".into()).unwrap();
    let refused = sessions.open(terms_of("ann"), &at(11)).unwrap_err();
    let share = ShareError::Principal {
        resource: Resource::Sessions,
        limit: 3,
    };
    assert_eq!(refused, OpenError::Share(share));
    assert!(sessions.open(terms_of("bob"), &at(11)).is_ok());
    drop(call);
    assert!(sessions.open(terms_of("ann"), &at(12)).is_ok());
    assert!(!live(&own[1].0));
}

#[tokio::test]
async fn full_table_takes_no_session_of_others() {
    let sessions = sharing(16, 8);
    let names = ["ann", "bob"];
    for name in names {
        for _ in 0..8 {
            let _full = sessions.open(terms_of(name), &at(0));
        }
    }
    let (all, _) = sessions.count();
    assert_eq!(all, 15, "one is the owner's alone");
    let refused = sessions.open(terms_of("cat"), &at(1)).unwrap_err();
    assert!(matches!(
        refused,
        OpenError::Share(ShareError::Total { limit: 15, .. })
    ));
    open(&sessions);
    assert!(sessions.gone().len() <= 1, "only bob's own went for bob's");
}
