//! A request state is valid only for its caller and request, before expiry.

use bowline_core::call::Role;
use fastrand::Rng;

use super::*;

fn test_principal() -> Principal {
    Principal {
        credential: "0123".into(),
        ..Principal::new("ann", Role::Owner)
    }
}

fn parked_state() -> RequestState {
    RequestState::Parked(ParkedRound {
        boot_id: u64::MAX,
        handle: 7,
        round: 3,
    })
}

const NOW_MS: u64 = 1_000_000;

fn random_state(rng: &mut Rng) -> RequestState {
    if rng.bool() {
        return RequestState::Parked(ParkedRound {
            boot_id: rng.u64(..),
            handle: rng.u64(..),
            round: rng.u32(..),
        });
    }
    let text = (0..rng.usize(..40)).map(|_| rng.char(..));
    RequestState::ServerState(text.collect())
}

#[test]
fn state_round_trips_for_its_caller() {
    let mut rng = Rng::with_seed(1);
    let key = Seal::new(&[7; 32]);
    for _ in 0..500 {
        let state = random_state(&mut rng);
        let scopes = [
            EndpointScope::All,
            EndpointScope::Server("s".into()),
            EndpointScope::Profile("s".into()),
        ];
        let scope = rng.choice(&scopes).unwrap();
        let bound = StateBinding {
            principal: &test_principal(),
            scope,
            request_digest: &[rng.u8(..); 32],
        };
        let text = seal_state(&key, bound, NOW_MS, &state).unwrap();
        assert_eq!(open_state(&key, bound, NOW_MS, &text), Ok(state));
        assert!(text.bytes().all(|b| b.is_ascii_graphic()), "{text}");
    }
}

#[test]
fn changed_byte_makes_state_forged() {
    let key = Seal::new(&[7; 32]);
    let bound = StateBinding {
        principal: &test_principal(),
        scope: &EndpointScope::All,
        request_digest: &[1; 32],
    };
    let text = seal_state(&key, bound, NOW_MS, &parked_state()).unwrap();
    let forged =
        |text: &str| open_state(&key, bound, NOW_MS, text) == Err(RequestStateError::Forged);
    for at in 0..text.len() {
        for with in [b'A', b'B', b'-', b' '] {
            let mut bytes = text.clone().into_bytes();
            if bytes[at] == with {
                continue;
            }
            bytes[at] = with;
            assert!(forged(&String::from_utf8(bytes).unwrap()), "byte {at}");
        }
        assert!(forged(&text[..at]), "cut at {at}");
        assert!(forged(&format!("{}A{}", &text[..at], &text[at..])));
    }
    let session = key.seal_bytes(SealPurpose::Session, b"p").unwrap();
    let noise = key.seal_bytes(SealPurpose::State, b"p\n9").unwrap();
    assert!(forged(&session) && forged(&noise) && forged(""));
    assert_eq!(
        open_state(&Seal::new(&[8; 32]), bound, NOW_MS, &text),
        Err(RequestStateError::Forged)
    );
}

#[test]
fn state_bound_to_caller_request_and_time() {
    let key = Seal::new(&[7; 32]);
    let (ann, all) = (test_principal(), EndpointScope::All);
    let bound = StateBinding {
        principal: &ann,
        scope: &all,
        request_digest: &[1; 32],
    };
    let text = seal_state(&key, bound, NOW_MS, &parked_state()).unwrap();
    let open = |bound, now_ms| open_state(&key, bound, now_ms, &text);
    let bob = Principal {
        name: "bob".into(),
        ..ann.clone()
    };
    let other_token = Principal {
        credential: "4567".into(),
        ..ann.clone()
    };
    for principal in [&bob, &other_token] {
        let other = StateBinding { principal, ..bound };
        assert_eq!(open(other, NOW_MS), Err(RequestStateError::WrongCaller));
    }
    let elsewhere = [
        EndpointScope::Server("s".into()),
        EndpointScope::Profile("".into()),
    ];
    for scope in &elsewhere {
        let other = StateBinding { scope, ..bound };
        assert_eq!(
            open(other, NOW_MS),
            Err(RequestStateError::WrongCaller),
            "{scope:?}"
        );
    }
    let other = StateBinding {
        request_digest: &[2; 32],
        ..bound
    };
    assert_eq!(open(other, NOW_MS), Err(RequestStateError::WrongRequest));
    let end = NOW_MS + u64::try_from(STATE_TTL.as_millis()).unwrap();
    assert_eq!(open(bound, end - 1), Ok(parked_state()));
    assert_eq!(open(bound, end), Err(RequestStateError::Expired));
}

#[test]
fn digest_ignores_json_formatting() {
    let one = request_digest("tools/call", "t", Some(br#"{"a":1,"b":[2, 3]}"#));
    let same = request_digest("tools/call", "t", Some(br#"{ "b":[2,3], "\u0061":1 }"#));
    assert_eq!(one, same);
    for other in [
        request_digest("tools/call", "t", Some(br#"{"a":1,"b":[3,2]}"#)),
        request_digest("tools/call", "t", Some(b"{}")),
        request_digest("tools/call", "t", None),
        request_digest("tools/call", "u", Some(br#"{"a":1,"b":[2,3]}"#)),
        request_digest("prompts/get", "t", Some(br#"{"a":1,"b":[2,3]}"#)),
    ] {
        assert_ne!(one, other);
    }
    assert_ne!(
        request_digest("a", "bc", None),
        request_digest("ab", "c", None)
    );
}
