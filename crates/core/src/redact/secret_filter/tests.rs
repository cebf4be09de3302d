//! Redaction in JSON text, whole and chunked.

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
