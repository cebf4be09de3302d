//! The keys of the broker and of peer rights.

use bowline_core::policy::FeaturePattern;

use super::*;

#[test]
fn broker_keys_parse_from_both_syntaxes() {
    let text = r#"
[broker]
mailboxes = 4
peers = 10
deliver_rate = 5
deliver_burst = 6
requests = 7
attempts = 3
ttl = "2h"
aliases = ["desk", "other"]
[roles.r]
[principals.builder]
role = "r"
to = ["other", "*"]
kinds = ["mcp_request", "note"]
offers = ["build-*"]
[principals.other]
to = ["builder"]
"#;
    let same = r#"{"x-bowline": {
      "broker": {"mailboxes": 4, "peers": 10, "deliver_rate": 5, "deliver_burst": 6, "requests": 7,
        "attempts": 3, "ttl": "2h", "aliases": ["desk", "other"]},
      "roles": {"r": {}},
      "principals": {"builder": {"role": "r", "to": ["other", "*"],
        "kinds": ["mcp_request", "note"], "offers": ["build-*"]}, "other": {"to": ["builder"]}}
    }, "mcpServers": {}}"#;
    let config = parse_toml(text, &EnvVars::default()).unwrap();
    let broker = BrokerConfig {
        mailboxes: 4,
        peers: 10,
        deliver_rate: 5,
        deliver_burst: 6,
        requests: 7,
        attempts: 3,
        ttl: Duration::from_secs(7_200),
        // `other` is a separate peer.
        aliases: vec!["desk".into()],
    };
    let builder = PeerConfig {
        to: vec!["other".into(), "*".into()],
        kinds: vec!["mcp_request".into(), "note".into()],
        offers: vec![FeaturePattern::parse("build-*").unwrap()],
    };
    let other = PeerConfig {
        to: vec!["builder".into()],
        ..PeerConfig::default()
    };
    assert_eq!(config.broker, broker);
    let peers = [("builder".into(), builder), ("other".into(), other)].into();
    assert_eq!(config.policy.peers, peers);
    assert_eq!(config.policy.principals.len(), 1);
    let same = parse_json(same).unwrap();
    assert_eq!((same.broker, same.policy), (config.broker, config.policy));
    let nothing = parse_toml("", &EnvVars::default()).unwrap();
    assert_eq!(nothing.broker, BrokerConfig::default());
}

#[test]
fn invalid_peer_right_is_refused_with_line() {
    for (text, expected) in [
        ("[broker]\npeer = 1\n", "did you mean `peers`?"),
        ("[broker]\npeers = 0\n", "a whole number from 1 to 65536"),
        ("[broker]\nttl = \"721h\"\n", "`ttl` must be 30 days"),
        ("[broker]\nttl = 5\n", "`ttl` must be a duration"),
        ("[principals.a]\nto = [\"B\"]\n", "`B` names no principal"),
        ("[principals.a]\nto = \"b\"\n", "`to` must be a list"),
        ("[principals.a]\nkind = []\n", "did you mean `kinds`?"),
        (
            "[principals.a]\nkinds = [\"a b\"]\n",
            "`a b` is no kind of message",
        ),
        (
            "[principals.a]\noffers = [\"files.read\"]\n",
            "`files.read` names no server",
        ),
    ] {
        let report = parse_toml(text, &EnvVars::default()).unwrap_err();
        assert!(report.contains(expected), "{text}\n{report}");
        assert!(report.contains("bowline.toml:2:"), "{report}");
    }
}
