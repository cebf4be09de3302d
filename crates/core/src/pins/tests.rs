//! Scripts of what a server shows, and how its tools stand after each step.

use super::*;
use crate::lint::Code;

fn sight(tool: &str, text: &str) -> Sight {
    let mut hash = [0; 32];
    for (at, byte) in text.bytes().enumerate().take(32) {
        hash[at] = byte;
    }
    Sight {
        kind: PinKind::Tool,
        tool: tool.into(),
        hash,
        definition: Bytes::copy_from_slice(text.as_bytes()),
        findings: Vec::new(),
    }
}

fn odd(tool: &str, text: &str) -> Sight {
    Sight {
        findings: vec![Finding {
            code: Code::Injection,
            place: "description".into(),
            detail: "x".into(),
        }],
        ..sight(tool, text)
    }
}

/// Shows one tool with these texts, one list after the other, and returns what was told.
fn show(pins: &mut Pins, texts: &[&str]) -> Vec<&'static str> {
    let mut told = Vec::new();
    for (now, text) in texts.iter().enumerate() {
        let news = pins.see(&[sight("t", text)], now as u64);
        told.extend(news.into_iter().map(|news| news.state));
    }
    told
}

#[test]
fn hw15_a_change_stays_told_until_a_person_accepts_it_also_when_it_is_taken_back() {
    let mut pins = Pins::default();
    assert_eq!(show(&mut pins, &["a", "a"]), Vec::<&str>::new());
    assert_eq!(show(&mut pins, &["b"]), ["changed"]);
    assert_eq!(show(&mut pins, &["b"]), Vec::<&str>::new(), "told once");
    assert_eq!(show(&mut pins, &["a"]), ["changed"]);
    let pin = pins.get(PinKind::Tool, "t").unwrap();
    let State::Changed { seen, reverted, .. } = &pin.state else {
        panic!("{pin:?}");
    };
    assert_eq!(
        seen.definition.as_deref(),
        Some(&b"b"[..]),
        "what it was meanwhile"
    );
    assert!(reverted);
    assert_eq!(pin.now().hash, pin.approved.hash);
    assert_eq!(
        show(&mut pins, &["c"]),
        ["changed"],
        "and again something else"
    );
    let accepted = pins.accept((PinKind::Tool, "t"), None, 9).unwrap().unwrap();
    assert_eq!(accepted.new, sight("t", "c").hash);
    assert_eq!(accepted.old, sight("t", "a").hash);
    assert_eq!(pins.get(PinKind::Tool, "t").unwrap().state, State::Approved);
    assert_eq!(show(&mut pins, &["c"]), Vec::<&str>::new());
    assert_eq!(show(&mut pins, &["a"]), ["changed"]);
}

#[test]
fn accepting_what_was_taken_back_keeps_the_approved_one() {
    let mut pins = Pins::default();
    show(&mut pins, &["a", "b", "a"]);
    let accepted = pins.accept((PinKind::Tool, "t"), None, 9).unwrap().unwrap();
    assert_eq!(accepted.old, accepted.new);
    assert_eq!(pins.get(PinKind::Tool, "t").unwrap().state, State::Approved);
}

#[test]
fn what_changed_again_after_it_was_looked_at_is_not_accepted() {
    let mut pins = Pins::default();
    show(&mut pins, &["a", "b"]);
    let looked_at = pins.get(PinKind::Tool, "t").unwrap().now().hash;
    show(&mut pins, &["c"]);
    let now = sight("t", "c").hash;
    let refused = pins.accept((PinKind::Tool, "t"), Some(&looked_at), 9);
    assert_eq!(refused, Err(Unaccepted::Other { now }));
    assert!(
        pins.accept((PinKind::Tool, "t"), Some(&now), 9)
            .unwrap()
            .is_some()
    );
    assert_eq!(
        pins.accept((PinKind::Tool, "x"), None, 9),
        Err(Unaccepted::Unknown)
    );
    assert_eq!(
        pins.accept((PinKind::Tool, "t"), None, 9),
        Ok(None),
        "nothing left to accept"
    );
}

#[test]
fn an_approval_can_be_taken_back_by_the_hash_that_counted_before() {
    let mut pins = Pins::default();
    show(&mut pins, &["a", "b"]);
    let accepted = pins.accept((PinKind::Tool, "t"), None, 9).unwrap().unwrap();
    let undone = pins
        .accept((PinKind::Tool, "t"), Some(&accepted.old), 10)
        .unwrap()
        .unwrap();
    assert_eq!(undone.new, accepted.old);
    let pin = pins.get(PinKind::Tool, "t").unwrap();
    assert_eq!(pin.state.as_str(), "changed");
    assert_eq!(pin.now().hash, accepted.new);
}

#[test]
fn a_tool_that_goes_and_comes_back_is_known() {
    let mut pins = Pins::default();
    show(&mut pins, &["a"]);
    pins.see(&[sight("u", "x")], 1);
    assert_eq!(show(&mut pins, &["b"]), ["changed"]);
}

#[test]
fn what_is_odd_waits_for_a_person_and_is_then_left_alone() {
    let mut pins = Pins::default();
    let states = |news: Vec<News>| news.into_iter().map(|n| n.state).collect::<Vec<_>>();
    assert_eq!(states(pins.see(&[odd("t", "a")], 0)), ["quarantined"]);
    assert!(pins.see(&[odd("t", "a")], 1).is_empty());
    assert!(pins.see(&[sight("t", "a")], 1).is_empty(), "sticky");
    assert_eq!(
        pins.get(PinKind::Tool, "t").unwrap().state.as_str(),
        "quarantined"
    );
    assert!(
        pins.accept((PinKind::Tool, "t"), None, 2)
            .unwrap()
            .is_some()
    );
    assert!(pins.see(&[odd("t", "a")], 3).is_empty(), "a person knows");
    assert_eq!(states(pins.see(&[odd("t", "b")], 4)), ["changed"]);
    // Found odd later only: another server came that is called as this one speaks.
    pins.see(&[sight("u", "a")], 5);
    assert!(pins.see(&[odd("u", "a")], 6).is_empty());
    assert_eq!(pins.get(PinKind::Tool, "u").unwrap().state, State::Approved);
}

#[test]
fn tools_and_texts_are_bounded_and_nothing_is_pushed_out() {
    let mut pins = Pins::default();
    pins.see(&[sight("t", "a")], 0);
    let flood: Vec<_> = (0..TOOLS_MAX + 10)
        .map(|nth| sight(&format!("f{nth}"), "x"))
        .collect();
    pins.see(&flood, 1);
    assert_eq!(pins.iter(PinKind::Tool).count(), TOOLS_MAX);
    assert_eq!(show(&mut pins, &["b"]), ["changed"]);
    assert!(
        pins.get(PinKind::Tool, &format!("f{}", TOOLS_MAX + 5))
            .is_none()
    );
    pins.make_room(|_, tool| tool == "t");
    assert_eq!(pins.iter(PinKind::Tool).count(), 1);

    pins.see(&[sight(&"n".repeat(NAME_BYTES_MAX + 1), "x")], 2);
    assert_eq!(pins.iter(PinKind::Tool).count(), 1);

    let long = "y".repeat(DEFINITION_BYTES_MAX + 1);
    pins.see(&[sight("long", &long)], 2);
    let pin = pins.get(PinKind::Tool, "long").unwrap();
    assert_eq!(pin.approved.definition, None);
    let full = "z".repeat(DEFINITION_BYTES_MAX);
    let many: Vec<_> = (0..40)
        .map(|nth| sight(&format!("z{nth}"), &full))
        .collect();
    pins.see(&many, 3);
    assert!(pins.room(is_tool) < DEFINITION_BYTES_MAX);
    let with_text = pins.count(|_| true);
    assert_eq!(with_text, 42, "each is pinned, with its text or without");
}
