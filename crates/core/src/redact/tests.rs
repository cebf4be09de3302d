//! Redaction in JSON text, whole and chunked, and in texts for people.

use super::*;

const SECRET: &str = "S3CRET/canary+9f8e7d";

fn filter() -> SecretFilter {
    SecretFilter::new([("secret db", SECRET), ("pin", "1234567890"), ("tiny", "a")]).unwrap()
}

fn redact(text: &str) -> String {
    let cleaned = filter().redact_json(text.as_bytes());
    cleaned.map_or_else(|| text.to_owned(), |text| String::from_utf8(text).unwrap())
}

#[test]
fn every_form_is_replaced_and_json_stays_json() {
    for (text, want) in [
        (r#"{"a":"S3CRET/canary+9f8e7d"}"#, r#"{"a":"‹secret db›"}"#),
        (
            r#"{"a":"S3CRET\/canary+9f8e7d!"}"#,
            r#"{"a":"‹secret db›!"}"#,
        ),
        (
            r#"{"a":"S3CRET%2Fcanary%2B9f8e7d"}"#,
            r#"{"a":"‹secret db›"}"#,
        ),
        (
            r#"{"a":"S3CRET%2fcanary%2b9f8e7d"}"#,
            r#"{"a":"‹secret db›"}"#,
        ),
        (r#"{"n":-1234567890.5}"#, r#"{"n":-9999999999.5}"#),
        (r#"["1234567890"]"#, r#"["9999999999"]"#),
        (r#"{"a":"nothing"}"#, r#"{"a":"nothing"}"#),
    ] {
        assert_eq!(redact(text), want);
    }
    use base64::Engine as _;
    for prefix in ["", "u", "user:"] {
        let whole = base64::engine::general_purpose::STANDARD.encode(format!("{prefix}{SECRET}"));
        let cleaned = redact(&format!(r#"{{"a":"{whole}"}}"#));
        assert!(cleaned.contains("‹secret db›"), "{prefix}: {cleaned}");
        assert!(!cleaned.contains(&whole[4..20]), "{prefix}: {cleaned}");
    }
}

#[test]
fn short_secrets_are_kept() {
    assert!(SecretFilter::new([("tiny", "a"), ("seven", "1234567")]).is_none());
    assert!(SecretFilter::new([]).is_none());
    assert_eq!(redact(r#"["a a a"]"#), r#"["a a a"]"#);
}

#[test]
fn match_inside_escape_is_ignored() {
    let filter = SecretFilter::new([("s", "n0123456x"), ("t", "00e9abcdef")]).unwrap();
    for text in [
        r#"["\n0123456x"]"#,
        r#"["\\\n0123456x"]"#,
        r#"["\u00e9abcdef"]"#,
    ] {
        assert_eq!(filter.redact_json(text.as_bytes()), None, "{text}");
    }
    for (text, want) in [
        (r#"["\\n0123456x"]"#, r#"["\\‹s›"]"#),
        (r#"["\\u00e9abcdef"]"#, r#"["\\u‹t›"]"#),
        (r#"["\u004100e9abcdef"]"#, r#"["\u0041‹t›"]"#),
    ] {
        let cleaned = filter.redact_json(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(cleaned).unwrap(), want);
    }
}

#[test]
fn chunked_redaction_equals_whole() {
    let filter = SecretFilter::new([("s", "n0123456x"), ("l", SECRET)]).unwrap();
    let text = r#"["\n0123456x","\\n0123456x",n0123456x\\\\\\n0123456x S3CRET/canary+9f8e7dS3CRET\/canary+9f8e7d S3CRET/canary+9f8e7"]"#;
    let whole = filter.redact_json(text.as_bytes()).unwrap();
    assert!(!String::from_utf8_lossy(&whole).contains("+9f8e7d"));
    for size in 1..=text.len() {
        let (mut out, mut stream) = (Vec::new(), filter.start_stream());
        for piece in text.as_bytes().chunks(size) {
            stream.push_chunk(piece, &mut out);
            assert!(stream.buffer.len() <= filter.longest_form + size + ESCAPE_BYTES_MAX);
        }
        stream.finish(&mut out);
        assert_eq!(out, whole, "pieces of {size}");
    }
}

#[test]
fn random_texts_agree_with_plain_search() {
    let secrets = ["abcabcabd", "bcabcabdab", "cabdabcabd"];
    let named = secrets.map(|secret| ("s", secret));
    let filter = SecretFilter::new(named).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2_000 {
        let length = random.usize(0..80);
        let text: String = (0..length)
            .map(|_| random.choice(['a', 'b', 'c', 'd']).unwrap())
            .collect();
        let holds = secrets.iter().any(|secret| text.contains(secret));
        let cleaned = filter.redact_json(text.as_bytes());
        assert_eq!(cleaned.is_some(), holds, "{text}");
        let cleaned = String::from_utf8(cleaned.unwrap_or_default()).unwrap();
        assert!(
            !secrets.iter().any(|secret| cleaned.contains(secret)),
            "{text}"
        );
    }
}

#[test]
fn clean_text_passes_block_filter() {
    let secrets: Vec<String> = (0..20u64)
        .map(|n| format!("secret-{n}-{:x}", n * 7_919))
        .collect();
    let filter = SecretFilter::new(secrets.iter().map(|secret| ("s", &**secret))).unwrap();
    // Every line begins like a secret.
    let line = r#"{"type":"text","text":"The quick brown fox: /usr/lib/secret-things 3.14"},"#;
    let text = line.repeat(1 << 10);
    assert_eq!(filter.redact_json(text.as_bytes()), None);
}

#[test]
fn longest_secret_is_replaced_by_label() {
    let redactor = Redactor::new([("A", "secret"), ("B", "secret-two"), ("C", "x")]);
    assert_eq!(
        redactor.redact_text("a secret, secret-two, x"),
        "a ‹A›, ‹B›, x"
    );
    assert!(matches!(redactor.redact_text("nothing"), Cow::Borrowed(_)));
    assert!(matches!(
        Redactor::default().redact_text("secret"),
        Cow::Borrowed(_)
    ));
    assert_eq!(format!("{redactor:?}"), "Redactor(2)");
}
#[test]
fn escaped_secret_is_redacted() {
    let redactor = Redactor::new([("KEY", "line one\n\"two\"")]);
    assert_eq!(redactor.redact_text("a line one\n\"two\" b"), "a ‹KEY› b");
    let logged = format!("{:?}", "a line one\n\"two\" b");
    assert_eq!(redactor.redact_text(&logged), "\"a ‹KEY› b\"");
}

#[test]
fn truncated_secret_is_redacted() {
    let redactor = Redactor::new([("KEY", "hunter2222"), ("LONG", "x-hunter2222")]);
    assert_eq!(redactor.redact_text("it is hunter2…"), "it is ‹KEY›…");
    assert_eq!(redactor.redact_text("it is x-hunter2…"), "it is ‹LONG›…");
    // Too short a prefix is not redacted.
    assert_eq!(redactor.redact_text("it is hunte…"), "it is hunte…");
    assert_eq!(redactor.redact_text("it is hunter2"), "it is hunter2");
    let shared = |text: &str| redactor.redact_shared(&Arc::from(text)).to_string();
    assert_eq!(shared("hunter2222 or hunter2"), "‹KEY› or ‹KEY›…");
    assert_eq!(shared("nothing"), "nothing");
}

#[test]
fn added_secret_is_shared_and_oldest_evicted() {
    let redactor = Redactor::new([("A", "secret-one")]);
    let copy = redactor.clone();
    redactor.add_secret("B", "secret-two");
    redactor.add_secret("B", "tiny");
    redactor.add_secret("C", "secret-one");
    assert_eq!(
        redactor.redact_text("secret-one secret-two tiny"),
        "‹A› ‹B› tiny"
    );
    assert_eq!(copy.redact_text("secret-two"), "secret-two");
    for number in 0..ADDED_SECRETS_MAX {
        redactor.add_secret("D", &format!("rotated-{number:04}"));
    }
    assert_eq!(
        redactor.redact_text("secret-two secret-one"),
        "secret-two ‹A›"
    );
    assert_eq!(redactor.redact_text("rotated-0000 rotated-0255"), "‹D› ‹D›");
    assert_eq!(format!("{redactor:?}"), "Redactor(257)");
    let fresh = Redactor::default();
    fresh.add_secret("E", "another-secret");
    assert_eq!(
        Redactor::from_union([&fresh]).redact_text("another-secret"),
        "‹E›"
    );
}

#[test]
fn union_redacts_all_secrets() {
    let one = Redactor::new([("A", "secret-one")]);
    let two = Redactor::new([("B", "secret-two"), ("C", "secret-one")]);
    let all = Redactor::from_union([&one, &Redactor::default(), &two]);
    assert_eq!(all.redact_text("secret-one secret-two"), "‹A› ‹B›");
    assert_eq!(format!("{:?}", Redactor::from_union([])), "Redactor(0)");
}
