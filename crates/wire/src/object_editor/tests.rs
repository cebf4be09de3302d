//! Edits of objects, compared byte for byte and with `serde_json` as the oracle.

use serde_json::{Value, json};

use super::*;

fn whole_edit(text: &str, edit: impl FnOnce(&mut ObjectEditor<'_>, ByteSpan)) -> String {
    let mut editor = ObjectEditor::new(text.as_bytes());
    let whole = editor.whole();
    edit(&mut editor, whole);
    String::from_utf8(editor.finish()).unwrap()
}

fn x_member() -> MemberList {
    MemberList::from_member("x", b"1")
}

#[test]
fn removal_and_insertion_keep_other_bytes() {
    for (text, gone, first, last) in [
        ("{}", &[][..], "{\"x\":1}", "{\"x\":1}"),
        ("{ }", &[], "{\"x\":1 }", "{ \"x\":1}"),
        (
            " { \"a\" : 1 } ",
            &[],
            " {\"x\":1, \"a\" : 1 } ",
            " { \"a\" : 1 ,\"x\":1} ",
        ),
        ("{\"a\":1}", &["a"], "{\"x\":1}", "{\"x\":1}"),
        (
            "{\"a\":1,\"b\":2}",
            &["a"],
            "{\"x\":1,\"b\":2}",
            "{\"b\":2,\"x\":1}",
        ),
        (
            "{\"a\":1,\"b\":2}",
            &["b"],
            "{\"x\":1,\"a\":1}",
            "{\"a\":1,\"x\":1}",
        ),
        (
            "{\"a\":1 , \"b\":2 , \"c\":3}",
            &["b"],
            "{\"x\":1,\"a\":1 , \"c\":3}",
            "{\"a\":1 , \"c\":3,\"x\":1}",
        ),
        (
            "{\"a\":1,\"b\":2,\"c\":3}",
            &["a", "c"],
            "{\"x\":1,\"b\":2}",
            "{\"b\":2,\"x\":1}",
        ),
        ("{\"a\":1,\"a\":2 }", &["a"], "{\"x\":1 }", "{ \"x\":1}"),
        (
            "{\"\\u0061\":1,\"b\":{\"a\":2}}",
            &["a"],
            "{\"x\":1,\"b\":{\"a\":2}}",
            "{\"b\":{\"a\":2},\"x\":1}",
        ),
        ("[1]", &["a"], "[1]", "[1]"),
        ("null", &["a"], "null", "null"),
        ("", &[], "", ""),
    ] {
        let keeps = |key: &[u8], _| !gone.iter().any(|gone| gone.as_bytes() == key);
        let got = whole_edit(text, |editor, at| {
            editor.retain(at, keeps);
            editor.insert_first(at, x_member());
        });
        assert_eq!(got, first, "{text}");
        let got = whole_edit(text, |editor, at| {
            editor.retain(at, keeps);
            editor.insert_last(at, x_member());
        });
        assert_eq!(got, last, "{text}");
    }
}

#[test]
fn repeated_insertions_are_separated() {
    for text in ["{}", "{ }", "{\"a\":0}", "{\"a\":0 }"] {
        let got = whole_edit(text, |editor, at| {
            editor.retain(at, |key, _| key != b"gone");
            editor.insert_last(at, MemberList::from_member("l", b"1"));
            editor.insert_first(at, MemberList::from_member("f", b"2"));
            editor.insert_last(at, MemberList::from_member("m", b"3"));
            editor.insert_first(at, MemberList::default());
        });
        let got: Value = serde_json::from_str(&got).unwrap();
        let mut want = json!({"l": 1, "f": 2, "m": 3});
        if text.contains('a') {
            want["a"] = json!(0);
        }
        assert_eq!(got, want, "{text}");
    }
}

#[test]
fn set_replaces_or_creates_path() {
    for (text, first, last) in [
        (
            r#"{"b":1}"#,
            r#"{"m":{"k":7},"b":1}"#,
            r#"{"b":1,"m":{"k":7}}"#,
        ),
        (
            r#"{"m":{"a":1}}"#,
            r#"{"m":{"k":7,"a":1}}"#,
            r#"{"m":{"a":1,"k":7}}"#,
        ),
        (
            r#"{ "m" : { "k" : 1e400 } }"#,
            r#"{ "m" : { "k" : 7 } }"#,
            r#"{ "m" : { "k" : 7 } }"#,
        ),
        (
            r#"{"m":null,"b":1}"#,
            r#"{"m":{"k":7},"b":1}"#,
            r#"{"m":{"k":7},"b":1}"#,
        ),
        ("[]", "[]", "[]"),
    ] {
        let got = whole_edit(text, |editor, at| {
            let is_object = editor.set_first(at, &["m", "k"], &b"7"[..]);
            assert_eq!(is_object, text != "[]");
        });
        assert_eq!(got, first, "{text}");
        let got = whole_edit(text, |editor, at| {
            editor.set_last(at, &["m", "k"], &b"7"[..]);
        });
        assert_eq!(got, last, "{text}");
    }
}

#[test]
fn range_moves_and_grows_with_edits() {
    let text = br#"{"a":1,"b":"old","c":{"k":2}}"#;
    let mut editor = ObjectEditor::new(text);
    let old = object::field(text, "b").unwrap();
    let range = old.start..old.end;
    assert!(editor.is_unchanged());
    assert_eq!(editor.moved_range(&range), range);
    editor.set_first(editor.whole(), &["c", "k"], &b"12345"[..]);
    editor.retain(editor.whole(), |key, _| key != b"a");
    editor.insert_first(editor.whole(), x_member());
    let moved = editor.moved_range(&range);
    let edited = editor.finish();
    assert_eq!(edited, br#"{"x":1,"b":"old","c":{"k":12345}}"#);
    assert_eq!(&edited[moved], b"\"old\"");

    let inner = object::field(text, "c").unwrap();
    let mut editor = ObjectEditor::new(text);
    editor.insert_last(inner, x_member());
    editor.insert_last(editor.whole(), x_member());
    let moved = editor.moved_range(&inner.to_range());
    assert_eq!(&editor.finish()[moved], br#"{"k":2,"x":1}"#);
    let unchanged = ObjectEditor::new(text).finish_cow();
    assert!(matches!(unchanged, Cow::Borrowed(same) if same == text));
}

#[test]
fn random_edits_match_map_edits() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(0..6);
        let space = |random: &mut fastrand::Rng| ["", " ", "\n\t"][random.usize(0..3)];
        let mut text = String::from("{");
        for index in 0..count {
            let value = ["1", "\",{\"", "{\"a\":[1,2]}", "[]"][random.usize(0..4)];
            let (a, b) = (space(&mut random), space(&mut random));
            let comma = if index > 0 { "," } else { "" };
            text.push_str(&format!("{a}{comma}{b}\"k{index}\"{b}:{a}{value}{a}"));
        }
        text.push('}');
        let gone: Vec<_> = (0..count)
            .filter(|_| random.bool())
            .map(|index| format!("k{index}"))
            .collect();
        let (first, last) = (random.bool(), random.bool());
        let mut want: Value = serde_json::from_str(&text).unwrap();
        let object = want.as_object_mut().unwrap();
        object.retain(|key, _| !gone.contains(key));
        let got = whole_edit(&text, |editor, at| {
            editor.retain(at, |key, _| !gone.iter().any(|gone| gone.as_bytes() == key));
            if first {
                object.insert("first".into(), Value::Bool(true));
                editor.insert_first(at, MemberList::from_member("first", b"true"));
            }
            if last {
                object.insert("last".into(), Value::Bool(true));
                editor.set_last(at, &["last"], &b"true"[..]);
            }
        });
        let got: Value = serde_json::from_str(&got).unwrap();
        assert_eq!(got, want, "seed {seed}: {text}");
    }
}
