//! Nobody but who got a state brings it back, with the same request, in time.

use bowline_core::call::Role;
use fastrand::Rng;

use super::*;

fn ann() -> Principal {
    Principal {
        credential: "0123".into(),
        ..Principal::new("ann", Role::Owner)
    }
}

fn parked() -> State {
    State::Parked(Ticket {
        boot: u64::MAX,
        handle: 7,
        round: 3,
    })
}

const NOW_MS: u64 = 1_000_000;

fn some(rng: &mut Rng) -> State {
    if rng.bool() {
        return State::Parked(Ticket {
            boot: rng.u64(..),
            handle: rng.u64(..),
            round: rng.u32(..),
        });
    }
    let text = (0..rng.usize(..40)).map(|_| rng.char(..));
    State::Carried(text.collect())
}

#[test]
fn a_state_opens_to_what_was_sealed_for_who_got_it() {
    let mut rng = Rng::with_seed(1);
    let key = Seal::new(&[7; 32]);
    for _ in 0..500 {
        let state = some(&mut rng);
        let scopes = [
            Scope::All,
            Scope::Server("s".into()),
            Scope::Profile("s".into()),
        ];
        let scope = rng.choice(&scopes).unwrap();
        let bound = Bound {
            principal: &ann(),
            scope,
            request: &[rng.u8(..); 32],
        };
        let text = seal(&key, bound, NOW_MS, &state).unwrap();
        assert_eq!(open(&key, bound, NOW_MS, &text), Ok(state));
        assert!(text.bytes().all(|b| b.is_ascii_graphic()), "{text}");
    }
}

#[test]
fn a_state_with_any_byte_changed_is_forged() {
    let key = Seal::new(&[7; 32]);
    let bound = Bound {
        principal: &ann(),
        scope: &Scope::All,
        request: &[1; 32],
    };
    let text = seal(&key, bound, NOW_MS, &parked()).unwrap();
    let forged = |text: &str| open(&key, bound, NOW_MS, text) == Err(Refused::Forged);
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
    let session = key.close(Use::Session, b"p").unwrap();
    let noise = key.close(Use::State, b"p\n9").unwrap();
    assert!(forged(&session) && forged(&noise) && forged(""));
    assert_eq!(
        open(&Seal::new(&[8; 32]), bound, NOW_MS, &text),
        Err(Refused::Forged)
    );
}

#[test]
fn a_state_is_of_no_use_to_others_elsewhere_otherwise_or_later() {
    let key = Seal::new(&[7; 32]);
    let (ann, all) = (ann(), Scope::All);
    let bound = Bound {
        principal: &ann,
        scope: &all,
        request: &[1; 32],
    };
    let text = seal(&key, bound, NOW_MS, &parked()).unwrap();
    let open = |bound, now_ms| open(&key, bound, now_ms, &text);
    let bob = Principal {
        name: "bob".into(),
        ..ann.clone()
    };
    let other_token = Principal {
        credential: "4567".into(),
        ..ann.clone()
    };
    for principal in [&bob, &other_token] {
        let other = Bound { principal, ..bound };
        assert_eq!(open(other, NOW_MS), Err(Refused::NotYours));
    }
    let elsewhere = [Scope::Server("s".into()), Scope::Profile("".into())];
    for scope in &elsewhere {
        let other = Bound { scope, ..bound };
        assert_eq!(open(other, NOW_MS), Err(Refused::NotYours), "{scope:?}");
    }
    let other = Bound {
        request: &[2; 32],
        ..bound
    };
    assert_eq!(open(other, NOW_MS), Err(Refused::OtherRequest));
    let end = NOW_MS + u64::try_from(STATE_TTL.as_millis()).unwrap();
    assert_eq!(open(bound, end - 1), Ok(parked()));
    assert_eq!(open(bound, end), Err(Refused::Expired));
}

#[test]
fn requests_differ_by_what_they_ask_and_not_by_how_it_is_written() {
    let one = digest("tools/call", "t", Some(br#"{"a":1,"b":[2, 3]}"#));
    let same = digest("tools/call", "t", Some(br#"{ "b":[2,3], "\u0061":1 }"#));
    assert_eq!(one, same);
    for other in [
        digest("tools/call", "t", Some(br#"{"a":1,"b":[3,2]}"#)),
        digest("tools/call", "t", Some(b"{}")),
        digest("tools/call", "t", None),
        digest("tools/call", "u", Some(br#"{"a":1,"b":[2,3]}"#)),
        digest("prompts/get", "t", Some(br#"{"a":1,"b":[2,3]}"#)),
    ] {
        assert_ne!(one, other);
    }
    assert_ne!(digest("a", "bc", None), digest("ab", "c", None));
}
