//! Scripts of server lists, and the pin states after each step.

use super::*;
use crate::lint::LintCode;

fn listed(tool: &str, text: &str) -> ListedDefinition {
    let mut hash = [0; 32];
    for (at, byte) in text.bytes().enumerate().take(32) {
        hash[at] = byte;
    }
    ListedDefinition {
        kind: PinKind::Tool,
        name: tool.into(),
        hash,
        definition: Bytes::copy_from_slice(text.as_bytes()),
        findings: Vec::new(),
    }
}

fn suspicious(tool: &str, text: &str) -> ListedDefinition {
    ListedDefinition {
        findings: vec![LintFinding {
            code: LintCode::Injection,
            location: "description".into(),
            detail: "x".into(),
        }],
        ..listed(tool, text)
    }
}

/// Observes one tool with these texts in sequence, and returns the reported states.
fn observe_texts(pins: &mut ServerPins, texts: &[&str]) -> Vec<&'static str> {
    let mut told = Vec::new();
    for (now, text) in texts.iter().enumerate() {
        let news = pins.observe_list(&[listed("t", text)], now as u64);
        told.extend(news.into_iter().map(|news| news.state));
    }
    told
}

#[test]
fn hw15_change_persists_until_accepted_even_when_reverted() {
    let mut pins = ServerPins::default();
    assert_eq!(observe_texts(&mut pins, &["a", "a"]), Vec::<&str>::new());
    assert_eq!(observe_texts(&mut pins, &["b"]), ["changed"]);
    assert_eq!(
        observe_texts(&mut pins, &["b"]),
        Vec::<&str>::new(),
        "told once"
    );
    assert_eq!(observe_texts(&mut pins, &["a"]), ["changed"]);
    let pin = pins.get(PinKind::Tool, "t").unwrap();
    let PinState::Changed { seen, reverted, .. } = &pin.state else {
        panic!("{pin:?}");
    };
    assert_eq!(
        seen.definition.as_deref(),
        Some(&b"b"[..]),
        "what it was meanwhile"
    );
    assert!(reverted);
    assert_eq!(pin.current().hash, pin.approved.hash);
    assert_eq!(
        observe_texts(&mut pins, &["c"]),
        ["changed"],
        "and again something else"
    );
    let accepted = pins
        .accept_definition(PinKind::Tool, "t", None, 9)
        .unwrap()
        .unwrap();
    assert_eq!(accepted.new_hash, listed("t", "c").hash);
    assert_eq!(accepted.old_hash, listed("t", "a").hash);
    assert_eq!(
        pins.get(PinKind::Tool, "t").unwrap().state,
        PinState::Approved
    );
    assert_eq!(observe_texts(&mut pins, &["c"]), Vec::<&str>::new());
    assert_eq!(observe_texts(&mut pins, &["a"]), ["changed"]);
}

#[test]
fn accepting_reverted_change_keeps_approved_definition() {
    let mut pins = ServerPins::default();
    observe_texts(&mut pins, &["a", "b", "a"]);
    let accepted = pins
        .accept_definition(PinKind::Tool, "t", None, 9)
        .unwrap()
        .unwrap();
    assert_eq!(accepted.old_hash, accepted.new_hash);
    assert_eq!(
        pins.get(PinKind::Tool, "t").unwrap().state,
        PinState::Approved
    );
}

#[test]
fn stale_hash_is_not_accepted() {
    let mut pins = ServerPins::default();
    observe_texts(&mut pins, &["a", "b"]);
    let looked_at = pins.get(PinKind::Tool, "t").unwrap().current().hash;
    observe_texts(&mut pins, &["c"]);
    let current_hash = listed("t", "c").hash;
    let refused = pins.accept_definition(PinKind::Tool, "t", Some(&looked_at), 9);
    assert_eq!(refused, Err(PinAcceptError::Changed { current_hash }));
    assert!(
        pins.accept_definition(PinKind::Tool, "t", Some(&current_hash), 9)
            .unwrap()
            .is_some()
    );
    assert_eq!(
        pins.accept_definition(PinKind::Tool, "x", None, 9),
        Err(PinAcceptError::Unknown)
    );
    assert_eq!(
        pins.accept_definition(PinKind::Tool, "t", None, 9),
        Ok(None),
        "nothing left to accept"
    );
}

#[test]
fn approval_is_undone_by_previous_hash() {
    let mut pins = ServerPins::default();
    observe_texts(&mut pins, &["a", "b"]);
    let accepted = pins
        .accept_definition(PinKind::Tool, "t", None, 9)
        .unwrap()
        .unwrap();
    let undone = pins
        .accept_definition(PinKind::Tool, "t", Some(&accepted.old_hash), 10)
        .unwrap()
        .unwrap();
    assert_eq!(undone.new_hash, accepted.old_hash);
    let pin = pins.get(PinKind::Tool, "t").unwrap();
    assert_eq!(pin.state.as_str(), "changed");
    assert_eq!(pin.current().hash, accepted.new_hash);
}

#[test]
fn returning_tool_keeps_its_pin() {
    let mut pins = ServerPins::default();
    observe_texts(&mut pins, &["a"]);
    pins.observe_list(&[listed("u", "x")], 1);
    assert_eq!(observe_texts(&mut pins, &["b"]), ["changed"]);
}

#[test]
fn suspicious_definition_is_quarantined_until_accepted() {
    let mut pins = ServerPins::default();
    let states = |news: Vec<PinChange>| news.into_iter().map(|n| n.state).collect::<Vec<_>>();
    assert_eq!(
        states(pins.observe_list(&[suspicious("t", "a")], 0)),
        ["quarantined"]
    );
    assert!(pins.observe_list(&[suspicious("t", "a")], 1).is_empty());
    assert!(
        pins.observe_list(&[listed("t", "a")], 1).is_empty(),
        "sticky"
    );
    assert_eq!(
        pins.get(PinKind::Tool, "t").unwrap().state.as_str(),
        "quarantined"
    );
    assert!(
        pins.accept_definition(PinKind::Tool, "t", None, 2)
            .unwrap()
            .is_some()
    );
    assert!(
        pins.observe_list(&[suspicious("t", "a")], 3).is_empty(),
        "a person knows"
    );
    assert_eq!(
        states(pins.observe_list(&[suspicious("t", "b")], 4)),
        ["changed"]
    );
    // Findings that appear later, after a new server, do not change an approved pin.
    pins.observe_list(&[listed("u", "a")], 5);
    assert!(pins.observe_list(&[suspicious("u", "a")], 6).is_empty());
    assert_eq!(
        pins.get(PinKind::Tool, "u").unwrap().state,
        PinState::Approved
    );
}

#[test]
fn pins_are_bounded_and_never_displaced() {
    let mut pins = ServerPins::default();
    pins.observe_list(&[listed("t", "a")], 0);
    let flood: Vec<_> = (0..TOOLS_MAX + 10)
        .map(|nth| listed(&format!("f{nth}"), "x"))
        .collect();
    pins.observe_list(&flood, 1);
    assert_eq!(pins.iter(PinKind::Tool).count(), TOOLS_MAX);
    assert_eq!(observe_texts(&mut pins, &["b"]), ["changed"]);
    assert!(
        pins.get(PinKind::Tool, &format!("f{}", TOOLS_MAX + 5))
            .is_none()
    );
    pins.evict_unlisted(|_, tool| tool == "t");
    assert_eq!(pins.iter(PinKind::Tool).count(), 1);

    pins.observe_list(&[listed(&"n".repeat(NAME_BYTES_MAX + 1), "x")], 2);
    assert_eq!(pins.iter(PinKind::Tool).count(), 1);

    let long = "y".repeat(DEFINITION_BYTES_MAX + 1);
    pins.observe_list(&[listed("long", &long)], 2);
    let pin = pins.get(PinKind::Tool, "long").unwrap();
    assert_eq!(pin.approved.definition, None);
    let full = "z".repeat(DEFINITION_BYTES_MAX);
    let many: Vec<_> = (0..40)
        .map(|nth| listed(&format!("z{nth}"), &full))
        .collect();
    pins.observe_list(&many, 3);
    assert!(pins.free_definition_bytes(is_tool_kind) < DEFINITION_BYTES_MAX);
    let with_text = pins.count_states(|_| true);
    assert_eq!(with_text, 42, "each is pinned, with its text or without");
}
