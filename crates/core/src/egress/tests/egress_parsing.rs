//! Texts of hosts and rules: one form for each, and no ambiguous host.

use super::*;

#[test]
fn ambiguous_hosts_are_not_parsed() {
    for odd in [
        "2130706433",
        "0x7f.1",
        "127.1",
        "127.0.1",
        "0177.0.0.1",
        "017700000001",
        "0x7f000001",
        "0X7F000001",
        "127.0.0.1.2",
        "1.2.3",
        "10.0.0.010",
        "256.1.1.1",
        "a.1",
        "a.0x1f",
        "127.0.0.0x1",
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "-a",
        "a-",
        "a b",
        "a%2eb",
        "ex\u{e4}mple.com",
        "\u{ff11}27.0.0.1",
        "127.0.0.1%00.example",
        "[::1",
        "::1]",
        "[::1%eth0]",
        "fe80::1%1",
        "[127.0.0.1]",
        "[]",
        "a:80",
        "user@host",
        "a/b",
        "a\\b",
        "a\0b",
        "0x",
        "0.0.0.0.",
        "x.example..",
    ] {
        let read = EgressHost::parse(odd);
        let plain =
            matches!(read, Some(EgressHost::Address(address)) if is_special_address(address));
        assert!(read.is_none() || plain, "{odd:?} is {read:?}");
    }
    let long = ["a".repeat(63).as_str(); 4].join(".");
    assert_eq!(EgressHost::parse(&long), None);
    assert_eq!(EgressHost::parse(&"a".repeat(64)), None);
}

#[test]
fn hosts_parse_to_one_form() {
    for (text, want) in [
        ("localhost", EgressHost::Local),
        ("localhost.", EgressHost::Local),
        ("LOCALHOST", EgressHost::Local),
        ("127.0.0.1", EgressHost::Address(ip("127.0.0.1"))),
        ("127.0.0.1.", EgressHost::Address(ip("127.0.0.1"))),
        ("[::1]", EgressHost::Address(ip("::1"))),
        ("[0:0:0:0:0:0:0:1]", EgressHost::Address(ip("::1"))),
        ("[::ffff:7f00:1]", EgressHost::Address(ip("127.0.0.1"))),
        ("[::ffff:127.0.0.1]", EgressHost::Address(ip("127.0.0.1"))),
        ("::ffff:7f00:1", EgressHost::Address(ip("127.0.0.1"))),
        (
            "Tracker.Example.",
            EgressHost::Name("tracker.example".into()),
        ),
        ("my_db-1", EgressHost::Name("my_db-1".into())),
        ("1.example", EgressHost::Name("1.example".into())),
        (
            "xn--bcher-kva.example",
            EgressHost::Name("xn--bcher-kva.example".into()),
        ),
        (
            "localhost.example",
            EgressHost::Name("localhost.example".into()),
        ),
        ("a.localhost", EgressHost::Name("a.localhost".into())),
    ] {
        assert_eq!(EgressHost::parse(text), Some(want), "{text}");
    }
}

#[test]
fn random_text_never_parses_to_ambiguous_host() {
    let mut random = fastrand::Rng::with_seed(3);
    let pieces = [
        "127", "0", "1", "x", "7f", ".", ":", "[", "]", "::", "ffff", "a", "-", "%", "0x", "@",
    ];
    for _ in 0..50_000 {
        let count = random.usize(1..9);
        let any = || *random.choice(&pieces).unwrap();
        let text: String = std::iter::repeat_with(any).take(count).collect();
        let Some(host) = EgressHost::parse(&text) else {
            continue;
        };
        // The display text parses to the same host.
        assert_eq!(
            EgressHost::parse(&host.to_string()),
            Some(host.clone()),
            "{text:?}"
        );
        if let EgressHost::Name(name) = &host {
            let last = name.rsplit('.').next().unwrap();
            let number = match last.strip_prefix("0x") {
                Some(hex) => hex.is_empty() || u128::from_str_radix(hex, 16).is_ok(),
                None => last.parse::<u128>().is_ok(),
            };
            assert!(!number, "{text:?}");
            assert!(name.parse::<IpAddr>().is_err(), "{text:?}");
        }
    }
}

#[test]
fn rules_display_in_canonical_form() {
    for (text, want) in [
        ("tracker.example:443", "tracker.example:443"),
        (" Tracker.Example.:443 ", "tracker.example:443"),
        ("*.Tracker.example:*", "*.tracker.example:*"),
        ("db:5432", "db:5432"),
        ("10.1.2.3:5432", "10.1.2.3:5432"),
        ("10.1.2.3/32:5432", "10.1.2.3:5432"),
        ("10.0.0.0/8:*", "10.0.0.0/8:*"),
        ("0.0.0.0/0:443", "0.0.0.0/0:443"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("[FD00:0::/8]:80", "[fd00::/8]:80"),
        ("[fd00::]/8:80", "[fd00::/8]:80"),
        ("fd00::/8:80", "[fd00::/8]:80"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ("localhost.:8080", "localhost:8080"),
    ] {
        let rule = EgressRule::parse(text).unwrap();
        assert_eq!(rule.to_string(), want, "{text}");
        assert_eq!(want.parse::<EgressRule>(), Ok(rule), "{text}");
    }
}

#[test]
fn invalid_rules_name_their_error() {
    for (text, want) in [
        ("tracker.example", EgressRuleError::Port),
        ("", EgressRuleError::Port),
        ("tracker.example:", EgressRuleError::Port),
        ("tracker.example:0", EgressRuleError::Port),
        ("tracker.example:65536", EgressRuleError::Port),
        ("tracker.example:+80", EgressRuleError::Port),
        ("tracker.example:http", EgressRuleError::Port),
        ("https://tracker.example:443", EgressRuleError::Url),
        ("tracker.example:443/mcp", EgressRuleError::Url),
        ("fd00::1:443", EgressRuleError::Brackets),
        ("::1:80", EgressRuleError::Brackets),
        ("10.1.2.3/8:80", EgressRuleError::Range),
        ("10.0.0.0/33:80", EgressRuleError::Range),
        ("10.0.0.0/+8:80", EgressRuleError::Range),
        ("10.0.0.0/:80", EgressRuleError::Range),
        ("10/8:80", EgressRuleError::Range),
        ("[fd00::1/8]:80", EgressRuleError::Range),
        ("[::ffff:0:0/95]:80", EgressRuleError::Range),
        ("[fe80::1%eth0]:80", EgressRuleError::Range),
        ("[10.0.0.1]:80", EgressRuleError::Host),
        ("[fd00::1:80", EgressRuleError::Host),
        ("*:443", EgressRuleError::Host),
        ("*.:443", EgressRuleError::Host),
        ("a.*.example:443", EgressRuleError::Host),
        ("*.localhost:443", EgressRuleError::Host),
        ("127.1:80", EgressRuleError::Host),
        ("2130706433:80", EgressRuleError::Host),
        ("0x7f.1:80", EgressRuleError::Host),
        (":80", EgressRuleError::Host),
        ("a b:80", EgressRuleError::Host),
    ] {
        assert_eq!(EgressRule::parse(text), Err(want), "{text:?}");
    }
    let many = std::iter::repeat_n("a.example:1", RULES_MAX + 1);
    assert_eq!(EgressAllowlist::parse(many), Err(EgressRuleError::TooMany));
}
