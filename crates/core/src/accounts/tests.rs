//! Tests of shares and calls in flight.

use super::*;

#[test]
fn dropped_share_is_returned() {
    let limits =
        ShareLimits::default().with_limit(SharedResource::BodyBytes, ShareLimit::new(100, 50));
    let accounts = PrincipalAccounts::new(limits);
    let ann = Principal::new("ann", Role::None);
    let mut share = accounts
        .take_share(&ann, SharedResource::BodyBytes, 10)
        .unwrap();
    share.grow(40).unwrap();
    assert!(share.grow(1).is_err());
    assert_eq!(accounts.usage_of(&ann.name, SharedResource::BodyBytes), 50);
    share.shrink(20);
    assert_eq!(share.amount(), 30);
    drop(share);
    assert_eq!(accounts.usage_of(&ann.name, SharedResource::BodyBytes), 0);
}

#[test]
fn principals_have_separate_limits() {
    let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
    let mut seats = ConcurrencyCounter::new(2);
    assert_eq!(seats.try_acquire(&ann), Ok(()));
    assert_eq!(seats.try_acquire(&ann), Ok(()));
    assert_eq!(seats.try_acquire(&ann), Err(2));
    assert_eq!(seats.try_acquire(&bob), Ok(()));
    let view = ConcurrencyView {
        limit: 2,
        in_flight: vec![(Arc::clone(&ann), 2), (Arc::clone(&bob), 1)],
        refused_calls: 1,
    };
    assert_eq!(seats.view(), view);
    seats.release_permit(&ann);
    assert_eq!(seats.try_acquire(&ann), Ok(()));
    for principal in [&ann, &ann, &bob, &bob] {
        seats.release_permit(principal);
    }
    assert!(seats.in_flight.is_empty(), "idle principals are forgotten");
}
